//! One tree that two mounts use in turns: each changes what the other one has cached.

use super::commands;
use super::material::{DIRECTORY_FILES, Material, TURNS, failed};
use super::rows::TurnBy;
use crate::smallfile::Asked;
use std::fs::{read, read_dir, rename, write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Turns of whole trees; even: names are then as they were.
const TREE_TURNS: u64 = 2 * 2;
/// One file of so many is written in a turn.
const WRITTEN_PART: u64 = 10;
/// One file of so many is renamed in a turn.
const RENAMED_PART: u64 = 5 * WRITTEN_PART;
/// Which one of them: none that is written, as those have the number of the turn.
const RENAMED: u64 = 25;
/// Words of eight bytes that are written to a file.
const WRITTEN_WORDS: usize = 500;
/// Looks at all that the other mount may have changed.
const WALK: &str = "find turns -size +3k > /dev/null; \
    find turns -type f -print0 | xargs -0 cat > /dev/null";

const _: () = assert!(TREE_TURNS <= RENAMED % WRITTEN_PART);

/// Turns of two mounts.
pub(super) struct TreeTurns<'a> {
    /// The directory with the tree, through each of the mounts.
    bases: [&'a Path; 2],
    /// Files of the tree.
    files: u64,
    /// Whether whole trees are compared, too: that takes time.
    is_compared: bool,
    asked: Asked<'a>,
    /// Tells what is written from what was written before.
    stamp: u64,
}

impl<'a> TreeTurns<'a> {
    /// Turns over a tree of so many files in each of `bases`.
    pub(super) fn new(
        bases: [&'a Path; 2],
        files: u64,
        is_compared: bool,
        asked: Asked<'a>,
    ) -> TreeTurns<'a> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let stamp = since.map_or(0, |since| since.as_micros() as u64);
        TreeTurns { bases, files, is_compared, asked, stamp }
    }

    /// Takes all turns. Returns how many files were read, and the seconds of both mounts.
    pub(super) fn take(&self, by: TurnBy) -> Result<(u64, f64), String> {
        let start = Instant::now();
        let files = match by {
            TurnBy::Tree => self.by_trees()?,
            TurnBy::File => self.by_files()?,
        };
        Ok((files, start.elapsed().as_secs_f64()))
    }

    /// Has one mount write and rename some files, and the other one walk over the tree and read
    /// all.
    fn by_trees(&self) -> Result<u64, String> {
        for turn in 0..TREE_TURNS {
            let [changes, reads] = self.roles(turn);
            let content = self.content(turn);
            for number in self.written(turn) {
                self.write(&path(changes, number), &content)?;
            }
            for number in (RENAMED..self.files).step_by(RENAMED_PART as usize) {
                let name = path(changes, number);
                let other = name.with_extension("moved");
                let (from, to) = if turn.is_multiple_of(2) { (name, other) } else { (other, name) };
                rename(&from, &to).map_err(|e| failed(&from, &e))?;
            }
            commands::script(WALK, reads, &[], self.asked)?;
            for number in self.written(turn).filter(|_| self.is_compared) {
                compare(&path(reads, number), &content)?;
            }
        }
        Ok(self.files * TREE_TURNS)
    }

    /// Has one mount read a directory in its order, each file right after the other one wrote it:
    /// what is fetched ahead is what will be written next. They change places for each directory.
    fn by_files(&self) -> Result<u64, String> {
        let mut files = 0;
        for number in 0..self.files.div_ceil(DIRECTORY_FILES) {
            let directory = Path::new(TURNS).join(Material::directory(number));
            let [changes, reads] = self.roles(number).map(|base| base.join(&directory));
            for entry in read_dir(&reads).map_err(|e| failed(&reads, &e))? {
                let name = entry.map_err(|e| failed(&reads, &e))?.file_name();
                let content = self.content(files);
                self.write(&changes.join(&name), &content)?;
                compare(&reads.join(&name), &content)?;
                files += 1;
            }
        }
        Ok(files)
    }

    /// The one that changes files, and the one that reads them.
    fn roles(&self, turn: u64) -> [&'a Path; 2] {
        let [one, other] = self.bases;
        if turn.is_multiple_of(2) { [one, other] } else { [other, one] }
    }

    /// Numbers of the files that are written in a turn.
    fn written(&self, turn: u64) -> impl Iterator<Item = u64> {
        (turn..self.files).step_by(WRITTEN_PART as usize)
    }

    fn content(&self, number: u64) -> Vec<u8> {
        self.stamp.wrapping_add(number).to_le_bytes().repeat(WRITTEN_WORDS)
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), String> {
        match (self.asked)() {
            true => Err("interrupted".into()),
            false => write(path, content).map_err(|e| failed(path, &e)),
        }
    }
}

fn path(base: &Path, number: u64) -> PathBuf {
    base.join(TURNS).join(Material::name(number))
}

fn compare(path: &Path, content: &[u8]) -> Result<(), String> {
    match read(path).map_err(|e| failed(path, &e))? == content {
        true => Ok(()),
        false => Err(format!("{}: it is not what the other mount wrote", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::material::{Amounts, Place};
    use super::super::rows::chosen;
    use super::*;

    /// A tree of 120 files in `base`.
    fn make(base: &Path) {
        let amounts = Amounts { files: 120, small: 1, large: 1 << 20 };
        let material = Material::of(&chosen(&["turns".to_owned()]), amounts);
        let mut place = Place::mounted(base.to_owned(), false);
        material.make(&mut place, &|| false).unwrap();
    }

    #[test]
    fn turns_leave_all_names_as_they_were() {
        let base = tempfile::tempdir().unwrap();
        make(base.path());
        for (by, read) in [(TurnBy::Tree, 480), (TurnBy::File, 120), (TurnBy::Tree, 480)] {
            let turns = TreeTurns::new([base.path(); 2], 120, true, &|| false);
            assert_eq!(turns.take(by).map(|(files, _)| files), Ok(read), "{by:?}");
            assert!((0..120).all(|number| path(base.path(), number).is_file()), "{by:?}");
        }
    }

    #[test]
    fn a_mount_that_reads_something_else_is_told() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make(one.path());
        make(other.path());
        for by in [TurnBy::File, TurnBy::Tree] {
            let bases = [one.path(), other.path()];
            let why = TreeTurns::new(bases, 120, true, &|| false).take(by).err();
            assert!(why.is_some_and(|why| why.ends_with("what the other mount wrote")), "{by:?}");
        }
    }
}
