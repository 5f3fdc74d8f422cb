//! Pages of the namespace for a check through a mount, which asks for one after the other: a thread
//! keeps the walk under way between two of them, and with it the connection to the server.

use glint_proto::message::{NamespacePage, NamespaceQuery};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Time after which a walk ends for which nobody has asked for one more page.
const IDLE: Duration = Duration::from_secs(1);

/// Says which page is read after this one, or that none is.
pub(super) type NextQuery<'a> = &'a mut dyn FnMut(NamespacePage) -> Option<NamespaceQuery>;

/// Walks over the namespace, one at a time.
#[derive(Default)]
pub(super) struct NamespaceWalks(Option<WalkUnderWay>);

/// A walk that a thread makes. It ends when this is dropped.
struct WalkUnderWay {
    queries: Sender<NamespaceQuery>,
    pages: Receiver<Result<NamespacePage, String>>,
}

impl NamespaceWalks {
    /// Reads a page in the walk under way, or else in a new one, which `walk` makes from there.
    pub(super) fn page(
        &mut self,
        query: NamespaceQuery,
        walk: impl FnOnce(NamespaceQuery, NextQuery<'_>) -> Result<(), String> + Send + 'static,
    ) -> Result<NamespacePage, String> {
        if let Some(under_way) = &self.0
            && under_way.queries.send(query.clone()).is_ok()
            // Otherwise it has just ended, and has not read this.
            && let Ok(answer) = under_way.pages.recv()
        {
            return answer;
        }
        let (queries, asked) = channel();
        let (answers, pages) = channel();
        let work = move || {
            let walked = walk(query, &mut |page| {
                answers.send(Ok(page)).ok()?;
                asked.recv_timeout(IDLE).ok()
            });
            if let Err(why) = walked {
                // Nobody is left who waits for it if the mount is ending.
                let _ = answers.send(Err(why));
            }
        };
        let thread = std::thread::Builder::new().name("namespace".into());
        thread.spawn(work).map_err(|error| format!("starting to ask: {error}"))?;
        let begun = self.0.insert(WalkUnderWay { queries, pages });
        begun.pages.recv().unwrap_or_else(|_| Err("the server sent no page".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_walk_goes_on_from_page_to_page_and_after_its_end_there_is_another() {
        let begun = Arc::<AtomicUsize>::default();
        let mut walks = NamespaceWalks::default();
        let mut page = |ino| {
            let begun = begun.clone();
            walks.page(NamespaceQuery::Inodes(Ino(ino)), move |first, next| {
                begun.fetch_add(1, Ordering::Relaxed);
                let mut query = Some(first);
                while let Some(asked) = query {
                    if asked == NamespaceQuery::Inodes(Ino(4)) {
                        return Err("away".into());
                    }
                    query = next(NamespacePage { next: Some(asked), ..Default::default() });
                }
                Ok(())
            })
        };
        let mut reads = |ino| {
            let next = page(ino)?.next;
            assert_eq!(next, Some(NamespaceQuery::Inodes(Ino(ino))));
            Ok::<usize, String>(begun.load(Ordering::Relaxed))
        };
        assert_eq!([1, 2, 3].map(|ino| reads(ino).unwrap()), [1, 1, 1]);
        assert_eq!(reads(4), Err("away".into()));
        assert_eq!([5, 6].map(|ino| reads(ino).unwrap()), [2, 2], "one that failed has ended");
    }

    #[test]
    fn a_walk_that_ends_without_a_page_is_no_answer() {
        let mut walks = NamespaceWalks::default();
        let read = walks.page(NamespaceQuery::Inodes(Ino(1)), |_, _| Ok(()));
        assert_eq!(read, Err("the server sent no page".into()));
    }
}
