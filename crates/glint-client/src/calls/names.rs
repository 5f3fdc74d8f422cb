//! The calls on names that are more than a screen: what they know, change and learn.

use crate::cache::in_flight::Asked;
use crate::cache::negative::removed;
use crate::cache::pages::{PageUnderWay, PageWish};
use crate::client::{Client, said_attr};
use crate::vfs::{Caller, Found};
use glint_net::Transport;
use glint_proto::{Attr, Errno, FsResult, Ino, MdsReply, MdsRequest, RenameFlags};

impl<T: Transport> Client<T> {
    /// Finds a name without asking, if it is known where it leads or that it is free.
    pub(crate) fn lookup_locally(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Option<FsResult<Found>> {
        // A path is made from a handle by asking for "..", which is no entry.
        if !self.has_locks() || name == b".." || self.is_suspended() {
            return None;
        }
        let known = self.cache.lookup(caller, parent, name)?;
        self.on_answered(caller, parent);
        Some(known)
    }

    /// Looks a name up by learning a page of the directory, if others were looked up there that were
    /// not known either, or are likely to be: one request instead of one for each name.
    pub(crate) async fn lookup_by_page(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Option<FsResult<Found>> {
        if !self.has_locks() || name == b".." || !caller.may_all() {
            return None;
        }
        let (directory, guesses) = (self.cache.inode(parent), &self.cache.page_guesses);
        let inodes_max = self.inodes_max();
        let wish = directory.lock().dentries.pages().wish(inodes_max, || guesses.take())?;
        let under_way = PageUnderWay::new(&directory, wish);
        let PageWish { cookie, size, is_guess } = wish;
        let bytes_max = size.bytes();
        let request = MdsRequest::Readdir { ino: parent, cookie, bytes_max, plus: true };
        let mut asked = Asked::now();
        let known = match self.ask_to_learn(caller, &request, &mut asked).await {
            Ok(MdsReply::Dir(page)) => {
                under_way.come();
                self.cache.learn_page(parent, cookie, &page, &asked);
                if cookie == 0 {
                    self.on_looked_up(caller, parent, page);
                }
                self.lookup_locally(caller, parent, name)
            }
            // Whoever may look names up may not be allowed to list them.
            Err(Errno::EACCES | Errno::EPERM) => {
                under_way.refused();
                None
            }
            _ => None,
        };
        match (&known, is_guess) {
            (Some(_), true) => directory.lock().dentries.note_guess(size),
            // At the first lookup it would have been of use, too.
            (Some(_), false) => guesses.earn(size),
            (None, true) => guesses.end(),
            (None, false) => {}
        }
        known
    }

    /// Asks for one name.
    pub(crate) async fn lookup_alone(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> FsResult<Found> {
        let mut asked = Asked::now();
        let request = MdsRequest::Lookup { parent, name };
        let answer = self.ask_attr(caller, &request, &mut asked).await;
        if self.has_locks() {
            match &answer {
                Ok(_) => self.cache.inode(parent).lock().dentries.pages().note_missed(),
                Err(Errno::ENOENT) => self.cache.learn_negative(parent, name, &asked),
                Err(_) => {}
            }
        }
        answer.map(|attr| self.learn_name(parent, name, attr, &asked, true))
    }

    /// Looks an inode of any type up by its number, for who has a file handle.
    pub(crate) async fn lookup_number(&self, ino: Ino) -> FsResult<Found> {
        let mut asked = Asked::about([ino]);
        let request = MdsRequest::Getattr { ino };
        let attr = self.ask_attr(&Caller::ROOT, &request, &mut asked).await?;
        Ok(self.learn_name(ino, b".", attr, &asked, true))
    }

    /// A name was made, with a new inode.
    pub(crate) fn learn_made(&self, parent: Ino, name: &[u8], attr: Attr, asked: &Asked) -> Found {
        if attr.is_dir()
            && let Some(inode) = self.inode(attr.ino)
        {
            let mut state = inode.lock();
            let is_empty =
                state.is_protected(attr.ino, asked) || state.rare.delegation.is_delegated();
            let is_so = is_empty && state.dentries.has_learned_all(asked.at);
            state.dentries.set_complete(is_so);
            if state.rare.delegation.is_delegated() {
                self.log.note_delegated(attr.ino);
            }
        }
        match self.has_locks() {
            true => self.cache.learn_made(parent, name, &attr, asked, true),
            false => self.learn_name(parent, name, attr, asked, true),
        }
    }

    /// Removes a name. Returns the inode that has lost it, if the MDS was asked: the kernel counts its
    /// links down by itself, but not for a program that is killed meanwhile.
    pub(crate) async fn remove(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        request: &MdsRequest<'_>,
    ) -> FsResult<Option<Ino>> {
        if self.remove_locally(caller, parent, name, request).is_some() {
            return Ok(None);
        }
        if !self.has_locks() {
            return self.ask(caller, request).await.map(|reply| removed(&reply));
        }
        let child = self.child_to_lose(caller, parent, name).await;
        let mut inos = vec![parent];
        inos.extend(child);
        let update = self.cache.begin_update(&inos);
        self.declare_before_removal(child).await;
        let mut asked = Asked::now();
        let reply = self.ask_to_learn(caller, request, &mut asked).await?;
        update.learn_changed(&asked);
        self.cache.learn_removed(&reply);
        let gone = removed(&reply);
        self.cache.forget_name(parent, name, gone, asked.at);
        Ok(gone)
    }

    /// The inode of a name that is about to go. If it is not known, the MDS is asked only while files
    /// are open that it may not know of.
    async fn child_to_lose(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Option<Ino> {
        let known = self.cache.child(parent, name);
        if known.is_some() || self.cache.is_free(parent, name) || !self.handles.has_undeclared() {
            return known;
        }
        let reply = self.ask(caller, &MdsRequest::Lookup { parent, name }).await;
        reply.and_then(said_attr).ok().map(|(attr, _)| attr.ino)
    }

    /// Declares the opens of an inode before a name of it goes: with the last name the MDS removes
    /// an inode that is not open. While an update of it is under way it is opened by the MDS only.
    async fn declare_before_removal(&self, ino: Option<Ino>) {
        if let Some(inode) = ino.and_then(|ino| self.cache.find(ino)) {
            let opens = inode.lock().pins.begin_declaring();
            self.declare_opens(&inode, opens).await;
        }
    }

    /// Moves a name, or exchanges two. Returns as [`remove`](Client::remove).
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> FsResult<Option<Ino>> {
        let ends = [(parent, name), (new_parent, new_name)];
        if self.rename_locally(caller, ends[0], ends[1], flags).is_some() {
            return Ok(None);
        }
        let request = MdsRequest::Rename { parent, name, new_parent, new_name, flags };
        if !self.has_locks() {
            return self.ask(caller, &request).await.map(|reply| removed(&reply));
        }
        let known = ends.map(|(parent, name)| self.cache.child(parent, name));
        let mut asked = Asked::about(known.into_iter().flatten());
        let was_free = self.cache.is_free(new_parent, new_name);
        let replaced = match flags.exchange || flags.no_replace {
            true => None,
            false => self.child_to_lose(caller, new_parent, new_name).await,
        };
        let mut inos = vec![parent, new_parent];
        inos.extend(known.into_iter().flatten().chain(replaced));
        for inode in known.into_iter().flatten().filter_map(|ino| self.cache.find(ino)) {
            // The inode will be where others see it.
            if let Some(rare) = inode.lock().rare.made() {
                rare.delegation.leave();
            }
        }
        let update = self.cache.begin_update(&inos);
        self.declare_before_removal(replaced).await;
        let reply = self.ask_to_learn(caller, &request, &mut asked).await?;
        update.learn_changed(&asked);
        self.cache.learn_removed(&reply);
        let replaced = removed(&reply);
        // Else they may be two names of one file: nothing happens then, and both stay.
        let has_moved =
            replaced.is_some() || was_free && self.cache.is_protected_since(new_parent, asked.at);
        // In any case the new name leads to the inode now.
        self.cache.learn_renamed(ends[1], known[0], replaced, &asked);
        if flags.exchange {
            self.cache.learn_renamed(ends[0], known[1], None, &asked);
        } else if has_moved {
            self.cache.forget_name(parent, name, known[0], asked.at);
        } else {
            self.cache.doubt_name(parent, name);
        }
        Ok(replaced)
    }
}
