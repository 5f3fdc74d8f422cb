//! Rights of a client to change an inode without asking: a directory that is delegated to it, or an
//! inode that it made in one.
//!
//! Invariants:
//! - What was made under a delegation is this client's alone only while it is where it was made: it
//!   leaves when its directory's delegation ends, or when it is named elsewhere or gone.
//! - A delegation that ends is used no more, and is still this client's until all of that is told: the
//!   names of a directory are gone through in steps.
//! - The number of the last change never falls, so who waits for it waits for all of them.
//! - Nothing of an inode that the servers will never create reaches an OST.

use glint_proto::Ino;

/// The delegation of one inode.
#[derive(Default)]
pub(crate) struct Delegation {
    /// Of a directory: no other client has anything of it, and this one changes it by itself; see
    /// [`crate::meta_log::local_ops`].
    delegated: bool,
    /// How often its names are being gone through just now because the delegation ends.
    ending: u32,
    /// The delegated directory that the inode was made in.
    parent: Option<Ino>,
    /// Numbers in the write-back log of the last change, and of that which made the inode.
    last_change: u64,
    creation: u64,
    /// Made without extended attributes, and given none since.
    has_no_xattrs: bool,
    /// Given an extended attribute since it was made, or since it was delegated.
    got_xattr: bool,
    /// The servers never heard of the inode, and will not.
    never_created: bool,
}

impl Delegation {
    /// Whether nobody else can change the inode, or has seen it.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.delegated || self.parent.is_some()
    }

    /// Whether this is a directory that this client changes by itself.
    pub(crate) fn is_delegated(&self) -> bool {
        self.delegated
    }

    /// The delegated directory that the inode was made in, and is in.
    pub(crate) fn parent(&self) -> Option<Ino> {
        self.parent
    }

    /// The number of the last change in the write-back log.
    pub(crate) fn last_change(&self) -> u64 {
        self.last_change
    }

    /// The number of the change that made the inode; 0 if this client did not.
    pub(crate) fn creation(&self) -> u64 {
        self.creation
    }

    /// Whether the inode is known to have no extended attributes.
    pub(crate) fn has_no_xattrs(&self) -> bool {
        self.parent.is_some() && self.has_no_xattrs
    }

    /// Whether an access list, which this client does not know, may say what new inodes in this
    /// directory get. None did when it was delegated.
    pub(crate) fn may_have_default_acl(&self) -> bool {
        self.got_xattr
    }

    /// Whether the servers will never hear of the inode.
    pub(crate) fn is_never_created(&self) -> bool {
        self.never_created
    }

    /// Delegated to this client by the servers.
    pub(crate) fn grant(&mut self) {
        self.delegated = true;
    }

    /// Not delegated any more, though changes of what was made here may not be told yet. When it is
    /// known what those are, [`end`](Delegation::end) follows.
    pub(crate) fn begin_end(&mut self) {
        self.delegated = false;
        self.ending += 1;
    }

    /// Whether it is not known yet what is to be told before the delegation is returned.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending > 0
    }

    /// Ends what [`begin_end`](Delegation::begin_end) began.
    pub(crate) fn end(&mut self) {
        self.ending -= 1;
    }

    /// Made by a change in a delegated directory; a directory is delegated, too.
    pub(crate) fn create(&mut self, parent: Ino, is_dir: bool, number: u64) {
        self.note_change(number);
        (self.parent, self.delegated, self.creation) = (Some(parent), is_dir, number);
        (self.has_no_xattrs, self.got_xattr, self.never_created) = (true, false, false);
    }

    /// Changed by a change of this number, or waiting for one.
    pub(crate) fn note_change(&mut self, number: u64) {
        self.last_change = self.last_change.max(number);
    }

    /// Moved to a delegated directory, perhaps the same.
    pub(crate) fn rename(&mut self, parent: Ino, number: u64) {
        self.parent = Some(parent);
        self.note_change(number);
    }

    /// Removed by a change: has no name any more.
    pub(crate) fn remove(&mut self, number: u64) {
        self.note_change(number);
        self.lose();
    }

    /// Known by a name elsewhere from now on, or looked up by others.
    pub(crate) fn leave(&mut self) {
        self.parent = None;
    }

    /// The delegation of `directory` ends. Returns the number of the last change, if the inode was
    /// made there.
    pub(crate) fn leave_with(&mut self, directory: Ino) -> Option<u64> {
        (self.parent == Some(directory)).then(|| {
            self.leave();
            self.last_change
        })
    }

    /// Loses the delegation: the servers have not executed what was done here, so nothing is done
    /// without asking any more.
    pub(crate) fn lose(&mut self) {
        (self.delegated, self.parent) = (false, None);
    }

    /// The change that made the inode is lost.
    pub(crate) fn lose_creation(&mut self) {
        self.never_created = true;
    }

    /// The inode gets an extended attribute.
    pub(crate) fn gets_xattr(&mut self) {
        (self.has_no_xattrs, self.got_xattr) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Ino = Ino(1);
    const THERE: Ino = Ino(2);

    #[test]
    fn an_extended_attribute_is_not_forgotten_by_a_rename() {
        let mut made = Delegation::default();
        made.create(HERE, false, 1);
        assert!(made.has_no_xattrs());
        made.gets_xattr();
        made.rename(THERE, 2);
        assert!(!made.has_no_xattrs());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// One inode with two directories, of which this client has the delegation or not. What is
        /// exclusive here no other client can see, and who waits for the last change waits for all.
        #[test]
        fn what_is_exclusive_nobody_else_sees(steps in proptest::collection::vec(0u8..9, 0..100)) {
            let mut inode = Delegation::default();
            // The directory that has the only name, if it is delegated; the inode's own delegation.
            let (mut hidden_in, mut delegated, mut numbers) = (None, false, 0);
            let (mut creation, mut xattr, mut lost) = (0, true, false);
            for step in steps {
                let directory = if numbers % 2 == 0 { HERE } else { THERE };
                match step {
                    0 if creation == 0 => {
                        numbers += 1;
                        inode.create(directory, true, numbers);
                        (hidden_in, delegated, creation, xattr) =
                            (Some(directory), true, numbers, false);
                    }
                    1 if hidden_in.is_some() => {
                        numbers += 1;
                        inode.rename(directory, numbers);
                        hidden_in = Some(directory);
                    }
                    2 if hidden_in.is_some() => {
                        numbers += 1;
                        inode.remove(numbers);
                        (hidden_in, delegated) = (None, false);
                    }
                    3 => {
                        inode.leave();
                        hidden_in = None;
                    }
                    4 => {
                        let waited = inode.leave_with(directory);
                        let was_there = hidden_in == Some(directory);
                        prop_assert_eq!(waited.is_some(), was_there);
                        prop_assert!(waited.is_none_or(|number| number == numbers));
                        hidden_in = hidden_in.filter(|_| !was_there);
                    }
                    5 => {
                        inode.begin_end();
                        prop_assert!(inode.is_ending() && !inode.is_delegated());
                        numbers += 1;
                        inode.note_change(numbers);
                        inode.end();
                        prop_assert_eq!(inode.last_change(), numbers);
                        prop_assert!(!inode.is_ending());
                        delegated = false;
                    }
                    6 => {
                        inode.grant();
                        delegated = true;
                    }
                    7 => {
                        inode.gets_xattr();
                        xattr = true;
                    }
                    8 if creation > 0 => {
                        inode.lose();
                        inode.lose_creation();
                        (hidden_in, delegated, lost) = (None, false, true);
                    }
                    // A change of attributes, and one that was answered long ago.
                    _ => {
                        numbers += 1;
                        inode.note_change(numbers);
                        inode.note_change(numbers / 2);
                    }
                }
                prop_assert_eq!(inode.parent(), hidden_in);
                prop_assert_eq!(inode.is_delegated(), delegated);
                prop_assert_eq!(inode.is_exclusive(), delegated || hidden_in.is_some());
                prop_assert_eq!((inode.last_change(), inode.creation()), (numbers, creation));
                prop_assert_eq!(inode.has_no_xattrs(), hidden_in.is_some() && !xattr);
                prop_assert_eq!(inode.is_never_created(), lost);
            }
        }
    }
}
