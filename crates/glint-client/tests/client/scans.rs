//! Scans of many directories at once, while others change them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{Fake, with_client};
use glint_client::Caller;
use glint_proto::{
    Attr, DirEntry, DirPage, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest, Op, OstRequest,
    Timestamp,
};

/// A directory that is gone, and one that was moved to where the client sees nothing.
const GONE: Ino = Ino(404);
const OUTSIDE: Ino = Ino(403);

fn scanned(pages: Vec<FsResult<DirPage>>) -> MdsReply {
    MdsReply::Scanned { pages, unsent: Vec::new() }
}

fn entry(name: &[u8], attr: Option<Attr>) -> DirEntry {
    DirEntry { ino: Ino(20), cookie: 1, dirent_type: 8, name: name.to_vec(), attr }
}

/// The MDS refuses a scan as a whole if one of its directories is refused, as older ones do.
fn serve(fake: &Fake) {
    let like = fake.0.lock().attr();
    fake.turn(move |_, request, answer| {
        let reply = match request {
            MdsRequest::Scan { directories, .. } => {
                let refused = directories.iter().find_map(|(ino, _)| match *ino {
                    GONE => Some(Errno::ESTALE),
                    OUTSIDE => Some(Errno::EACCES),
                    _ => None,
                });
                let attr = Attr { ino: Ino(20), size_on_ost: false, ..like.clone() };
                let entries = vec![entry(b"f", Some(attr))];
                let page = Ok(DirPage { entries, end: true });
                match refused {
                    Some(error) => Err(error),
                    None => Ok(scanned(vec![page; directories.len()])),
                }
            }
            _ => return answer,
        };
        (reply, Vec::new())
    });
}

#[test]
fn a_refused_directory_hides_no_other_one() {
    with_client(async |fake, client| {
        serve(&fake);
        let mut left: Vec<(Ino, u64)> =
            [2, 3, GONE.0, 4, OUTSIDE.0, 5].map(|ino| (Ino(ino), 0)).to_vec();
        let mut found = Vec::new();
        while !left.is_empty() {
            let pages = client.scan(&Caller::ROOT, &left, None).await.unwrap();
            for page in pages {
                let (ino, _) = left.remove(0);
                found.push((ino.0, page.map(|page| page.entries.len())));
            }
        }
        let refused = |error| -> FsResult<usize> { Err(error) };
        assert_eq!(
            found,
            [
                (2, Ok(1)),
                (3, Ok(1)),
                (GONE.0, refused(Errno::ESTALE)),
                (4, Ok(1)),
                (OUTSIDE.0, refused(Errno::EACCES)),
                (5, Ok(1)),
            ]
        );
        assert_eq!(fake.asked(Op::Scan), 2 * 5 + 1);
    });
}

#[test]
fn the_size_of_a_file_that_is_written_comes_from_its_writer_and_its_objects() {
    with_client(async |fake, client| {
        let like = fake.0.lock().attr();
        fake.turn(move |_, request, answer| match request {
            MdsRequest::Scan { .. } => {
                let attr = |ino| Attr { ino: Ino(ino), size_on_ost: true, ..like.clone() };
                let of = |ino| DirEntry { ino: Ino(ino), ..entry(b"f", Some(attr(ino))) };
                let pages = vec![Ok(DirPage { entries: vec![of(20), of(21)], end: true })];
                let unsent = vec![(Ino(20), 1 << 40, Timestamp { secs: 1 << 40, nanos: 7 })];
                (Ok(MdsReply::Scanned { pages, unsent }), Vec::new())
            }
            // It was closed by now.
            MdsRequest::Lookup { .. } => {
                let attr = Attr { ino: Ino(21), size: 5, size_on_ost: false, ..like.clone() };
                (Ok(MdsReply::Attr(attr)), Vec::new())
            }
            _ => answer,
        });
        let mut pages = client.scan(&Caller::ROOT, &[(Ino(2), 0)], None).await.unwrap();
        let entries = pages.remove(0).unwrap().entries;
        let [unsent, sent] = entries.try_into().unwrap();
        let (unsent, sent): (Attr, Attr) = (unsent.attr.unwrap(), sent.attr.unwrap());
        assert_eq!((unsent.size, unsent.mtime.nanos), (1 << 40, 7));
        // The other one has no objects, as one that was moved or removed meanwhile.
        assert_eq!((sent.size, fake.asked(Op::Lookup)), (5, 1));
        assert_eq!(fake.count(|request| matches!(request, OstRequest::Stat { .. })), 2);
    });
}

#[test]
fn a_name_that_others_replace_is_one_file() {
    with_client(async |fake, client| {
        let like = fake.0.lock().attr();
        // Without attributes the file is looked up; by then it is another one.
        fake.turn(move |_, request, answer| match request {
            MdsRequest::Scan { .. } => {
                let page = DirPage { entries: vec![entry(b"f", None)], end: true };
                (Ok(scanned(vec![Ok(page)])), Vec::new())
            }
            MdsRequest::Lookup { .. } => {
                let mode = FileType::Directory.mode_bits() | 0o755;
                let attr = Attr { ino: Ino(21), mode, size_on_ost: false, ..like.clone() };
                (Ok(MdsReply::Attr(attr)), Vec::new())
            }
            _ => answer,
        });
        let mut pages = client.scan(&Caller::ROOT, &[(Ino(2), 0)], None).await.unwrap();
        let entry = pages.remove(0).unwrap().entries.remove(0);
        assert_eq!((entry.ino, entry.kind), (Ino(21), Some(FileType::Directory)));
        assert_eq!(entry.attr.unwrap().ino, Ino(21));
    });
}
