//! Entries of directories as ls(1) keeps and sorts them.

use crate::cmd::tree::show::TimeOf;
use crate::cmd::tree::{FoundPage, Keep, KeptEntry, Source, TreeDirectory};
use futures_util::stream::StreamExt;
use glint_client::ScannedEntry;
use glint_proto::{Attr, Errno, FileType, FsResult, Ino, Timestamp};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;

/// Files that details are asked of at once.
const DETAILS_AT_ONCE: usize = 32;

pub(super) type LsDirectory = TreeDirectory<LsEntry>;

/// Which names of a directory are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hidden {
    /// None that begin with a dot.
    Hide,
    /// All but `.` and `..`.
    AlmostAll,
    All,
}

/// What has to be known of a file. The more it is, the more may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needed {
    Name,
    /// Its type, as its directory has it.
    Type,
    /// Its type, and of a regular file whether it can be executed.
    Class,
    Attributes,
}

/// Order of entries; those that are equal are sorted by their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Name,
    /// The largest first.
    Size,
    /// The latest first.
    Time,
    /// By what comes after the last dot.
    Extension,
    /// As the server lists them.
    Unsorted,
}

/// What is listed.
#[derive(Debug)]
pub(super) struct LsCall {
    pub(super) recursive: bool,
    /// Directories are entries like others.
    pub(super) directories_as_files: bool,
    /// A link on the command line stands for the directory that it leads to.
    pub(super) follows_links: bool,
    pub(super) hidden: Hidden,
    pub(super) needed: Needed,
    /// Targets of links are shown.
    pub(super) shows_targets: bool,
    /// And the types of these.
    pub(super) classifies_targets: bool,
    /// Whether there is an ACL is shown.
    pub(super) shows_acls: bool,
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    pub(super) time: TimeOf,
}

/// An entry of a directory, or a path of the command line.
pub(super) struct LsEntry {
    pub(super) name: Vec<u8>,
    pub(super) ino: Ino,
    /// Type; `None` if nobody knows it.
    pub(super) kind: Option<FileType>,
    /// Attributes, if they are needed; or why they are not to be had.
    pub(super) attr: Option<FsResult<Attr>>,
    /// Target of a link, or why it is not to be had.
    pub(super) target: Option<FsResult<Vec<u8>>>,
    /// Attributes of the file that a link leads to, if they are shown and to be had.
    pub(super) target_attr: Option<Attr>,
    pub(super) has_acl: FsResult<bool>,
    pub(super) below: Option<Rc<LsDirectory>>,
}

impl KeptEntry for LsEntry {
    const WHOLE: bool = true;

    fn below(&mut self) -> &mut Option<Rc<LsDirectory>> {
        &mut self.below
    }
}

impl LsEntry {
    /// An entry of which the needed attributes are kept.
    pub(super) fn new(call: &LsCall, scanned: ScannedEntry) -> LsEntry {
        let ScannedEntry { name, ino, kind, attr } = scanned;
        // Whoever may not look at a file is told its type by the directory nevertheless.
        let kind = match &attr {
            Ok(attr) => FileType::from_mode(attr.mode),
            Err(_) => kind,
        };
        let is_needed = match call.needed {
            Needed::Name => false,
            Needed::Type => kind.is_none(),
            Needed::Class => kind.is_none_or(|kind| kind == FileType::Regular),
            Needed::Attributes => true,
        };
        let attr = is_needed.then_some(attr);
        let (target, target_attr, has_acl, below) = (None, None, Ok(false), None);
        LsEntry { name, ino, kind, attr, target, target_attr, has_acl, below }
    }

    /// Its attributes, if they are needed and known.
    pub(super) fn known(&self) -> Option<&Attr> {
        self.attr.as_ref()?.as_ref().ok()
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Some(FileType::Directory)
    }

    /// Asks for what else is shown of a file, which a directory has.
    pub(super) async fn complete(&mut self, call: &LsCall, source: &impl Source, directory: Ino) {
        let Some(Ok(attr)) = &self.attr else { return };
        if call.shows_acls && !attr.has_no_xattrs && self.kind != Some(FileType::Symlink) {
            self.has_acl = source.has_acl(attr).await;
        }
        if !call.shows_targets || self.kind != Some(FileType::Symlink) {
            return;
        }
        let target = source.target(self.ino).await;
        if let (true, Ok(target)) = (call.classifies_targets, &target) {
            self.target_attr = source.follow(directory, target).await.ok();
        }
        self.target = Some(target);
    }
}

impl LsCall {
    /// Sorts entries.
    pub(super) fn sort<E>(&self, entries: &mut [E], entry: impl Fn(&E) -> &LsEntry) {
        if self.order != Order::Unsorted {
            entries.sort_by(|a, b| self.compare(entry(a), entry(b)));
        }
    }

    fn compare(&self, a: &LsEntry, b: &LsEntry) -> Ordering {
        let (a, b) = if self.is_reversed { (b, a) } else { (a, b) };
        let size = |entry: &LsEntry| entry.known().map_or(0, |attr| attr.size);
        let begin = Timestamp { secs: 0, nanos: 0 };
        let time = |entry: &LsEntry| entry.known().map_or(begin, |attr| self.time.of(attr));
        let by_value = match self.order {
            Order::Size => size(b).cmp(&size(a)),
            Order::Time => time(b).cmp(&time(a)),
            Order::Extension => extension(&a.name).cmp(extension(&b.name)),
            Order::Name | Order::Unsorted => Ordering::Equal,
        };
        by_value.then_with(|| a.name.cmp(&b.name))
    }

    fn is_shown(&self, name: &[u8]) -> bool {
        self.hidden != Hidden::Hide || !name.starts_with(b".")
    }
}

/// What a name has from its last dot on.
fn extension(name: &[u8]) -> &[u8] {
    name.iter().rposition(|byte| *byte == b'.').map_or(b"", |dot| &name[dot..])
}

/// Keeps the entries that are shown, and asks for what else is shown of them.
pub(super) struct Shown<'a, S> {
    pub(super) call: &'a LsCall,
    pub(super) source: &'a S,
    /// Attributes of `..` that the server does not know: outside of the mount.
    pub(super) outside: HashMap<Ino, Attr>,
}

impl<S: Source> Shown<'_, S> {
    /// `.` and `..` of a directory.
    async fn dots(&self, directory: &Rc<LsDirectory>, may_search: bool) -> Vec<LsEntry> {
        let is_needed = self.call.needed == Needed::Attributes;
        let mut dots = Vec::new();
        for name in [&b"."[..], b".."] {
            let attr = match (name, may_search && is_needed) {
                (_, false) => Err(Errno::EACCES),
                (b".", true) => match &directory.attr {
                    Some(attr) => Ok((**attr).clone()),
                    None => self.source.lookup(directory.ino, name).await,
                },
                (_, true) => {
                    let parent = directory.parent();
                    let parent = parent.as_ref().and_then(|parent| parent.attr.as_deref());
                    match self.outside.get(&directory.ino).or(parent) {
                        Some(above) => Ok(above.clone()),
                        None => self.source.lookup(directory.ino, name).await,
                    }
                }
            };
            let ino = attr.as_ref().map_or(directory.ino, |attr| attr.ino);
            let kind = Some(FileType::Directory);
            dots.push(LsEntry::new(
                self.call,
                ScannedEntry { name: name.to_vec(), ino, kind, attr },
            ));
        }
        dots
    }
}

impl<S: Source> Keep for Shown<'_, S> {
    type Entry = LsEntry;

    fn searches_empty(&self) -> bool {
        self.call.hidden == Hidden::All
    }

    fn arrange(&self, listing: &mut [LsEntry]) {
        self.call.sort(listing, |entry| entry);
    }

    async fn keep(&self, directory: &Rc<LsDirectory>, page: FoundPage) -> Vec<LsEntry> {
        let call = self.call;
        let mut kept = Vec::with_capacity(page.entries.len());
        if page.is_first && call.hidden == Hidden::All {
            kept = self.dots(directory, page.may_search).await;
        }
        let keeps_attr = call.hidden == Hidden::All && call.needed == Needed::Attributes;
        for scanned in page.entries {
            if !call.is_shown(&scanned.name) {
                continue;
            }
            let listed = match &scanned.attr {
                _ if !call.recursive => None,
                Ok(attr) if attr.is_dir() => {
                    Some(LsDirectory::new(&scanned.name, Some(directory), attr, keeps_attr))
                }
                Err(error) if scanned.kind == Some(FileType::Directory) => {
                    Some(LsDirectory::refused(&scanned.name, scanned.ino, *error))
                }
                _ => None,
            };
            let mut entry = LsEntry::new(call, scanned);
            entry.below = listed;
            kept.push(entry);
        }
        let has_details = |entry: &LsEntry| {
            (call.shows_targets && entry.kind == Some(FileType::Symlink))
                || (call.shows_acls && entry.known().is_some_and(|attr| !attr.has_no_xattrs))
        };
        if !kept.iter().any(has_details) {
            return kept;
        }
        let complete = kept.into_iter().map(|mut entry| async move {
            entry.complete(call, self.source, directory.ino).await;
            entry
        });
        futures_util::stream::iter(complete).buffered(DETAILS_AT_ONCE).collect().await
    }
}
