//! Small files that are prefetched are in the kernel's pages before a program opens them: most reads
//! of them are no requests, and nobody can see that.

use super::on_both_transports;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use support::*;

const FILES: usize = 60;
/// Reads of the first files, of those that are written to, and of those that a slow machine is late
/// with.
const READS_MAX: u64 = 30;
/// Time for what is under way in the background.
const PAUSE: Duration = Duration::from_millis(20);

fn content(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; 1 + n * 997 % 20_000]
}

/// How many requests of the kernel a mount was sent, of an operation.
fn requests(mount: &Path, op: &str) -> u64 {
    let output = run(glint().args(["stats", "--json", text(mount)])).stdout;
    let rows = String::from_utf8(output).unwrap();
    let rows = rows.lines().map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap());
    rows.filter(|row| row["process"] == "client" && row["layer"] == "mount" && row["op"] == op)
        .map(|row| row["count"].as_u64().unwrap())
        .sum()
}

#[test]
fn small_files_that_are_prefetched_are_read_from_pages() {
    on_both_transports(|world, port, transport| {
        let server = world.serve(port, &[]);
        let (maker, made) = world.mount(port, "maker", &["-o", transport]);
        fs::create_dir(made.join("d")).unwrap();
        let name = |n: usize| format!("d/f{n:02}");
        (0..FILES).for_each(|n| fs::write(made.join(name(n)), content(n)).unwrap());
        maker.stop();
        let (mount, a) = world.mount(port, "a", &["-o", transport]);
        let (other_mount, b) = world.mount(port, "b", &["-o", transport]);
        sh(&a, "find d -size +0 > /dev/null");
        let (opens, reads) = (requests(&a, "open"), requests(&a, "read"));
        for n in 0..FILES {
            let path = a.join(name(n));
            if n > 10 && n % 10 == 0 {
                // It is in pages; it is written to, here and elsewhere.
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                file.write_all_at(b"here", 0).unwrap();
                let elsewhere = OpenOptions::new().write(true).open(b.join(name(n))).unwrap();
                elsewhere.write_all_at(b"there", 4).unwrap();
                let mut expected = content(n);
                expected.resize(expected.len().max(9), 0);
                expected[..9].copy_from_slice(b"herethere");
                assert!(fs::read(&path).unwrap() == expected, "{n} is not what was written");
            } else {
                assert!(fs::read(&path).unwrap() == content(n), "{n}");
            }
            std::thread::sleep(PAUSE);
        }
        let (opens, reads) = (requests(&a, "open") - opens, requests(&a, "read") - reads);
        assert!(opens >= FILES as u64, "{opens} opens");
        assert!(reads <= READS_MAX, "{reads} reads of {FILES} files");
        // Whoever has read a file sees that by its access time, from the close on.
        eventually("access times", || {
            let is_read = |n: usize| {
                let attr = fs::metadata(a.join(name(n))).unwrap();
                (attr.atime(), attr.atime_nsec()) > (attr.mtime(), attr.mtime_nsec())
            };
            (0..FILES).filter(|n| *n <= 10 || n % 10 != 0).all(is_read)
        });
        [mount, other_mount, server].into_iter().for_each(Process::stop);
        world.assert_sound();
    });
}
