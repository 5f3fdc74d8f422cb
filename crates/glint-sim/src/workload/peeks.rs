//! What a worker sees of the directories of others: what those were told last.

use crate::workload::{Fs, ROOT, Worker, list};
use glint_client::Vfs;
use glint_proto::{Errno, FsResult, Ino};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Names that are looked up together.
const LOOKED_UP: u64 = 3;
/// Bytes of a page of a listing: for a few names.
const LISTING_BYTES: u32 = 256;

/// The inodes in a directory, listed from the first one and with attributes, as who walks a tree;
/// with their names.
pub(super) async fn list_to_walk(
    fs: &Fs,
    directory: Ino,
    bytes_max: u32,
) -> FsResult<Vec<(String, Ino)>> {
    let handle = fs.opendir(ROOT, directory).await?;
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let page = fs.readdir(ROOT, handle, cookie, bytes_max, true).await?;
        let Some(last) = page.entries.last() else { break };
        cookie = last.cookie;
        let names = page.entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..");
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        found.extend(names.map(|entry| (text(&entry.name), entry.ino)));
    }
    fs.release(handle).await?;
    Ok(found)
}

impl Worker {
    /// Looks at what others have, by listings or by names.
    pub(super) async fn look_at_others(&self) -> Result<(), String> {
        match self.executor.below(5) {
            0 | 1 => self.walk().await,
            2 => self.peek().await,
            _ => self.look_up().await,
        }
    }

    /// Looks up some names in the directory of another worker, which are there or not. It does so
    /// whatever that does meanwhile: so its client knows which are free.
    async fn look_up(&self) -> Result<(), String> {
        let Some(other) = self.executor.one_of(&self.all.borrow()).cloned() else { return Ok(()) };
        for _ in 0..LOOKED_UP {
            let name = self.name();
            let at_rest =
                || (!other.dead.get()).then(|| other.model.borrow().at_rest(&name)).flatten();
            let before = at_rest();
            let want = other.model.borrow().names.get(&name).copied();
            let got = self.fs.lookup(ROOT, other.own, name.as_bytes()).await;
            if before.is_none() || at_rest() != before || self.dead.get() {
                continue;
            }
            match got {
                Ok(found) if want == Some(found.attr.ino) => {}
                Err(Errno::ENOENT) if want.is_none() => {}
                Err(errno) if errno != Errno::ENOENT && self.troubles.explain(errno, want) => {}
                got => {
                    let got = got.map(|found| found.attr.ino);
                    return Err(format!("another client finds {name} as {got:?}, not {want:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that another client sees of a directory what its worker was told last, if that does
    /// nothing meanwhile.
    async fn peek(&self) -> Result<(), String> {
        let Some(other) = self.executor.one_of(&self.all.borrow()).cloned() else { return Ok(()) };
        self.sees(&other, list(&self.fs, other.own)).await
    }

    /// The same of the directories of all workers, one after the other in the order of the root,
    /// or of some: what is listed ahead may have changed by then.
    async fn walk(&self) -> Result<(), String> {
        let top =
            self.expect("list", list_to_walk(&self.fs, Ino::ROOT, LISTING_BYTES).await, Ok(()))?;
        for (_, directory) in top.unwrap_or_default() {
            let is_it = |other: &&Rc<Worker>| other.own == directory;
            let Some(other) = self.all.borrow().iter().find(is_it).cloned() else { continue };
            let listed = async {
                let found = list_to_walk(&self.fs, directory, LISTING_BYTES).await?;
                Ok::<BTreeSet<String>, Errno>(found.into_iter().map(|(name, _)| name).collect())
            };
            self.sees(&other, listed).await?;
            if self.executor.one_in(8) {
                break;
            }
        }
        Ok(())
    }

    /// Checks what is listed of the directory of another worker.
    async fn sees(
        &self,
        other: &Worker,
        listed: impl Future<Output = FsResult<BTreeSet<String>>>,
    ) -> Result<(), String> {
        let quiet = || (!other.dead.get()).then(|| other.model.borrow().quiet()).flatten();
        let Some(before) = quiet() else { return Ok(()) };
        let want: BTreeSet<String> = other.model.borrow().names.keys().cloned().collect();
        let got = self.expect("list", listed.await, Ok(()))?.unwrap_or_default();
        if quiet() != Some(before) || got == want {
            return Ok(());
        }
        Err(format!("another client sees {got:?}, and must see {want:?}"))
    }
}
