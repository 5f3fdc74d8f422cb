//! The walk of du(1): each directory after all that is in it, in the order of the listings. A file
//! of several links counts where the walk comes to it first, which is the same place each time.

use super::listing::{Counted, DuDirectory, DuEntry, is_excluded};
use super::sum::Sum;
use crate::cmd::tree::c_library::Pattern;
use crate::cmd::tree::show::TimeOf;
use crate::cmd::tree::{Ahead, NextPage, Source, push_name};
use glint_proto::{Attr, Errno, Ino};
use std::collections::HashSet;
use std::rc::Rc;

/// What is summed up.
#[derive(Debug)]
pub(super) struct DuCall {
    pub(super) excludes: Vec<Pattern>,
    /// Files have lines, too, not only directories.
    pub(super) all: bool,
    /// A directory does not count those in it.
    pub(super) separate: bool,
    /// Each link of a file counts.
    pub(super) counts_links: bool,
    pub(super) depth_max: usize,
    pub(super) time: TimeOf,
}

/// Why a file is not counted, or what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Its attributes are not known: nothing of it counts.
    Access,
    /// It was not listed to its end.
    Read,
}

/// Where the walk leaves what it sums up.
pub(super) trait SumSink {
    fn line(&self, path: &[u8], sum: &Sum);
    fn fail(&self, refused: Refused, path: &[u8], error: Errno);
    /// So many files were counted so far.
    fn progress(&self, files: u64);
}

/// Inodes of a file system that count once.
#[derive(Default)]
pub(super) struct SeenInodes {
    /// Starting points, which others may lead to.
    pub(super) starts: HashSet<Ino>,
    /// Files of several links, and starting points, that were come to.
    inodes: HashSet<Ino>,
}

impl SeenInodes {
    /// Notes a file; returns whether it is one that was not counted yet.
    fn is_new(&mut self, ino: Ino, may_come_again: bool) -> bool {
        !(may_come_again || self.starts.contains(&ino)) || self.inodes.insert(ino)
    }

    /// Starting points that were come to.
    fn passed(&self) -> HashSet<Ino> {
        self.starts.intersection(&self.inodes).copied().collect()
    }
}

/// A directory that the walk is in.
struct OpenDirectory {
    node: Rc<DuDirectory>,
    own: Sum,
    below: Sum,
    page: std::vec::IntoIter<DuEntry>,
    /// Length of the path of the directory above it.
    above: usize,
}

/// A walk over all that is at and below a starting point.
struct SumWalk<'a, S, O> {
    call: &'a DuCall,
    ahead: &'a Ahead<'a, S, Counted<'a>>,
    sink: &'a O,
    seen: &'a mut SeenInodes,
    total: &'a mut Sum,
    /// Directories from the starting point down.
    frames: Vec<OpenDirectory>,
    /// Path of the last of them.
    path: Vec<u8>,
}

/// Sums up all that is at and below a starting point, and adds it to a total.
pub(super) async fn walk<S: Source, O: SumSink>(
    call: &DuCall,
    (source, sink): (&S, &O),
    (path, attr): (&[u8], &Attr),
    seen: &mut SeenInodes,
    total: &mut Sum,
) {
    if is_excluded(&call.excludes, path) {
        return;
    }
    let passed = if call.counts_links { HashSet::new() } else { seen.passed() };
    let counted = &Counted { call, passed };
    let ahead = &Ahead::new(source, counted, &[]);
    let mut walk = SumWalk { call, ahead, sink, seen, total, frames: Vec::new(), path: Vec::new() };
    let node = attr.is_dir().then(|| DuDirectory::new(path, None, attr, false));
    let (ino, links, sum) = (attr.ino, attr.nlink, Ok(Sum::of(attr, call.time)));
    walk.come_to(DuEntry { name: path.to_vec(), ino, links, sum, node });
    let advance = || {
        let needed = walk.advance();
        walk.sink.progress(walk.total.inodes);
        needed
    };
    ahead.serve(advance).await;
}

impl<S: Source, O: SumSink> SumWalk<'_, S, O> {
    /// Walks as far as directories are listed. Returns the one whose listing is needed next; `None`
    /// if all is done.
    fn advance(&mut self) -> Option<Rc<DuDirectory>> {
        loop {
            let frame = self.frames.last_mut()?;
            if let Some(found) = frame.page.next() {
                self.come_to(found);
                continue;
            }
            match frame.node.take() {
                NextPage::Page(Ok(page)) => {
                    self.ahead.passes(page.len());
                    frame.page = page.into_iter();
                }
                NextPage::Page(Err(error)) => self.sink.fail(Refused::Read, &self.path, error),
                NextPage::Awaited => return Some(frame.node.clone()),
                NextPage::End => self.leave(),
            }
        }
    }

    fn come_to(&mut self, DuEntry { name, ino, links, sum, node }: DuEntry) {
        let own = match sum {
            Ok(own) => own,
            Err(error) => {
                let above = self.enter(&name);
                self.sink.fail(Refused::Access, &self.path, error);
                self.path.truncate(above);
                return;
            }
        };
        let has_links = node.is_none() && links > 1;
        if !self.call.counts_links && !self.seen.is_new(ino, has_links) {
            return;
        }
        *self.total += own;
        if let Some(node) = node {
            let above = self.enter(&name);
            let page = Vec::new().into_iter();
            self.frames.push(OpenDirectory { node, own, below: Sum::default(), page, above });
            return;
        }
        let depth = self.frames.len();
        if depth == 0 || (self.call.all && depth <= self.call.depth_max) {
            let above = self.enter(&name);
            self.sink.line(&self.path, &own);
            self.path.truncate(above);
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.below += own;
        }
    }

    /// Puts a name at the end of the path; returns how long that was.
    fn enter(&mut self, name: &[u8]) -> usize {
        let above = self.path.len();
        push_name(&mut self.path, name);
        above
    }

    /// Goes back to the directory above one that is done.
    fn leave(&mut self) {
        let Some(OpenDirectory { own, below, above, .. }) = self.frames.pop() else { return };
        let mut sum = own;
        sum += below;
        let depth = self.frames.len();
        if depth <= self.call.depth_max {
            self.sink.line(&self.path, &sum);
        }
        self.path.truncate(above);
        if let (Some(frame), false) = (self.frames.last_mut(), self.call.separate) {
            frame.below += sum;
        }
    }
}
