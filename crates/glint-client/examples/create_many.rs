//! Creates many files in a new directory of a running file system, some at the same time.
//!
//! `cargo run --release -p glint-client --example create_many HOST:PORT [FILES [AT ONCE]]`

use futures_util::{StreamExt, TryStreamExt, stream};
use glint_client::{Caller, Make, RunningClient, Vfs};
use glint_net::{Address, Cluster, Remote, RemoteOptions, runtime};
use glint_proto::{FileType, FsResult};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("which server? HOST:PORT or unix:PATH")?;
    let files: usize = arguments.next().map_or(Ok(10_000), |count| count.parse())?;
    let at_once: usize = arguments.next().map_or(Ok(32), |count| count.parse())?;

    let shown = String::from("(create_many)");
    let options = RemoteOptions { address: Address::parse(&server), mount_point: shown.clone() };
    let cluster = Cluster::new(Remote::connect(options)?, None, shown);
    let client = RunningClient::start(cluster, false)?;
    let make = |kind: FileType, permissions| Make {
        mode: kind.mode_bits() | permissions,
        umask: 0o22,
        rdev: 0,
        target: b"",
    };
    runtime(None)?.block_on(async {
        let name = format!("create_many-{}", std::process::id());
        let (caller, root) = (&Caller::ROOT, client.root());
        let directory = make(FileType::Directory, 0o755);
        let parent = client.make(caller, root, name.as_bytes(), directory).await?.attr.ino;
        let start = Instant::now();
        // Calls of one thread that wait share its connection, and travel together.
        let create = async |number: usize| -> FsResult<()> {
            let name = number.to_string();
            let file = make(FileType::Regular, 0o644);
            let open = client.create(caller, parent, name.as_bytes(), file, libc::O_WRONLY).await?;
            client.release(open.handle).await
        };
        stream::iter(0..files)
            .map(create)
            .buffer_unordered(at_once)
            .try_for_each(async |()| Ok(()))
            .await?;
        client.sync().await?;
        let took = start.elapsed();
        println!("{files} files in {took:.1?}, {:.0}/s", files as f64 / took.as_secs_f64());
        Ok(())
    })
}
