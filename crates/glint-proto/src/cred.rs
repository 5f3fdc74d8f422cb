//! Credentials of a caller.

use serde::{Deserialize, Serialize};

/// The caller's credentials, as the kernel of the client states them.
///
/// Supplementary groups cost a look at `/proc` on the client, so they are sent
/// only when an answer depends on them: without them a server that would refuse
/// says so, and the client asks once more with `groups`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cred {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Supplementary groups; `None` if they were not looked up.
    pub groups: Option<Vec<u32>>,
}

impl Cred {
    /// The superuser.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: None };

    /// Whether permission bits do not apply (CAP_DAC_OVERRIDE, CAP_FOWNER).
    pub fn is_superuser(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is the primary or a known supplementary group.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_ref().is_some_and(|groups| groups.contains(&gid))
    }
}
