//! The suites of others on real mounts: pjdfstest, fsx, fio with verification; both
//! transports of FUSE.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use support::*;

/// Features of pjdfstest that Linux has. The others are of BSD: chflags, NFSv4 ACLs,
/// birth times that can be set.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Tests that cannot apply: a file would need two thousand million links.
const SKIPPED: [&str; 1] = ["link::link_count_max"];

/// Fails where the kernel is slow: before Linux looks whether a program runs, it has FUSE carry out
/// O_TRUNC of an open with O_RDONLY, and the program may have died of the lost pages by then.
/// What users do, opens to write, is tested by [`programs_that_run_are_not_written_to`].
const MAY_FAIL: &str = "open::etxtbsy";

/// Runs pjdfstest, none of whose tests but [`MAY_FAIL`] may fail.
fn pjdfstest(world: &World, mount: &Path, remount: bool) {
    let directory = mount.join("pjd");
    fs::create_dir_all(&directory).unwrap();
    let (config, second) = (world.path("pjd.toml"), world.short("second"));
    fs::create_dir_all(&second).unwrap();
    fs::write(&config, PJDFSTEST.replace("REMOUNT", &remount.to_string())).unwrap();
    let mut command = Command::new("pjdfstest");
    command.current_dir(&directory).arg("-c").arg(&config).arg("-p").arg(&directory);
    command.arg("-s").arg(&second);
    if remount {
        command.arg("erofs");
    }
    let output = command.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let bad: Vec<_> = report.lines().filter(|line| !line.ends_with(" ok")).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut failed = bad.iter().filter(|line| line.ends_with(" FAILED"));
    let is_excused = failed.clone().count() == 1 && failed.all(|line| line.starts_with(MAY_FAIL));
    assert!(
        output.status.success() || is_excused,
        "pjdfstest: {}\n{}\n{errors}",
        output.status,
        bad.join("\n")
    );
    for line in report.lines().filter(|line| line.ends_with("skipped")) {
        let name = line.split_whitespace().next().unwrap();
        assert!(SKIPPED.contains(&name) || name.contains("erofs"), "{name} was skipped");
    }
    let summary = report.lines().find(|line| line.starts_with("Summary: ")).unwrap();
    println!("{summary}");
    let passed = summary.split(", ").find_map(|part| part.strip_suffix(" passed")).unwrap();
    let passed: u32 = passed.parse().unwrap();
    assert!(passed >= if remount { 13 } else { 380 }, "{summary}");
}

/// pjdfstest remounts with mount(8), which needs the helper of the file system. Its
/// tests of read-only file systems run apart, because others leave deleted files open,
/// which makes them fail on any file system.
fn pjdfstest_in_one_process(transport: &str) {
    assert!(enable_uring(), "this kernel has no FUSE over io_uring");
    let _helper = MountHelper::install();
    let world = World::new();
    let up = world.up(&["-o", transport]);
    pjdfstest(&world, &world.mount_point(), false);
    pjdfstest(&world, &world.mount_point(), true);
    up.stop();
    world.assert_sound();
}

#[test]
fn pjdfstest_through_io_uring() {
    pjdfstest_in_one_process(TRANSPORTS[0]);
}

#[test]
#[ignore = "make long: the same as through io_uring"]
fn pjdfstest_through_dev_fuse() {
    pjdfstest_in_one_process(TRANSPORTS[1]);
}

/// Everything is cached under locks.
#[test]
fn pjdfstest_on_a_mount_with_locks() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "3"]);
    let (mount, directory) = world.mount(port, "mnt", &["-o", "suid,dev"]);
    pjdfstest(&world, &directory, false);
    mount.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn fsx_on_a_mount_with_locks() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "3"]);
    let (mount, directory) = world.mount(port, "mnt", &[]);
    run_fsx(&world, &directory, 4, at_length(4_000, 50_000));
    mount.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn programs_that_run_are_not_written_to() {
    let world = World::new();
    let up = world.up(&[]);
    let program = world.mount_point().join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut child = Command::new(&program).arg("60").spawn().unwrap();
    for truncate in [false, true] {
        let refused = fs::OpenOptions::new().write(true).truncate(truncate).open(&program);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
        let refused = fs::OpenOptions::new().read(true).write(true).open(&program);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
    }
    assert!(child.try_wait().unwrap().is_none(), "the program ended");
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(&program, "text").unwrap();
    up.stop();
    world.assert_sound();
}

/// Longest file of fsx.
const FSX_BYTES: u64 = 1_000_000;

/// Operations with mmap and holes, in a file of three stripes.
fn run_fsx(world: &World, mount: &Path, seed: u32, operations: u64) {
    run(glint().args(["setstripe", "-c", "3", "-S", "64K", text(mount)]));
    let config = load::fsx::config(&world.path(""), FSX_BYTES);
    run(Command::new("fsx")
        .args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string()])
        .arg("-P")
        .arg(world.path(""))
        .arg("-f")
        .arg(&config)
        .arg(mount.join("fsx")));
}

fn fsx(seed: u32, options: &str) {
    enable_uring();
    let world = World::new();
    let up = world.up(&["--osts", "3", "-o", options]);
    run_fsx(&world, &world.mount_point(), seed, at_length(8_000, 200_000));
    up.stop();
    world.assert_sound();
}

#[test]
fn fsx_through_the_page_cache() {
    fsx(1, "transport=uring");
}

#[test]
fn fsx_around_the_page_cache() {
    fsx(2, "transport=uring,direct_io");
}

#[test]
fn fsx_through_dev_fuse() {
    fsx(3, "transport=devfuse");
}

/// O_DIRECT, mmap and plain writes, each read back and compared by fio.
#[test]
fn fio_reads_what_it_wrote() {
    enable_uring();
    for transport in TRANSPORTS {
        let world = World::new();
        let up = world.up(&["--osts", "2", "-o", transport]);
        run(glint().args(["setstripe", "-c", "2", text(&world.mount_point())]));
        for job in [
            "--ioengine=psync --rw=randwrite --bsrange=512-128k --bs_unaligned=1 --numjobs=2",
            "--ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16",
            "--ioengine=libaio --direct=1 --rw=write --bs=1m --iodepth=4",
            "--ioengine=mmap --rw=randwrite --bs=8k",
        ] {
            // fio leaves the state of its verification where it runs.
            run(Command::new("fio")
                .current_dir(world.path(""))
                .args(["--name=verify", "--verify=crc32c", "--do_verify=1"])
                .arg(format!("--size={}m", at_length(24, 48)))
                .args(["--verify_fatal=1", "--end_fsync=1", "--group_reporting", "--unlink=1"])
                .arg(format!("--directory={}", text(&world.mount_point())))
                .args(job.split(' ')));
        }
        up.stop();
        world.assert_sound();
    }
}
