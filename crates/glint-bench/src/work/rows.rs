//! The rows: what is done, how it is counted, and what it should reach.

/// Bytes of a transfer of IOR's rows.
const MIB: usize = 1 << 20;
/// Bytes of IOR's odd transfers.
const ODD: usize = 47_008;
/// Bytes that a request brings at most: requests of large reads are counted for each of them.
pub(super) const REQUEST: u64 = 4 << 20;

/// A row of the table.
pub(super) struct WorkRow {
    /// Name on the command line.
    pub name: &'static str,
    /// What is done.
    pub title: &'static str,
    /// How.
    pub job: Job,
    /// The least ratio to the local file system that is aimed at over TCP, where it is known.
    pub ratio: Option<f64>,
    /// The same in one process, where it is known.
    pub ratio_up: Option<f64>,
    /// The most requests for each unit that are aimed at.
    pub requests: Option<f64>,
}

/// The least ratio that is aimed at where the kernel reads the large file by itself.
const RATIO_PASSED: f64 = 0.9;

impl WorkRow {
    /// The least ratio that is aimed at with these mount options, in one process or over TCP.
    pub(super) fn reach(&self, is_up: bool, options: &str) -> Option<f64> {
        let passthrough = options.split(',').rfind(|one| one.starts_with("passthrough="));
        match is_up {
            false => self.ratio,
            true if passthrough == Some("passthrough=on") && self.job.unit() != Unit::Files => {
                Some(RATIO_PASSED)
            }
            true => self.ratio_up,
        }
    }
}

/// Work, as users do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// A script of standard programs, in the directory with the trees, over the files of so many
    /// trees. `$NAMES` and `$SHUFFLED` are lists of the names of one tree.
    Script {
        /// For sh(1).
        script: &'static str,
        /// Trees whose files it is about.
        trees: u64,
    },
    /// `git status` in a clone, which has the files of a tree.
    GitStatus,
    /// The read of smallfile, by so many threads.
    Smallfile(u64),
    /// Reads one large file as IOR does.
    Ior {
        /// Readers.
        readers: usize,
        /// Bytes of a call.
        transfer: usize,
        /// By turns instead of each its own part.
        strided: bool,
        /// In a random order.
        random: bool,
        /// While the file is open already: what its first open costs does not count.
        opened: bool,
    },
    /// fio's random reads of 4 KiB, by so many jobs.
    RandomRead(u64),
    /// Two mounts change and read one tree in turns.
    Turns(TurnBy),
}

/// How much a mount does until it is the other one's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TurnBy {
    /// One changes some files, then the other one reads all.
    Tree,
    /// One writes a file, then the other one reads it.
    File,
}

/// What the rates of a row count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Files.
    Files,
    /// Data, in MB.
    Data,
    /// Reads of 4 KiB.
    Reads,
}

impl Unit {
    /// Unit of rates.
    pub(super) fn rate(self) -> &'static str {
        match self {
            Unit::Files => "files/s",
            Unit::Data => "MB/s",
            Unit::Reads => "reads/s",
        }
    }

    /// For what each requests are counted.
    pub(super) fn each(self) -> &'static str {
        match self {
            Unit::Files => "file",
            Unit::Data => "4 MiB",
            Unit::Reads => "read",
        }
    }
}

impl Job {
    /// What its rates count.
    pub(super) fn unit(self) -> Unit {
        match self {
            Job::Script { .. } | Job::GitStatus | Job::Smallfile(_) | Job::Turns(_) => Unit::Files,
            Job::Ior { .. } => Unit::Data,
            Job::RandomRead(_) => Unit::Reads,
        }
    }

    /// The program that it needs, if not every machine has it.
    pub(super) fn program(self) -> Option<&'static str> {
        match self {
            Job::GitStatus => Some("git"),
            Job::RandomRead(_) => Some("fio"),
            _ => None,
        }
    }

    /// Whether it is about data that was written: a null mount has none.
    pub(super) fn needs_data(self) -> bool {
        matches!(self, Job::GitStatus | Job::Turns(_))
    }

    /// Mounts of one file system that it needs.
    pub(super) fn mounts(self) -> usize {
        match self {
            Job::Turns(_) => 2,
            _ => 1,
        }
    }
}

const fn script(script: &'static str, trees: u64) -> Job {
    Job::Script { script, trees }
}

const fn ior(readers: usize, transfer: usize, strided: bool, random: bool) -> Job {
    Job::Ior { readers, transfer, strided, random, opened: false }
}

/// The first of them, of a file that is open already.
const IOR_OPENED: Job =
    Job::Ior { readers: 8, transfer: MIB, strided: false, random: false, opened: true };

const fn row(
    name: &'static str,
    title: &'static str,
    job: Job,
    ratio: f64,
    requests: Option<f64>,
) -> WorkRow {
    WorkRow { name, title, job, ratio: Some(ratio), ratio_up: None, requests }
}

/// A row of two mounts. Other mount options and versions are what it is compared with.
const fn turns(name: &'static str, title: &'static str, by: TurnBy) -> WorkRow {
    WorkRow { name, title, job: Job::Turns(by), ratio: None, ratio_up: None, requests: None }
}

/// The row, with what is aimed at in one process.
const fn up(row: WorkRow, ratio: f64) -> WorkRow {
    WorkRow { ratio_up: Some(ratio), ..row }
}

/// tar(1) reads no file if its output is /dev/null.
const TAR: &str = "tar cf - a | cat > /dev/null";
const CAT: &str = "find a -type f -print0 | xargs -0 cat > /dev/null";
const CAT_SHUFFLED: &str = "xargs -0 cat < \"$SHUFFLED\" > /dev/null";
const STAT: &str = "xargs -0 stat -c %s < \"$NAMES\" > /dev/null";

const SMALLFILE_8: &str = "smallfile read, 64 KiB, 8 threads";
const SMALLFILE_1: &str = "smallfile read, 64 KiB, 1 thread";

/// All rows.
pub(super) static ROWS: [WorkRow; 18] = [
    row("find", "find -size", script("find a b -size +3k > /dev/null", 2), 0.6, Some(0.02)),
    row("stat", "stat of cold names", script(STAT, 1), 0.5, Some(0.02)),
    up(row("cat", "cat of what find finds", script(CAT, 1), 0.5, Some(0.3)), 0.6),
    row("cat-random", "cat in a random order", script(CAT_SHUFFLED, 1), 0.5, Some(0.3)),
    up(row("diff", "diff -r of two trees", script("diff -r a b", 2), 0.6, Some(0.3)), 0.6),
    row("tar", "tar c", script(TAR, 1), 0.5, Some(0.3)),
    // At most 1.5 times the time.
    row("git-status", "git status", Job::GitStatus, 0.667, None),
    up(row("smallfile-8", SMALLFILE_8, Job::Smallfile(8), 0.3, Some(0.3)), 0.6),
    up(row("smallfile-1", SMALLFILE_1, Job::Smallfile(1), 0.3, Some(0.3)), 0.6),
    turns("turns", "two mounts in turns, a tenth changed", TurnBy::Tree),
    turns("turns-files", "two mounts in turns, file by file", TurnBy::File),
    row("ior", "IOR read, 8 readers, 1 MiB", ior(8, MIB, false, false), 0.6, Some(1.1)),
    row("ior-strided", "IOR read, strided 1 MiB", ior(8, MIB, true, false), 0.6, Some(1.1)),
    row("ior-odd", "IOR read, strided 47 008 bytes", ior(8, ODD, true, false), 0.6, Some(1.1)),
    row("ior-random", "IOR read, random 1 MiB", ior(8, MIB, false, true), 0.6, Some(1.1)),
    row("ior-opened", "IOR read, 1 MiB, file open before", IOR_OPENED, 0.6, Some(1.1)),
    row("randread-1", "fio randread 4 KiB, 1 job", Job::RandomRead(1), 0.5, Some(0.5)),
    row("randread-8", "fio randread 4 KiB, 8 jobs", Job::RandomRead(8), 0.5, Some(0.5)),
];

/// Names of all rows.
pub(super) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// The rows that are named, in their own order; all if none is.
pub(super) fn chosen(names: &[String]) -> Vec<&'static WorkRow> {
    let is_chosen = |row: &&WorkRow| names.is_empty() || names.iter().any(|name| name == row.name);
    ROWS.iter().filter(is_chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order_whatever_order_they_are_named_in() {
        let named = ["diff", "cat", "diff"].map(String::from);
        let found: Vec<_> = chosen(&named).iter().map(|row| row.name).collect();
        assert_eq!(found, ["cat", "diff"]);
        assert_eq!(chosen(&[]).len(), ROWS.len());
        let mut all = names();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), ROWS.len(), "no name is there twice");
    }

    #[test]
    fn git_and_mounts_that_tell_each_other_need_data() {
        let need = ROWS.iter().filter(|row| row.job.needs_data());
        let names: Vec<_> = need.map(|row| row.name).collect();
        assert_eq!(names, ["git-status", "turns", "turns-files"]);
    }

    #[test]
    fn what_the_kernel_reads_by_itself_aims_at_more() {
        let rows = chosen(&["cat", "ior"].map(String::from));
        let reach = |is_up, options| [0, 1].map(|index| rows[index].reach(is_up, options));
        assert_eq!(reach(false, ""), [Some(0.5), Some(0.6)]);
        assert_eq!(reach(true, "ro"), [Some(0.6), None]);
        assert_eq!(reach(true, "ro,passthrough=on"), [Some(0.6), Some(RATIO_PASSED)]);
        assert_eq!(reach(true, "passthrough=on,passthrough=off"), [Some(0.6), None]);
    }
}
