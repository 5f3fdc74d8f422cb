//! Operations of smallfile: which files each needs, what it does to one, what it leaves.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// An operation, in the order in which smallfile's runs of GlusterFS have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum SmallfileOp {
    /// make the directories of the trees; before each create, and not measured by smallfile.
    #[value(skip)]
    Tree,
    /// open(O_CREAT|O_EXCL), write the whole file at once, close.
    Create,
    /// list each directory and stat its files.
    LsL,
    /// chmod.
    Chmod,
    /// stat; the size must be right.
    Stat,
    /// open, read the whole record at once, compare, close.
    Read,
    /// open, seek to the end, write the record once more, close.
    Append,
    /// rename into the other tree, under the same name.
    Rename,
    /// unlink what was renamed.
    DeleteRenamed,
    /// mkdir beside the files.
    Mkdir,
    /// rmdir of these.
    Rmdir,
    /// look for each name that may be left and remove it, then the directories.
    Cleanup,
}

/// The contents of the trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Nothing, not even directories.
    Nothing,
    /// Empty directories.
    Directories,
    /// Files.
    Files,
    /// Files in the destination.
    Renamed,
    /// A directory for each file.
    Made,
}

impl SmallfileOp {
    /// All that smallfile's runs of GlusterFS consist of.
    pub(crate) const ALL: [SmallfileOp; 11] = [
        SmallfileOp::Create,
        SmallfileOp::LsL,
        SmallfileOp::Chmod,
        SmallfileOp::Stat,
        SmallfileOp::Read,
        SmallfileOp::Append,
        SmallfileOp::Rename,
        SmallfileOp::DeleteRenamed,
        SmallfileOp::Mkdir,
        SmallfileOp::Rmdir,
        SmallfileOp::Cleanup,
    ];

    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SmallfileOp::Tree => "tree",
            SmallfileOp::Create => "create",
            SmallfileOp::LsL => "ls-l",
            SmallfileOp::Chmod => "chmod",
            SmallfileOp::Stat => "stat",
            SmallfileOp::Read => "read",
            SmallfileOp::Append => "append",
            SmallfileOp::Rename => "rename",
            SmallfileOp::DeleteRenamed => "delete-renamed",
            SmallfileOp::Mkdir => "mkdir",
            SmallfileOp::Rmdir => "rmdir",
            SmallfileOp::Cleanup => "cleanup",
        }
    }

    /// Whether it moves the data of the files.
    pub(crate) fn has_data(self) -> bool {
        matches!(self, SmallfileOp::Create | SmallfileOp::Read | SmallfileOp::Append)
    }

    /// The contents that it works on, given those that are there: a cleanup takes any.
    pub(crate) fn needs(self, there: Contents) -> Contents {
        use SmallfileOp::*;
        match (self, there) {
            (Tree, _) => Contents::Nothing,
            (Create | Mkdir, _) => Contents::Directories,
            (LsL | Chmod | Stat | Read | Append | Rename, _) => Contents::Files,
            (DeleteRenamed, _) => Contents::Renamed,
            (Rmdir, _) => Contents::Made,
            (Cleanup, Contents::Nothing) => Contents::Files,
            (Cleanup, there) => there,
        }
    }

    /// The contents that it leaves.
    pub(crate) fn leaves(self) -> Contents {
        use SmallfileOp::*;
        match self {
            Tree | DeleteRenamed | Rmdir => Contents::Directories,
            Create | LsL | Chmod | Stat | Read | Append => Contents::Files,
            Rename => Contents::Renamed,
            Mkdir => Contents::Made,
            Cleanup => Contents::Nothing,
        }
    }
}

impl Contents {
    /// Operations that bring it about in trees of nothing.
    pub(crate) fn made_by(self) -> &'static [SmallfileOp] {
        use SmallfileOp::{Create, Mkdir, Rename, Tree};
        match self {
            Contents::Nothing => &[],
            Contents::Directories => &[Tree],
            Contents::Files => &[Tree, Create],
            Contents::Renamed => &[Tree, Create, Rename],
            Contents::Made => &[Tree, Mkdir],
        }
    }
}

/// One file, for one operation.
pub(super) struct Subject<'a> {
    /// The name in the source.
    pub source: &'a Path,
    /// The name in the destination.
    pub destination: &'a Path,
    /// Bytes that are written at once.
    pub record: &'a [u8],
    /// Bytes that it should have.
    pub size: u64,
    /// Sync it after it was written.
    pub fsync: bool,
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Like lexists and remove: absence is asked for, and is no error.
fn ensure_removed(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Subject<'_> {
    fn write(&self, mut file: File) -> std::io::Result<()> {
        file.write_all(self.record)?;
        if self.fsync { file.sync_all() } else { Ok(()) }
    }

    /// Does the operation. `buffer` has the length of the record.
    pub(super) fn run(&self, op: SmallfileOp, buffer: &mut [u8]) -> std::io::Result<()> {
        match op {
            SmallfileOp::Create => {
                let mut options = OpenOptions::new();
                self.write(options.write(true).create_new(true).mode(0o644).open(self.source)?)
            }
            SmallfileOp::Append => {
                // Not O_APPEND, which means something else to several writers.
                let mut file = OpenOptions::new().write(true).open(self.source)?;
                file.seek(SeekFrom::End(0))?;
                self.write(file)
            }
            SmallfileOp::Read => {
                File::open(self.source)?.read_exact(buffer)?;
                match buffer == self.record {
                    true => Ok(()),
                    false => Err(Error::other("what was read is not what was written")),
                }
            }
            SmallfileOp::Stat => {
                let size = self.source.metadata()?.len();
                match size == self.size {
                    true => Ok(()),
                    false => {
                        Err(Error::other(format!("has {size} bytes instead of {}", self.size)))
                    }
                }
            }
            SmallfileOp::LsL => self.source.metadata().map(drop),
            SmallfileOp::Chmod => {
                std::fs::set_permissions(self.source, Permissions::from_mode(0o646))
            }
            SmallfileOp::Rename => std::fs::rename(self.source, self.destination),
            SmallfileOp::DeleteRenamed => std::fs::remove_file(self.destination),
            SmallfileOp::Mkdir => std::fs::create_dir(with(self.source, ".d")),
            SmallfileOp::Rmdir => std::fs::remove_dir(with(self.source, ".d")),
            SmallfileOp::Cleanup => {
                // All names that smallfile looks for, also those that no operation here makes.
                ensure_removed(&with(self.destination, ".s"))?;
                ensure_removed(self.source)?;
                ensure_removed(&with(self.source, ".rnm"))?;
                ensure_removed(self.destination)?;
                ensure_removed(&with(self.source, ".d"))
            }
            SmallfileOp::Tree => Ok(()),
        }
    }
}
