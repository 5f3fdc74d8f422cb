//! The helper that mount(8) calls, installed for a test and removed in the end. Tests have it in
//! turns.

use crate::{binary, claims};
use std::fs;
use std::path::Path;

/// The helper, if it was not installed already.
pub struct MountHelper {
    installed: Option<&'static Path>,
    _turn: fs::File,
}

impl MountHelper {
    pub fn install() -> MountHelper {
        let turn = claims::turn("mount-helper");
        let path = Path::new("/sbin/mount.fuse.glint");
        // What a test left behind that was killed, or the one of an installation.
        let is_ours = fs::read_link(path).is_ok_and(|to| to == Path::new(binary::glint()));
        if path.exists() && !is_ours {
            return MountHelper { installed: None, _turn: turn };
        }
        let _ = fs::remove_file(path);
        std::os::unix::fs::symlink(binary::glint(), path).unwrap();
        MountHelper { installed: Some(path), _turn: turn }
    }
}

impl Drop for MountHelper {
    fn drop(&mut self) {
        if let Some(path) = self.installed {
            let _ = fs::remove_file(path);
        }
    }
}
