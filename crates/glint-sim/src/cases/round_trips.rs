//! How many round trips a call waits for, one after the other: messages take long, and nothing else
//! does.

use super::requests::{CLIENT, in_a_world_of};
use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::{Fs, make};
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::MDS;
use glint_client::{Caller, Handle, Vfs, WriteHow};
use glint_proto::{FileType, Ino, Layout, OpenFlags};
use glint_telemetry::{Counter, counted_here};
use std::rc::Rc;
use std::time::Duration;

const OSS: usize = 1;
const ROOT: &Caller = &Caller::ROOT;
/// Clients that read, of odd numbers: those prefetch nothing.
const FIRST: u32 = 1;
const SECOND: u32 = 3;
/// How long a message takes. Disks and the engine of the MDS take a few milliseconds.
const LATENCY: Duration = Duration::from_millis(100);
/// Time in which all that is on its way arrives.
const QUIET: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(100);

/// Makes files until each server has three.
async fn make_files(fs: &Fs) -> [Vec<(String, Ino)>; 2] {
    let mut files: [Vec<(String, Ino)>; 2] = Default::default();
    for number in 0.. {
        let (name, regular) = (format!("f{number}"), make(FileType::Regular));
        let made = fs.create(ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_WRONLY);
        let made = made.await.unwrap();
        fs.write(made.handle, 0, b"old", WriteHow::default()).await.unwrap();
        fs.release(made.handle).await.unwrap();
        let of_server = &mut files[usize::from(made.attr.layout.ost_of(0, 1))];
        of_server.push((name, made.attr.ino));
        if files.iter().all(|of_server| of_server.len() >= 3) {
            break;
        }
    }
    fs.sync().await.unwrap();
    files
}

/// Looks a file up and opens it.
async fn open(fs: &Fs, (name, ino): &(String, Ino)) -> Handle {
    fs.lookup(ROOT, Ino::ROOT, name.as_bytes()).await.unwrap();
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    fs.open(ROOT, *ino, flags).await.unwrap().handle
}

/// Reads an open file. Returns what it holds, and how many round trips that took.
async fn read(executor: &Rc<Executor>, fs: &Fs, handle: Handle) -> (Vec<u8>, u128) {
    let begun = executor.now();
    let mut data = vec![0; 100];
    let len = fs.read(handle, 0, &mut data, true).await.unwrap();
    data.truncate(len);
    let took = executor.now().saturating_sub(begun);
    (data, took.as_millis() / (2 * LATENCY).as_millis())
}

/// Its lock and its data come at once, unless a client that has written it keeps its lock.
pub fn a_small_file_of_any_server_is_read_in_one_round_trip() {
    in_a_world_of(&[1, 1], Layout::default(), true, |executor, hosts| async move {
        [MDS, OSS].into_iter().for_each(|host| hosts.start(host));
        executor.sleep(SOON).await;
        while !hosts.have_joined() {
            executor.sleep(SOON).await;
        }
        let servers = hosts.mds();
        let (writer, files) = at(&executor, CLIENT, async move {
            let fs = mount(&servers, 0).await.unwrap();
            let files = make_files(&fs).await;
            (fs, files)
        })
        .await;
        // It has the writer return its locks.
        let (servers, its, world) = (hosts.mds(), files.clone(), executor.clone());
        let first = at(&executor, Machine(CLIENT.0 + FIRST), async move {
            let fs = mount(&servers, FIRST).await.unwrap();
            for file in its.iter().flatten() {
                let handle = open(&fs, file).await;
                assert_eq!(read(&world, &fs, handle).await.0, b"old");
                fs.release(handle).await.unwrap();
            }
            fs
        })
        .await;
        let (servers, its, world) = (hosts.mds(), files.clone(), executor.clone());
        let second = at(&executor, Machine(CLIENT.0 + SECOND), async move {
            let fs = mount(&servers, SECOND).await.unwrap();
            for of_server in its {
                let (connects, measured) = (open(&fs, &of_server[0]).await, &of_server[1]);
                read(&world, &fs, connects).await;
                let handle = open(&fs, measured).await;
                world.network.latency.set(Some(LATENCY));
                world.sleep(QUIET).await;
                let used = counted_here(Counter::ReadsBesideLockUsed);
                assert_eq!(read(&world, &fs, handle).await, (b"old".to_vec(), 1));
                assert_eq!(counted_here(Counter::ReadsBesideLockUsed) - used, 1);
                world.network.latency.set(None);
            }
            fs
        })
        .await;
        // The writer keeps its lock until it is asked for it.
        let file = files[OSS][2].clone();
        let (ino, writing) = (file.1, writer.clone());
        at(&executor, CLIENT, async move {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let handle = writing.open(ROOT, ino, flags).await.unwrap().handle;
            writing.write(handle, 0, b"new", WriteHow::default()).await.unwrap();
            writing.release(handle).await.unwrap();
        })
        .await;
        executor.sleep(QUIET).await;
        let (reading, world) = (second.clone(), executor.clone());
        at(&executor, Machine(CLIENT.0 + SECOND), async move {
            let handle = open(&reading, &file).await;
            world.network.latency.set(Some(LATENCY));
            world.sleep(QUIET).await;
            let (data, round_trips) = read(&world, &reading, handle).await;
            assert!(data == b"new" && round_trips >= 2, "{data:?} after {round_trips}");
        })
        .await;
        drop((writer, first, second));
    });
}
