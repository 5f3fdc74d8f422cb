//! Files mapped into memory, shared.

use memmap2::{Mmap, MmapMut};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// Maps a file to read and write it. Nobody may truncate it meanwhile.
pub fn map(path: &Path) -> MmapMut {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: the tests that map a file leave its length alone.
    unsafe { MmapMut::map_mut(&file).unwrap() }
}

/// Maps an open file to read it. Nobody may truncate it meanwhile.
pub fn map_to_read(file: &File) -> Mmap {
    // SAFETY: as above.
    unsafe { Mmap::map(file).unwrap() }
}
