//! Trees that are looked at on the servers themselves, without a mount: `glint find`, `glint du`, and
//! their benchmark.

mod actions;
mod bench;
mod du;
mod find;
