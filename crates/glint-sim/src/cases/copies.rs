//! How often bulk data is copied within the processes that it passes through: counted, in a world
//! with one client and a server.

use super::requests::in_a_world;
use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::make;
use crate::world::executor::Machine;
use crate::world::hosts::MDS;
use glint_client::{Caller, Vfs, WriteHow};
use glint_proto::{FileType, Ino};
use glint_telemetry::{Counter, counted_here};
use std::time::Duration;

const CLIENT: Machine = Machine(10);
const MIB: usize = 1 << 20;
const FILE: usize = 32 * MIB;

/// Bytes copied for each byte of a file that is written or read in pieces of a MiB: by a client
/// with locks, which writes behind and reads ahead, or by one without.
fn copies(locks: bool) -> (f64, f64) {
    in_a_world(locks, move |executor, hosts| async move {
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.sleep(Duration::from_millis(1)).await;
        at(&executor, CLIENT, async move {
            let fs = mount(&servers, 0).await.unwrap();
            let regular = make(FileType::Regular);
            let made = fs.create(&Caller::ROOT, Ino::ROOT, b"f", regular, libc::O_RDWR);
            let handle = made.await.unwrap().handle;
            let (data, mut room) = (vec![7; MIB], vec![0; MIB]);
            let begun = counted_here(Counter::BytesCopied);
            for at in (0..FILE).step_by(MIB) {
                fs.write(handle, at as u64, &data, WriteHow::default()).await.unwrap();
            }
            fs.sync().await.unwrap();
            let written = counted_here(Counter::BytesCopied);
            for at in (0..FILE).step_by(MIB) {
                let read = fs.read(handle, at as u64, &mut room, false).await.unwrap();
                assert!(read == MIB && room == data);
            }
            let read = counted_here(Counter::BytesCopied);
            ((written - begun) as f64 / FILE as f64, (read - written) as f64 / FILE as f64)
        })
        .await
    })
}

/// Bulk data is copied as seldom as it can be.
pub fn data_is_copied_into_the_write_cache_and_out_of_what_was_received() {
    // Data read ahead lies with the open file until it is asked for, which is one copy more.
    for (locks, read_max) in [(true, 2.1), (false, 1.1)] {
        let (written, read) = copies(locks);
        println!(
            "locks: {locks}: {written:.3} copies of what is written, {read:.3} of what is read"
        );
        assert!((1.0..1.1).contains(&written), "{written}");
        assert!((1.0..read_max).contains(&read), "{read}");
    }
}
