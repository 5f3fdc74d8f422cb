//! An object that is watched, and changed while it is copied.

use glint_proto::limits::CHANGED_EXTENTS_PER_REPLY;
use glint_proto::{Errno, FsResult, OstReply, OstRequest};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct WatchedObject {
    /// Changes to come: one after each read, with its offset.
    pub(crate) changes: VecDeque<(u64, Vec<u8>)>,
    /// The watch is lost before it is asked.
    pub(crate) is_lost: bool,
    is_watched: bool,
    round: u32,
    told: Vec<(u64, u64)>,
    changed: Vec<(u64, u64)>,
}

impl WatchedObject {
    /// Answers requests about the watch; `None` to all others.
    pub(super) fn answer(&mut self, request: &OstRequest) -> Option<FsResult<OstReply>> {
        match *request {
            OstRequest::Watch { .. } => {
                (self.is_watched, self.round) = (true, 0);
                self.changed.clear();
                Some(Ok(OstReply::Watched { watch: 1 }))
            }
            OstRequest::Changed { .. } if std::mem::take(&mut self.is_lost) => {
                Some(Err(Errno::ENODATA))
            }
            OstRequest::Changed { round, after, .. } => {
                if round == self.round + 1 {
                    self.round = round;
                    self.told = std::mem::take(&mut self.changed);
                    self.told.sort_unstable();
                }
                assert_eq!(round, self.round);
                let mut extents = [(0, 0); CHANGED_EXTENTS_PER_REPLY];
                let more = self.told.iter().filter(|(start, _)| *start >= after);
                extents.iter_mut().zip(more).for_each(|(place, extent)| *place = *extent);
                Some(Ok(OstReply::Changed { extents }))
            }
            _ => None,
        }
    }

    /// The change after a read.
    pub(super) fn next_change(&mut self) -> Option<(u64, Vec<u8>)> {
        let (offset, data) = self.changes.pop_front()?;
        if self.is_watched {
            self.changed.push((offset, offset + data.len() as u64));
        }
        Some((offset, data))
    }
}
