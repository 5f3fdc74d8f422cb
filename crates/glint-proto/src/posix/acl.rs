//! POSIX access control lists, as acl(5) describes them, in the form of the
//! `system.posix_acl_*` extended attributes (version 2, little-endian).

use crate::{Cred, Errno, FsResult};

/// Name of the attribute with the access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the default ACL.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRIES_MAX: usize = 8000;
const UNDEFINED_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid list: its entries are sorted, and the required ones are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Parses and validates the attribute's value; EINVAL otherwise.
    pub fn parse(bytes: &[u8]) -> FsResult<Acl> {
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if rest.len() % 8 != 0 || rest.len() / 8 > ENTRIES_MAX {
            return Err(Errno::EINVAL);
        }
        let mut entries: Vec<Entry> = rest
            .chunks_exact(8)
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                permissions: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        for entry in &mut entries {
            match entry.tag {
                USER | GROUP if entry.id == UNDEFINED_ID => return Err(Errno::EINVAL),
                USER | GROUP => {}
                USER_OBJ | GROUP_OBJ | MASK | OTHER => entry.id = UNDEFINED_ID,
                _ => return Err(Errno::EINVAL),
            }
            if entry.permissions > 7 {
                return Err(Errno::EINVAL);
            }
        }
        entries.sort_by_key(|e| (e.tag, e.id));
        let acl = Acl { entries };
        let count = |tag| acl.entries.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP) > 0;
        let unique = acl.entries.windows(2).all(|w| (w[0].tag, w[0].id) != (w[1].tag, w[1].id));
        if count(USER_OBJ) != 1
            || count(GROUP_OBJ) != 1
            || count(OTHER) != 1
            || (named && count(MASK) != 1)
            || !unique
        {
            return Err(Errno::EINVAL);
        }
        Ok(acl)
    }

    /// The attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.permissions)
    }

    fn set(&mut self, tag: u16, permissions: u16) {
        for entry in self.entries.iter_mut().filter(|e| e.tag == tag) {
            entry.permissions = permissions & 7;
        }
    }

    /// Permission bits of the mode that go with this list.
    pub fn mode_bits(&self) -> u32 {
        let group = self.get(MASK).or(self.get(GROUP_OBJ)).unwrap_or(0);
        let user = self.get(USER_OBJ).unwrap_or(0);
        u32::from(user) << 6 | u32::from(group) << 3 | u32::from(self.get(OTHER).unwrap_or(0))
    }

    /// Whether the mode says everything that this list says.
    pub fn is_trivial(&self) -> bool {
        self.entries.len() == 3
    }

    /// Changes the list as chmod(2) does.
    pub fn chmod(&mut self, mode: u32) {
        self.set(USER_OBJ, (mode >> 6) as u16);
        let group = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.set(group, (mode >> 3) as u16);
        self.set(OTHER, mode as u16);
    }

    /// A new inode under a default ACL: its mode, and its own list. The umask does
    /// not count then.
    pub fn inherit(&self, mode: u32) -> (u32, Acl) {
        let mut acl = self.clone();
        let masked = self.mode_bits() & mode & 0o777;
        let (user, group, other) = ((mode >> 6) as u16, (mode >> 3) as u16, mode as u16);
        acl.set(USER_OBJ, acl.get(USER_OBJ).unwrap_or(0) & user);
        let which = if acl.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        acl.set(which, acl.get(which).unwrap_or(0) & group);
        acl.set(OTHER, acl.get(OTHER).unwrap_or(0) & other);
        ((mode & !0o777) | masked, acl)
    }

    /// The access check algorithm of acl(5). `want` is a mask of r 4, w 2, x 1.
    pub fn permits(&self, cred: &Cred, uid: u32, gid: u32, want: u32) -> bool {
        let mask = u32::from(self.get(MASK).unwrap_or(7));
        if cred.uid == uid {
            return u32::from(self.get(USER_OBJ).unwrap_or(0)) & want == want;
        }
        if let Some(user) = self.entries.iter().find(|e| e.tag == USER && e.id == cred.uid) {
            return u32::from(user.permissions) & mask & want == want;
        }
        let mut is_member = false;
        for entry in &self.entries {
            let matches = match entry.tag {
                GROUP_OBJ => cred.is_member(gid),
                GROUP => cred.is_member(entry.id),
                _ => false,
            };
            if matches {
                is_member = true;
                if u32::from(entry.permissions) & mask & want == want {
                    return true;
                }
            }
        }
        !is_member && u32::from(self.get(OTHER).unwrap_or(0)) & want == want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries =
            entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect();
        Acl { entries }.encode()
    }

    #[test]
    fn the_mask_limits_named_users_and_groups() {
        let bytes = acl(&[
            (USER_OBJ, 7, 0),
            (USER, 7, 100),
            (GROUP_OBJ, 5, 0),
            (GROUP, 6, 200),
            (MASK, 5, 0),
            (OTHER, 0, 0),
        ]);
        let list = Acl::parse(&bytes).unwrap();
        let cred = |uid, gid| Cred { uid, gid, groups: None };
        assert!(list.permits(&cred(1, 1), 1, 1, 7));
        assert!(list.permits(&cred(100, 9), 1, 1, 5));
        assert!(!list.permits(&cred(100, 9), 1, 1, 2));
        assert!(list.permits(&cred(5, 200), 1, 1, 4));
        assert!(!list.permits(&cred(5, 200), 1, 1, 2));
        assert!(!list.permits(&cred(5, 5), 1, 1, 4));
        assert_eq!(list.mode_bits(), 0o750);
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        assert!(Acl::parse(b"").is_err());
        assert!(Acl::parse(&acl(&[(USER_OBJ, 7, 0)])).is_err());
        let no_mask = [(USER_OBJ, 7, 0), (USER, 7, 1), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)];
        assert!(Acl::parse(&acl(&no_mask)).is_err());
    }

    #[test]
    fn a_default_list_replaces_the_umask() {
        let list = Acl::parse(&acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 4, 0)])).unwrap();
        let (mode, own) = list.inherit(0o100666);
        assert_eq!(mode, 0o100644);
        assert!(own.is_trivial());
        assert_eq!(own.mode_bits(), 0o644);
    }
}
