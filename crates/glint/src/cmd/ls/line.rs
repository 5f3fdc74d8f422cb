//! Lines of ls(1): names, and what stands before and after them in columns as wide as those of a
//! directory need them.

use super::entry::LsEntry;
use super::quote::{Quoting, QuotingStyle};
use super::time::LsTimes;
use crate::cmd::tree::Names;
use crate::cmd::tree::show::{TimeOf, json_row, letter_of, symbolic};
use crate::cmd::tree::size::SizeUnit;
use glint_proto::{Attr, FileType, Timestamp};

/// Bytes of a unit of [`Attr::blocks`].
const BLOCK_BYTES: u64 = 512;

/// Which types have a letter after a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Indicator {
    None,
    Directories,
    Types,
    /// Types, and files that can be executed.
    Classes,
}

/// What a line has.
#[derive(Debug)]
pub(super) struct LsStyle {
    pub(super) json: bool,
    pub(super) long: bool,
    pub(super) inodes: bool,
    pub(super) blocks: bool,
    pub(super) owner: bool,
    pub(super) group: bool,
    pub(super) numeric: bool,
    pub(super) block_unit: SizeUnit,
    pub(super) size_unit: SizeUnit,
    pub(super) time: TimeOf,
    pub(super) times: LsTimes,
    pub(super) indicator: Indicator,
    pub(super) names: Quoting,
    /// Byte after a line.
    pub(super) end: u8,
}

/// Prints entries.
pub(super) struct LinePrinter {
    pub(super) style: LsStyle,
    names: Names,
}

/// Columns of the lines of a directory.
#[derive(Default)]
struct Columns {
    inode: usize,
    blocks: usize,
    links: usize,
    owner: usize,
    group: usize,
    size: usize,
    major: usize,
    minor: usize,
    has_acl: bool,
    /// A name is quoted: others begin a column later.
    has_quoted: bool,
}

impl Indicator {
    /// The letter after a name.
    fn of(self, kind: Option<FileType>, attr: Option<&Attr>) -> Option<u8> {
        match (self, kind?) {
            (Indicator::None, _) => None,
            (_, FileType::Directory) => Some(b'/'),
            (Indicator::Directories, _) => None,
            (Indicator::Classes, FileType::Regular) => {
                attr.is_some_and(|attr| attr.mode & 0o111 != 0).then_some(b'*')
            }
            (_, FileType::Symlink) => Some(b'@'),
            (_, FileType::Fifo) => Some(b'|'),
            (_, FileType::Socket) => Some(b'='),
            _ => None,
        }
    }
}

fn is_device(attr: &Attr) -> bool {
    matches!(FileType::from_mode(attr.mode), Some(FileType::BlockDevice | FileType::CharDevice))
}

/// Adds a text at the right of a column.
fn right(text: &str, columns: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{text:>columns$} ").as_bytes());
}

/// Adds a text at the left of a column.
fn left(text: &[u8], columns: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(text);
    out.resize(out.len() + columns.saturating_sub(text.len()) + 1, b' ');
}

impl LinePrinter {
    pub(super) fn new(style: LsStyle) -> LinePrinter {
        LinePrinter { style, names: Names::default() }
    }

    /// The line before the entries of a directory, if it has one.
    pub(super) fn total(&self, entries: &[LsEntry], out: &mut Vec<u8>) {
        if self.style.json || !(self.style.long || self.style.blocks) {
            return;
        }
        let blocks = entries.iter().filter_map(LsEntry::known).map(|attr| attr.blocks);
        let bytes = blocks.fold(0, u64::saturating_add).saturating_mul(BLOCK_BYTES);
        out.extend_from_slice(b"total ");
        out.extend_from_slice(self.style.block_unit.show(bytes).as_bytes());
        out.push(self.style.end);
    }

    /// The line before all of a directory, with its name.
    pub(super) fn header(&self, path: &[u8], out: &mut Vec<u8>) {
        let names = Quoting { also: b":", ..self.style.names };
        out.extend_from_slice(&names.quote(path));
        out.extend_from_slice(b":\n");
    }

    /// Prints entries of `all`, which have columns in common. `before` is the path of their directory,
    /// as JSON has it.
    pub(super) fn entries<'a>(
        &self,
        before: Option<&[u8]>,
        all: impl Iterator<Item = &'a LsEntry> + Clone,
        is_printed: impl Fn(&LsEntry) -> bool,
        out: &mut Vec<u8>,
    ) {
        if self.style.json {
            let mut path = Vec::new();
            for entry in all.filter(|entry| is_printed(entry)) {
                path.clear();
                if let Some(before) = before {
                    path.extend_from_slice(before);
                    super::walk::push_below(&mut path, &entry.name);
                } else {
                    path.extend_from_slice(&entry.name);
                }
                let target = entry.target.as_ref().and_then(|target| target.as_deref().ok());
                json_row(&path, (entry.kind, entry.ino, entry.known()), target, out);
            }
            return;
        }
        let columns = self.columns(all.clone());
        let now = Timestamp::now();
        for entry in all.filter(|entry| is_printed(entry)) {
            self.line(entry, &columns, now, out);
        }
    }

    fn columns<'a>(&self, entries: impl Iterator<Item = &'a LsEntry>) -> Columns {
        let style = &self.style;
        let mut columns = Columns::default();
        let aligns = style.long
            && matches!(style.names.style, QuotingStyle::Shell | QuotingStyle::ShellEscape);
        let (mut links, mut inode) = (0, 0);
        for entry in entries {
            if aligns && !columns.has_quoted {
                columns.has_quoted = *style.names.quote(&entry.name) != entry.name[..];
            }
            let Some(attr) = entry.known() else { continue };
            inode = inode.max(attr.ino.0);
            if style.long || style.blocks {
                columns.blocks = columns.blocks.max(self.blocks(attr).len());
            }
            if !style.long {
                continue;
            }
            columns.has_acl |= entry.has_acl == Ok(true);
            links = links.max(attr.nlink);
            let id_columns =
                |id: u32, named: Option<usize>| named.unwrap_or_else(|| id.to_string().len());
            if style.owner {
                let named = self.user(attr.uid, |name| name.map(<[u8]>::len));
                columns.owner = columns.owner.max(id_columns(attr.uid, named));
            }
            if style.group {
                let named = self.group(attr.gid, |name| name.map(<[u8]>::len));
                columns.group = columns.group.max(id_columns(attr.gid, named));
            }
            if is_device(attr) {
                let device = attr.rdev.into();
                columns.major = columns.major.max(libc::major(device).to_string().len());
                columns.minor = columns.minor.max(libc::minor(device).to_string().len());
                columns.size = columns.size.max(columns.major + 2 + columns.minor);
            } else {
                columns.size = columns.size.max(style.size_unit.show(attr.size).len());
            }
        }
        columns.links = links.to_string().len();
        columns.inode = inode.to_string().len();
        columns
    }

    fn blocks(&self, attr: &Attr) -> String {
        self.style.block_unit.show(attr.blocks.saturating_mul(BLOCK_BYTES))
    }

    fn user<T>(&self, uid: u32, show: impl FnOnce(Option<&[u8]>) -> T) -> T {
        if self.style.numeric {
            return show(None);
        }
        show(self.names.user(uid).ok().flatten().as_deref())
    }

    fn group<T>(&self, gid: u32, show: impl FnOnce(Option<&[u8]>) -> T) -> T {
        if self.style.numeric {
            return show(None);
        }
        show(self.names.group(gid).ok().flatten().as_deref())
    }

    fn line(&self, entry: &LsEntry, columns: &Columns, now: Timestamp, out: &mut Vec<u8>) {
        let style = &self.style;
        let attr = entry.known();
        let number = |text: Option<String>| text.unwrap_or_else(|| "?".into());
        if style.inodes {
            right(&number(attr.map(|attr| attr.ino.0.to_string())), columns.inode, out);
        }
        if style.blocks {
            right(&number(attr.map(|attr| self.blocks(attr))), columns.blocks, out);
        }
        if style.long {
            self.long(entry, columns, now, out);
        }
        let name = style.names.quote(&entry.name);
        if columns.has_quoted && *name == entry.name[..] {
            out.push(b' ');
        }
        out.extend_from_slice(&name);
        if let Some(Ok(target)) = &entry.target {
            out.extend_from_slice(b" -> ");
            out.extend_from_slice(&style.names.quote(target));
            let reached = entry.target_attr.as_ref();
            let kind = reached.and_then(|attr| FileType::from_mode(attr.mode));
            out.extend(style.indicator.of(kind, reached));
        } else if !(style.long && entry.kind == Some(FileType::Symlink)) {
            out.extend(style.indicator.of(entry.kind, attr));
        }
        out.push(style.end);
    }

    /// Adds the columns of a long line.
    fn long(&self, entry: &LsEntry, columns: &Columns, now: Timestamp, out: &mut Vec<u8>) {
        let style = &self.style;
        let Some(attr) = entry.known() else {
            let letter = match letter_of(entry.kind) {
                b'f' => b'-',
                b'U' => b'?',
                letter => letter,
            };
            out.push(letter);
            out.extend_from_slice(b"?????????");
            out.extend(columns.has_acl.then_some(b'?'));
            out.push(b' ');
            right("?", columns.links, out);
            for (is_shown, columns) in [(style.owner, columns.owner), (style.group, columns.group)]
            {
                if is_shown {
                    left(b"?", columns, out);
                }
            }
            right("?", columns.size, out);
            right("?", style.times.columns(), out);
            return;
        };
        out.extend_from_slice(symbolic(attr.mode).as_bytes());
        out.extend(columns.has_acl.then_some(if entry.has_acl == Ok(true) { b'+' } else { b' ' }));
        out.push(b' ');
        right(&attr.nlink.to_string(), columns.links, out);
        if style.owner {
            self.user(attr.uid, |name| id(name, attr.uid, columns.owner, out));
        }
        if style.group {
            self.group(attr.gid, |name| id(name, attr.gid, columns.group, out));
        }
        if is_device(attr) {
            let device = attr.rdev.into();
            let (major, minor) = (libc::major(device), libc::minor(device));
            let of_minor = columns.minor;
            let text = format!("{major}, {minor:>of_minor$}");
            right(&text, columns.size, out);
        } else {
            right(&style.size_unit.show(attr.size), columns.size, out);
        }
        out.extend_from_slice(&style.times.show(style.time.of(attr), now));
        out.push(b' ');
    }
}

/// Adds the name of a user or group, or its number.
fn id(name: Option<&[u8]>, id: u32, columns: usize, out: &mut Vec<u8>) {
    match name {
        Some(name) => left(name, columns, out),
        None => right(&id.to_string(), columns, out),
    }
}
