//! The walk of ls(1): the listing of a directory, then those of the directories in it, one after the
//! other, each with all that is below it.

use super::entry::{LsDirectory, LsEntry, Shown};
use super::line::LinePrinter;
use super::quote::quoted;
use crate::cmd::tree::{Ahead, Console, NextPage, Source, push_name, without_number};
use glint_proto::Errno;
use std::rc::Rc;

/// Exit code if a file or directory below those of the command line could not be looked at.
const MINOR: u8 = 1;
/// Exit code if one of the command line could not be.
pub(super) const SERIOUS: u8 = 2;

/// Where a walk leaves what it lists.
pub(super) struct LsOutput {
    pub(super) console: Console,
    pub(super) lines: LinePrinter,
    /// Directories have their names before them.
    pub(super) has_headers: bool,
    /// There is a directory above the next one.
    is_apart: bool,
    files: u64,
}

impl LsOutput {
    pub(super) fn new(lines: LinePrinter) -> LsOutput {
        let console = Console::new("ls", SERIOUS);
        LsOutput { console, lines, has_headers: true, is_apart: false, files: 0 }
    }

    /// Tells of a file that could not be looked at, or a directory that could not be read.
    pub(super) fn fail(&self, status: u8, what: &str, path: &[u8], error: Errno) {
        let (path, error) = (quoted(path), error.to_string());
        let (path, error) = (String::from_utf8_lossy(&path), without_number(&error));
        self.console.say(status, &format!("{what} {path}: {error}"));
    }

    /// Tells of entries that could not be looked at.
    pub(super) fn complain(&self, directory: &[u8], entries: &[LsEntry]) {
        for entry in entries {
            // As ls(1) has it, which stands in that directory.
            let mut path = if directory == b"." { Vec::new() } else { directory.to_vec() };
            push_name(&mut path, &entry.name);
            if let Some(Err(error)) = &entry.attr {
                self.fail(MINOR, "cannot access", &path, *error);
            }
            if let Err(error) = &entry.has_acl {
                self.fail(MINOR, "cannot read the ACL of", &path, *error);
            }
            if let Some(Err(error)) = &entry.target {
                self.fail(MINOR, "cannot read symbolic link", &path, *error);
            }
        }
    }

    fn listing(&mut self, path: &[u8], entries: &[LsEntry]) {
        self.complain(path, entries);
        self.files += entries.len() as u64;
        let mut out = Vec::new();
        if self.has_headers && !self.lines.style.json {
            if self.is_apart {
                out.push(b'\n');
            }
            self.lines.header(path, &mut out);
        }
        self.is_apart = true;
        self.lines.total(entries, &mut out);
        self.lines.entries(Some(path), entries.iter(), |_| true, &mut out);
        self.console.put(&out);
        self.console.progress(self.files);
    }
}

/// Puts a name at the end of the path of its directory, which may end with slashes. Returns how long
/// that was without these.
pub(super) fn push_below(path: &mut Vec<u8>, name: &[u8]) -> usize {
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let above = path.len();
    push_name(path, name);
    above
}

/// A directory that the walk is in.
struct Frame {
    directory: Rc<LsDirectory>,
    /// Directories in it that are not listed; `None` if it is not listed itself.
    below: Option<std::vec::IntoIter<Rc<LsDirectory>>>,
    /// The path above it.
    above: usize,
}

/// A walk over directories and all that is below them.
struct LsWalk<'a, S: Source> {
    ahead: &'a Ahead<'a, S, Shown<'a, S>>,
    output: &'a mut LsOutput,
    starts: std::vec::IntoIter<Rc<LsDirectory>>,
    frames: Vec<Frame>,
    path: Vec<u8>,
}

/// Lists directories of the command line, and what is below them if that is asked for.
pub(super) async fn walk<S: Source>(
    shown: &Shown<'_, S>,
    starts: Vec<Rc<LsDirectory>>,
    output: &mut LsOutput,
) {
    let ahead = &Ahead::new(shown.source, shown, &starts);
    let starts = starts.into_iter();
    let mut walk = LsWalk { ahead, output, starts, frames: Vec::new(), path: Vec::new() };
    ahead.serve(|| walk.advance()).await;
}

impl<S: Source> LsWalk<'_, S> {
    /// Walks as far as directories are listed. Returns the one whose listing is needed next; `None`
    /// if all is done.
    fn advance(&mut self) -> Option<Rc<LsDirectory>> {
        loop {
            let Some(frame) = self.frames.last_mut() else {
                let start = self.starts.next()?;
                self.enter(start);
                continue;
            };
            if let Some(below) = &mut frame.below {
                match below.next() {
                    Some(directory) => self.enter(directory),
                    None => {
                        self.path.truncate(frame.above);
                        self.frames.pop();
                    }
                }
                continue;
            }
            let directory = frame.directory.clone();
            match directory.take() {
                NextPage::Awaited => return Some(directory),
                NextPage::Page(Ok(entries)) => self.list(&directory, entries),
                NextPage::Page(Err(error)) => {
                    self.fail("cannot open directory", error);
                    frame_is_listed(&mut self.frames, Vec::new());
                }
                NextPage::End => frame_is_listed(&mut self.frames, Vec::new()),
            }
        }
    }

    fn list(&mut self, directory: &LsDirectory, mut entries: Vec<LsEntry>) {
        self.ahead.passes(entries.len());
        self.output.listing(&self.path, &entries);
        // It was read in part.
        if let NextPage::Page(Err(error)) = directory.take() {
            self.fail("reading directory", error);
        }
        let below = entries.iter_mut().filter_map(|entry| entry.below.take()).collect();
        frame_is_listed(&mut self.frames, below);
    }

    fn fail(&self, what: &str, error: Errno) {
        let status = if self.frames.len() == 1 { SERIOUS } else { MINOR };
        self.output.fail(status, what, &self.path, error);
    }

    fn enter(&mut self, directory: Rc<LsDirectory>) {
        let above = push_below(&mut self.path, &directory.name);
        self.frames.push(Frame { directory, below: None, above });
    }
}

fn frame_is_listed(frames: &mut [Frame], below: Vec<Rc<LsDirectory>>) {
    if let Some(frame) = frames.last_mut() {
        frame.below = Some(below.into_iter());
    }
}
