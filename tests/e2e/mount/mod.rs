//! One mount as programs and administrators see it: POSIX, commands, conventions, real trees.

mod adapter;
mod commands;
mod conventions;
mod find;
mod handles;
mod pages;
mod posix;
mod set_id;
mod trees;
mod waits;
mod work;
