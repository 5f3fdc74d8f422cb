//! Actions that change something or run a program: -delete and -exec.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

/// Bytes of paths that one command is given, at most.
const GATHERED_BYTES: usize = 128 << 10;
/// A pointer to a path, and the zero behind it.
const PATH_OVERHEAD: usize = 9;
/// How long after a command was ended by a signal this process has heard of it if it was meant, too.
const SIGNAL_TIME: Duration = Duration::from_millis(20);

/// An action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Delete,
    /// Runs a command for each file, with its path in the place of each `{}`.
    Run(Vec<OsString>),
    /// Runs a command with many paths behind these words.
    RunWithMany(Vec<OsString>),
}

impl Action {
    /// Whether it has paths opened by a program.
    pub(super) fn needs_mount(&self) -> bool {
        *self != Action::Delete
    }
}

/// Paths that a command is going to get.
#[derive(Default, Debug)]
pub(super) struct Gathered {
    paths: Vec<OsString>,
    bytes: usize,
}

impl Gathered {
    pub(super) fn push(&mut self, path: &[u8]) {
        self.bytes += path.len() + PATH_OVERHEAD;
        self.paths.push(OsString::from_vec(path.to_vec()));
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= GATHERED_BYTES
    }
}

/// Parses the words after -exec. Returns how many are its command, with its end.
pub(super) fn command(words: &[OsString]) -> Result<(usize, Action), String> {
    let is_end =
        |at: usize| words[at] == ";" || at > 0 && words[at] == "+" && words[at - 1] == "{}";
    let Some(end) = (0..words.len()).find(|at| is_end(*at)) else {
        return Err("-exec: the command ends with ';' or with '{} +'".into());
    };
    let is_many = words[end] == "+";
    let command = words[..end - usize::from(is_many)].to_vec();
    if command.is_empty() {
        return Err("-exec needs a command after it".into());
    }
    let has_path = |word: &OsString| word.as_bytes().windows(2).any(|two| two == b"{}");
    match is_many {
        true if command.iter().any(has_path) => {
            Err("-exec: '{}' may stand once in a command that ends with '+'".into())
        }
        true => Ok((end + 1, Action::RunWithMany(command))),
        false => Ok((end + 1, Action::Run(command))),
    }
}

/// A word with a path in the place of each `{}`.
fn with_path(word: &OsStr, path: &[u8]) -> OsString {
    let (mut out, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        match rest.strip_prefix(b"{}") {
            Some(after) => {
                out.extend_from_slice(path);
                rest = after;
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

/// Runs a command for a file; returns whether it ended well. The error says why there is none.
pub(super) async fn run(words: &[OsString], path: &[u8]) -> Result<bool, String> {
    status(words.iter().map(|word| with_path(word, path)).collect()).await
}

/// Runs a command with many paths, as [`run`] does.
pub(super) async fn run_with_many(words: &[OsString], paths: Gathered) -> Result<bool, String> {
    status(words.iter().cloned().chain(paths.paths).collect()).await
}

/// On another thread: connections are kept meanwhile, however long it takes.
async fn status(words: Vec<OsString>) -> Result<bool, String> {
    let run = || {
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_default();
        let status = Command::new(&program).args(words).status();
        if status.as_ref().is_ok_and(|status| status.signal().is_some()) {
            // That may have been Ctrl-C, and this process is about to hear of it, too.
            std::thread::sleep(SIGNAL_TIME);
        }
        status.map(|status| status.success()).map_err(|error| {
            let error = error.to_string();
            format!("{}: {}", program.display(), super::without_number(&error))
        })
    };
    blocking::unblock(run).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn commands_end_with_a_semicolon_or_with_a_plus_after_braces() {
        for (text, taken, action) in [
            ("rm -f {} ; -print", 4, Action::Run(words("rm -f {}"))),
            ("rm {} + -print", 3, Action::RunWithMany(words("rm"))),
            ("expr 1 + 2 {} ;", 6, Action::Run(words("expr 1 + 2 {}"))),
        ] {
            assert_eq!(command(&words(text)), Ok((taken, action)), "{text}");
        }
        for text in ["", "rm {}", "rm +", ";", "{} +", "cp {} x{} {} +"] {
            command(&words(text)).unwrap_err();
        }
    }

    #[test]
    fn a_path_stands_for_each_pair_of_braces() {
        assert_eq!(
            with_path(OsStr::new("a{}b{}{"), b"x/\xff"),
            *OsStr::from_bytes(b"ax/\xffbx/\xff{")
        );
    }

    #[test]
    fn a_command_says_by_its_end_whether_that_is_well() {
        assert_eq!(block_on(run(&words("test {} = a"), b"a")), Ok(true));
        assert_eq!(block_on(run(&words("test {} = a"), b"b")), Ok(false));
        let said = block_on(run(&words("/no/such/program"), b"a")).unwrap_err();
        assert!(said.contains("/no/such/program: No such file"), "{said}");
        let mut gathered = Gathered::default();
        gathered.push(b"=");
        gathered.push(b"y");
        assert_eq!(block_on(run_with_many(&words("test x"), gathered)), Ok(false));
    }
}
