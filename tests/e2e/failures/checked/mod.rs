//! What a check of the file system finds: stopped, or while it is served.

mod contents;
mod copies;
mod online;
