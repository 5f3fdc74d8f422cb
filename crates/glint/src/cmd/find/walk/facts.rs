//! Facts that cost a request. Those of files that were listed together are asked for together, before
//! the first of these files is looked at: a tree takes no round trip for each of them.

use super::super::entry::{Entry, Facts, Missing, join};
use super::super::test::Applied;
use super::{Directory, Sink, Walk};
use crate::cmd::tree::Source;
use futures_util::stream::StreamExt;
use glint_client::ScannedEntry;
use glint_proto::{Errno, FsResult, Ino};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Requests for facts that are under way at once.
const FACTS_AT_ONCE: usize = 32;

/// What was asked of a listing before its files are looked at.
#[derive(Default)]
pub(super) struct Learnt {
    /// Whether its directory may be searched, if that was asked.
    pub(super) may_search: Option<bool>,
    /// Facts of its files, by their positions.
    facts: HashMap<usize, Facts>,
}

impl Learnt {
    /// Takes the facts of the file at a position.
    pub(super) fn take(&mut self, at: usize) -> Facts {
        self.facts.remove(&at).unwrap_or_default()
    }
}

impl<S: Source, O: Sink> Walk<'_, S, O> {
    /// Asks for a fact, and tells if it is not to be had.
    pub(super) async fn ask_or_tell(&self, entry: &mut Entry, missing: Missing) {
        if let Err(error) = self.ask(entry, missing).await {
            self.sink.fail(&entry.path, error);
            entry.facts.refused = matches!(missing, Missing::Xattrs | Missing::Osts);
        }
    }

    /// Asks for a fact. Where that fails a directory counts as not empty, and a link as one to nothing,
    /// as find(1) has it; of other facts nothing is known then.
    pub(super) async fn ask(&self, entry: &mut Entry, missing: Missing) -> FsResult<()> {
        match missing {
            Missing::IsEmpty => {
                entry.facts.is_empty = Some(false);
                entry.facts.is_empty = Some(self.is_empty(entry.ino).await?);
            }
            Missing::Target => {
                entry.facts.target = Some(Vec::new());
                entry.facts.target = Some(self.source.target(entry.ino).await?);
            }
            Missing::Xattrs => {
                let names = self.source.xattr_names(entry.ino).await?;
                let has =
                    |pattern| names.split(|byte| *byte == 0).any(|name| matches(pattern, name));
                entry.facts.xattrs = Some(self.call.xattrs.iter().map(has).collect());
            }
            Missing::Osts => {
                if let Ok(attr) = &entry.attr {
                    entry.facts.osts = Some(self.source.osts_of(&attr.layout).await?);
                }
            }
            // An expression does without attributes; the others are not asked for.
            Missing::Attributes | Missing::Name(_) | Missing::Action(_) => {}
        }
        Ok(())
    }

    async fn is_empty(&self, directory: Ino) -> FsResult<bool> {
        let mut cookie = 0;
        loop {
            let mut pages = self.source.scan(&[(directory, cookie)]).await?;
            let page = pages.pop().ok_or(Errno::EPROTO)??;
            match page.next {
                Some(next) if page.entries.is_empty() => cookie = next,
                _ => return Ok(page.entries.is_empty()),
            }
        }
    }

    /// Asks for what the expression needs of the files in some listings, for many files at once.
    pub(super) async fn learn(
        &self,
        listings: &[(&Rc<Directory>, &[ScannedEntry])],
    ) -> Vec<Learnt> {
        let learnt: Vec<RefCell<Learnt>> = listings.iter().map(|_| RefCell::default()).collect();
        if self.call.asks.is_some() {
            let searches = listings.iter().zip(&learnt);
            let searches = searches.filter_map(|((directory, entries), learnt)| {
                let name = &entries.first()?.name;
                Some(async move {
                    let may_search = self.may_search(directory, name).await;
                    learnt.borrow_mut().may_search = Some(may_search);
                })
            });
            all_of(searches).await;
            let files = listings.iter().zip(&learnt).flat_map(|((directory, entries), learnt)| {
                let may_search = learnt.borrow().may_search == Some(true);
                // None of their facts may be asked for otherwise.
                let entries = if may_search { *entries } else { &[] };
                let files = entries.iter().enumerate();
                files.filter_map(move |(at, named)| {
                    let entry = self.asks_for(directory, named)?;
                    Some(async move {
                        let facts = self.facts(entry).await;
                        learnt.borrow_mut().facts.insert(at, facts);
                    })
                })
            });
            all_of(files).await;
        }
        learnt.into_iter().map(RefCell::into_inner).collect()
    }

    /// Returns a file if facts of it may have to be asked for.
    fn asks_for(&self, directory: &Directory, named: &ScannedEntry) -> Option<Entry> {
        let ScannedEntry { name, ino, kind, attr } = named;
        let (depth, parent) = (directory.depth + 1, Some(directory.ino));
        let (ino, kind, attr, facts) = (*ino, *kind, attr.clone(), Facts::default());
        let path = Vec::new();
        let mut entry = Entry { path, start: 0, depth, ino, parent, kind, attr, facts };
        if depth < self.call.depth_min || !self.call.asks.of_file(&entry, self.call.contents_first)
        {
            return None;
        }
        let (path, start) = directory.path();
        (entry.path, entry.start) = (join(&path, name), start);
        Some(entry)
    }

    /// Asks for facts of a file until the expression needs no more, or takes an action first.
    async fn facts(&self, mut entry: Entry) -> Facts {
        loop {
            let applied = self.call.expression.apply(&entry, &self.names, &mut Applied::default());
            match applied {
                // It is asked for when the directory is looked at.
                Err(Missing::IsEmpty) if self.call.contents_first => break,
                Err(
                    missing
                    @ (Missing::IsEmpty | Missing::Target | Missing::Xattrs | Missing::Osts),
                ) if !entry.facts.refused => self.ask_or_tell(&mut entry, missing).await,
                Err(_) | Ok(_) => break,
            }
        }
        entry.facts
    }
}

fn matches(pattern: &crate::cmd::tree::c_library::Pattern, name: &[u8]) -> bool {
    !name.is_empty() && pattern.matches(name)
}

/// Waits for all requests, of which some are under way at once.
async fn all_of(requests: impl Iterator<Item = impl Future<Output = ()>>) {
    futures_util::stream::iter(requests).for_each_concurrent(FACTS_AT_ONCE, |one| one).await;
}
