//! `glint restripe`: the data of files moves to objects of another layout. The process behind the
//! mount copies it, when the attribute `glint.restripe` is set.

use super::stripe::{Wish, number_in, ost_count, too_few_domains};
use crate::CommandResult;
use crate::live;
use crate::signals::Stop;
use glint_proto::limits::LAYOUTS_KEPT_MAX;
use glint_server::human_bytes;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::json;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Attempts for a file that others use, and the first pause between them, which doubles.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);
const REDRAW: Duration = Duration::from_millis(200);

/// Lay the data of files out anew: with other copies, over more or fewer OSTs, or with another
/// stripe size.
///
/// The files may be used meanwhile, from here and from other hosts; who reads or writes a file waits
/// while what has changed of it since it was copied, or all of a small file, is copied. Each file has
/// either its old or its new layout, whatever happens. The
/// space of the old one becomes free some time later (`--lease` of the server). Files that are laid
/// out so already are skipped.
///
/// A file that others change too fast, or with a place on an OST that does not answer, may not be
/// moved: it is named, and the exit status is 1; run the command again. Its owner and root may do this. What is made in a directory later, `glint
/// setstripe` says.
///
/// Ctrl-C ends after the file that is being copied.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    wish: Wish,
    /// Do it for all files below directories, too; not on other file systems, and not through
    /// symbolic links.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print JSON: an object for each file, with what became of it.
    #[arg(long)]
    json: bool,
    /// Files, or with -R directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Default)]
struct Done {
    moved: u64,
    skipped: u64,
    failed: u64,
    bytes: u64,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let words = args.wish.words()?.join(" ");
    let stop = Stop::listen()?;
    let is_shown = !args.json && std::io::stderr().is_terminal();
    let (begun, mut shown) = (Instant::now(), Instant::now());
    let mut done = Done::default();
    let mut waiting: Vec<(PathBuf, Option<u64>)> =
        args.paths.iter().rev().map(|path| (path.clone(), None)).collect();
    while let Some((path, device)) = waiting.pop() {
        if stop.is_asked() {
            break;
        }
        let metadata = match std::fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            // Somebody has removed it meanwhile.
            Err(error) if device.is_some() && error.kind() == std::io::ErrorKind::NotFound => {
                continue;
            }
            Err(error) => {
                report(&mut done, &args, &path, Err(error.to_string()));
                continue;
            }
        };
        if device.is_some_and(|device| device != metadata.dev()) {
            continue;
        }
        if metadata.is_dir() {
            match entries(&path, args.recursive) {
                Ok(found) => {
                    waiting.extend(found.into_iter().map(|path| (path, Some(metadata.dev()))));
                }
                Err(error) => report(&mut done, &args, &path, Err(error)),
            }
            continue;
        }
        if !metadata.is_file() {
            if device.is_none() {
                report(&mut done, &args, &path, Err("is no file and no directory".into()));
            }
            continue;
        }
        let result = restripe(&path, &words, &stop);
        if result == Ok(true) {
            done.bytes += metadata.len();
        }
        report(&mut done, &args, &path, result);
        if is_shown && shown.elapsed() >= REDRAW {
            shown = Instant::now();
            let rate = done.bytes as f64 / begun.elapsed().as_secs_f64().max(0.001);
            let (bytes, rate) = (human_bytes(done.bytes), human_bytes(rate as u64));
            let Done { moved, skipped, failed, .. } = done;
            live::show(&format!(
                "\r\x1b[J{moved} moved, {bytes} at {rate}/s, {skipped} as wished before, {failed} \
                 not moved"
            ));
        }
    }
    if is_shown {
        live::show("\r\x1b[J");
    }
    if !args.json {
        let Done { moved, skipped, failed, bytes } = done;
        crate::say!(
            "{moved} files with {} moved, {skipped} were so before, {failed} not moved",
            human_bytes(bytes)
        );
    }
    Ok(match done.failed == 0 && !stop.is_asked() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Says what became of a file.
fn report(done: &mut Done, args: &Args, path: &Path, result: Result<bool, String>) {
    let shown = path.display();
    let state = match &result {
        Ok(true) => "moved",
        Ok(false) => "unchanged",
        Err(_) => "failed",
    };
    match &result {
        Ok(true) => done.moved += 1,
        Ok(false) => done.skipped += 1,
        Err(error) => {
            done.failed += 1;
            if !args.json {
                eprintln!("glint: {shown}: {error}");
            }
        }
    }
    if args.json {
        let error = result.err();
        crate::say!("{}", json!({"path": shown.to_string(), "result": state, "error": error}));
    }
}

/// Entries of a directory, last name first.
fn entries(path: &Path, recursive: bool) -> Result<Vec<PathBuf>, String> {
    if !recursive {
        return Err("is a directory; say -R for all files below it, or use `glint setstripe` for \
                    what will be made in it"
            .into());
    }
    let list = std::fs::read_dir(path).map_err(|error| error.to_string())?;
    let paths: Result<Vec<PathBuf>, _> = list.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(|error: std::io::Error| error.to_string())?;
    paths.sort_unstable();
    paths.reverse();
    Ok(paths)
}

/// Has one file moved. Returns whether it was not laid out so before.
fn restripe(path: &Path, words: &str, stop: &Stop) -> Result<bool, String> {
    // Whoever prints it names the file.
    let layout = crate::cmd::ask_mount(path, "glint.layout")
        .map_err(|error| without_name(&path.display().to_string(), error))?;
    if is_as_wished(&layout, words) {
        return Ok(false);
    }
    move_data(path, &[words], stop).map(|()| true)
}

/// An error without the name that it begins with.
fn without_name(name: &str, error: String) -> String {
    let rest = error.strip_prefix(name);
    let rest = rest.map(|rest| rest.trim_start_matches([':', ' ']).to_owned());
    rest.unwrap_or(error)
}

/// Has the data of a file moved, when others let it: as the first of these words say that there is a
/// place for.
pub(super) fn move_data(path: &Path, words: &[impl AsRef<str>], stop: &Stop) -> Result<(), String> {
    let mut pause = PAUSE;
    let mut attempts = ATTEMPTS;
    let mut words = words.iter().map(AsRef::as_ref);
    let mut wish = words.next().unwrap_or("");
    loop {
        let flags = XattrFlags::empty();
        match rustix::fs::setxattr(path, "glint.restripe", wish.as_bytes(), flags) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::BUSY) if attempts > 1 && !stop.is_asked() => {
                attempts -= 1;
                std::thread::sleep(pause);
                pause *= 2;
            }
            Err(errno) => match words.next().filter(|_| errno == Errno::NOSPC) {
                Some(next) => wish = next,
                None => return Err(explained(path, wish, errno)),
            },
        }
    }
}

/// Whether a file has a layout of these words; `stripe_count=0` stands for all targets.
fn is_as_wished(layout: &str, words: &str) -> bool {
    let value = |key: &str| {
        let has = |word: &str| {
            word.split_once('=').filter(|(of, _)| *of == key).map(|(_, v)| v.to_owned())
        };
        layout.split_whitespace().find_map(has)
    };
    words.split_whitespace().filter_map(|word| word.split_once('=')).all(|(key, wish)| {
        match (key, wish) {
            ("replicas", wish) => value(key).unwrap_or_else(|| "1".into()) == wish,
            ("stripe_count", "0") => value(key).is_some_and(|has| Some(has) == value("osts")),
            (key, wish) => value(key).as_deref() == Some(wish),
        }
    })
}

/// Why a file does not get the layout that is wished.
fn explained(path: &Path, wish: &str, errno: Errno) -> String {
    match errno {
        Errno::AGAIN | Errno::BUSY => format!(
            "others use it too much just now, or it has moved {LAYOUTS_KEPT_MAX} times within the \
             lease of the server, for which old objects are kept; it stays where it is. Try again \
             later"
        ),
        Errno::INVAL => refused(wish, &layout_of(path), ost_count(path)),
        Errno::NOSPC => without_place(wish, &layout_of(path)),
        Errno::PERM | Errno::ACCESS => {
            format!("{errno}; only its owner and root may lay it out anew")
        }
        Errno::OPNOTSUPP => "its mount or server is of a version that cannot move data".into(),
        Errno::TIMEDOUT => {
            "an OST did not answer for a whole lease, so nothing could be copied; it \
                            stays where it is. See `glint ost list`, and try again later"
                .into()
        }
        Errno::NOBUFS => {
            "its mount moves too many files already, or has given up too many that wait for an OST that \
             does not answer; it stays where it is. See `glint ost list`, and try again later"
                .into()
        }
        Errno::STALE => "it was changed meanwhile by others; try again".into(),
        errno => errno.to_string(),
    }
}

/// The layout that a file has, as far as that can be found out.
fn layout_of(path: &Path) -> String {
    crate::cmd::ask_mount(path, "glint.layout").unwrap_or_default()
}

/// The number for a key that a file gets with a wish: what that does not say stays.
fn wished(wish: &str, layout: &str, key: &str) -> u64 {
    number_in(wish, key).or_else(|| number_in(layout, key)).unwrap_or(1)
}

/// Why no file can have the layout.
fn refused(wish: &str, layout: &str, osts: Option<u64>) -> String {
    if wished(wish, layout, "stripe_count") <= 1 {
        return "it cannot have such a layout, or was removed meanwhile".into();
    }
    let osts = osts.map(|osts| format!("; there are {osts} OSTs")).unwrap_or_default();
    format!(
        "more stripes than there are places for them{osts}. Say -c 0 for as many as there can be"
    )
}

/// Why there is no place for it.
fn without_place(wish: &str, layout: &str) -> String {
    match wished(wish, layout, "replicas") {
        0 | 1 => "no space on an OST (`glint ost list`)".into(),
        copies => format!("no space on an OST, or {}", too_few_domains(copies)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_as_wished_are_known() {
        let layout = "stripe_count=2 stripe_size=1048576 first_ost=1 osts=2 replicas=3";
        for (words, expected) in [
            ("replicas=3", true),
            ("replicas=2", false),
            ("stripe_count=2 replicas=3", true),
            ("stripe_count=0", true),
            ("stripe_count=1 replicas=3", false),
            ("stripe_size=65536", false),
        ] {
            assert_eq!(is_as_wished(layout, words), expected, "{words}");
        }
        assert!(is_as_wished("stripe_count=1 stripe_size=65536 first_ost=0 osts=0", "replicas=1"));
    }

    #[test]
    fn a_file_is_named_once() {
        for error in ["/f is not in a Glint mount", "/f: is not in a Glint mount"] {
            assert_eq!(without_name("/f", error.into()), "is not in a Glint mount");
        }
        assert_eq!(without_name("/f", "the daemon is gone".into()), "the daemon is gone");
    }

    #[test]
    fn a_refusal_is_explained_by_what_can_be_its_reason() {
        let layout = "stripe_count=2 stripe_size=1048576 first_ost=1 osts=2 replicas=3";
        assert!(refused("stripe_count=9", layout, Some(4)).contains("there are 4 OSTs"));
        assert!(refused("replicas=2", layout, None).contains("more stripes"), "it has two");
        assert!(!refused("stripe_count=1", layout, Some(4)).contains("more stripes"));
        assert!(without_place("stripe_size=65536", layout).contains("3 copies need 3 failure"));
        assert!(!without_place("avoid=2", "stripe_count=1").contains("failure domains"));
    }
}
