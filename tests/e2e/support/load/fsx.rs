//! Configuration of fsx, which compares what it reads of a file with what it wrote, again and again.

use std::fs;
use std::path::{Path, PathBuf};

/// Operations with data, mmap and holes.
const WEIGHTS: &str = r#"
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 3
fsync = 0.1
fdatasync = 0.1
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
"#;

/// Writes a configuration for files of at most so many bytes into a directory. Returns its path.
pub fn config(directory: &Path, bytes_max: u64) -> PathBuf {
    let path = directory.join("fsx.toml");
    fs::write(&path, format!("flen = {bytes_max}\n{WEIGHTS}")).unwrap();
    path
}
