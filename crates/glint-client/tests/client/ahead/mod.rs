//! What comes before a program asks for it: directories, small files, and what is around a read.

mod beside_lock;
mod pages;
mod prefetch;
mod read_around;
mod regions;
mod walks;
