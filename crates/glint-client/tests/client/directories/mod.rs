//! Names of directories that are listed from memory, and attributes of those whose names change.

mod changed_directories;
mod listings;
