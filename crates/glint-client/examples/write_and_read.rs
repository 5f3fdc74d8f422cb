//! Writes a file of a running file system without a mount, and reads it back.
//!
//! `cargo run -p glint-client --example write_and_read HOST:PORT [NAME]`

use glint_client::{Caller, Make, RunningClient, Vfs, WriteHow};
use glint_net::{Address, Cluster, Remote, RemoteOptions, runtime};
use glint_proto::OpenFlags;
use std::error::Error;

const TEXT: &[u8] = b"written by a program without a mount\n";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("which server? HOST:PORT or unix:PATH")?;
    let name = arguments.next().unwrap_or_else(|| "example".into());

    // `glint status` shows the name of this client where it shows mount points.
    let shown = String::from("(write_and_read)");
    let options = RemoteOptions { address: Address::parse(&server), mount_point: shown.clone() };
    let cluster = Cluster::new(Remote::connect(options)?, None, shown);
    // Its threads keep the client's locks. Dropping it sends what was written.
    let client = RunningClient::start(cluster, false)?;

    // Calls are futures that stay on their thread.
    runtime(None)?.block_on(async {
        let (caller, root) = (Caller::ROOT, client.root());
        let make = Make { mode: libc::S_IFREG | 0o644, umask: 0o22, rdev: 0, target: b"" };
        let flags = libc::O_WRONLY | libc::O_TRUNC;
        let file = client.create(&caller, root, name.as_bytes(), make, flags).await?;
        client.write(file.handle, 0, TEXT, WriteHow::default()).await?;
        client.fsync(file.handle).await?;
        client.release(file.handle).await?;

        let found = client.lookup(&caller, root, name.as_bytes()).await?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let file = client.open(&caller, found.attr.ino, flags).await?;
        let mut content = vec![0; found.attr.size as usize];
        let len = client.read(file.handle, 0, &mut content, false).await?;
        client.release(file.handle).await?;
        print!("{}", String::from_utf8_lossy(&content[..len]));
        if &content[..len] == TEXT { Ok(()) } else { Err("the file has another content".into()) }
    })
}
