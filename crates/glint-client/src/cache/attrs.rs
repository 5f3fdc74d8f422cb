//! Attributes of an inode that a client has cached.
//!
//! Invariants:
//! - Attributes are used only while they are protected: under ATTR, or in a delegation. Who reads
//!   or changes them has to say whether they are.
//! - While this client has updates under way nothing is known of them; what a server says is
//!   learned only if since it was asked no update began or ended, and no lock on them was lost:
//!   answers overtake each other, also with a recall and the next grant in between.
//! - What an update makes of what was known before it counts only if that was protected all along.

use glint_proto::{Attr, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};

/// The last question. One count for all clients of a process, because it only has to rise. It
/// changes with questions, which cost a request; a write that asks nothing only reads it, or all
/// threads would wait for each other here.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// When something was asked, or an inode disturbed: an answer says nothing of an inode that was
/// disturbed after it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Tick(u64);

impl Tick {
    /// A question is about to be sent, which is later than all disturbances so far.
    pub(crate) fn ask() -> Tick {
        Tick(ASKED.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// A disturbance, which is not earlier than all that was asked so far.
    pub(crate) fn now() -> Tick {
        Tick(ASKED.load(Ordering::SeqCst))
    }

    /// Whether this disturbance came before a question.
    pub(crate) fn is_before(self, asked: Tick) -> bool {
        self < asked
    }
}

/// The attributes of one inode, with what this client does to them.
#[derive(Default)]
pub(crate) struct AttrCache {
    attr: Option<Attr>,
    /// When an update ended last, or the lock was lost.
    disturbed: Tick,
    /// `None` while none is under way.
    updates: Option<Box<Updates>>,
}

/// Updates of attributes by this client, from when the first of them begins until all have ended.
#[derive(Default)]
struct Updates {
    /// How many are under way.
    count: u32,
    /// How often an update ended meanwhile, or the lock was lost.
    disturbances: u64,
    /// How often the attributes were forgotten because others may have changed them.
    losses: u64,
}

/// State of the attributes when an update began.
pub(crate) struct Before {
    disturbances: u64,
    losses: u64,
    attr: Option<Attr>,
}

impl AttrCache {
    /// The attributes, if they are known and protected.
    pub(crate) fn get(&self, protected: bool) -> Option<&Attr> {
        self.attr.as_ref().filter(|_| protected)
    }

    /// Attributes to change as this client does by itself: answers under way may be older.
    pub(crate) fn get_mut(&mut self, protected: bool) -> Option<&mut Attr> {
        if protected && self.attr.is_some() {
            self.disturb();
        }
        self.attr.as_mut().filter(|_| protected)
    }

    /// Whether since this was asked no lock on them was lost, and this client did nothing to them.
    pub(crate) fn is_unchanged_since(&self, asked: Tick) -> bool {
        self.updates.is_none() && self.disturbed.is_before(asked)
    }

    /// The times of the last change that were known here last, whoever may have changed them
    /// since.
    pub(crate) fn last_times(&self) -> Option<(Timestamp, Timestamp)> {
        self.attr.as_ref().map(|attr| (attr.mtime, attr.ctime))
    }

    /// Whether updates are under way.
    pub(crate) fn is_updating(&self) -> bool {
        self.updates.is_some()
    }

    /// Begins an update. Returns what was known and protected.
    pub(crate) fn begin_update(&mut self, protected: bool) -> Before {
        let updates = self.updates.get_or_insert_default();
        updates.count += 1;
        let attr = self.attr.take().filter(|_| protected);
        Before { disturbances: updates.disturbances, losses: updates.losses, attr }
    }

    /// An update is about to end, and its answer says what the attributes are. It may be older than a
    /// change by others, and than the answer that brought the lock, if that came meanwhile.
    pub(crate) fn finish(&mut self, before: &Before, protected: bool, attr: &Attr) {
        if protected && self.is_undisturbed_since(before) && !self.is_lost_since(before) {
            self.attr = Some(attr.clone());
        }
    }

    /// An update is about to end that made `change` of what was known before it.
    pub(crate) fn finish_with(
        &mut self,
        before: &Before,
        protected: bool,
        change: impl FnOnce(&mut Attr),
    ) {
        if protected && self.is_undisturbed_since(before) && !self.is_lost_since(before) {
            self.attr.clone_from(&before.attr);
            if let Some(attr) = &mut self.attr {
                change(attr);
            }
        }
    }

    /// Whether nothing else has happened to the attributes since an update began.
    fn is_undisturbed_since(&self, before: &Before) -> bool {
        let updates = self.updates.as_ref();
        updates.is_some_and(|now| now.count == 1 && now.disturbances == before.disturbances)
    }

    /// Whether others may have changed the attributes since an update began.
    fn is_lost_since(&self, before: &Before) -> bool {
        self.updates.as_ref().is_none_or(|now| now.losses != before.losses)
    }

    /// Ends an update.
    pub(crate) fn end_update(&mut self, now: Tick) {
        self.disturb_at(now);
        match &mut self.updates {
            Some(updates) if updates.count > 1 => {
                updates.count -= 1;
                self.attr = None;
            }
            updates => *updates = None,
        }
    }

    /// Something was changed here that is not known: what is being asked may be older.
    pub(crate) fn disturb(&mut self) {
        self.disturb_at(Tick::now());
    }

    fn disturb_at(&mut self, now: Tick) {
        self.disturbed = self.disturbed.max(now);
        if let Some(updates) = &mut self.updates {
            updates.disturbances += 1;
        }
    }

    /// Sets attributes that this client alone decides.
    pub(crate) fn set(&mut self, attr: Attr) {
        self.attr = Some(attr);
    }

    /// A server said what they are, in answer to what was asked then.
    pub(crate) fn learn(&mut self, attr: &Attr, asked: Tick) {
        if self.is_unchanged_since(asked) {
            self.attr = Some(attr.clone());
        }
    }

    /// A lock has come with an answer: what was known without one may be old, the answer is not.
    pub(crate) fn forget_unprotected(&mut self) {
        self.attr = None;
        if let Some(updates) = &mut self.updates {
            updates.losses += 1;
        }
    }

    /// Nothing is known any more, nor learned of what was asked so far: others may change them
    /// from now on.
    pub(crate) fn lose(&mut self) {
        self.forget_unprotected();
        self.disturb();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use proptest::prelude::*;

    fn of_size(size: u64) -> Attr {
        Attr { size, ..Attr::new(Ino(1), 0o100_644, Timestamp::default()) }
    }

    #[test]
    fn unprotected_attributes_are_not_seen() {
        let mut attrs = AttrCache::default();
        attrs.learn(&of_size(3), Tick::ask());
        assert_eq!(attrs.get(true).map(|attr| attr.size), Some(3));
        assert!(attrs.get(false).is_none() && attrs.get_mut(false).is_none());
    }

    #[test]
    fn attributes_that_come_again_may_have_changed() {
        let mut attrs = AttrCache::default();
        attrs.learn(&of_size(3), Tick::ask());
        let asked = Tick::ask();
        assert!(attrs.is_unchanged_since(asked));
        attrs.lose();
        attrs.learn(&of_size(3), Tick::ask());
        assert!(attrs.get(true).is_some() && !attrs.is_unchanged_since(asked));
        let asked = Tick::ask();
        let update = attrs.begin_update(true);
        assert!(!attrs.is_unchanged_since(asked));
        attrs.finish(&update, true, &of_size(3));
        attrs.end_update(Tick::now());
        assert!(attrs.get(true).is_some() && !attrs.is_unchanged_since(asked));
    }

    #[test]
    fn an_update_says_nothing_of_what_others_changed_meanwhile() {
        let mut attrs = AttrCache::default();
        attrs.set(of_size(3));
        let before = attrs.begin_update(true);
        attrs.forget_unprotected();
        attrs.finish_with(&before, true, |attr| attr.size += 1);
        assert!(attrs.get(true).is_none());
        let unprotected =
            AttrCache { attr: Some(of_size(3)), ..AttrCache::default() }.begin_update(false);
        assert!(unprotected.attr.is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// The size of a file is set by updates of this client, which a server executes when they
        /// end, and by other clients when the lock is lost, which comes again with the next answer:
        /// what is known is what the server would say, however late its answers come.
        #[test]
        fn no_answer_is_older_than_a_change(steps in proptest::collection::vec(0u8..7, 0..200)) {
            let mut attrs = AttrCache::default();
            let (mut at_server, mut updates, mut asked) = (0, Vec::new(), Vec::new());
            for step in steps {
                match step {
                    0 => updates.push(attrs.begin_update(true)),
                    1 => if let Some(before) = updates.pop() {
                        at_server += 1;
                        match at_server % 2 {
                            0 => attrs.finish(&before, true, &of_size(at_server)),
                            _ => attrs.finish_with(&before, true, |attr| attr.size += 1),
                        }
                        attrs.end_update(Tick::now());
                    },
                    // A change under way may be executed before or after the question is.
                    2 => asked.push((Tick::ask(), at_server)),
                    3 | 4 => if !asked.is_empty() {
                        let at = if step == 3 { asked.len() - 1 } else { 0 };
                        let (then, size) = asked.remove(at);
                        attrs.learn(&of_size(size), then);
                    },
                    // The client writes behind the end.
                    5 => {
                        at_server += 1;
                        match attrs.get_mut(true) {
                            Some(attr) => attr.size = at_server,
                            None => attrs.disturb(),
                        }
                    }
                    // Another client changes it.
                    _ => {
                        attrs.lose();
                        at_server += 1;
                    }
                }
                prop_assert_eq!(attrs.is_updating(), !updates.is_empty());
                if let Some(attr) = attrs.get(true) {
                    prop_assert_eq!(attr.size, at_server);
                }
            }
        }
    }
}
