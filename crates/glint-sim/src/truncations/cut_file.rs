//! A file that clients cut off and write anew, and what it holds then.

use crate::workload::{Fs, make};
use crate::world::executor::Executor;
use glint_client::{Caller, Handle, Vfs, WriteHow};
use glint_proto::{FileType, FsResult, Ino, Layout, ObjectId, OpenFlags, SetAttr};
use std::cell::{Cell, RefCell};
use std::fmt;

const ROOT: &Caller = &Caller::ROOT;
/// Most bytes that are written at once: of these one.
const WRITTEN_MAX: [u64; 4] = [300, 4 << 10, 72_000, 160_000];
/// How much longer a file is made without data, at most; and from which size on it is not.
const LONGER: u64 = 70_000;
const LONG: u64 = 200_000;
/// In how many pieces data is written, at most.
const PIECES: u64 = 3;
/// Bytes that are shown of what is another one.
const SHOWN: usize = 24;

/// What is done about the size of a file before something is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CutHow {
    /// open(2) with O_TRUNC.
    Open,
    /// creat(2), although it is there.
    Create,
    /// ftruncate(2), to what is smaller or larger.
    Size(u64),
    /// Nothing: it is overwritten.
    Not,
}

/// A change of a file: it is opened, cut off, written, and closed.
#[derive(Clone)]
pub(super) struct Rewriting {
    turn: u64,
    how: CutHow,
    data: Vec<u8>,
    pieces: usize,
    reads: bool,
    sync: bool,
}

impl fmt::Display for Rewriting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rewriting { turn, how, data, pieces, reads, sync } = self;
        let len = data.len();
        write!(f, "turn {turn} ({how:?}, {len} bytes in {pieces}, reads={reads}, fsync={sync})")
    }
}

impl Rewriting {
    /// Where data is written.
    fn start(&self) -> usize {
        match self.how {
            CutHow::Size(size) => size as usize,
            CutHow::Open | CutHow::Create | CutHow::Not => 0,
        }
    }

    /// What the file holds after it.
    fn after(&self, before: &[u8]) -> Vec<u8> {
        let mut content = before.to_vec();
        match self.how {
            CutHow::Open | CutHow::Create => content.clear(),
            CutHow::Size(size) => content.resize(size as usize, 0),
            CutHow::Not => {}
        }
        let (start, end) = (self.start(), self.start() + self.data.len());
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(&self.data);
        content
    }
}

/// A file.
pub(super) struct CutFile {
    pub(super) name: String,
    pub(super) ino: Ino,
    layout: Layout,
    /// What it holds.
    content: RefCell<Vec<u8>>,
    /// How many changes were begun.
    turns: Cell<u64>,
}

impl CutFile {
    pub(super) async fn make(fs: &Fs, name: String) -> FsResult<CutFile> {
        let regular = make(FileType::Regular);
        let open = fs.create(ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_RDWR).await?;
        fs.release(open.handle).await?;
        let (ino, layout) = (open.attr.ino, open.attr.layout);
        let (content, turns) = (RefCell::default(), Cell::new(0));
        Ok(CutFile { name, ino, layout, content, turns })
    }

    /// Its objects, each with its chain.
    pub(super) fn objects(&self) -> Vec<(u16, ObjectId)> {
        let stripes = 0..self.layout.stripe_count.max(1);
        let placed = |stripe| (self.layout.ost_of(stripe, 1), self.layout.object(self.ino, stripe));
        stripes.map(placed).collect()
    }

    /// The next change.
    pub(super) fn draw(&self, executor: &Executor) -> Rewriting {
        let turn = self.turns.get() + 1;
        self.turns.set(turn);
        let size = self.content.borrow().len() as u64;
        let how = match executor.below(12) {
            0..=5 => CutHow::Open,
            6 => CutHow::Create,
            7 => CutHow::Size(0),
            8 | 9 if size < LONG => CutHow::Size(executor.below(size + LONGER)),
            8..=10 => CutHow::Size(executor.below(size + 1)),
            _ => CutHow::Not,
        };
        let most = executor.one_of(&WRITTEN_MAX).copied().unwrap_or(1);
        let is_resized_only = matches!(how, CutHow::Size(_)) && executor.one_in(2);
        let len = if is_resized_only { 0 } else { 1 + executor.below(most) };
        // Each eight bytes say whose they are.
        let stamp = format!("{turn:07}.");
        let data = stamp.bytes().cycle().take(len as usize).collect();
        let pieces = 1 + executor.below(PIECES) as usize;
        let (reads, sync) = (executor.one_in(2), executor.one_in(4));
        Rewriting { turn, how, data, pieces, reads, sync }
    }

    /// Makes a change, by which the file has other content when it is closed.
    pub(super) async fn change(&self, fs: &Fs, what: &Rewriting) -> FsResult<()> {
        let handle = match what.how {
            CutHow::Create => {
                let access = if what.reads { libc::O_RDWR } else { libc::O_WRONLY };
                let flags = access | libc::O_CREAT | libc::O_TRUNC;
                let (name, regular) = (self.name.as_bytes(), make(FileType::Regular));
                fs.create(ROOT, Ino::ROOT, name, regular, flags).await?.handle
            }
            how => {
                let (read, truncate) = (what.reads, how == CutHow::Open);
                let flags = OpenFlags { read, write: true, truncate, ..OpenFlags::default() };
                fs.open(ROOT, self.ino, flags).await?.handle
            }
        };
        let written = self.write(fs, handle, what).await;
        let flushed = fs.flush(handle).await;
        let released = fs.release(handle).await;
        written.and(flushed).and(released)?;
        let content = what.after(&self.content.borrow());
        self.content.replace(content);
        Ok(())
    }

    async fn write(&self, fs: &Fs, handle: Handle, what: &Rewriting) -> FsResult<()> {
        if let CutHow::Size(size) = what.how {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            fs.setattr(ROOT, self.ino, &set).await?;
        }
        let mut offset = what.start() as u64;
        for piece in what.data.chunks(what.data.len().div_ceil(what.pieces).max(1)) {
            fs.write(handle, offset, piece, WriteHow::default()).await?;
            offset += piece.len() as u64;
        }
        if what.sync { fs.fsync(handle).await } else { Ok(()) }
    }

    /// Its size, and all that can be read of it.
    pub(super) async fn read(&self, fs: &Fs) -> FsResult<(u64, Vec<u8>)> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let handle = fs.open(ROOT, self.ino, flags).await?.handle;
        let mut data = vec![0; self.content.borrow().len() + 1];
        let read = fs.read(handle, 0, &mut data, true).await;
        let found = fs.getattr(self.ino).await;
        let released = fs.release(handle).await;
        data.truncate(read?);
        released?;
        Ok((found?.attr.size, data))
    }

    /// How it differs from what it must be, if it is found like this.
    pub(super) fn difference(&self, size: u64, found: &[u8]) -> Option<String> {
        let content = self.content.borrow();
        let (is, must) = (found.len(), content.len());
        if size == must as u64 && found == content.as_slice() {
            return None;
        }
        let both = found.iter().zip(content.iter());
        let same = both.take_while(|(one, other)| one == other).count();
        let shown = |bytes: &[u8]| {
            let some = &bytes[same..bytes.len().min(same + SHOWN)];
            String::from_utf8_lossy(some).into_owned()
        };
        let (there, wanted) = (shown(found), shown(&content));
        Some(format!(
            "{}, {} has {size} bytes, of which {is} are read, and must have {must}: from {same} on \
             it is {there:?}, and must be {wanted:?}",
            self.name, self.ino
        ))
    }
}
