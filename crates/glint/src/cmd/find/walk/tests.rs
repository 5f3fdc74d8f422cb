//! Walks over a tree that is as deep as no disk has it.

use super::super::entry::tests::entry;
use super::super::expression::parse;
use super::*;
use glint_proto::{Layout, Timestamp};
use std::ffi::OsString;

/// A deep tree: each directory has a file `f`, and directories `d` and `e`, of which `e` is empty.
struct Deep {
    depth: u64,
}

/// Inode numbers: those of directories `d` are their depth.
const EMPTY: u64 = 1 << 40;
const FILE: u64 = 1 << 41;

impl Source for Deep {
    async fn scan(&self, directories: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let entry = |name: &[u8], mode, ino| {
            let attr = Attr { ino: Ino(ino), ..entry(name, mode).attr.unwrap() };
            ScannedEntry { name: name.to_vec(), ino: Ino(ino), kind: None, attr: Ok(attr) }
        };
        // A name a page, and no more than two directories are answered.
        let page = |(Ino(depth), cookie): &(Ino, u64)| {
            let names = [
                entry(b"f", libc::S_IFREG, FILE),
                entry(b"e", libc::S_IFDIR | 0o755, EMPTY),
                entry(b"d", libc::S_IFDIR | 0o755, depth + 1),
            ];
            let names = names.into_iter().skip(*cookie as usize);
            let entries: Vec<_> = names.take(usize::from(*depth < self.depth)).collect();
            let next = (!entries.is_empty()).then_some(cookie + 1);
            Ok(ScannedPage { entries, next })
        };
        Ok(directories.iter().take(2).map(page).collect())
    }

    async fn lookup(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
        Err(Errno::ENOENT)
    }

    async fn target(&self, _: Ino) -> FsResult<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    async fn follow(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
        Err(Errno::EINVAL)
    }

    async fn has_acl(&self, _: &Attr) -> FsResult<bool> {
        Ok(false)
    }

    async fn xattr_names(&self, _: Ino) -> FsResult<Vec<u8>> {
        Err(Errno::EIO)
    }

    async fn osts_of(&self, _: &Layout) -> FsResult<Vec<u16>> {
        Err(Errno::EIO)
    }

    async fn remove(&self, _: Ino, _: &[u8], _: bool) -> FsResult<()> {
        Err(Errno::EROFS)
    }
}

/// Lines that were printed.
#[derive(Default)]
struct Lines(RefCell<Vec<u8>>);

impl Sink for Lines {
    fn print(&self, bytes: &[u8]) {
        self.0.borrow_mut().extend_from_slice(bytes);
    }

    fn flush(&self) {}

    fn came_to(&self, _: usize) {}

    fn fail(&self, path: &[u8], error: Errno) {
        panic!("{error}: {path:?}");
    }

    fn tell(&self, why: &str) {
        panic!("{why}");
    }

    fn note_failure(&self) {
        panic!("a command has failed");
    }
}

/// Does something with little stack.
fn with_little_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap()
}

/// Walks over a deep tree; returns what was printed.
fn walk(depth: u64, words: &'static str) -> String {
    with_little_stack(move || {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let call = parse(&words, Timestamp { secs: 0, nanos: 0 }, false).unwrap();
        let (source, lines) = (Deep { depth }, Lines::default());
        let attr = Attr { ino: Ino(0), ..entry(b"s", libc::S_IFDIR | 0o755).attr.unwrap() };
        futures_lite::future::block_on(Walk::new(&call, &source, &lines).run(b"s", attr, None));
        String::from_utf8(lines.0.into_inner()).unwrap()
    })
}

#[test]
fn a_deep_tree_needs_little_stack() {
    const DEPTH: usize = 4_000;
    for order in ["-depth -type d -printf %d\\n", "-type d -printf %d\\n"] {
        assert_eq!(walk(DEPTH as u64, order).lines().count(), 2 * DEPTH + 1, "{order}");
    }
    // The walk ends in the middle, and leaves directories.
    let printed = walk(DEPTH as u64, "-inum 3000 -printf %d -quit");
    assert_eq!(printed, "3000");
}

#[test]
fn a_directory_keeps_its_own_name_alone() {
    with_little_stack(|| {
        let name = [&b"s/"[..], &[b'n'; 200]].concat();
        let mut chain: Vec<Rc<Directory>> = Vec::new();
        for depth in 1..=50_000 {
            let entry = Entry { depth, ..entry(&name, libc::S_IFDIR) };
            chain.extend(Directory::new(entry, chain.last(), false).map(Rc::new));
        }
        assert_eq!(
            chain.iter().map(|directory| directory.own_bytes()).sum::<usize>(),
            200 * 50_000
        );
        let deepest = chain.pop();
        drop(chain);
        assert_eq!(deepest.unwrap().path().0.len(), 201 * 50_000 - 1);
    });
}

#[test]
fn paths_are_put_together_as_they_were_said() {
    let printed = walk(2, "-depth");
    let mut lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.pop(), Some("s"));
    lines.sort_unstable();
    assert_eq!(lines, ["s/d", "s/d/d", "s/d/e", "s/d/f", "s/e", "s/f"]);
}

/// A directory whose files others change after it was listed.
#[derive(Default)]
struct Changing {
    removed: RefCell<Vec<Vec<u8>>>,
}

const CHANGED: [&[u8]; 10] = [
    b"same",
    b"read",
    b"replaced",
    b"gone",
    b"grown",
    b"touched",
    b"d",
    b"newdir",
    b"link1",
    b"link2",
];
/// The inode of both links.
const LINKED: Ino = Ino(50);

impl Changing {
    fn listed(name: &[u8], at: usize) -> Attr {
        let mode = if name == b"d" || name == b"newdir" { libc::S_IFDIR } else { libc::S_IFREG };
        let (ino, nlink) =
            if name.starts_with(b"link") { (LINKED, 2) } else { (Ino(10 + at as u64), 1) };
        let layout = Layout { replicas: 2, ..Layout::default() };
        Attr { ino, nlink, layout, has_no_xattrs: false, ..entry(name, mode).attr.unwrap() }
    }
}

impl Source for Changing {
    async fn scan(&self, directories: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let found = |(at, name): (usize, &&[u8])| {
            let attr = Changing::listed(name, at);
            ScannedEntry { name: name.to_vec(), ino: attr.ino, kind: None, attr: Ok(attr) }
        };
        let page = |(ino, _): &(Ino, u64)| {
            let is_top = *ino == Ino(2);
            let entries =
                if is_top { CHANGED.iter().enumerate().map(found).collect() } else { Vec::new() };
            Ok(ScannedPage { entries, next: None })
        };
        Ok(directories.iter().map(page).collect())
    }

    async fn lookup(&self, _: Ino, name: &[u8]) -> FsResult<Attr> {
        let at = CHANGED.iter().position(|listed| *listed == name).ok_or(Errno::ENOENT)?;
        let mut attr = Changing::listed(name, at);
        let later = Timestamp { secs: 9_000_000, nanos: 0 };
        match name {
            b"read" => attr.atime = later,
            b"replaced" | b"newdir" => attr.ino = Ino(99),
            b"gone" => return Err(Errno::ENOENT),
            b"grown" => (attr.size, attr.mtime, attr.ctime) = (5000, later, later),
            b"link2" if !self.removed.borrow().is_empty() => (attr.nlink, attr.ctime) = (1, later),
            b"touched" | b"d" => (attr.mtime, attr.ctime) = (later, later),
            _ => {}
        }
        Ok(attr)
    }

    async fn target(&self, _: Ino) -> FsResult<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    async fn follow(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
        Err(Errno::EINVAL)
    }

    async fn has_acl(&self, _: &Attr) -> FsResult<bool> {
        Ok(false)
    }

    async fn xattr_names(&self, _: Ino) -> FsResult<Vec<u8>> {
        Err(Errno::EIO)
    }

    async fn osts_of(&self, _: &Layout) -> FsResult<Vec<u16>> {
        Err(Errno::EIO)
    }

    async fn remove(&self, _: Ino, name: &[u8], is_directory: bool) -> FsResult<()> {
        assert_eq!(is_directory, name == b"d");
        self.removed.borrow_mut().push(name.to_vec());
        Ok(())
    }
}

/// What was printed, and what was told.
#[derive(Default)]
struct Told {
    lines: Lines,
    errors: RefCell<Vec<String>>,
    failures: Cell<usize>,
    is_over: Cell<bool>,
}

impl Sink for Told {
    fn print(&self, bytes: &[u8]) {
        self.lines.print(bytes);
    }

    fn flush(&self) {}

    fn came_to(&self, _: usize) {}

    fn fail(&self, path: &[u8], error: Errno) {
        self.note_failure();
        self.tell(&format!("{}: {error}", String::from_utf8_lossy(path)));
    }

    fn tell(&self, why: &str) {
        self.errors.borrow_mut().push(why.to_owned());
    }

    fn note_failure(&self) {
        self.failures.set(self.failures.get() + 1);
    }

    fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

#[test]
fn no_action_is_taken_when_an_end_was_asked_for() {
    for words in ["-delete", "-exec true {} ;", "-exec true {} +"] {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let call = parse(&words, Timestamp { secs: 10_000_000, nanos: 0 }, false).unwrap();
        let (source, told) = (Changing::default(), Told::default());
        told.is_over.set(true);
        let attr = Attr { ino: Ino(2), ..entry(b".", libc::S_IFDIR | 0o755).attr.unwrap() };
        let walk = Walk::new(&call, &source, &told);
        assert!(!futures_lite::future::block_on(walk.run(b".", attr, None)), "{words:?}");
        assert!(source.removed.borrow().is_empty() && walk.gathered.borrow().is_empty());
        assert_eq!(told.failures.get(), 0);
    }
}

/// Deletes with an expression: returns what was removed, and how many names could not be.
fn delete(words: &str) -> (Vec<String>, Vec<String>, usize) {
    let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
    let call = parse(&words, Timestamp { secs: 10_000_000, nanos: 0 }, false).unwrap();
    let (source, told) = (Changing::default(), Told::default());
    let attr = Attr { ino: Ino(2), ..entry(b".", libc::S_IFDIR | 0o755).attr.unwrap() };
    futures_lite::future::block_on(Walk::new(&call, &source, &told).run(b".", attr, None));
    let removed = source.removed.into_inner().into_iter();
    let removed = removed.map(|name| String::from_utf8(name).unwrap()).collect();
    (removed, told.errors.into_inner(), told.failures.get())
}

#[test]
fn only_the_file_for_which_the_expression_holds_is_deleted() {
    // 1000 bytes each when they were listed.
    let (removed, errors, failures) = delete("-type f -size 1000c -delete");
    assert_eq!(removed, ["same", "read", "touched", "link1", "link2"]);
    assert_eq!(failures, errors.len());
    for (at, (name, why)) in [
        ("replaced", "another file has this name now"),
        ("gone", "No such file"),
        ("grown", "does not hold any more"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(errors[at].contains(&format!("cannot delete './{name}'")), "{errors:?}");
        assert!(errors[at].contains(why), "{errors:?}");
    }
    // Whatever their attributes are now.
    let (removed, errors, _) = delete("-name * -delete");
    assert_eq!(removed, ["same", "read", "grown", "touched", "link1", "link2", "d"]);
    assert!(errors.len() == 3 && errors[2].contains("newdir"), "{errors:?}");
    // An action that was taken before is not taken again.
    let (removed, ..) = delete("-type f -mtime +50 -exec true ; -delete");
    assert_eq!(removed, ["same", "read", "link1", "link2"]);
    // What the walk has changed itself is passed over, as find(1) does.
    let (removed, errors, failures) = delete("-links 2 -delete");
    assert_eq!(removed, ["link1"]);
    assert!(errors.is_empty() && failures == 0, "{errors:?}");
}

#[test]
fn nothing_is_done_with_a_file_of_which_a_fact_is_not_to_be_had() {
    for words in ["! -xattr user.keep", "! -ost 3", "( -false -o ! -xattr user.keep )"] {
        for action in ["-delete", "-exec false ;", "-print"] {
            let (removed, errors, failures) = delete(&format!("-type f {words} {action}"));
            assert!(removed.is_empty(), "{words}: {removed:?}");
            assert_eq!((errors.len(), failures), (8, 8), "{words} {action}: {errors:?}");
        }
    }
}

/// Directories with files, each of which has an attribute named after its inode, or copies on the OST
/// of that number.
#[derive(Default)]
struct Labelled {
    asked: RefCell<Vec<Ino>>,
    under_way: Cell<usize>,
    most: Cell<usize>,
}

const LABELLED: u64 = 300;

impl Labelled {
    /// Answers later, so that others are asked for meanwhile.
    async fn answer(&self, ino: Ino) {
        self.asked.borrow_mut().push(ino);
        self.under_way.set(self.under_way.get() + 1);
        self.most.set(self.most.get().max(self.under_way.get()));
        futures_lite::future::yield_now().await;
        self.under_way.set(self.under_way.get() - 1);
    }
}

impl Source for Labelled {
    async fn scan(&self, directories: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let named = |ino: u64, mode| {
            let layout = Layout { replicas: 2, ..Layout::default() };
            let has_no_xattrs = ino.is_multiple_of(3);
            let attr = entry(b"", mode).attr.unwrap();
            let attr = Attr { ino: Ino(ino), layout, has_no_xattrs, ..attr };
            let name = format!("n{ino}").into_bytes();
            ScannedEntry { name, ino: Ino(ino), kind: None, attr: Ok(attr) }
        };
        // A directory of directories, with one file each.
        let page = |(ino, _): &(Ino, u64)| {
            let entries = match ino.0 {
                2 => (1000..1000 + LABELLED).map(|ino| named(ino, libc::S_IFDIR | 0o755)).collect(),
                directory => vec![named(directory + 1000, libc::S_IFREG)],
            };
            Ok(ScannedPage { entries, next: None })
        };
        Ok(directories.iter().map(page).collect())
    }

    async fn lookup(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
        Err(Errno::ENOENT)
    }

    async fn target(&self, _: Ino) -> FsResult<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    async fn follow(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
        Err(Errno::EINVAL)
    }

    async fn has_acl(&self, _: &Attr) -> FsResult<bool> {
        Ok(false)
    }

    async fn xattr_names(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.answer(ino).await;
        Ok(format!("user.x\0user.{}\0", ino.0).into_bytes())
    }

    async fn osts_of(&self, _: &Layout) -> FsResult<Vec<u16>> {
        self.answer(Ino(0)).await;
        Ok(vec![3, 5])
    }

    async fn remove(&self, _: Ino, _: &[u8], _: bool) -> FsResult<()> {
        Err(Errno::EROFS)
    }
}

#[test]
fn facts_of_many_files_are_asked_for_at_once_and_only_where_they_decide() {
    let find = |words: &str| {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let call = parse(&words, Timestamp::default(), false).unwrap();
        let (source, lines) = (Labelled::default(), Lines::default());
        let attr = Attr { ino: Ino(2), ..entry(b".", libc::S_IFDIR | 0o755).attr.unwrap() };
        futures_lite::future::block_on(Walk::new(&call, &source, &lines).run(b".", attr, None));
        let printed = String::from_utf8(lines.0.into_inner()).unwrap();
        let mut printed: Vec<String> = printed.lines().map(str::to_owned).collect();
        printed.sort_unstable();
        let mut asked = source.asked.into_inner();
        let count = asked.len();
        asked.sort_unstable();
        asked.dedup();
        (printed, count, asked.len(), source.most.get())
    };
    let all = 2 * LABELLED as usize;
    for order in ["", "-depth "] {
        // One in three has none; each other one is asked for once, for all patterns.
        let words = format!("{order}( -xattr user.1000 -o -xattr *.2010 -o -xattr user.2011 )");
        let (printed, count, files, most) = find(&words);
        assert_eq!(printed, ["./n1000", "./n1011/n2011"], "{words}");
        assert_eq!((count, files), (all * 2 / 3, all * 2 / 3), "{words}");
        assert!((8..=64).contains(&most), "{most} requests at once");
        // Nothing is asked for of what does not need it.
        let (printed, count, ..) = find(&format!("{order}-type d -name n1000 -xattr user.x"));
        assert_eq!((printed.len(), count), (1, 1));
        assert_eq!(find(&format!("{order}-xattr security.* -o -xattr user.")).0.len(), 0);
    }
    let (printed, count, _, most) = find("-ost 4,5");
    assert_eq!((printed.len(), count), (LABELLED as usize, LABELLED as usize));
    assert!((8..=64).contains(&most), "{most} requests at once");
    assert_eq!(find("-ost 4").0.len(), 0);
    assert_eq!(find("-type d -layout replicas=2").0.len(), LABELLED as usize);
}

#[test]
fn a_directory_that_must_not_be_looked_at_is_told_once() {
    for (words, kind, told_of) in [
        ("-size +0", FileType::Directory, 1),
        ("-type d", FileType::Directory, 1),
        ("-true", FileType::Directory, 1),
        ("-size +0", FileType::Regular, 1),
        ("-type d", FileType::Regular, 0),
    ] {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let call = parse(&words, Timestamp { secs: 10_000_000, nanos: 0 }, false).unwrap();
        let (source, told) = (Changing::default(), Told::default());
        let walk = Walk::new(&call, &source, &told);
        let above = Directory::new(entry(b"s", libc::S_IFDIR | 0o744), None, false).unwrap();
        let attr = entry(b"n", libc::S_IFDIR | 0o755).attr;
        let named = ScannedEntry { name: b"n".to_vec(), ino: Ino(5), kind: Some(kind), attr };
        let found = walk.entry(&above, named, false, b"s/n".to_vec(), 1);
        futures_lite::future::block_on(walk.look_at(found));
        let errors = told.errors.borrow();
        assert_eq!(errors.len(), told_of, "{words:?} {kind:?}: {errors:?}");
    }
}
