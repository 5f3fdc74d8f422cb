//! The tree that is scanned, and the files that are streamed, made by some threads through system
//! calls, in the same way at each place.

use super::amounts::{DIRECTORY_FILES, LARGE_BYTES, ScanAmounts};
use crate::smallfile::Asked;
use std::fs::{File, create_dir_all, write};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The tree.
pub(super) const TREE: &str = "tree";
/// The files that are streamed.
pub(super) const STREAMED: &str = "streamed";
/// Threads that make it: a create waits for a disk now and then.
const THREADS: u64 = 4;
/// Directories that a thread takes at once: those of one directory above, so that a client has it
/// for itself.
const TAKEN: u64 = 20;
/// What is at the end of a large file.
const BLOCK_BYTES: u64 = 4096;
/// What takes no longer than this says nothing of its progress; what does, after each tenth.
const SILENT: Duration = Duration::from_secs(5);

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Makes tree and files in `base`.
pub(super) fn make(
    base: &Path,
    what: &str,
    amounts: &ScanAmounts,
    asked: Asked<'_>,
) -> Result<(), String> {
    let start = Instant::now();
    eprintln!("{what}: making {} files", amounts.files);
    make_tree(&base.join(TREE), amounts, asked)?;
    eprintln!("{what}: {:.0} s; writing what is read by streams", start.elapsed().as_secs_f64());
    make_streamed(&base.join(STREAMED), amounts, asked)?;
    eprintln!("{what}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn make_tree(tree: &Path, amounts: &ScanAmounts, asked: Asked<'_>) -> Result<(), String> {
    create_dir_all(tree).map_err(|e| failed(tree, &e))?;
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let (all, start) = (amounts.directories(), Instant::now());
    let worker = || {
        loop {
            let first = next.fetch_add(TAKEN, Ordering::Relaxed);
            if first >= all {
                return Ok(());
            }
            for number in first..all.min(first + TAKEN) {
                if asked() {
                    return Err("interrupted".to_owned());
                }
                make_directory(tree, number, amounts.files)?;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if done.is_multiple_of(all.div_ceil(10)) && start.elapsed() > SILENT {
                    eprintln!("  {} of {} files", done * DIRECTORY_FILES, amounts.files);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        // All of them end before the first failure is told.
        let ended: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
        ended.into_iter().try_for_each(|end| end.map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn make_directory(tree: &Path, number: u64, files: u64) -> Result<(), String> {
    let directory = tree.join(ScanAmounts::directory(number));
    create_dir_all(&directory).map_err(|e| failed(&directory, &e))?;
    let first = number * DIRECTORY_FILES;
    for file in first..files.min(first + DIRECTORY_FILES) {
        let path = directory.join(format!("file-{:05}", file - first));
        let bytes = ScanAmounts::bytes_of(file);
        let made = match bytes {
            LARGE_BYTES => {
                let at = LARGE_BYTES - BLOCK_BYTES;
                let block = vec![file as u8; BLOCK_BYTES as usize];
                File::create(&path).and_then(|file| file.write_all_at(&block, at))
            }
            bytes => write(&path, vec![file as u8; bytes as usize]),
        };
        made.map_err(|e| failed(&path, &e))?;
    }
    Ok(())
}

fn make_streamed(directory: &Path, amounts: &ScanAmounts, asked: Asked<'_>) -> Result<(), String> {
    create_dir_all(directory).map_err(|e| failed(directory, &e))?;
    let (files, bytes) = amounts.streamed_files();
    let mut block: Vec<u8> = (0..1 << 20).map(|i: u32| (i * 131) as u8).collect();
    for path in (0..files).map(|number| directory.join(format!("read-{number}"))) {
        let mut file = File::create(&path).map_err(|e| failed(&path, &e))?;
        for offset in (0..bytes).step_by(block.len()) {
            if asked() {
                return Err("interrupted".into());
            }
            block[..8].copy_from_slice(&offset.to_le_bytes());
            file.write_all(&block).map_err(|e| failed(&path, &e))?;
        }
        file.sync_all().map_err(|e| failed(&path, &e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_tree_has_the_files_that_are_expected() {
        let base = tempfile::tempdir().unwrap();
        let amounts = ScanAmounts { files: 1_130, streamed: 4 << 20 };
        make(base.path(), "here", &amounts, &|| false).unwrap();
        let (mut directories, mut files, mut large) = (vec![base.path().join(TREE)], 0, 0);
        let mut listed = 0;
        while let Some(directory) = directories.pop() {
            listed += 1;
            for entry in std::fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let metadata = entry.metadata().unwrap();
                if metadata.is_dir() {
                    directories.push(entry.path());
                    continue;
                }
                files += 1;
                large += u64::from(metadata.len() == LARGE_BYTES);
                assert!(metadata.blocks() * 512 < 64 << 10, "{} is a hole", entry.path().display());
            }
        }
        assert_eq!((files, large), (1_130, amounts.large()));
        assert_eq!(listed, amounts.du_lines());
        let streamed: Vec<_> = std::fs::read_dir(base.path().join(STREAMED)).unwrap().collect();
        assert_eq!(streamed.len(), 2);
        let stopped = make(base.path(), "here", &amounts, &|| true);
        assert_eq!(stopped, Err("interrupted".into()));
    }
}
