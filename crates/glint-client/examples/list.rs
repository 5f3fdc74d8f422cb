//! Lists a directory of a running file system and all below it, without a mount.
//!
//! `cargo run -p glint-client --example list HOST:PORT [DIRECTORY]`

use glint_client::{Caller, RunningClient, Vfs};
use glint_net::{Address, Cluster, Remote, RemoteOptions, runtime};
use glint_proto::{FsResult, Ino};
use std::error::Error;

/// Size of a page of a listing.
const PAGE_BYTES: u32 = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("which server? HOST:PORT or unix:PATH")?;
    let path = arguments.next().unwrap_or_default();

    let shown = String::from("(list)");
    let options = RemoteOptions { address: Address::parse(&server), mount_point: shown.clone() };
    let cluster = Cluster::new(Remote::connect(options)?, None, shown);
    let client = RunningClient::start(cluster, false)?;
    runtime(None)?.block_on(async {
        let mut directory = client.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = client.lookup(&Caller::ROOT, directory, name.as_bytes()).await;
            directory = found.map_err(|error| format!("{name}: {error}"))?.attr.ino;
        }
        list(&**client, directory, path.trim_end_matches('/')).await?;
        Ok(())
    })
}

/// Prints mode, owner, size and path of all that is below a directory.
async fn list(fs: &impl Vfs, root: Ino, path: &str) -> FsResult<()> {
    let mut left = vec![(root, path.to_owned())];
    while let Some((directory, path)) = left.pop() {
        let handle = fs.opendir(&Caller::ROOT, directory).await?;
        let mut cookie = 0;
        loop {
            // With `plus` a page has attributes; an entry whose inode went meanwhile has none.
            let page = fs.readdir(&Caller::ROOT, handle, cookie, PAGE_BYTES, true).await?;
            let Some(last) = page.entries.last() else { break };
            cookie = last.cookie;
            for entry in page.entries {
                let Some(attr) = entry.attr else { continue };
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                // The size of a file that is being written is known to its objects only.
                let attr = if attr.size_on_ost { fs.getattr(attr.ino).await?.attr } else { attr };
                let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                println!("{:06o} {:5} {:5} {:10} {path}", attr.mode, attr.uid, attr.gid, attr.size);
                if attr.is_dir() {
                    left.push((attr.ino, path));
                }
            }
        }
        fs.release(handle).await?;
    }
    Ok(())
}
