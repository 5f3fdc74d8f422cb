//! Trees that are looked at on the servers themselves, without a mount: `glint find`, `glint du` and
//! `glint ls`, and their benchmark.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod actions;
mod bench;
mod changing;
mod du;
mod find;
mod ls;
mod placed;
mod places;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::*;

/// Makes directories that a user may read, search, both or neither, by their modes and by ACLs.
fn make_with_rights(top: &Path, uid: u32) {
    for (name, mode, owner) in [
        ("read", 0o744, 0),
        ("search", 0o711, 0),
        ("none", 0o700, 0),
        ("all", 0o755, 0),
        ("own", 0o400, uid),
        ("acl-read", 0o700, 0),
        ("acl-all", 0o700, 0),
    ] {
        let tree = top.join(name);
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("file"), b"bytes").unwrap();
        fs::write(tree.join("sub/inner"), b"bytes").unwrap();
        fs::create_dir(tree.join("empty")).unwrap();
        symlink("file", tree.join("link")).unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&tree, Some(owner), Some(owner)).unwrap();
    }
    // Of Debian's `acl`, which `make tools` installs.
    for (name, rights) in [("acl-read", "r"), ("acl-all", "rx")] {
        let acl = format!("u:{uid}:{rights}");
        run(Command::new("setfacl").args(["-m", &acl]).arg(top.join(name)));
    }
}
