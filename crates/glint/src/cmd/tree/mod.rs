//! A tree at the servers, for commands that walk over one without a mount.

mod ahead;
pub(in crate::cmd) mod c_library;
mod console;
mod members;
mod names;
mod place;
mod scan_threads;
mod searched;
pub(in crate::cmd) mod show;
pub(in crate::cmd) mod size;

pub(in crate::cmd) use ahead::{
    Ahead, FoundPage, Keep, KeptEntry, NextPage, TreeDirectory, push_name,
};
pub(in crate::cmd) use console::Console;
pub(in crate::cmd) use names::Names;
pub(in crate::cmd) use place::{NoPlace, Place, without_number};
pub(in crate::cmd) use searched::{Class, Searched};

use crate::signals::StopSoon;
use crate::target::not_reached;
use futures_util::lock::Mutex;
use glint_client::{Caller, Client, ScannedPage, Vfs};
use glint_net::{Address, Cluster, MdsSession, NetError, Remote, RemoteOptions, Transport};
use glint_proto::posix::ScanFilter;
use glint_proto::posix::acl::{XATTR_ACCESS, XATTR_DEFAULT};
use glint_proto::{Attr, Cred, Errno, FileType, FsResult, Ino, Layout};
use members::ChainMembers;
use place::names;
use scan_threads::{ScanThreads, ToScan};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// How often a walk looks whether it is to end.
const STOP_LOOKS: Duration = Duration::from_millis(50);
/// Runs a walk to its end, or until Ctrl-C or SIGTERM, or nobody takes what it prints: whoever waits for
/// the command then sees that the signal ended it, if what is done was printed and the command says
/// [`end_if_asked`](StopSoon::end_if_asked).
pub(in crate::cmd) fn until_stopped(
    walk: impl Future<Output = ()>,
) -> Result<StopSoon, Box<dyn std::error::Error>> {
    let stop = StopSoon::listen()?;
    let runtime = glint_net::runtime(None)?;
    runtime.block_on(futures_lite::future::or(walk, async {
        while !stop.is_asked() && !crate::output::is_lost() {
            glint_net::host::sleep(STOP_LOOKS).await;
        }
    }));
    Ok(stop)
}

/// Where the walk takes what it shows.
pub(in crate::cmd) trait Source {
    /// Lists directories, each after a cookie: pages of the first of them, at least of one. Whoever
    /// may read a directory is told the attributes, too: the walk finds out whether they may be shown.
    async fn scan(&self, directories: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>>;
    /// Lists directories as [`Source::scan`] does; what `filter` does not want may be left out.
    async fn scan_for(
        &self,
        directories: &[(Ino, u64)],
        filter: Option<&ScanFilter>,
    ) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let _ = filter;
        self.scan(directories).await
    }
    /// EACCES if the directory must not be searched.
    async fn lookup(&self, directory: Ino, name: &[u8]) -> FsResult<Attr>;
    async fn target(&self, link: Ino) -> FsResult<Vec<u8>>;
    /// Attributes of the file that a link in a directory leads to.
    async fn follow(&self, directory: Ino, target: &[u8]) -> FsResult<Attr>;
    /// Whether a file has an ACL that its mode does not say, or one for new files in it.
    async fn has_acl(&self, attr: &Attr) -> FsResult<bool>;
    /// Names of extended attributes, each with a 0 after it.
    async fn xattr_names(&self, ino: Ino) -> FsResult<Vec<u8>>;
    /// OSTs that objects of a file with this layout lie on.
    async fn osts_of(&self, layout: &Layout) -> FsResult<Vec<u16>>;
    /// Removes a name; that of a directory if it is one, which has to be empty.
    async fn remove(&self, directory: Ino, name: &[u8], is_directory: bool) -> FsResult<()>;
}

/// How often a starting point is looked up that others replace meanwhile.
const RESOLVED_MAX: usize = 3;
/// Links that are followed on the way to a starting point, as Linux does it.
const LINKS_MAX: u32 = 40;

type TreeClient = Client<Cluster<Remote>>;

/// A file system, as who called this command may see it.
pub(in crate::cmd) struct Tree {
    /// Before the client: they end first.
    threads: ScanThreads,
    client: Arc<TreeClient>,
    caller: Caller,
    /// As the server said it last.
    chains: Mutex<ChainMembers>,
}

impl Tree {
    /// Connects to the server with the MDS; `command` is shown there as the client's place.
    pub(in crate::cmd) fn connect(address: &str, command: &str) -> Result<Tree, String> {
        let shown = format!("({command})");
        let to =
            crate::identity::exact(address).map_err(|why| format!("server {address}: {why}"))?;
        let options = RemoteOptions { address: to.clone(), mount_point: shown.clone() };
        let remote = Remote::connect(options).map_err(|error| match (&error, &to) {
            (NetError::Io { source, .. }, Address::Unix(_))
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                format!(
                    "server {to}: permission denied; it answers root of its host alone: run it with \
                     sudo, or use {command}(1) on the mount"
                )
            }
            _ => not_reached(&to, &error),
        })?;
        let cluster = Cluster::new(remote, crate::identity::get()?, shown);
        let groups = rustix::process::getgroups().unwrap_or_default();
        let cred = Cred {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Some(groups.into_iter().map(rustix::process::Gid::as_raw).collect()),
        };
        // Without locks: nothing is looked at twice. Reading changes no times, as nobody reads data.
        let client = Arc::new(Client::new(cluster, true));
        let (threads, chains) = Default::default();
        Ok(Tree { threads, client, caller: Caller { cred, pid: 0 }, chains })
    }

    /// Root of the file system.
    pub(in crate::cmd) fn root(&self) -> Ino {
        self.client.root()
    }

    /// How many OSTs the file system has; they are numbered from 0, and one that was removed is counted.
    pub(in crate::cmd) fn ost_count(&self) -> u16 {
        self.client.transport().mds().welcome().osts
    }

    /// Looks a starting point up. Links on the way to it are followed, and one at its end if it must
    /// be a directory; a link that begins at the root of some host leads nowhere here. Returns its
    /// attributes, and the directory that has its last name, if one has. What a mount shows as
    /// another file is refused: a mount may have been made with other rights than this command has,
    /// and begin elsewhere.
    pub(in crate::cmd) async fn resolve(
        &self,
        place: &Place,
    ) -> Result<(Attr, Option<Ino>), NoPlace> {
        for _ in 0..RESOLVED_MAX {
            let root = self.client.getattr(self.client.root()).await?.attr;
            let (attr, parent) = self.go(root, &place.names, place.is_directory).await?;
            if place.is_directory && !attr.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            // It may have been replaced between the two looks.
            if place.shows(attr.ino).await? {
                return Ok((attr, parent));
            }
        }
        Err(NoPlace::Told(place.is_shown_as_another()))
    }

    /// Goes along a path; a link at its end is followed if `follows`.
    async fn go(
        &self,
        from: Attr,
        path: &[Vec<u8>],
        follows: bool,
    ) -> FsResult<(Attr, Option<Ino>)> {
        let (mut attr, mut parent) = (from, None);
        let mut rest: Vec<Vec<u8>> = path.iter().rev().cloned().collect();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let found = self.client.lookup(&self.caller, attr.ino, &name).await?.attr;
            let is_link = FileType::from_mode(found.mode) == Some(FileType::Symlink);
            if !is_link || (rest.is_empty() && !follows) {
                parent = Some(attr.ino);
                attr = found;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::ELOOP);
            }
            let target = self.client.readlink(found.ino).await?;
            if target.starts_with(b"/") {
                return Err(Errno::EXDEV);
            }
            rest.extend(names(&target).into_iter().rev());
        }
        Ok((attr, parent))
    }
}

impl Source for Tree {
    async fn scan(&self, directories: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>> {
        self.scan_for(directories, None).await
    }

    async fn scan_for(
        &self,
        directories: &[(Ino, u64)],
        filter: Option<&ScanFilter>,
    ) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let (client, caller) = (self.client.clone(), self.caller.clone());
        let (directories, filter) = (directories.to_vec(), filter.cloned());
        self.threads.scan(ToScan { client, caller, directories, filter }).await
    }

    async fn lookup(&self, directory: Ino, name: &[u8]) -> FsResult<Attr> {
        Ok(self.client.lookup(&self.caller, directory, name).await?.attr)
    }

    async fn target(&self, link: Ino) -> FsResult<Vec<u8>> {
        // Whoever may look a link up may read it, and the walk does so with no other.
        self.client.readlink(link).await
    }

    async fn follow(&self, directory: Ino, target: &[u8]) -> FsResult<Attr> {
        if target.starts_with(b"/") {
            return Err(Errno::EXDEV);
        }
        let directory = self.client.getattr(directory).await?.attr;
        Ok(self.go(directory, &names(target), true).await?.0)
    }

    async fn has_acl(&self, attr: &Attr) -> FsResult<bool> {
        let has = |name| async move {
            match self.client.getxattr(&self.caller, attr.ino, name, 0).await {
                Ok(value) => Ok(!value.is_empty()),
                // It has none, or is gone since it was listed.
                Err(Errno::ENODATA | Errno::ENOENT | Errno::ESTALE) => Ok(false),
                Err(error) => Err(error),
            }
        };
        Ok(has(XATTR_ACCESS).await? || (attr.is_dir() && has(XATTR_DEFAULT).await?))
    }

    async fn xattr_names(&self, ino: Ino) -> FsResult<Vec<u8>> {
        // Whoever may look a file up may see them, and the walk asks of no other.
        self.client.listxattr(ino).await
    }

    async fn osts_of(&self, layout: &Layout) -> FsResult<Vec<u16>> {
        let mds = self.client.transport().mds();
        let own = mds.welcome().own_osts;
        let mut chains = self.chains.lock().await;
        if let Some(osts) = chains.osts_of(layout, own) {
            return Ok(osts);
        }
        // The first that is asked for, or one that was made meanwhile.
        *chains = ChainMembers::new(mds.chains().await?);
        Ok(chains.osts_of(layout, own).unwrap_or_default())
    }

    async fn remove(&self, directory: Ino, name: &[u8], is_directory: bool) -> FsResult<()> {
        match is_directory {
            true => self.client.rmdir(&self.caller, directory, name).await,
            false => self.client.unlink(&self.caller, directory, name).await.map(drop),
        }
    }
}
