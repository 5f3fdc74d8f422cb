//! Directories with files, as an MDS tells of them.

use super::Fake;
use glint_proto::lock::{Bits, DataLock, Grant, Range};
use glint_proto::{
    Attr, DirEntry, DirPage, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest, ObjectId,
};

/// Bytes that an entry takes at a server, which decide how many a page has.
const ENTRY_BYTES: usize = 136;

/// Directories of the root, `0`, `1` and so on, each with files `0`, `1` and so on.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    pub directories: u64,
    pub files: u64,
    /// Bytes of each file.
    pub bytes: u64,
}

impl Tree {
    /// A directory.
    pub(crate) fn directory(number: u64) -> Ino {
        Ino((number + 1) << 32)
    }

    /// A file.
    pub(crate) fn file(directory: u64, number: u64) -> Ino {
        Ino(Tree::directory(directory).0 + 1 + number)
    }

    /// Pages of each directory, for who has so much room.
    pub(crate) fn pages(&self, bytes_max: u32) -> usize {
        (self.files as usize).div_ceil(bytes_max as usize / ENTRY_BYTES)
    }

    /// Content of a file.
    pub(crate) fn content(&self, file: Ino) -> Vec<u8> {
        vec![file.0 as u8; self.bytes as usize]
    }

    /// The inodes in a directory, in the order of their names' numbers.
    fn inodes(&self, directory: Ino) -> Vec<Ino> {
        match directory {
            Ino::ROOT => (0..self.directories).map(Tree::directory).collect(),
            Ino(ino) => (0..self.files).map(|number| Ino(ino + 1 + number)).collect(),
        }
    }

    fn kind(ino: Ino) -> FileType {
        match ino.0 as u32 {
            0 => FileType::Directory,
            _ => FileType::Regular,
        }
    }

    fn attr(&self, like: &Attr, ino: Ino) -> Attr {
        let mode = Tree::kind(ino).mode_bits() | 0o755;
        Attr { ino, mode, size: self.bytes, size_on_ost: false, ..like.clone() }
    }

    /// A page of a directory. Names come backwards: the first ones are on its last page. Their cookies
    /// are spread evenly, as hashes are.
    fn page(&self, like: &Attr, directory: Ino, cookie: u64, bytes_max: u32) -> DirPage {
        let inodes = self.inodes(directory);
        let count = inodes.len();
        let distance = (1_u64 << 63) / (count as u64 + 2);
        let entry = |(at, ino): (usize, &Ino)| DirEntry {
            ino: *ino,
            cookie: (1 + count - at) as u64 * distance,
            dirent_type: Tree::kind(*ino).dirent_type(),
            name: at.to_string().into_bytes(),
            attr: Some(self.attr(like, *ino)),
        };
        let mut entries: Vec<DirEntry> = inodes.iter().enumerate().rev().map(entry).collect();
        entries.retain(|entry| entry.cookie > cookie);
        let most = bytes_max as usize / ENTRY_BYTES;
        let end = entries.len() <= most;
        entries.truncate(most);
        DirPage { entries, end }
    }
}

fn locks(ino: Ino) -> Grant {
    Grant::Bits { ino, bits: Bits::ATTR | Bits::ENTRY, number: 1 }
}

impl Fake {
    /// The MDS has this tree, and gives all locks.
    pub(crate) fn serve(&self, tree: Tree) {
        let like = self.0.lock().attr();
        for file in (0..tree.directories).flat_map(|at| tree.inodes(Tree::directory(at))) {
            let object = ObjectId { ino: file, stripe: 0 };
            self.0.lock().objects.insert(object, tree.content(file));
        }
        self.turn(move |_, request, answer| match *request {
            MdsRequest::Lookup { parent, name } => {
                let at = std::str::from_utf8(name).unwrap().parse::<usize>().ok();
                match at.and_then(|at| tree.inodes(parent).get(at).copied()) {
                    Some(ino) => (said(tree.attr(&like, ino)), vec![locks(ino)]),
                    None => (Err(Errno::ENOENT), Vec::new()),
                }
            }
            MdsRequest::Readdir { ino, cookie, bytes_max, plus } => {
                let mut page = tree.page(&like, ino, cookie, bytes_max);
                if !plus {
                    page.entries.iter_mut().for_each(|entry| entry.attr = None);
                    return (Ok(MdsReply::Dir(page)), Vec::new());
                }
                let mut grants: Vec<Grant> = page.entries.iter().map(|e| locks(e.ino)).collect();
                let free = Grant::Bits { ino, bits: Bits::NEGATIVE, number: 1 };
                grants.extend((cookie == 0).then_some(free));
                (Ok(MdsReply::Dir(page)), grants)
            }
            MdsRequest::GrantInodes { count, .. } => {
                let (first, osts, name_seed) = (1 << 60, 4, 9);
                let (avoided, chains) = (Vec::new(), Vec::new());
                let reply = MdsReply::Inodes { first, count, osts, avoided, chains, name_seed };
                (Ok(reply), Vec::new())
            }
            MdsRequest::Open { ino, .. } => (said(tree.attr(&like, ino)), vec![locks(ino)]),
            MdsRequest::Prefetch { ref inos } => {
                let lock = DataLock { number: 1, range: Range::ALL, write: false };
                let grants = inos.iter().map(|ino| Grant::Data { ino: *ino, lock });
                (Ok(MdsReply::Done), grants.collect())
            }
            _ => answer,
        });
    }
}

fn said(attr: Attr) -> FsResult<MdsReply> {
    Ok(MdsReply::Attr(attr))
}
