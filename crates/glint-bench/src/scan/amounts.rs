//! How much there is: files, directories, what is streamed, and what the disk must have for it.

use std::path::PathBuf;

/// Files of a directory.
pub(super) const DIRECTORY_FILES: u64 = 50;
/// One file of so many is large.
const LARGE_PART: u64 = 20;
/// Bytes of a large file: a hole, with a block at its end. A scan looks at its size only.
pub(super) const LARGE_BYTES: u64 = 16 << 20;
/// Bytes of the other files, in turns.
const SMALL_BYTES: [u64; 4] = [0, 300, 1_500, 4_000];
/// Directories in a directory.
const FAN_OUT: u64 = 20;
/// What scans look for: more than this, in the words of find(1). All large files are.
pub(super) const LARGER: &str = "+1M";
/// Bytes of a file that is streamed, at most.
const STREAMED_BYTES_MAX: u64 = 256 << 20;
/// What a file takes on the local file system and on that of a server, where its entry and its
/// inode are beside an object.
const FILE_BYTES: (u64, u64) = (5 << 10, 8 << 10);
/// What a server has on its disk before it has any file, and what a file system keeps for itself.
const SERVER_BYTES: u64 = 1 << 30;
/// The memory that servers need with few files, and more for each file: with that all metadata
/// fits, and no data beside it. xfs has an inode and a directory entry of each file there, which
/// take about 1.2 KB.
const MEMORY_BYTES: (u64, u64) = (256 << 20, 1536);

/// Amounts of a tree and of what is streamed beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ScanAmounts {
    /// Files of the tree.
    pub files: u64,
    /// Bytes that are streamed before any of them are streamed again, one half read and one half
    /// written.
    pub streamed: u64,
}

/// The limit of memory for so many files, if nobody says another one.
pub(super) fn memory_for(files: u64) -> u64 {
    MEMORY_BYTES.0 + MEMORY_BYTES.1.saturating_mul(files)
}

impl ScanAmounts {
    /// Directories that have files.
    pub(super) fn directories(&self) -> u64 {
        self.files.div_ceil(DIRECTORY_FILES)
    }

    /// Directories above them, without the tree itself.
    fn upper_directories(&self) -> u64 {
        let middle = self.directories().div_ceil(FAN_OUT);
        middle + middle.div_ceil(FAN_OUT)
    }

    /// Large files.
    pub(super) fn large(&self) -> u64 {
        self.files.div_ceil(LARGE_PART)
    }

    /// Lines that `ls -lR` prints: of each directory its name and a sum, an empty line between two,
    /// and each entry.
    pub(super) fn ls_lines(&self) -> u64 {
        let all = self.du_lines();
        2 * all + (all - 1) + (all - 1) + self.files
    }

    /// Lines that du(1) prints: one for each directory.
    pub(super) fn du_lines(&self) -> u64 {
        1 + self.upper_directories() + self.directories()
    }

    /// Bytes of a file, by its number.
    pub(super) fn bytes_of(file: u64) -> u64 {
        match file.is_multiple_of(LARGE_PART) {
            true => LARGE_BYTES,
            false => SMALL_BYTES[(file % SMALL_BYTES.len() as u64) as usize],
        }
    }

    /// Path of a directory with files, by its number.
    pub(super) fn directory(number: u64) -> PathBuf {
        let (top, middle) = (number / FAN_OUT / FAN_OUT, number / FAN_OUT % FAN_OUT);
        format!("{top}/{middle}/{}", number % FAN_OUT).into()
    }

    /// Files that are read, and as many that are written, with the bytes of each.
    pub(super) fn streamed_files(&self) -> (u64, u64) {
        let half = self.streamed / 2;
        let files = half.div_ceil(STREAMED_BYTES_MAX).max(2);
        (files, half.div_ceil(files).next_multiple_of(1 << 20))
    }

    /// Bytes of all streamed files of one side.
    fn streamed_bytes(&self) -> u64 {
        let (files, bytes) = self.streamed_files();
        (2 * files).saturating_mul(bytes)
    }

    /// Bytes that the disk needs for a file system of Glint and the same files beside it.
    pub(super) fn disk_bytes(&self) -> u64 {
        let files = self.files.saturating_mul(FILE_BYTES.0 + FILE_BYTES.1);
        files.saturating_add(self.streamed_bytes().saturating_mul(2)).saturating_add(SERVER_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FEW: ScanAmounts = ScanAmounts { files: 22_030, streamed: 3 << 30 };

    #[test]
    fn lines_are_those_of_all_directories_and_files() {
        let paths = (0..FEW.directories()).map(ScanAmounts::directory);
        let all: BTreeSet<PathBuf> = paths
            .flat_map(|path| path.ancestors().map(PathBuf::from).collect::<Vec<_>>())
            .collect();
        assert_eq!(FEW.directories(), 441);
        assert_eq!(FEW.du_lines(), all.len() as u64);
        // Each directory has a name and a sum, and is an entry unless it is the tree itself.
        let lines = 2 * all.len() + (all.len() - 1) * 2 + 22_030;
        assert_eq!(FEW.ls_lines(), lines as u64);
        let one = ScanAmounts { files: 1, ..FEW };
        assert_eq!((one.directories(), one.du_lines(), one.large()), (1, 4, 1));
    }

    #[test]
    fn one_of_twenty_is_large() {
        let large = (0..FEW.files).filter(|n| ScanAmounts::bytes_of(*n) > 1 << 20).count();
        assert_eq!(large as u64, FEW.large());
    }

    #[test]
    fn streamed_files_have_all_that_is_streamed() {
        for streamed in [0, 1, 64 << 20, 3 << 30, 5 << 30] {
            let (files, bytes) = ScanAmounts { streamed, ..FEW }.streamed_files();
            assert!(files >= 2 && files * bytes >= streamed / 2, "{streamed}");
            assert!(bytes <= STREAMED_BYTES_MAX && bytes.is_multiple_of(1 << 20), "{streamed}");
        }
        assert_eq!(ScanAmounts { files: u64::MAX, ..FEW }.disk_bytes(), u64::MAX);
        assert_eq!(memory_for(1_000_000), 1_804_435_456);
    }
}
