//! Capabilities: the rights of a session to the objects of a file, given by the MDS and checked by
//! every server of OSTs.

use crate::OstRequest;
use serde::{Deserialize, Serialize};
use std::ops::BitOr;

/// Set of rights. A session that has any capability of an inode may know how large its objects are,
/// and have them brought to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Access(pub u8);

impl Access {
    /// To know sizes and times.
    pub const STAT: Access = Access(0);
    /// To read.
    pub const READ: Access = Access(1);
    /// To write and to truncate.
    pub const WRITE: Access = Access(2);
    /// To set the modification time.
    pub const TIMES: Access = Access(4);
    /// To say that the inode was made in this session, when a server has lost it.
    pub const MADE: Access = Access(8);

    /// Whether all of `other` is among this.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a request to an OST is allowed.
    pub fn allows(self, request: &OstRequest) -> bool {
        use OstRequest::*;
        let any_of = |access: Access| self.0 & access.0 != 0;
        match request {
            Read { .. } | Watch { .. } | Changed { .. } => any_of(Access::READ),
            Write { .. } | WriteExtents { .. } | Truncate { .. } | Fallocate { .. } => {
                any_of(Access::WRITE)
            }
            SetTime { .. } => any_of(Access::WRITE | Access::TIMES),
            Seek { .. } => any_of(Access::READ | Access::WRITE),
            Stat { .. } | Sync { .. } | Space | GrantSpace { .. } => true,
        }
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Length of the secret of a file system that signatures are made with.
pub const SECRET_BYTES: usize = 32;
/// Length of a signature: that of SHA-256.
pub const SIGNATURE_BYTES: usize = 32;

/// Says that a session may do something with an inode, signed with a key that only the servers
/// of the file system have. The session and the inode are not in it: both sides know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capability {
    /// Rights.
    pub access: Access,
    /// A keyed hash of session, inode and access.
    pub signature: [u8; SIGNATURE_BYTES],
}

/// The one among `held` that allows a request.
pub fn that_allows(held: &[Capability], request: &OstRequest) -> Option<Capability> {
    held.iter().find(|capability| capability.access.allows(request)).copied()
}
