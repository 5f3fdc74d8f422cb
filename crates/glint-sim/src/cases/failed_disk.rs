//! Requests that fail with the disk of a server that is about to end, and goes on.

use super::requests::{CLIENT, in_a_world_of};
use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::make;
use crate::world::hosts::{LEASE, MDS};
use glint_client::{Caller, Vfs, WriteHow};
use glint_proto::{FileType, Ino, Layout};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const OSS: usize = 1;
/// OSTs of the server with the MDS.
const OWN: u16 = 2;
/// Of so many files one is in a chain of these OSTs.
const FILES: usize = 100;
const SOON: Duration = Duration::from_millis(100);

/// A disk fails that is the last of some chains to serve, so that its server is to end. Before anybody
/// sees to that the other members are there again, and come to serve.
pub fn a_sync_that_fails_with_a_disk_is_answered_if_the_server_goes_on() {
    let layout = Layout { replicas: 2, ..Layout::default() };
    in_a_world_of(&[OWN, 1], layout, true, |executor, hosts| async move {
        [MDS, OSS].into_iter().for_each(|host| hosts.start(host));
        while !hosts.have_joined() || !hosts.are_whole() {
            executor.sleep(SOON).await;
        }
        let servers = hosts.mds();
        let fs = at(&executor, CLIENT, async move { mount(&servers, 0).await.unwrap() }).await;
        hosts.stop(OSS);
        executor.sleep(2 * LEASE).await;
        assert!(!hosts.are_whole());
        // What is healed later has nothing to be brought to stable storage.
        let (servers, writer) = (hosts.mds(), fs.clone());
        at(&executor, CLIENT, async move {
            for n in 0..FILES {
                let (name, regular) = (format!("f{n}"), make(FileType::Regular));
                let made =
                    writer.create(&Caller::ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_RDWR);
                let open = made.await.unwrap();
                let target = open.attr.layout.ost_of(0, OWN);
                let row = servers.mds().chains().get(target).unwrap();
                if row.members.iter().all(|member| member.ost < OWN) {
                    let written = writer.write(open.handle, 0, b"data", WriteHow::default());
                    return written.await.unwrap();
                }
            }
            panic!("no file is in a chain of the server with the MDS");
        })
        .await;

        hosts.fail_a_flush(MDS);
        let synced = Rc::new(Cell::new(None));
        let said = synced.clone();
        executor.spawn_on(CLIENT, async move { said.set(Some(fs.sync().await)) });
        executor.sleep(Duration::from_secs(1)).await;
        assert!(hosts.failure(MDS).is_some());
        assert_eq!(synced.get(), None, "the next run is to answer");
        hosts.start(OSS);
        while hosts.failure(MDS).is_some() {
            executor.sleep(SOON).await;
        }
        while synced.get().is_none() {
            executor.sleep(SOON).await;
        }
        assert_eq!(synced.get(), Some(Ok(())));
    });
}
