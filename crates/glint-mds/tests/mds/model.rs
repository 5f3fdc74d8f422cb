//! Random operations against a tree in memory that is kept by the rules of the manual pages:
//! answers, errors and the tree that is left must be the same, also after a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod oracle;

use self::oracle::{
    Facts, KINDS, MODES, Model, NAMES, Operation, Told, operation, rename_flags, xattr_flags,
};
use crate::support::{Tree, make};
use glint_proto::{Attr, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest, SetAttr};
use proptest::prelude::*;

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Some(Vec::new()) }
}

/// The real tree, and which of its inodes have which numbers in the model.
struct Real {
    tree: Tree,
    inodes: Vec<Ino>,
}

impl Real {
    fn number(&self, ino: Ino) -> usize {
        self.inodes.iter().position(|known| *known == ino).unwrap()
    }

    fn facts(&self, attr: &Attr) -> Facts {
        let Attr { ino, mode, nlink, uid, gid, size, .. } = *attr;
        Facts { inode: self.number(ino), mode, nlink, uid, gid, size }
    }

    fn told(&mut self, makes: bool, reply: MdsReply) -> Told {
        match reply {
            MdsReply::Done => Told::Done,
            MdsReply::Removed { ino } => Told::Removed(self.number(ino)),
            MdsReply::Bytes(bytes) => Told::Bytes(bytes),
            MdsReply::Attr(attr) => {
                if makes {
                    assert!(!self.inodes.contains(&attr.ino), "a number is never used again");
                    self.inodes.push(attr.ino);
                }
                Told::Facts(self.facts(&attr))
            }
            MdsReply::Dir(page) => {
                assert!(page.end);
                let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
                let entries = page.entries.iter();
                let mut names: Vec<(String, usize)> =
                    entries.map(|entry| (name(&entry.name), self.number(entry.ino))).collect();
                names.sort_unstable();
                Told::Names(names)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Executes an operation; `model` is the one before it, which says what numbers mean.
    fn execute(&mut self, model: &Model, who: &Cred, operation: &Operation) -> FsResult<Told> {
        let ino = |number: usize| self.inodes[number % self.inodes.len()];
        let at =
            |parent, name: usize| (self.inodes[model.directory(parent)], NAMES[name].as_bytes());
        let xattr = |name: usize| format!("user.{}", NAMES[name]).into_bytes();
        let (name_of_xattr, value);
        let request = match *operation {
            Operation::Make { parent, name, kind, mode } => {
                let (parent, name) = at(parent, name);
                make(parent, name, KINDS[kind], MODES[mode])
            }
            Operation::Link { inode, parent, name } => {
                let (parent, name) = at(parent, name);
                MdsRequest::Link { ino: ino(inode), parent, name }
            }
            Operation::Unlink { parent, name } => {
                let (parent, name) = at(parent, name);
                MdsRequest::Unlink { parent, name }
            }
            Operation::Rmdir { parent, name } => {
                let (parent, name) = at(parent, name);
                MdsRequest::Rmdir { parent, name }
            }
            Operation::Rename { from, to, flags } => {
                let (parent, name) = at(from.0, from.1);
                let (new_parent, new_name) = at(to.0, to.1);
                let flags = rename_flags(flags);
                MdsRequest::Rename { parent, name, new_parent, new_name, flags }
            }
            Operation::Chmod { inode, mode } => {
                let set = SetAttr { mode: Some(MODES[mode]), ..SetAttr::default() };
                MdsRequest::Setattr { ino: ino(inode), set }
            }
            Operation::Chown { inode, uid } => {
                let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
                MdsRequest::Setattr { ino: ino(inode), set }
            }
            Operation::Lookup { parent, name } => {
                let (parent, name) = at(parent, name);
                MdsRequest::Lookup { parent, name }
            }
            Operation::Getattr { inode } => MdsRequest::Getattr { ino: ino(inode) },
            Operation::List { inode } => {
                MdsRequest::Readdir { ino: ino(inode), cookie: 0, bytes_max: 1 << 16, plus: false }
            }
            Operation::Readlink { inode } => MdsRequest::Readlink { ino: ino(inode) },
            Operation::SetXattr { inode, name, value: byte, flags } => {
                (name_of_xattr, value) = (xattr(name), [byte]);
                let flags = xattr_flags(flags);
                let (name, value) = (name_of_xattr.as_slice(), value.as_slice());
                MdsRequest::Setxattr { ino: ino(inode), name, value, flags }
            }
            Operation::GetXattr { inode, name } => {
                name_of_xattr = xattr(name);
                MdsRequest::Getxattr { ino: ino(inode), name: &name_of_xattr }
            }
            Operation::RemoveXattr { inode, name } => {
                name_of_xattr = xattr(name);
                MdsRequest::Removexattr { ino: ino(inode), name: &name_of_xattr }
            }
        };
        let reply = self.tree.ask(who, &request);
        if matches!(operation, Operation::Rename { .. }) {
            self.tree.pass_a_moment();
        }
        let reply = reply?;
        Ok(self.told(matches!(operation, Operation::Make { .. }), reply))
    }

    /// Panics unless the whole tree is that of the model.
    fn must_be(&mut self, model: &Model) {
        let root = Cred::ROOT;
        for (number, inode) in model.inodes.iter().enumerate() {
            let getattr = Operation::Getattr { inode: number };
            let facts = Ok(Told::Facts(model.facts(number)));
            let expected = if inode.nlink > 0 { facts } else { Err(Errno::ESTALE) };
            assert_eq!(self.execute(model, &root, &getattr), expected);
            if inode.nlink == 0 {
                continue;
            }
            if inode.is_dir() {
                let list = Operation::List { inode: number };
                assert_eq!(self.execute(model, &root, &list), model.list(&root, number));
            }
            let names: String = inode.xattrs.keys().map(|name| format!("user.{name}\0")).collect();
            let ino = self.inodes[number];
            let list = self.tree.ask(&root, &MdsRequest::Listxattr { ino });
            assert_eq!(list, Ok(MdsReply::Bytes(names.into_bytes())));
        }
        let live = model.inodes.iter().filter(|inode| inode.nlink > 0).count();
        assert_eq!(self.tree.mds.inode_count(), live as u64);
        self.tree.must_be_sound();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_answer_and_the_tree_that_is_left_are_those_of_the_model(
        operations in proptest::collection::vec((0u32..4, operation()), 1..120)
    ) {
        let (mut model, mut real) = (Model::new(), Real { tree: Tree::new(), inodes: vec![Ino::ROOT] });
        let open_root = (1, Operation::Chmod { inode: 0, mode: 0 });
        for (uid, operation) in [open_root].iter().chain(&operations) {
            // Half of all is done by the superuser.
            let who = user(uid.saturating_sub(1));
            let told = real.execute(&model, &who, operation);
            prop_assert_eq!(told, model.execute(&who, operation), "{} {:?}", uid, operation);
        }
        real.must_be(&model);
        real.tree = real.tree.restarted();
        real.must_be(&model);
    }
}
