//! What a client changes of inodes, from the request to its answer.

use crate::cache::inode::{Node, State};
use glint_proto::lock::Bits;
use glint_proto::{Attr, Ino, Timestamp};
use std::sync::Arc;

/// A change of inodes by this client. Until it ends nothing is known of their attributes.
pub(crate) struct Change {
    nodes: Vec<Changed>,
}

struct Changed {
    node: Arc<Node>,
    /// How many changes there were before, and what was known then.
    changes: u64,
    before: Option<Attr>,
}

impl Changed {
    /// Its state, if nothing else has happened meanwhile and the attributes may be kept.
    fn undisturbed(&self) -> Option<parking_lot::MutexGuard<'_, State>> {
        let state = self.node.state();
        let alone = state.changing == 1 && state.changes == self.changes;
        (alone && state.bits.has(Bits::ATTR)).then_some(state)
    }
}

impl Change {
    /// A change of these begins.
    pub(crate) fn begin(nodes: impl Iterator<Item = Arc<Node>>) -> Change {
        let begin = |node: Arc<Node>| {
            let mut state = node.state();
            state.changing += 1;
            let (changes, before) = (state.changes, state.attr.take());
            drop(state);
            Changed { node, changes, before }
        };
        Change { nodes: nodes.map(begin).collect() }
    }

    /// The servers said what the attributes of one of them are now.
    pub(crate) fn learn(&self, attr: &Attr) {
        let changed = self.nodes.iter().find(|changed| changed.node.ino == attr.ino);
        if let Some(mut state) = changed.and_then(Changed::undisturbed) {
            state.attr = Some(attr.clone());
        }
    }

    /// A name was made in a directory at this time.
    pub(crate) fn made_in(&self, directory: Ino, time: Timestamp, is_dir: bool) {
        let changed = self.nodes.iter().find(|changed| changed.node.ino == directory);
        if let Some(changed) = changed
            && let Some(before) = &changed.before
            && let Some(mut state) = changed.undisturbed()
        {
            let nlink = before.nlink + u32::from(is_dir);
            state.attr = Some(Attr { mtime: time, ctime: time, nlink, ..before.clone() });
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        for changed in &self.nodes {
            let mut state = changed.node.state();
            state.changing -= 1;
            state.changes += 1;
            if state.changing > 0 {
                state.attr = None;
            }
            drop(state);
            changed.node.wake();
        }
    }
}
