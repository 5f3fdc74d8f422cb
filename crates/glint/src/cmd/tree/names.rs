//! Names of users and groups, each looked up once: a lookup may ask a server.

use super::c_library::{group_name, user_name};
use glint_proto::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A name, if there is one; an error if that was not found out.
type Found = Result<Option<Rc<[u8]>>, Errno>;

/// Names of users and groups.
#[derive(Default)]
pub(in crate::cmd) struct Names {
    users: RefCell<HashMap<u32, Found>>,
    groups: RefCell<HashMap<u32, Found>>,
}

fn find(
    known: &RefCell<HashMap<u32, Found>>,
    id: u32,
    name_of: fn(u32) -> Result<Option<Vec<u8>>, Errno>,
) -> Found {
    let mut known = known.borrow_mut();
    known.entry(id).or_insert_with(|| name_of(id).map(|name| name.map(Rc::from))).clone()
}

/// A name, or the number if there is none or it was not found out, as find(1) and ls(1) show it.
fn shown(found: Found, id: u32) -> Rc<[u8]> {
    found.ok().flatten().unwrap_or_else(|| id.to_string().into_bytes().into())
}

impl Names {
    /// Returns the name of a user.
    pub(in crate::cmd) fn user(&self, uid: u32) -> Found {
        find(&self.users, uid, user_name)
    }

    /// Returns the name of a group.
    pub(in crate::cmd) fn group(&self, gid: u32) -> Found {
        find(&self.groups, gid, group_name)
    }

    /// Returns the name of a user, or its number.
    pub(in crate::cmd) fn shown_user(&self, uid: u32) -> Rc<[u8]> {
        shown(self.user(uid), uid)
    }

    /// Returns the name of a group, or its number.
    pub(in crate::cmd) fn shown_group(&self, gid: u32) -> Rc<[u8]> {
        shown(self.group(gid), gid)
    }
}

#[cfg(test)]
impl Names {
    /// Names of which that of root, and of its group, cannot be looked up.
    pub(in crate::cmd) fn without_root(error: Errno) -> Names {
        let names = Names::default();
        names.users.borrow_mut().insert(0, Err(error));
        names.groups.borrow_mut().insert(0, Err(error));
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local!(static ASKED: Cell<u32> = const { Cell::new(0) });

    #[test]
    fn a_name_is_looked_up_once() {
        fn name_of(id: u32) -> Result<Option<Vec<u8>>, Errno> {
            ASKED.set(ASKED.get() + 1);
            match id {
                1 => Ok(Some(b"one".to_vec())),
                2 => Ok(None),
                _ => Err(Errno::EIO),
            }
        }
        let known = RefCell::default();
        for _ in 0..2 {
            assert_eq!(find(&known, 1, name_of), Ok(Some(Rc::from(&b"one"[..]))));
            assert_eq!(find(&known, 2, name_of), Ok(None));
            assert_eq!(find(&known, 3, name_of), Err(Errno::EIO));
        }
        assert_eq!(ASKED.get(), 3);
        assert_eq!(&*shown(Err(Errno::EIO), 3), b"3");
        assert_eq!(&*Names::default().shown_user(0), b"root");
    }
}
