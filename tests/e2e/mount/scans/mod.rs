//! Trees that are looked at on the servers themselves, without a mount: `glint find`, `glint du`.

mod du;
mod find;
