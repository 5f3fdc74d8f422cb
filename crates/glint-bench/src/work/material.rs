//! What the rows read: two equal trees of small files, a git repository of such a tree, a tree that
//! two mounts change, the trees of smallfile, and a large file. The same bytes wherever they are
//! made.

use super::commands::script;
use super::rows::{Job, WorkRow};
use crate::ior::{Pattern, shuffle, write_pattern};
use crate::smallfile::{Asked, SmallfileOp, Volume, Workload};
use std::fs::{create_dir_all, write};
use std::path::{Path, PathBuf};

/// The large file.
pub(super) const LARGE: &str = "large";
/// Where the repository is.
pub(super) const REPOSITORY: &str = "repository";
/// The two trees.
const TREES: [&str; 2] = ["a", "b"];
/// The tree that two mounts change in turns.
pub(super) const TURNS: &str = "turns";
/// Sizes of the files of a tree, in turns.
const FILE_BYTES: [usize; 6] = [300, 1_500, 4_000, 9_000, 20_000, 60_000];
/// Files of a directory.
pub(super) const DIRECTORY_FILES: u64 = 100;
/// Bytes of each file of smallfile.
const SMALL_BYTES: u64 = 64 << 10;
/// What a file takes beside its content, on a server.
const FILE_MORE: u64 = 8 << 10;
/// A repository of a copy of a tree, whose files are older than its index: git reads none again.
const MAKE_REPOSITORY: &str = "cp -r a repository; cd repository; git init -q -b main; git add .; \
    git -c user.name=n -c user.email=e -c gc.auto=0 commit -qm all; \
    git ls-files -z | xargs -0 touch -d 2020-01-01; git update-index -q --refresh";

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Amounts {
    /// Files of each tree.
    pub files: u64,
    /// Files of each thread of smallfile.
    pub small: u64,
    /// Bytes of the large file.
    pub large: u64,
}

/// What some rows need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Material {
    amounts: Amounts,
    trees: bool,
    repository: bool,
    turns: bool,
    /// Threads of smallfile.
    small: Vec<u64>,
    large: bool,
}

/// Lists of the names of a tree, each ended by a zero byte.
pub(super) struct Lists {
    /// In the order of names.
    pub names: PathBuf,
    /// In a random order, the same on each machine.
    pub shuffled: PathBuf,
    /// How much there is of everything.
    pub amounts: Amounts,
}

/// Material at one place. The trees of smallfile go with it.
pub(super) struct Place {
    /// Directory of all of it.
    pub base: PathBuf,
    /// The same directory through the second mount, where there are two.
    pub beside: PathBuf,
    /// Trees of smallfile, by their threads.
    pub volumes: Vec<(u64, Volume)>,
    /// Whether others are compared with it.
    pub is_local: bool,
    /// Whether this directory has to be removed in the end.
    is_removed: bool,
}

impl Place {
    /// A place of nothing yet, with which others are compared.
    pub(super) fn local(base: PathBuf) -> Place {
        let beside = base.clone();
        Place { base, beside, volumes: Vec::new(), is_local: true, is_removed: false }
    }

    /// A place of nothing yet, on a mount.
    pub(super) fn mounted(base: PathBuf, is_removed: bool) -> Place {
        let beside = base.clone();
        Place { base, beside, volumes: Vec::new(), is_local: false, is_removed }
    }
}

/// All places where rows are done.
pub(super) struct WorkPlaces {
    /// On the mount that is measured.
    pub mounted: Place,
    /// A null mount with the names and sizes of `local`, if it is asked for.
    pub null: Option<Place>,
    /// With which others are compared.
    pub local: Place,
}

impl WorkPlaces {
    /// The null mount shows what was made at `local`, with zeros as data.
    pub(super) fn show_null(&mut self) {
        let Some(null) = &mut self.null else { return };
        for (threads, volume) in &self.local.volumes {
            if let Ok(below) = volume.top().strip_prefix(&self.local.base) {
                null.volumes.push((*threads, volume.of_zeros(null.base.join(below))));
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_removed {
            self.volumes.clear();
            let _ = std::fs::remove_dir_all(&self.base);
        }
    }
}

impl Material {
    /// What these rows need.
    pub(super) fn of(rows: &[&WorkRow], amounts: Amounts) -> Material {
        let has = |is: fn(Job) -> bool| rows.iter().any(|row| is(row.job));
        let threads = rows.iter().filter_map(|row| match row.job {
            Job::Smallfile(threads) => Some(threads),
            _ => None,
        });
        Material {
            amounts,
            trees: has(|job| matches!(job, Job::Script { .. } | Job::GitStatus)),
            repository: has(|job| job == Job::GitStatus),
            turns: has(|job| matches!(job, Job::Turns(_))),
            small: threads.collect(),
            large: has(|job| matches!(job, Job::Ior { .. } | Job::RandomRead(_))),
        }
    }

    /// Bytes that it takes at one place, at most.
    pub(super) fn bytes(&self) -> u64 {
        let of_tree: u64 = FILE_BYTES.iter().map(|bytes| *bytes as u64 + FILE_MORE).sum();
        let of_tree = (of_tree / FILE_BYTES.len() as u64).saturating_mul(self.amounts.files);
        // A repository has each file twice, at most.
        let trees = 2 * u64::from(self.trees) + 2 * u64::from(self.repository);
        let trees = trees + u64::from(self.turns);
        let of_thread = (SMALL_BYTES + FILE_MORE).saturating_mul(self.amounts.small);
        let threads = self.small.iter().sum::<u64>();
        let large = if self.large { self.amounts.large } else { 0 };
        [of_tree.saturating_mul(trees), of_thread.saturating_mul(threads), large]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Name of a directory in its tree.
    pub(super) fn directory(number: u64) -> String {
        format!("d{number:03}")
    }

    /// Name of a file in its tree.
    pub(super) fn name(number: u64) -> String {
        let directory = Material::directory(number / DIRECTORY_FILES);
        format!("{directory}/f{:03}", number % DIRECTORY_FILES)
    }

    /// Writes the lists of names into a directory.
    pub(super) fn lists(&self, directory: &Path) -> Result<Lists, String> {
        let list = |file: &str, numbers: &[u64]| {
            let path = directory.join(file);
            let names = numbers.iter().map(|n| format!("{}/{}\0", TREES[0], Material::name(*n)));
            write(&path, names.collect::<String>()).map_err(|e| failed(&path, &e))?;
            Ok::<PathBuf, String>(path)
        };
        let mut numbers: Vec<u64> = (0..self.amounts.files).collect();
        let names = list("names", &numbers)?;
        shuffle(&mut numbers, 0);
        Ok(Lists { names, shuffled: list("shuffled", &numbers)?, amounts: self.amounts })
    }

    /// Makes it in `place`, which has nothing yet.
    pub(super) fn make(&self, place: &mut Place, asked: Asked<'_>) -> Result<(), String> {
        let base = &place.base;
        create_dir_all(base).map_err(|e| failed(base, &e))?;
        let trees = TREES.into_iter().filter(|_| self.trees);
        let trees: Vec<&str> = trees.chain(self.turns.then_some(TURNS)).collect();
        if !trees.is_empty() {
            self.make_trees(base, &trees, asked)?;
        }
        if self.repository {
            script(MAKE_REPOSITORY, base, &[], asked)?;
        }
        for threads in &self.small {
            let parent = base.join(format!("smallfile-{threads}"));
            create_dir_all(&parent).map_err(|e| failed(&parent, &e))?;
            let workload = Workload {
                threads: *threads,
                files: self.amounts.small,
                bytes: SMALL_BYTES as usize,
                fsync: false,
                cold: false,
            };
            let mut volume = Volume::new(&parent, workload)?;
            for op in [SmallfileOp::Tree, SmallfileOp::Create] {
                if let Some(why) = volume.run(op, asked)?.unfinished {
                    return Err(format!("{} in {}: {why}", op.name(), parent.display()));
                }
            }
            place.volumes.push((*threads, volume));
        }
        if self.large {
            let (total, transfer) = (self.amounts.large, 1 << 20);
            let pattern = Pattern { writers: 1, transfer, total, strided: false, random: false };
            write_pattern(std::slice::from_ref(base), LARGE, pattern)?;
        }
        Ok(())
    }

    fn make_trees(&self, base: &Path, trees: &[&str], asked: Asked<'_>) -> Result<(), String> {
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 33) as usize
        };
        let largest = FILE_BYTES.iter().copied().max().unwrap_or(0);
        let noise: Vec<u8> = (0..largest * 2).map(|_| next() as u8).collect();
        for number in 0..self.amounts.files {
            if asked() {
                return Err("interrupted".into());
            }
            let bytes = FILE_BYTES[next() % FILE_BYTES.len()];
            let from = next() % (noise.len() - bytes);
            for tree in trees {
                let path = base.join(tree).join(Material::name(number));
                if let Some(parent) = path.parent().filter(|_| number % DIRECTORY_FILES == 0) {
                    create_dir_all(parent).map_err(|e| failed(parent, &e))?;
                }
                write(&path, &noise[from..from + bytes]).map_err(|e| failed(&path, &e))?;
            }
        }
        Ok(())
    }
}

/// A call that failed, with its path.
pub(super) fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::super::rows::chosen;
    use super::*;

    const FEW: Amounts = Amounts { files: 120, small: 10, large: 3 << 20 };

    fn material(names: &[&str]) -> Material {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Material::of(&chosen(&names), FEW)
    }

    #[test]
    fn rows_get_what_they_need_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        for (rows, made) in [
            (&["cat"][..], &["a", "b"][..]),
            (&["smallfile-1"], &["smallfile-1"]),
            (&["turns", "turns-files"], &["turns"]),
            (&["diff", "ior"], &["a", "b", "large"]),
        ] {
            let base = parent.path().join(rows[0]);
            let mut place = Place::mounted(base.clone(), true);
            material(rows).make(&mut place, &|| false).unwrap();
            let entries = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            assert_eq!(names, made);
            drop(place);
            assert!(!base.exists());
        }
    }

    #[test]
    fn lists_have_all_names_that_are_made() {
        let parent = tempfile::tempdir().unwrap();
        let base = parent.path().join("base");
        let mut place = Place::mounted(base.clone(), true);
        material(&["stat"]).make(&mut place, &|| false).unwrap();
        let lists = material(&["stat"]).lists(parent.path()).unwrap();
        let read = |path| std::fs::read_to_string(path).unwrap();
        let (names, shuffled) = (read(lists.names), read(lists.shuffled));
        let split = |text: &str| text.split_terminator('\0').map(String::from).collect::<Vec<_>>();
        let (names, mut shuffled) = (split(&names), split(&shuffled));
        assert!(names.iter().all(|name| base.join(name).is_file()));
        assert_ne!(names, shuffled);
        shuffled.sort();
        assert_eq!((names.len(), &names), (120, &shuffled));
    }

    #[test]
    fn space_is_for_what_is_made() {
        assert_eq!(material(&["ior"]).bytes(), 3 << 20);
        assert!(material(&[]).bytes() > material(&["cat"]).bytes());
        let many = Amounts { files: u64::MAX, ..FEW };
        assert_eq!(Material::of(&chosen(&[]), many).bytes(), u64::MAX);
    }
}
