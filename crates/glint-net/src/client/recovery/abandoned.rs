//! Acknowledged changes of chains that this client keeps no more, since others may change their
//! files from now on, and that are not known to be on stable storage. Whether they are lost is said
//! by the rows of their chains.
//!
//! Invariants:
//! - A file hears of a loss only if its chain may have lost something since the row by which a
//!   change was acknowledged, or nobody is left who could have it.
//! - A change is forgotten when its server says that it is durable, or when the head of a newer
//!   row, which has lost nothing, has brought it to stable storage. Before that its members may
//!   have it in their memory alone.

use crate::client::recovery::replay_log::UncommittedWrite;
use glint_proto::chain::{Chain, ChainVersion};
use glint_proto::{Capability, Ino, ObjectId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A change that is not kept any more, with its transaction, if it has one in this run of its
/// server.
pub(crate) type GivenUpWrite = (Option<u64>, UncommittedWrite);

/// Number of a change of data at a server, in one run of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoggedChange {
    /// Key of the session with the server.
    pub(crate) session: u64,
    pub(crate) boot_verifier: u64,
    pub(crate) transaction: u64,
}

/// Object that the head of a newer row is asked to sync, for all that was abandoned in its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectToSync {
    pub(crate) object: ObjectId,
    pub(crate) capability: Option<Capability>,
}

/// What is known of the changes of one file in one chain.
struct AbandonedChanges {
    /// The object of the last of them that was put here.
    sync: ObjectToSync,
    /// The oldest and the newest row by which they were acknowledged.
    first: u32,
    last: u32,
    /// The last of them, if one server has logged all in one run.
    logged: Option<LoggedChange>,
}

/// Changes that were abandoned, of all servers of a client: by file and chain.
#[derive(Default)]
pub(crate) struct AbandonedData(Mutex<BTreeMap<(Ino, u16), AbandonedChanges>>);

impl LoggedChange {
    /// Whether it comes before another one of the same run, or is that.
    fn is_upto(&self, other: &LoggedChange) -> bool {
        (self.session, self.boot_verifier) == (other.session, other.boot_verifier)
            && self.transaction <= other.transaction
    }
}

impl AbandonedData {
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A change of an object was acknowledged by this row, and is not kept any more.
    pub(crate) fn put(
        &self,
        sync: ObjectToSync,
        chain: ChainVersion,
        logged: Option<LoggedChange>,
    ) {
        let (ChainVersion { target, version }, ino) = (chain, sync.object.ino);
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(&(ino, target)) else {
            let one = AbandonedChanges { sync, first: version, last: version, logged };
            all.insert((ino, target), one);
            return;
        };
        known.sync = sync;
        known.first = known.first.min(version);
        known.last = known.last.max(version);
        known.logged = match (known.logged, logged) {
            (Some(before), Some(now)) if before.is_upto(&now) => Some(now),
            (Some(before), Some(now)) if now.is_upto(&before) => Some(before),
            _ => None,
        };
    }

    /// A server has said that its changes are durable up to this one.
    pub(crate) fn are_durable(&self, upto: LoggedChange) {
        let is_left =
            |one: &AbandonedChanges| one.logged.is_none_or(|logged| !logged.is_upto(&upto));
        self.0.lock().retain(|_, one| is_left(one));
    }

    /// There is this row of a chain. Returns the files that may have lost something.
    pub(crate) fn on_row(&self, row: &Chain) -> Vec<Ino> {
        self.take(row.id.target(), |one| row.intact_since > one.first)
    }

    /// Nobody has anything of a chain any more. Returns the files that have lost something.
    pub(crate) fn on_loss(&self, target: u16) -> Vec<Ino> {
        self.take(target, |_| true)
    }

    /// The head by this row cannot bring to stable storage what was acknowledged by older ones.
    /// Returns the files that may lose something.
    pub(crate) fn on_unsettled(&self, row: ChainVersion) -> Vec<Ino> {
        self.take(row.target, |one| one.last < row.version)
    }

    /// The head by this row has brought what was acknowledged by older ones to stable storage.
    pub(crate) fn on_settled(&self, row: ChainVersion) {
        self.take(row.target, |one| one.last < row.version);
    }

    /// Returns an object to sync if a chain has changes of older rows than this one, and has a
    /// head.
    pub(crate) fn to_settle(&self, row: &Chain) -> Option<ObjectToSync> {
        row.head()?;
        let all = self.0.lock();
        let is_older =
            |of: u16, one: &AbandonedChanges| of == row.id.target() && one.last < row.version;
        all.iter().find(|((_, of), one)| is_older(*of, one)).map(|(_, one)| one.sync)
    }

    /// Forgets changes of a chain, and returns their files.
    fn take(&self, target: u16, which: impl Fn(&AbandonedChanges) -> bool) -> Vec<Ino> {
        let mut all = self.0.lock();
        let taken = all.extract_if(.., |(_, of), one| *of == target && which(one));
        taken.map(|((ino, _), _)| ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::chain::{ChainId, Member, MemberState};

    const ID: ChainId = ChainId { copies: 2, index: 0 };
    const FILE: Ino = Ino(7);

    fn row(version: u32, intact_since: u32, state: MemberState) -> Chain {
        let members = [1, 2].map(|ost| Member { ost, state }).to_vec();
        Chain { id: ID, version, members, founders: Vec::new(), intact_since }
    }

    const SYNC: ObjectToSync =
        ObjectToSync { object: ObjectId { ino: FILE, stripe: 0 }, capability: None };

    fn by(version: u32) -> ChainVersion {
        ChainVersion { target: ID.target(), version }
    }

    fn abandoned(version: u32) -> AbandonedData {
        let data = AbandonedData::default();
        data.put(SYNC, by(version), None);
        data
    }

    #[test]
    fn a_file_hears_of_a_loss_only_if_the_chain_has_lost_something_since() {
        use MemberState::{LastServing, Serving};
        // Both members were away, and are back with what they had.
        let data = abandoned(3);
        for row in [row(3, 1, Serving), row(4, 1, LastServing)] {
            assert!(data.on_row(&row).is_empty() && data.to_settle(&row).is_none());
        }
        assert!(data.on_row(&row(5, 1, Serving)).is_empty());
        data.on_settled(by(3));
        assert_eq!(data.to_settle(&row(5, 1, Serving)), Some(SYNC));
        data.on_settled(by(5));
        assert!(data.is_empty() && data.to_settle(&row(5, 1, Serving)).is_none());
        assert!(data.on_row(&row(6, 6, Serving)).is_empty(), "that was lost later");
        // The new head had it in its memory alone, and loses its power, or cannot write it.
        let data = abandoned(3);
        assert!(data.on_row(&row(4, 1, Serving)).is_empty());
        assert_eq!(data.on_row(&row(5, 5, Serving)), [FILE]);
        let data = abandoned(3);
        assert_eq!((data.on_unsettled(by(3)), data.on_unsettled(by(4))), (vec![], vec![FILE]));
        // One of them comes back without its memory.
        let data = abandoned(3);
        assert!(data.on_row(&row(4, 1, LastServing)).is_empty());
        assert_eq!(data.on_row(&row(5, 5, Serving)), [FILE]);
        assert!(data.is_empty());
        let data = abandoned(3);
        assert_eq!(
            (data.on_loss(ID.target() + 1), data.on_loss(ID.target())),
            (vec![], vec![FILE])
        );
    }

    #[test]
    fn what_is_durable_at_its_server_is_not_lost_with_it_later() {
        let (chain, data) = (by(3), abandoned(3));
        let logged = |transaction| LoggedChange { session: 1, boot_verifier: 9, transaction };
        data.are_durable(logged(u64::MAX));
        assert!(!data.is_empty(), "nobody knows which server has it");
        let data = AbandonedData::default();
        data.put(SYNC, chain, Some(logged(5)));
        data.put(SYNC, chain, Some(logged(4)));
        data.are_durable(LoggedChange { boot_verifier: 8, ..logged(6) });
        data.are_durable(LoggedChange { session: 2, ..logged(6) });
        data.are_durable(logged(4));
        assert!(!data.is_empty());
        data.are_durable(logged(5));
        assert!(data.is_empty());
        // Two servers have logged one each.
        data.put(SYNC, chain, Some(logged(5)));
        data.put(SYNC, chain, Some(LoggedChange { session: 2, ..logged(1) }));
        data.are_durable(logged(5));
        assert!(!data.is_empty());
    }
}
