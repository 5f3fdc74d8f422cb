//! The subcommands, a file each.

pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod du;
pub(crate) mod find;
pub(crate) mod fsck;
pub(crate) mod ls;
pub(crate) mod mount;
pub mod mount_options;
pub(crate) mod oss;
pub(crate) mod serve;
pub(crate) mod serving;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod storage;
mod tree;
pub(crate) mod umount;
pub(crate) mod up;

use std::path::Path;

/// The attribute `name` of the mount at `path`.
pub(crate) fn ask_mount(path: &Path, name: &str) -> Result<String, String> {
    let mut value = vec![0u8; 64 << 10];
    match rustix::fs::getxattr(path, name, value.as_mut_slice()) {
        Ok(len) => Ok(String::from_utf8_lossy(&value[..len]).into_owned()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA) => {
            Err(format!("{} is not in a Glint mount", path.display()))
        }
        // The last while the kernel takes its io_uring apart.
        Err(
            rustix::io::Errno::NOTCONN
            | rustix::io::Errno::CONNABORTED
            | rustix::io::Errno::CANCELED,
        ) => {
            Err(format!("the daemon of the mount at {} is gone: glint umount {0}", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
