//! Names of smallfile (Ben England): a tree for each thread, twice, because rename moves the files
//! from one of the two to the other.
//!
//! A directory has at most so many files and so many subdirectories; its number, written with a
//! digit for each level, is its path. So a directory comes after the one it lies in.

use std::path::{Path, PathBuf};

/// Which of the two trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// Where files are made.
    Source,
    /// Where they are renamed to.
    Destination,
}

/// The trees of all threads.
pub(crate) struct FileTree {
    top: PathBuf,
    host: String,
    /// Files of each thread; the first one is number 1.
    pub files: u64,
    /// Most files of a directory.
    pub files_per_dir: u64,
    /// Most subdirectories of a directory.
    pub dirs_per_dir: u64,
}

impl FileTree {
    /// Trees below `top`, of nothing yet.
    pub(crate) fn new(top: PathBuf, files: u64) -> FileTree {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        FileTree { top, host, files, files_per_dir: 100, dirs_per_dir: 10 }
    }

    /// The directory that all is in.
    pub(crate) fn top(&self) -> &Path {
        &self.top
    }

    /// The directory of a thread.
    pub(crate) fn of_thread(&self, half: Half, thread: u64) -> PathBuf {
        let half = match half {
            Half::Source => "file_srcdir",
            Half::Destination => "file_dstdir",
        };
        self.top.join(half).join(&self.host).join(format!("thrd_{thread:02}"))
    }

    /// A directory with files, by its number.
    fn directory(&self, half: Half, thread: u64, number: u64) -> PathBuf {
        let mut digits = vec![number % self.dirs_per_dir];
        let mut rest = number / self.dirs_per_dir;
        while rest > 0 {
            digits.push(rest % self.dirs_per_dir);
            rest /= self.dirs_per_dir;
        }
        let mut path = self.of_thread(half, thread);
        path.extend(digits.iter().rev().map(|digit| format!("d_{digit:03}")));
        path
    }

    /// Directories with files of a thread, in both halves, in an order in which they can be made.
    pub(crate) fn directories(&self, thread: u64) -> Vec<PathBuf> {
        let numbers = 0..=self.files / self.files_per_dir;
        let of = |half| numbers.clone().map(move |n| self.directory(half, thread, n));
        of(Half::Source).chain(of(Half::Destination)).collect()
    }

    /// A file.
    pub(crate) fn file(&self, half: Half, thread: u64, number: u64) -> PathBuf {
        let directory = self.directory(half, thread, number / self.files_per_dir);
        directory.join(format!("{}_{thread:02}_{number}", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: u64, files_per_dir: u64, dirs_per_dir: u64) -> FileTree {
        let mut tree = FileTree::new("/top".into(), files);
        (tree.files_per_dir, tree.dirs_per_dir) = (files_per_dir, dirs_per_dir);
        tree.host = "host".into();
        tree
    }

    /// The numbers are those of smallfile's own tests.
    #[test]
    fn a_number_of_a_directory_is_its_path() {
        for (files_per_dir, dirs_per_dir, directory, path) in
            [(20, 3, 29, "d_001/d_000/d_000/d_002"), (20, 7, 320, "d_006/d_003/d_005")]
        {
            let tree = tree(10_000, files_per_dir, dirs_per_dir);
            let file = tree.file(Half::Source, 1, directory * files_per_dir);
            let expected = format!(
                "/top/file_srcdir/host/thrd_01/{path}/host_01_{}",
                directory * files_per_dir
            );
            assert_eq!(file, Path::new(&expected));
        }
        let last = tree(10_000, 100, 10).file(Half::Destination, 0, 10_000);
        let expected = "/top/file_dstdir/host/thrd_00/d_001/d_000/d_000/host_00_10000";
        assert_eq!(last, Path::new(expected));
    }

    #[test]
    fn directories_come_after_those_they_lie_in_and_hold_all_files() {
        let tree = tree(1_234, 10, 3);
        let directories = tree.directories(0);
        let halves = [Half::Source, Half::Destination];
        let mut there: Vec<PathBuf> = halves.map(|half| tree.of_thread(half, 0)).into();
        for directory in directories {
            assert!(there.iter().any(|t| Some(t.as_path()) == directory.parent()), "{directory:?}");
            assert!(!there.contains(&directory), "{directory:?} twice");
            there.push(directory);
        }
        for half in halves {
            for number in 1..=tree.files {
                let file = tree.file(half, 0, number);
                assert!(there.iter().any(|t| Some(t.as_path()) == file.parent()), "{file:?}");
            }
        }
        for directory in &there {
            let inside = there.iter().filter(|t| t.parent() == Some(directory)).count();
            assert!(inside <= 3, "{directory:?} has {inside}");
        }
        // As the published runs counted: 101 directories in each half for 10 000 files.
        assert_eq!(self::tree(10_000, 100, 10).directories(0).len(), 202);
    }
}
