//! Pins of inodes that have to be known, by the kernel, open files, closes whose data is still
//! here.
//!
//! Invariants:
//! - Each pin is taken off as often as it was put on; without any the inode may be forgotten.
//! - What a close says of the size and time is never older than what a request sets: none begins while
//!   a close is under way, and a close that begins meanwhile finds out later what to say.
//! - An open without the servers is either ended without them, or declared to them, and never both:
//!   while opens are being declared, no close decides.

use crate::cache::inode::rare::{Rare, blank};

/// The pins of one inode.
#[derive(Default)]
pub(crate) struct Pins {
    /// References of the kernel.
    lookups: u64,
    users: Rare<Users>,
}

/// Programs that use an inode, and what they do to it.
#[derive(Default)]
struct Users {
    /// Open files.
    handles: u32,
    /// Of those the ones to read and write.
    shared_writers: u32,
    /// Closes whose data is still here, or which find out what to say.
    closing: u32,
    /// Requests that set the size or a time.
    setting: u32,
    /// Opens that the servers do not know, under OPEN; and how often they are being told of some.
    undeclared: u32,
    declaring: u32,
}

blank!(Users);

impl Pins {
    /// Whether nobody needs the inode.
    pub(crate) fn is_empty(&self) -> bool {
        let Users { handles, closing, undeclared, .. } = *self.users;
        self.lookups == 0 && handles == 0 && closing == 0 && undeclared == 0
    }

    /// Notes that the kernel is told of the inode.
    pub(crate) fn add_lookup(&mut self) {
        self.lookups += 1;
    }

    /// Takes references of the kernel off. Whether none is left.
    pub(crate) fn forget_lookups(&mut self, lookups: u64) -> bool {
        self.lookups = self.lookups.saturating_sub(lookups);
        self.lookups == 0
    }

    /// Whether the kernel knows the inode.
    pub(crate) fn has_lookups(&self) -> bool {
        self.lookups > 0
    }

    /// A file is open; `shared` if it is to read and write.
    pub(crate) fn open(&mut self, shared: bool) {
        let users = self.users.make();
        users.handles += 1;
        users.shared_writers += u32::from(shared);
    }

    /// An open file is closed.
    pub(crate) fn close(&mut self, shared: bool) {
        let users = self.users.make();
        users.handles -= 1;
        users.shared_writers -= u32::from(shared);
    }

    /// Whether files of this client are open.
    pub(crate) fn is_open(&self) -> bool {
        self.users.handles > 0
    }

    /// Whether pages may be dirtied without notice: somebody has the file open to read and write,
    /// and may have mapped it.
    pub(crate) fn has_shared_writers(&self) -> bool {
        self.users.shared_writers > 0
    }

    /// A close begins to bring data and its end to the servers.
    pub(crate) fn begin_close(&mut self) {
        self.users.make().closing += 1;
    }

    /// Ends what [`begin_close`](Pins::begin_close) began.
    pub(crate) fn end_close(&mut self) {
        self.users.make().closing -= 1;
    }

    /// Whether closes are under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.users.closing > 0
    }

    /// A request begins to set the size or a time, unless closes are under way. Whether it does.
    pub(crate) fn begin_setting(&mut self) -> bool {
        let begins = !self.is_closing();
        if begins {
            self.users.make().setting += 1;
        }
        begins
    }

    /// Ends what [`begin_setting`](Pins::begin_setting) began.
    pub(crate) fn end_setting(&mut self) {
        self.users.make().setting -= 1;
    }

    /// Whether what a close says would be older than what a request sets.
    pub(crate) fn is_setting(&self) -> bool {
        self.users.setting > 0
    }

    /// Counts an open under OPEN.
    pub(crate) fn open_undeclared(&mut self) {
        self.users.make().undeclared += 1;
    }

    /// Ends an open under OPEN without the servers: `true`. `false` if they know of it, `None`
    /// while they are being told.
    pub(crate) fn close_undeclared(&mut self) -> Option<bool> {
        if self.is_declaring() {
            return None;
        }
        let ends = self.users.undeclared > 0;
        if ends {
            self.users.make().undeclared -= 1;
        }
        Some(ends)
    }

    /// Begins to declare the opens that the servers do not know, if there are any. Returns how
    /// many.
    pub(crate) fn begin_declaring(&mut self) -> u32 {
        let opens = self.take_undeclared();
        if opens > 0 {
            self.users.make().declaring += 1;
        }
        opens
    }

    /// Whether the servers are being told of opens.
    pub(crate) fn is_declaring(&self) -> bool {
        self.users.declaring > 0
    }

    /// Ends what [`begin_declaring`](Pins::begin_declaring) began.
    pub(crate) fn end_declaring(&mut self) {
        self.users.make().declaring -= 1;
    }

    /// Opens that the servers do not know, which they are told of before they serve anything else.
    pub(crate) fn take_undeclared(&mut self) -> u32 {
        self.users.made().map_or(0, |users| std::mem::take(&mut users.undeclared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// An inode is pinned exactly while something is, and each open is ended once: here or by
        /// the servers.
        #[test]
        fn pins_are_what_was_put_on(steps in proptest::collection::vec(0u8..12, 0..200)) {
            let mut pins = Pins::default();
            let (mut lookups, mut files, mut closes) = (0u64, Vec::new(), 0u32);
            let mut setting = 0u32;
            let (mut undeclared, mut declared, mut declaring) = (0u32, 0u32, 0u32);
            for step in steps {
                match step {
                    0 => { pins.add_lookup(); lookups += 1 }
                    1 => prop_assert_eq!(pins.forget_lookups(lookups), { lookups = 0; true }),
                    2 | 3 => { pins.open(step == 3); files.push(step == 3) }
                    4 => if let Some(shared) = files.pop() { pins.close(shared) },
                    5 => { pins.begin_close(); closes += 1 }
                    6 => if closes > 0 { pins.end_close(); closes -= 1 },
                    7 => { pins.open_undeclared(); undeclared += 1 }
                    8 => if declaring > 0 { pins.end_declaring(); declaring -= 1 },
                    9 => {
                        prop_assert_eq!(pins.begin_setting(), closes == 0);
                        setting += u32::from(closes == 0);
                    }
                    10 => if setting > 0 { pins.end_setting(); setting -= 1 },
                    _ => {
                        let opens = pins.begin_declaring();
                        prop_assert_eq!(opens, undeclared);
                        (declared, undeclared) = (declared + opens, 0);
                        declaring += u32::from(opens > 0);
                    }
                }
                let none = lookups == 0 && files.is_empty() && closes == 0 && undeclared == 0;
                prop_assert_eq!(pins.is_empty(), none);
                prop_assert_eq!(pins.has_lookups(), lookups > 0);
                prop_assert_eq!(pins.is_open(), !files.is_empty());
                prop_assert_eq!(pins.has_shared_writers(), files.contains(&true));
                prop_assert_eq!(pins.is_closing(), closes > 0);
                prop_assert_eq!(pins.is_declaring(), declaring > 0);
                prop_assert_eq!(pins.is_setting(), setting > 0);
            }
            for _ in 0..declaring {
                prop_assert_eq!(pins.close_undeclared(), None);
                pins.end_declaring();
            }
            for _ in 0..undeclared {
                prop_assert_eq!(pins.close_undeclared(), Some(true));
            }
            for _ in 0..declared {
                prop_assert_eq!(pins.close_undeclared(), Some(false));
            }
        }
    }
}
