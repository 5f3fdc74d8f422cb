//! One mount as programs and administrators see it: POSIX, commands, conventions, real trees.

mod adapter;
mod commands;
mod conventions;
mod handles;
mod memory;
mod pages;
mod posix;
mod scans;
mod set_id;
mod trees;
mod waits;
mod work;
