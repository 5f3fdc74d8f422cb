//! Rights of a client: a mount token, which the authority has put into its certificate.
//!
//! Invariants:
//! - Every request of a connection is looked at before a server executes it: nothing that a
//!   client says gives it more than its certificate does.
//! - A client whose ids are not those of the servers sees its own and says its own; what has no
//!   counterpart is nobody's.

use glint_proto::posix::ScanFilter;
use glint_proto::{Attr, Cred, Errno, FsResult, MdsReply, MdsRequest, OstRequest, SetAttr};
use std::fmt;
use std::str::FromStr;

/// Object identifier of the rights in a certificate: an arc of its own below that of UUIDs (X.667).
pub const RIGHTS_OID: [u64; 3] = [2, 25, 7_236_415_927_081_633];
/// Id of the user and group `nobody`.
const NOBODY: u32 = 65534;

/// Callers whose ids are not taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// Everybody is who the client says.
    #[default]
    None,
    /// The superuser of the client is nobody.
    Root,
    /// Everybody is nobody.
    All,
}

/// `count` ids from `client` on are those from `server` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdMap {
    /// As the client says.
    pub client: u32,
    /// As the servers say.
    pub server: u32,
    /// How many.
    pub count: u32,
}

/// Rights of a client. The default is everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// The client sees the file system from this directory on.
    pub subtree: Option<String>,
    /// The client may change nothing.
    pub read_only: bool,
    /// See [`Squash`].
    pub squash: Squash,
    /// Users; all are the same if there are none.
    pub users: Vec<IdMap>,
    /// Groups; all are the same if there are none.
    pub groups: Vec<IdMap>,
    /// The client may be a server of OSTs. This is more than everything: such a server says which
    /// data is gone, and is believed.
    pub oss: bool,
}

/// Peer of a connection, as the connection itself tells.
#[derive(Default)]
pub(crate) struct Peer {
    /// SHA-256 of its certificate; none where nobody asked for one.
    pub(crate) certificate: Option<[u8; 32]>,
    /// Name that the authority gave it.
    pub(crate) name: Option<String>,
    /// Rights of the peer; all of them where nobody asked who it is.
    pub(crate) rights: Rights,
}

impl Peer {
    /// Whether it may be a server of OSTs.
    pub(crate) fn may_be_oss(&self) -> bool {
        self.rights.is_all() && (self.rights.oss || self.certificate.is_none())
    }
}

fn shift(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let at = id.checked_sub(from).filter(|at| *at < count)?;
    to.checked_add(at)
}

fn to_server(maps: &[IdMap], id: u32) -> u32 {
    if maps.is_empty() {
        return id;
    }
    maps.iter().find_map(|map| shift(id, map.client, map.server, map.count)).unwrap_or(NOBODY)
}

fn to_client(maps: &[IdMap], id: u32) -> u32 {
    if maps.is_empty() {
        return id;
    }
    maps.iter().find_map(|map| shift(id, map.server, map.client, map.count)).unwrap_or(NOBODY)
}

impl Rights {
    /// Whether everything is allowed, by everybody who says so: an administrator's.
    pub fn is_all(&self) -> bool {
        *self == Rights { oss: self.oss, ..Rights::default() }
    }

    /// Whether ids are the same on both sides.
    fn changes_ids(&self) -> bool {
        self.squash != Squash::None || !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Credentials of the caller as the servers take them.
    pub fn cred(&self, cred: Cred) -> Cred {
        let squashed = match self.squash {
            Squash::None => false,
            Squash::Root => cred.uid == 0,
            Squash::All => true,
        };
        if squashed {
            return Cred { uid: NOBODY, gid: NOBODY, groups: Some(Vec::new()) };
        }
        let group = |gid: u32| match (self.squash, gid) {
            (Squash::Root, 0) => NOBODY,
            _ => to_server(&self.groups, gid),
        };
        Cred {
            uid: to_server(&self.users, cred.uid),
            gid: group(cred.gid),
            groups: cred.groups.map(|groups| groups.into_iter().map(group).collect()),
        }
    }

    /// The request that is executed for one to the MDS.
    pub fn mds<'a>(&self, request: MdsRequest<'a>) -> FsResult<MdsRequest<'a>> {
        use MdsRequest::*;
        if self.read_only {
            match &request {
                // Reading leaves no trace.
                Touch { ino } => return Ok(Getattr { ino: *ino }),
                Open { flags, .. } if !flags.write && !flags.truncate => {}
                Release { write: false, wrote: None, .. } | AddOpens { .. } | PosixLock(_) => {}
                GrantInodes { .. }
                | ReclaimDelegation { .. }
                | WritesBack { .. }
                | Lock { write: true, .. }
                | Reopen { writers: 1.., .. } => return Err(Errno::EROFS),
                request if request.is_modifying() => return Err(Errno::EROFS),
                _ => {}
            }
        }
        match request {
            // A client does by itself only what it can foresee, and it does not know who it is.
            GrantInodes { .. }
            | WritesBack { .. }
            | ReclaimDelegation { .. }
            | Batch { .. }
            | Prefetch { .. }
                if self.changes_ids() || self.subtree.is_some() =>
            {
                Err(Errno::EOPNOTSUPP)
            }
            Setattr { ino, set } => {
                let uid = set.uid.map(|uid| to_server(&self.users, uid));
                let gid = set.gid.map(|gid| to_server(&self.groups, gid));
                Ok(Setattr { ino, set: SetAttr { uid, gid, ..set } })
            }
            // Ids in it are the client's, and what it leaves out would tell ids that are not shown.
            Scan { directories, bytes_max, filter } if self.changes_ids() => {
                let filter =
                    filter.map(|filter| Box::new(ScanFilter { uid: None, gid: None, ..*filter }));
                Ok(Scan { directories, bytes_max, filter })
            }
            request => Ok(request),
        }
    }

    /// Whether a request to an OST is executed.
    pub fn ost(&self, request: &OstRequest) -> FsResult<()> {
        let writes = request.is_modifying() || matches!(request, OstRequest::GrantSpace { .. });
        if self.read_only && writes { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Changes a reply to what the client is told.
    pub fn reply(&self, reply: &mut MdsReply) {
        let tell = |attr: &mut Attr| {
            attr.uid = to_client(&self.users, attr.uid);
            attr.gid = to_client(&self.groups, attr.gid);
        };
        match reply {
            MdsReply::Attr(attr)
            | MdsReply::Opened { attr, .. }
            | MdsReply::Glimpsed { attr, .. } => tell(attr),
            MdsReply::Dir(page) => {
                page.entries.iter_mut().filter_map(|entry| entry.attr.as_mut()).for_each(tell);
            }
            MdsReply::Scanned { pages, .. } => {
                let entries = pages.iter_mut().flatten().flat_map(|page| &mut page.entries);
                entries.filter_map(|entry| entry.attr.as_mut()).for_each(tell);
            }
            _ => {}
        }
    }
}

/// As certificates say it: words with spaces between them.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.read_only { "ro" } else { "rw" })?;
        if self.oss {
            f.write_str(" oss")?;
        }
        if let Some(subtree) = &self.subtree {
            write!(f, " subtree={subtree}")?;
        }
        match self.squash {
            Squash::None => {}
            Squash::Root => f.write_str(" squash=root")?,
            Squash::All => f.write_str(" squash=all")?,
        }
        for (name, maps) in [("uid", &self.users), ("gid", &self.groups)] {
            for map in maps {
                write!(f, " {name}={}:{}:{}", map.client, map.server, map.count)?;
            }
        }
        Ok(())
    }
}

impl FromStr for IdMap {
    type Err = String;

    /// `CLIENT:SERVER[:COUNT]`.
    fn from_str(text: &str) -> Result<IdMap, String> {
        let numbers: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let map = match numbers.as_deref() {
            Ok([client, server]) => IdMap { client: *client, server: *server, count: 1 },
            Ok([client, server, count]) if *count > 0 => {
                IdMap { client: *client, server: *server, count: *count }
            }
            _ => return Err(format!("ids {text:?}: use CLIENT:SERVER or CLIENT:SERVER:COUNT")),
        };
        match map.client.max(map.server).checked_add(map.count) {
            Some(_) => Ok(map),
            None => Err(format!("ids {text:?}: too many")),
        }
    }
}

impl FromStr for Rights {
    type Err = String;

    fn from_str(text: &str) -> Result<Rights, String> {
        let mut rights = Rights::default();
        for word in text.split(' ') {
            match word.split_once('=') {
                None if word == "ro" => rights.read_only = true,
                None if word == "rw" => {}
                None if word == "oss" => rights.oss = true,
                Some(("squash", "root")) => rights.squash = Squash::Root,
                Some(("squash", "all")) => rights.squash = Squash::All,
                Some(("subtree", path)) if path.starts_with('/') => {
                    rights.subtree = Some(path.to_owned());
                }
                Some(("uid", map)) => rights.users.push(map.parse()?),
                Some(("gid", map)) => rights.groups.push(map.parse()?),
                // A server that does not understand a limit must not let its holder in.
                _ => return Err(format!("right {word:?}: unknown to this version")),
            }
        }
        Ok(rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{DirEntry, DirPage, Ino, OpenFlags, Timestamp};

    #[test]
    fn words_and_rights_are_the_same() {
        let text = "ro subtree=/a/b squash=root uid=1000:5000:10 uid=0:65534:1 gid=7:8:1";
        let rights: Rights = text.parse().unwrap();
        assert_eq!(rights.to_string(), text);
        assert!("rw".parse::<Rights>().unwrap().is_all());
        let oss: Rights = "rw oss".parse().unwrap();
        assert!(oss.is_all() && oss.oss && oss.to_string() == "rw oss");
        for bad in ["", "subtree=x", "uid=1", "uid=1:2:0", "gid=4294967295:0:2", "squash=none"] {
            assert!(bad.parse::<Rights>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_in_a_filter_are_not_compared_where_they_are_others() {
        let filter =
            ScanFilter { uid: Some(1000), gid: Some(7), size: (1, 2), ..Default::default() };
        let scan = || {
            let filter = Some(Box::new(filter.clone()));
            MdsRequest::Scan { directories: vec![(Ino(5), 0)], bytes_max: 9, filter }
        };
        for (rights, expected) in [
            ("rw uid=1000:5000:10", (None, None)),
            ("ro gid=7:8:1", (None, None)),
            ("rw squash=all", (None, None)),
            ("rw subtree=/a", (Some(1000), Some(7))),
        ] {
            let rights: Rights = rights.parse().unwrap();
            let Ok(MdsRequest::Scan { filter: Some(asked), .. }) = rights.mds(scan()) else {
                panic!("{rights}")
            };
            assert_eq!(((asked.uid, asked.gid), asked.size), (expected, (1, 2)), "{rights}");
        }
    }

    #[test]
    fn only_a_certificate_that_says_so_makes_a_server_of_osts() {
        let peer = |certificate, rights: &str| Peer {
            certificate,
            name: None,
            rights: rights.parse().unwrap(),
        };
        assert!(peer(Some([1; 32]), "rw oss").may_be_oss());
        assert!(!peer(Some([1; 32]), "rw").may_be_oss());
        assert!(!peer(Some([1; 32]), "ro oss").may_be_oss());
        assert!(Peer::default().may_be_oss(), "nobody asked who it is");
    }

    #[test]
    fn ids_go_there_and_come_back() {
        let rights: Rights = "rw squash=root uid=1000:5000:10".parse().unwrap();
        let cred = |uid, gid| Cred { uid, gid, groups: Some(vec![0, 9]) };
        let said = |uid, gid| {
            let cred = rights.cred(cred(uid, gid));
            (cred.uid, cred.gid, cred.groups.unwrap())
        };
        assert_eq!(said(1003, 9), (5003, 9, vec![NOBODY, 9]));
        assert_eq!(said(1010, 0), (NOBODY, NOBODY, vec![NOBODY, 9]), "not among them");
        assert_eq!(said(0, 9), (NOBODY, NOBODY, vec![]), "squashed");
        for (server, client) in [(5009, 1009), (1003, NOBODY), (0, NOBODY)] {
            assert_eq!(to_client(&rights.users, server), client);
        }
        let set = SetAttr { uid: Some(1001), gid: Some(3), ..SetAttr::default() };
        let request = rights.mds(MdsRequest::Setattr { ino: Ino(5), set }).unwrap();
        let MdsRequest::Setattr { set, .. } = request else { panic!("{request:?}") };
        assert_eq!((set.uid, set.gid), (Some(5001), Some(3)));
        let batch = rights.mds(MdsRequest::Batch { epoch: 1, changes: b"" });
        assert_eq!(batch, Err(Errno::EOPNOTSUPP), "it carries ids of its own");
    }

    #[test]
    fn replies_have_the_ids_of_the_client() {
        let rights: Rights = "rw uid=1000:5000:10 gid=7:8:1".parse().unwrap();
        let of_root = Attr::new(Ino(5), 0o100_644, Timestamp::default());
        let attr = |uid, gid| Attr { uid, gid, ..of_root.clone() };
        let page = || {
            let entry = |attr| DirEntry {
                cookie: 1,
                ino: Ino(5),
                dirent_type: 8,
                name: b"f".to_vec(),
                attr,
            };
            let entries = vec![entry(Some(attr(5003, 8))), entry(None), entry(Some(attr(3, 3)))];
            DirPage { entries, end: true }
        };
        let told = |page: &DirPage| -> Vec<(u32, u32)> {
            let attrs = page.entries.iter().filter_map(|entry| entry.attr.as_ref());
            attrs.map(|attr| (attr.uid, attr.gid)).collect()
        };
        let expected = [(1003, 7), (NOBODY, NOBODY)];
        let pages = vec![Ok(page()), Err(Errno::ESTALE), Ok(page())];
        let mut scanned = MdsReply::Scanned { pages, unsent: Vec::new() };
        rights.reply(&mut scanned);
        let MdsReply::Scanned { pages, .. } = scanned else { panic!("{scanned:?}") };
        assert_eq!(pages.len(), 3);
        for page in pages.iter().flatten() {
            assert_eq!(told(page), expected);
        }
        let mut listed = MdsReply::Dir(page());
        rights.reply(&mut listed);
        let MdsReply::Dir(page) = listed else { panic!("{listed:?}") };
        assert_eq!(told(&page), expected);
        let mut one = MdsReply::Attr(attr(5009, 9));
        rights.reply(&mut one);
        assert_eq!(one, MdsReply::Attr(attr(1009, NOBODY)));
    }

    #[test]
    fn who_only_reads_changes_nothing() {
        let rights: Rights = "ro".parse().unwrap();
        let write = OpenFlags { write: true, ..OpenFlags::default() };
        for request in [
            MdsRequest::Open { ino: Ino(2), flags: write },
            MdsRequest::Unlink { parent: Ino(1), name: b"x" },
            MdsRequest::Batch { epoch: 1, changes: b"" },
            MdsRequest::Reopen { ino: Ino(2), readers: 1, writers: 1, capability: None },
            MdsRequest::Release { ino: Ino(2), write: true, wrote: None },
        ] {
            assert_eq!(rights.mds(request.clone()), Err(Errno::EROFS), "{request:?}");
        }
        // Everything that is recorded as a change is refused or leaves none.
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        assert!(rights.mds(MdsRequest::Open { ino: Ino(2), flags: read }).is_ok());
        let touch = rights.mds(MdsRequest::Touch { ino: Ino(2) });
        assert_eq!(touch, Ok(MdsRequest::Getattr { ino: Ino(2) }));
        assert_eq!(rights.ost(&OstRequest::GrantSpace { bytes: 1 }), Err(Errno::EROFS));
        assert!(rights.ost(&OstRequest::Space).is_ok());
    }
}
