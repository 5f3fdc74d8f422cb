//! `glint bench null-mount`: the adapter over answers from memory.

use futures_util::FutureExt;
use glint::CommandResult;
use glint::mount_options::parse;
use glint::signals::Stop;
use glint_client::{Caller, Make, Vfs};
use glint_mount::{Mount, MountFlags, NullFs};
use glint_proto::{Errno, FsResult, Ino, SetAttr, SetTime, Timestamp};
use std::fs::{read_dir, read_link};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Mount a file system that answers from memory and stores no data: the limit of
/// what any mount can do here. Runs until Ctrl-C or `glint umount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point; an empty directory.
    directory: PathBuf,
    /// Mount options, as of `glint mount`.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Begin with the names and sizes of all files in DIR; their data is zeros.
    #[arg(long, value_name = "DIR")]
    like: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let options = parse(&args.options, false)?;
    options.apply();
    let mount_point = glint_mount::prepare(&args.directory)?;
    let start = Instant::now();
    let stop = Stop::listen()?;
    let mount_options = options.mount("glint-null".into(), MountFlags::empty());
    let fs = Arc::new(NullFs::default());
    if let Some(like) = &args.like {
        fill(&fs, like)?;
    }
    let mount = Mount::new(fs, &mount_point, &mount_options, options.transport)?;
    glint::announce(&mount, start.elapsed());
    while !stop.is_asked() && !mount.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    if mount.unmount()? {
        mount.wait();
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes all that is below `directory`, without data: names, sizes, owners, permissions, targets of
/// symbolic links, and when data changed last.
fn fill(fs: &NullFs, directory: &Path) -> Result<(), String> {
    let mut directories = vec![(directory.to_owned(), Ino::ROOT)];
    while let Some((from, parent)) = directories.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", from.display());
        for entry in read_dir(&from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, meta) = (entry.path(), entry.metadata().map_err(failed)?);
            let target = match meta.is_symlink() {
                true => read_link(&path).map_err(failed)?.into_os_string().into_vec(),
                false => Vec::new(),
            };
            let make = Make { mode: meta.mode(), umask: 0, rdev: 0, target: &target };
            let name = entry.file_name();
            let made = at_once(fs.make(&Caller::ROOT, parent, name.as_bytes(), make), &path)?;
            let mtime = Timestamp { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 };
            let set = SetAttr {
                uid: Some(meta.uid()),
                gid: Some(meta.gid()),
                size: Some(meta.size()),
                mtime: Some(SetTime::At(mtime)),
                ..SetAttr::default()
            };
            at_once(fs.setattr(&Caller::ROOT, made.attr.ino, &set), &path)?;
            if meta.is_dir() {
                directories.push((path, made.attr.ino));
            }
        }
    }
    Ok(())
}

/// The answer to a call about `path`: a null file system never waits.
fn at_once<T>(call: impl Future<Output = FsResult<T>>, path: &Path) -> Result<T, String> {
    let answer = call.now_or_never().unwrap_or(Err(Errno::EAGAIN));
    answer.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    fn answer<T>(call: impl Future<Output = FsResult<T>>) -> T {
        at_once(call, Path::new("a test")).unwrap()
    }

    #[test]
    fn it_begins_with_the_names_and_sizes_of_a_directory_and_zeros_as_data() {
        let like = tempfile::tempdir().unwrap();
        create_dir_all(like.path().join("a/below")).unwrap();
        write(like.path().join("a/below/file"), [7; 5000]).unwrap();
        write(like.path().join("empty"), []).unwrap();
        symlink("a/below", like.path().join("link")).unwrap();
        let fs = NullFs::default();
        fill(&fs, like.path()).unwrap();
        let attr = |path: &str| {
            path.split('/').fold(answer(fs.getattr(Ino::ROOT)).attr, |parent, name| {
                answer(fs.lookup(&Caller::ROOT, parent.ino, name.as_bytes())).attr
            })
        };
        for path in ["a", "a/below", "a/below/file", "empty", "link"] {
            let (made, meta) = (attr(path), like.path().join(path).symlink_metadata().unwrap());
            let ours = (made.mode, made.uid, made.gid, made.size);
            assert_eq!(ours, (meta.mode(), meta.uid(), meta.gid(), meta.size()), "{path}");
            let ours = (made.mtime.secs, i64::from(made.mtime.nanos));
            assert_eq!(ours, (meta.mtime(), meta.mtime_nsec()), "{path}");
        }
        assert_eq!(answer(fs.readlink(attr("link").ino)), b"a/below");
        // With attributes, as a kernel asks for them that reads a directory to stat what is in it.
        let root = answer(fs.opendir(&Caller::ROOT, Ino::ROOT));
        let listing = answer(fs.readdir(&Caller::ROOT, root, 0, 1 << 15, true));
        let names: Vec<_> = listing.entries.iter().map(|entry| entry.name.as_slice()).collect();
        assert_eq!(names, [&b"a"[..], b"empty", b"link"]);
        assert!(listing.entries.iter().all(|entry| entry.attr.is_some()));
        assert!(listing.valid.iter().all(|valid| !valid.attr.is_zero() && !valid.entry.is_zero()));
        let file = answer(fs.open(&Caller::ROOT, attr("a/below/file").ino, Default::default()));
        let mut buffer = [1; 8000];
        assert_eq!(answer(fs.read(file.handle, 1000, &mut buffer, true)), 4000);
        assert!(buffer[..4000].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_directory_that_is_not_there_is_told() {
        let like = tempfile::tempdir().unwrap();
        let why = fill(&NullFs::default(), &like.path().join("gone")).unwrap_err();
        assert!(why.ends_with("gone: No such file or directory (os error 2)"), "{why}");
    }
}
