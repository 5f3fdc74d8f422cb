//! From when on members of chains give each other nothing: until then one that has not removed an
//! object yet may give it to others that have.

use glint_proto::clock;
use std::time::{Duration, Instant};

/// Longest time that a new head takes to make copies equal, and clients to send it what they must.
const TAKEOVER_MAX: Duration = Duration::from_secs(30);

/// What the rows of all chains say of that.
#[derive(Default)]
pub(super) struct QuietChains {
    from: Option<Instant>,
    are_whole: bool,
}

impl QuietChains {
    /// Rows were read, made or changed; after that all members serve, or not. Nothing is copied in
    /// chains that were just made: nobody lacks anything there.
    pub(super) fn on_rows(&mut self, may_copy: bool, are_whole: bool) {
        let now = clock::now();
        match may_copy {
            true => self.from = Some(now + TAKEOVER_MAX),
            false => _ = self.from.get_or_insert(now),
        }
        self.are_whole = are_whole;
    }

    /// From when on it is so, unless something happens before; `None` while a member lacks something.
    pub(super) fn from(&self) -> Option<Instant> {
        self.from.filter(|_| self.are_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::placement::Placed;
    use crate::chains::table::ChainTable;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::chain::MemberEvent;

    #[test]
    fn nothing_is_copied_in_new_chains() {
        block_on(async {
            let (start, kv) = (clock::now(), MemoryKv::default());
            clock::simulate(Some(start));
            let later = start + Duration::from_secs(10);
            let osts: Vec<Placed> =
                (0..3).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect();
            let table = ChainTable::load(&kv).await.unwrap();
            clock::simulate(Some(later));
            table.extend(&kv, 2, &osts).await.unwrap();
            assert_eq!(table.quiet_from(), Some(start), "the last run had no chains");
            // What the last run has begun may go on.
            let next = ChainTable::load(&kv).await.unwrap();
            assert_eq!(next.quiet_from(), Some(later + TAKEOVER_MAX));
            table.on_event(&kv, 1, MemberEvent::Lost).await.unwrap();
            assert_eq!(table.quiet_from(), None);
            clock::simulate(None);
        });
    }

    #[test]
    fn members_may_copy_for_a_while_when_they_serve_again() {
        let start = clock::now();
        clock::simulate(Some(start));
        let mut quiet = QuietChains::default();
        quiet.on_rows(true, false);
        assert_eq!(quiet.from(), None);
        let back = start + Duration::from_secs(10);
        clock::simulate(Some(back));
        quiet.on_rows(true, true);
        clock::simulate(Some(back + Duration::from_secs(1)));
        quiet.on_rows(false, true);
        assert_eq!(quiet.from(), Some(back + TAKEOVER_MAX));
        clock::simulate(None);
    }
}
