//! What is scanned how, in which phase, and with which servers.

use super::amounts::{LARGER, ScanAmounts};
use super::material::TREE;

/// A way to look at all files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(super) enum TreeScan {
    /// `ls -lR` through a mount.
    Ls,
    /// `find -size` through a mount.
    Find,
    /// A stat of each file through a mount, each call timed.
    Stat,
    /// `du` on the local file system, beside `glint du`.
    Du,
    /// `glint find -size`.
    GlintFind,
    /// `glint du`.
    GlintDu,
}

impl TreeScan {
    /// Those on a file system of Glint.
    pub(super) const GLINT: [TreeScan; 5] =
        [TreeScan::Ls, TreeScan::Find, TreeScan::Stat, TreeScan::GlintFind, TreeScan::GlintDu];
    /// Those on the local one.
    pub(super) const LOCAL: [TreeScan; 4] =
        [TreeScan::Ls, TreeScan::Find, TreeScan::Stat, TreeScan::Du];

    /// Name in JSON and below a bar.
    pub(super) fn name(self) -> &'static str {
        match self {
            TreeScan::Ls => "ls",
            TreeScan::Find => "find",
            TreeScan::Stat => "stat",
            TreeScan::Du => "du",
            TreeScan::GlintFind => "glint-find",
            TreeScan::GlintDu => "glint-du",
        }
    }

    /// Name in a table.
    pub(super) fn title(self) -> &'static str {
        match self {
            TreeScan::Ls => "ls -lR, mount",
            TreeScan::Find => "find -size, mount",
            TreeScan::Stat => "stat of each, mount",
            TreeScan::Du => "du",
            TreeScan::GlintFind => "glint find -size",
            TreeScan::GlintDu => "glint du",
        }
    }

    /// Name in a table of the local file system.
    pub(super) fn local_title(self) -> &'static str {
        self.title().trim_end_matches(", mount")
    }

    /// What it is compared with on the local file system.
    pub(super) fn local(self) -> TreeScan {
        match self {
            TreeScan::GlintFind => TreeScan::Find,
            TreeScan::GlintDu => TreeScan::Du,
            other => other,
        }
    }

    /// Whether it is through a mount, or local.
    pub(super) fn is_mounted(self) -> bool {
        !matches!(self, TreeScan::GlintFind | TreeScan::GlintDu)
    }

    /// Words of its command, but for the one of [`TreeScan::Stat`]; `place` is the directory that
    /// has the tree, or an address.
    pub(super) fn words(self, place: &str) -> Vec<String> {
        let tree = format!("{place}/{TREE}");
        let words: &[&str] = match self {
            TreeScan::Ls => &["ls", "-lR", &tree],
            TreeScan::Find => &["find", &tree, "-size", LARGER],
            TreeScan::GlintFind => &["find", &tree, "-size", LARGER],
            TreeScan::Du | TreeScan::GlintDu => &["du", &tree],
            TreeScan::Stat => &[&tree],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Lines that it prints of a whole tree.
    pub(super) fn lines(self, amounts: &ScanAmounts) -> u64 {
        match self {
            TreeScan::Ls => amounts.ls_lines(),
            TreeScan::Find | TreeScan::GlintFind => amounts.large(),
            TreeScan::Du | TreeScan::GlintDu => amounts.du_lines(),
            TreeScan::Stat => 1,
        }
    }
}

/// What is beside a scan, and before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ScanPhase {
    /// Nothing: servers are warm.
    Warm,
    /// Streams.
    Streamed,
    /// Servers that have started again, with nothing in the caches of the machine.
    Restarted,
    /// Both.
    RestartedStreamed,
}

impl ScanPhase {
    /// All.
    pub(super) const ALL: [ScanPhase; 4] =
        [ScanPhase::Warm, ScanPhase::Streamed, ScanPhase::Restarted, ScanPhase::RestartedStreamed];

    /// Name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            ScanPhase::Warm => "warm",
            ScanPhase::Streamed => "streamed",
            ScanPhase::Restarted => "restarted",
            ScanPhase::RestartedStreamed => "restarted-streamed",
        }
    }

    /// Name in a table.
    pub(super) fn title(self) -> &'static str {
        match self {
            ScanPhase::Warm => "warm",
            ScanPhase::Streamed => "beside streams",
            ScanPhase::Restarted => "after a restart",
            ScanPhase::RestartedStreamed => "after a restart, beside streams",
        }
    }

    /// Whether servers start again before each scan.
    pub(super) fn is_restarted(self) -> bool {
        matches!(self, ScanPhase::Restarted | ScanPhase::RestartedStreamed)
    }

    /// Whether there are streams.
    pub(super) fn is_streamed(self) -> bool {
        matches!(self, ScanPhase::Streamed | ScanPhase::RestartedStreamed)
    }

    /// The least rate that is aimed at, to that of warm servers with nothing else to do.
    pub(super) fn reach(self) -> Option<f64> {
        match self {
            ScanPhase::Warm | ScanPhase::RestartedStreamed => None,
            ScanPhase::Streamed => Some(0.8),
            ScanPhase::Restarted => Some(0.7),
        }
    }
}

/// How servers share their memory between data and metadata.
pub(super) struct ServerVariant {
    /// Name in JSON and in tables.
    pub name: &'static str,
    /// What that means.
    pub title: &'static str,
    /// Options of `glint serve`.
    pub options: &'static [&'static str],
}

/// The variants that are compared, the usual one first.
pub(super) static VARIANTS: [ServerVariant; 2] = [
    ServerVariant {
        name: "policy",
        title: "as servers are by themselves: data of large objects leaves the memory when it is \
                short",
        options: &[],
    },
    ServerVariant {
        name: "common",
        title: "data and metadata in one cache, the kernel's",
        options: &["--object-cache-max=off"],
    },
];

impl ServerVariant {
    /// Options of this variant that servers have which are described by this help. Others have one
    /// policy only, and their variants are the same.
    pub(super) fn options_in(&self, help: &str) -> Vec<&'static str> {
        let is_known = |option: &&str| {
            let name = option.split('=').next().unwrap_or_default();
            help.split_whitespace().any(|word| word == name)
        };
        self.options.iter().copied().filter(is_known).collect()
    }
}

/// Where a scan is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ScanSide {
    /// Glint, with servers of this one of [`VARIANTS`].
    Glint(usize),
    /// The local file system within the limit of the servers.
    Local,
    /// The same without a limit.
    Unlimited,
}

impl ScanSide {
    /// Name in JSON and in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            ScanSide::Glint(variant) => VARIANTS[variant].name,
            ScanSide::Local => "local",
            ScanSide::Unlimited => "local, no limit",
        }
    }

    /// Name of a scan there.
    pub(super) fn title_of(self, scan: TreeScan) -> &'static str {
        match self {
            ScanSide::Glint(_) => scan.title(),
            _ => scan.local_title(),
        }
    }

    /// Scans that are done there.
    pub(super) fn scans(self) -> &'static [TreeScan] {
        match self {
            ScanSide::Glint(_) => &TreeScan::GLINT,
            _ => &TreeScan::LOCAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_the_options_that_they_have() {
        let help = "      --object-cache-max <BYTES>\n          Largest object in memory";
        assert_eq!(VARIANTS[1].options_in(help), ["--object-cache-max=off"]);
        assert!(VARIANTS.iter().all(|variant| variant.options_in("--object-cache").is_empty()));
    }

    #[test]
    fn variants_differ_pairwise() {
        for (number, one) in VARIANTS.iter().enumerate() {
            for other in &VARIANTS[number + 1..] {
                assert_ne!(one.name, other.name);
                assert_ne!(one.title, other.title);
                assert_ne!(one.options, other.options, "{} and {}", one.name, other.name);
            }
        }
    }
}
