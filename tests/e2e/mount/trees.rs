//! Real trees: sources unpacked, compared, built, renamed and removed; a repository
//! cloned, packed and checked; a directory of very many files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::binary::interrupted;
use support::paths::quoted;
use support::*;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The sources of Glint and of some crates that it is built from: over 2 000 files.
#[test]
fn a_source_tree_is_unpacked_compared_renamed_and_removed() {
    enable_uring();
    let world = World::new();
    let local = world.path("local");
    fs::create_dir_all(local.join("glint")).unwrap();
    copy_sources(&local);
    sh(
        &local,
        "mkdir registry && ls -d \"${CARGO_HOME:-$HOME/.cargo}\"/registry/src/*/*/ | sed -n 'p;n;n;n;n' | head -60 | tr '\\n' '\\0' | xargs -0 cp -r -t registry",
    );
    let up = unpack_and_compare(&world, 2_000);
    rename_and_remove(&world);
    up.stop();
    world.assert_sound();
}

/// The sources of Glint and of all crates it is built from, which are built where they are
/// unpacked: over 10 000 files with what the tools of its tests are built from.
#[test]
#[ignore = "make long: 10 000 files and a build"]
fn all_sources_are_unpacked_compared_built_renamed_and_removed() {
    enable_uring();
    let world = World::new();
    let local = world.path("local");
    fs::create_dir(&local).unwrap();
    let vendor = local.join("glint/vendor");
    fs::create_dir(local.join("glint")).unwrap();
    run(Command::new("cargo")
        .args(["vendor", "--locked", "--versioned-dirs"])
        .arg(&vendor)
        .current_dir(workspace()));
    copy_sources(&local);
    sh(&local, "cp -r \"${CARGO_HOME:-$HOME/.cargo}/registry/src\" registry");
    let up = unpack_and_compare(&world, 10_000);
    let tree = world.mount_point().join("tree");
    fs::create_dir(tree.join("glint/.cargo")).unwrap();
    let config = "[source.crates-io]\nreplace-with = \"vendored\"\n[source.vendored]\ndirectory = \"vendor\"\n";
    fs::write(tree.join("glint/.cargo/config.toml"), config).unwrap();
    run(Command::new("cargo")
        .args(["build", "--offline", "--locked", "-p", "glint-proto"])
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(tree.join("glint")));
    rename_and_remove(&world);
    up.stop();
    world.assert_sound();
}

fn copy_sources(local: &Path) {
    let copy = "cp -r Cargo.toml Cargo.lock clippy.toml crates tests \"$0/glint\"";
    run(Command::new("sh").args(["-c", copy]).arg(local).current_dir(workspace()));
}

/// Unpacks what is in `local`, which has so many files at least, below `tree` of the mount.
fn unpack_and_compare(world: &World, files_min: usize) -> Process {
    let local = world.path("local");
    sh(&local, "tar cf ../tree.tar .");
    let files: usize = sh(&local, "find . -type f | wc -l").trim().parse().unwrap();
    assert!(files > files_min, "only {files} files");
    let up = world.up(&[]);
    let tree = world.mount_point().join("tree");
    fs::create_dir(&tree).unwrap();
    let script = "set -e
        top=$0
        tar xf \"$top/tree.tar\"
        diff -r --no-dereference . \"$top/local\"
        find . -printf '%p %m %s %Ts\\n' | sort > \"$top/seen\"
        cd \"$top/local\"
        find . -printf '%p %m %s %Ts\\n' | sort > ../expected
        # Sizes of directories and their times are each file system's own.
        cd ..
        grep -F .rs seen > seen.rs
        grep -F .rs expected | diff seen.rs -";
    run(Command::new("sh").args(["-c", script]).arg(world.path("")).current_dir(&tree));
    up
}

/// Renames `tree` of the mount, compares a part of it again, and removes it.
fn rename_and_remove(world: &World) {
    let renamed = world.mount_point().join("renamed");
    fs::rename(world.mount_point().join("tree"), &renamed).unwrap();
    let registry = world.path("local/registry");
    run(Command::new("diff")
        .args(["-r", "--no-dereference", "registry"])
        .arg(&registry)
        .current_dir(&renamed));
    fs::remove_dir_all(&renamed).unwrap();
    assert_eq!(fs::read_dir(world.mount_point()).unwrap().count(), 0);
    eventually("objects are destroyed", || objects(&world.data()).0 == 0);
}

#[test]
fn a_git_repository_is_cloned_packed_and_checked() {
    let world = World::new();
    let up = world.up(&[]);
    let sources = workspace().join("crates");
    let git = "git -c user.name=t -c user.email=t@t -c init.defaultBranch=main";
    let script = format!(
        "mkdir one && cd one && {git} init -q && cp -r {} . && git add . && {git} commit -qm one
         for i in 1 2 3 4 5; do
             find . -name '*.rs' | sed -n \"1,$((i * 7))p\" | xargs sed -i \"s/the/th$i/\"
             {git} commit -qam \"$i\"
         done
         cd .. && git clone -q --no-hardlinks one two && cd two
         git -c gc.aggressiveWindow=10 gc -q --aggressive --prune=now
         git fsck --full --strict
         git status --porcelain
         git log --oneline | wc -l
         cd .. && diff -r one/crates two/crates && git -C one fsck --full",
        quoted(&sources)
    );
    let said = sh(&world.mount_point(), &script);
    assert_eq!(said.trim(), "6", "clean, with all commits");
    up.stop();
    world.assert_sound();
}

#[test]
fn a_directory_of_very_many_files() {
    let files = at_length(50_000, 1_000_000) as usize;
    enable_uring();
    let world = World::new();
    let up = world.up(&[]);
    let dir = world.mount_point().join("million");
    let making = std::time::Instant::now();
    fs::create_dir(&dir).unwrap();
    let makers: Vec<_> = (0..2)
        .map(|part| {
            let dir = rustix::fs::open(&dir, rustix::fs::OFlags::PATH, 0.into()).unwrap();
            std::thread::spawn(move || {
                for i in (part..files).step_by(2) {
                    let kind = rustix::fs::FileType::RegularFile;
                    rustix::fs::mknodat(&dir, format!("file-{i}"), kind, 0o644.into(), 0).unwrap();
                }
            })
        })
        .collect();
    for maker in makers {
        maker.join().unwrap();
    }
    let made = making.elapsed();
    // Listing while others come and go: each name that stays is seen exactly once.
    let churn = {
        let dir = dir.clone();
        std::thread::spawn(move || {
            for i in 0..files / 200 {
                let path = dir.join(format!("passing-{i}"));
                fs::write(&path, b"").unwrap();
                fs::remove_file(&path).unwrap();
            }
        })
    };
    let mut seen = HashSet::with_capacity(files);
    for entry in fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(number) = name.strip_prefix("file-") {
            assert!(seen.insert(number.parse::<usize>().unwrap()), "{name} twice");
        }
    }
    churn.join().unwrap();
    assert_eq!(seen.len(), files);
    up.stop();

    let start = std::time::Instant::now();
    let up = world.up(&[]);
    assert_eq!(fs::metadata(dir.join("file-33333")).unwrap().size(), 0);
    let (took, read) = (start.elapsed(), bytes_read(&up));
    println!("start with {files} files: {took:?} and {read} bytes, made in {made:?}");
    // A start reads the engine's journal, which has 218 bytes for each of them and at most 256 MiB,
    // and nothing of them besides.
    let journal = (files as u64 * 300).min(256 << 20);
    assert!(read < journal + (8 << 20), "{read} bytes are read for {files} files");
    up.stop();
    world.assert_sound();
}

/// Bytes that a process has read since its start, also from the page cache.
fn bytes_read(process: &Process) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", process.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

fn smallfile(more: &[&str]) -> Command {
    let mut bench = glint();
    bench.args(["bench", "smallfile", "--json", "--threads", "2", "--size-kib", "4"]).args(more);
    bench
}

fn json_lines(output: &Output) -> Vec<serde_json::Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn smallfile_finishes_on_a_mount_or_says_that_it_did_not() {
    let world = World::new();
    let up = world.up(&[]);
    let mnt = world.mount_point();
    let local = world.path("local");
    fs::create_dir(&local).unwrap();
    let target = format!("mount={}", text(&mnt));
    let all = ["--files", "120", "--rounds", "1", "--target", &target, "--against", text(&local)];
    let lines = json_lines(&run(&mut smallfile(&all)));
    assert_eq!(lines.len(), 11, "one for each operation");
    for line in lines {
        assert_eq!((&line["percent"], &line["target"]), (&100.0.into(), &"mount".into()), "{line}");
        assert!(line["ratio"].as_f64().unwrap() > 0.0, "{line}");
    }

    let long = ["--files", "50000", "--op", "create", "--target", text(&mnt)];
    let has_files = || sh(&mnt, "find . -type f -print -quit").contains("thrd_0");
    let (_, output) = interrupted(smallfile(&long), "files are created", has_files);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("% of the files: interrupted"), "{why}");
    let line = &json_lines(&output)[0];
    assert_eq!(line["unfinished"], "interrupted", "{line}");
    assert!(line["percent"].as_f64().unwrap() < 100.0, "{line}");
    for directory in [&mnt, &local] {
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "nothing is left");
    }
    up.stop();
    world.assert_sound();
}

#[test]
fn the_experiment_of_smallfile_writes_its_report() {
    let world = World::new();
    let (stage, report) = (world.path("stage"), world.path("report"));
    fs::create_dir(&stage).unwrap();
    let small = ["--experiment", "gluster-2022", "--files", "30", "--rounds", "1"];
    let places = ["--data", text(&stage), "--report", text(&report)];
    let lines = json_lines(&run(smallfile(&small).args(places)));
    // Three directories: four runs of three operations, and all eleven.
    assert_eq!(lines.len(), 3 * (4 * 3 + 11));
    let said = fs::read_to_string(report.join("gluster-2022.md")).unwrap();
    for part in [
        "| 1 copy | 4 |",
        "| 3 copies | 4 | ",
        "| create to a third of local |",
        "| delete-renamed | 22461 |",
        "| client | mount | create |",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for plot in ["create", "ratio-1", "ratio-2"] {
        assert!(report.join(format!("gluster-2022-{plot}.svg")).exists(), "{plot}");
    }
    assert_eq!(fs::read_dir(&stage).unwrap().count(), 0, "nothing is left");
}

#[test]
fn the_experiment_of_smallfile_runs_on_three_servers() {
    let world = World::new();
    let (stage, report) = (world.path("stage"), world.path("report"));
    fs::create_dir(&stage).unwrap();
    let small =
        ["--experiment", "gluster-2022", "--servers", "3", "--files", "10", "--rounds", "1"];
    let places = ["--data", text(&stage), "--report", text(&report)];
    let lines = json_lines(&run(smallfile(&small).args(places)));
    assert_eq!(lines.len(), 3 * (4 * 3 + 11));
    let said = fs::read_to_string(report.join("gluster-2022-3-servers.md")).unwrap();
    // So few files may be removed before their data is sent.
    for part in ["\n3 copies:\n", "| server 3 | net_queue | stats |"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read_dir(&stage).unwrap().count(), 0, "nothing is left");
}

#[test]
fn the_experiment_of_smallfile_refuses_a_disk_that_is_too_small() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let large = ["--experiment", "gluster-2022", "--files", "1000000000000"];
    let output = smallfile(&large).args(["--data", text(&stage)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("this experiment needs") && why.contains("--data DIR"), "{why}");
    assert_eq!(fs::read_dir(&stage).unwrap().count(), 0, "nothing was made");
}
