//! Rules of this repository that no compiler checks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/names.rs"]
mod names;

/// The crates, from the top down: each may import only those below it.
const LAYERS: [&str; 15] = [
    "glint-bench",
    "glint",
    "glint-sim",
    "glint-server",
    "glint-mount",
    "glint-client",
    "glint-net",
    "glint-mds",
    "glint-ost",
    "glint-lock",
    "glint-kv",
    "glint-telemetry",
    "glint-proto",
    "glint-memory",
    "glint-wait",
];

/// Longest source file, in lines.
const LINES_MAX: usize = 650;
/// How many may be longer than a module should be.
const LONG: (usize, usize) = (500, 5);

/// How many sources may stand beside each other: of more, nobody sees which belong together.
const FOLDER_FILES_MAX: usize = 12;
/// Folders that have more. No number here rises, and no line is added.
const FULL_FOLDERS: [(&str, usize); 1] = [
    // A file for each command.
    ("crates/glint/src/cmd", 15),
];

/// The modules that may contain `unsafe`.
const UNSAFE: [&str; 19] = [
    "glint-memory/src/allocator.rs",
    "glint-memory/tests/heaps.rs",
    "glint-sim/src/world/chance.rs",
    "glint-net/src/cpu/keep_awake.rs",
    "glint-mount/src/transport/backing.rs",
    "glint-mount/src/transport/ring_entry.rs",
    "glint-telemetry/src/recorder.rs",
    "glint/src/daemon.rs",
    "glint/src/cmd/storage/file_handle.rs",
    "glint/src/cmd/tree/c_library.rs",
    "glint/src/live.rs",
    "glint/src/output.rs",
    "glint-ost/src/disk/lease.rs",
    "glint-ost/src/disk/ring/buffer.rs",
    "glint-ost/src/store/allocated.rs",
    "glint-kv/src/segment.rs",
    "glint-kv/src/local/readers.rs",
    "glint-bench/src/work/switches.rs",
    "tests/e2e/support/mapped.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn files(extension: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "corpus" {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let shown = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((shown, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

fn rank(name: &str) -> usize {
    LAYERS.iter().position(|layer| *layer == name).unwrap_or_else(|| panic!("{name} has no layer"))
}

#[test]
fn imports_go_down() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let words = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        for import in words.filter(|word| *word == "glint" || word.starts_with("glint-")) {
            assert!(
                rank(import) > rank(&name),
                "{name} must not import {import}: arrows go down the list of ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn modules_are_small_and_begin_with_what_they_are() {
    let mut long = 0;
    for (path, text) in files("rs") {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines; split it");
        long += usize::from(lines > LONG.0);
        if !path.starts_with("fuzz/") {
            assert!(text.starts_with("//!"), "{path} does not say what it is");
        }
        if path.ends_with("/lib.rs") {
            for part in ["Promises", "Does not know"] {
                assert!(text.contains(part), "{path} lacks its {part:?}");
            }
        }
    }
    assert!(long <= LONG.1, "{long} files are longer than {} lines", LONG.0);
}

/// An event that nothing logs would make a test which demands its absence pass for ever.
#[test]
fn events_are_logged_and_documented() {
    let guide = fs::read_to_string(root().join("docs/user-guide.md")).unwrap();
    let product = files("rs").into_iter().filter(|(path, _)| path.starts_with("crates/"));
    let product: Vec<_> = product.filter(|(path, _)| !path.contains("/tests/")).collect();
    for name in glint_telemetry::event::ALL {
        let logged = format!("event = event::{}", name.to_uppercase());
        // To the end of the word: the name of one event may begin that of another.
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_logged = |text: &String| text.split(&logged).skip(1).any(ends);
        assert!(product.iter().any(|(_, text)| is_logged(text)), "{name} is never logged");
        assert!(guide.contains(&format!("| `{name}` |")), "{name} is not documented");
    }
}

#[test]
fn folders_are_small() {
    let mut folders = BTreeMap::<String, usize>::new();
    for (path, _) in files("rs") {
        let folder = Path::new(&path).parent().unwrap().to_string_lossy().into_owned();
        *folders.entry(folder).or_default() += 1;
    }
    for (folder, files) in folders {
        let full = FULL_FOLDERS.iter().find(|(full, _)| *full == folder);
        let limit = full.map_or(FOLDER_FILES_MAX, |(_, limit)| *limit);
        assert!(files <= limit, "{folder} has {files} sources; give those of one concept a folder");
    }
}

#[test]
fn unsafe_stays_where_it_is_argued() {
    for (path, text) in files("rs") {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let keyword = concat!("uns", "afe ");
        if code.into_iter().any(|line| line.contains(keyword) && !line.contains('"')) {
            assert!(UNSAFE.iter().any(|allowed| path.ends_with(allowed)), "{path} uses {keyword}");
            assert!(text.contains("SAFETY:"), "{path} does not argue");
        }
    }
}

/// Whether a source is of what a server is, and not of the process around it.
fn is_server(path: &str) -> bool {
    path.starts_with("crates/glint-server/src/")
        && !path.contains("/src/process/")
        && !path.ends_with("/tests.rs")
}

/// A simulation runs servers as they are, in its own time and on its own disks.
#[test]
fn servers_have_no_threads_files_or_time_of_their_own() {
    const OF_A_PROCESS: [&str; 7] = [
        "std::thread",
        "std::fs",
        "std::net",
        "Instant::now",
        "SystemTime",
        "getrandom",
        "block_on",
    ];
    for (path, text) in files("rs").into_iter().filter(|(path, _)| is_server(path)) {
        let code = text.split("#[cfg(test)]").next().unwrap();
        let found = OF_A_PROCESS.iter().find(|word| code.contains(**word));
        assert!(
            found.is_none(),
            "{path} uses {}: that belongs to src/process",
            found.unwrap_or(&"")
        );
    }
}

/// A process is made of a server, not the other way round. What is tested may be: on a real data
/// directory.
#[test]
fn servers_do_not_know_the_process_that_they_are() {
    const PROCESS: [&str; 5] =
        ["crate::process", "super::process", "DataDir", "data_dir", "descriptors"];
    let sources = files("rs").into_iter().filter(|(path, _)| is_server(path));
    // The head of the crate shows to others what is in there.
    for (path, text) in sources.filter(|(path, _)| !path.ends_with("/lib.rs")) {
        let code = text.split("#[cfg(test)]").next().unwrap();
        let found = PROCESS.iter().find(|word| code.contains(**word));
        assert!(found.is_none(), "{path} knows {}, which makes it a process", found.unwrap_or(&""));
    }
}

/// An installation of Glint gets no library for plots with it.
#[test]
fn benchmarks_are_apart_from_the_product() {
    for (path, text) in files("toml").into_iter().filter(|(path, _)| path.starts_with("crates/")) {
        let has = ["plotters", "hdrhistogram"].iter().any(|name| text.contains(name));
        assert!(!has || path.starts_with("crates/glint-bench/"), "{path}");
    }
}

/// The reader of a command's output may have enough of it: `say!` knows what to do then.
#[test]
fn commands_print_in_one_place() {
    let commands = ["crates/glint/src", "crates/glint-bench/src"];
    let is_command = |path: &str| commands.iter().any(|directory| path.starts_with(directory));
    for (path, text) in files("rs").into_iter().filter(|(path, _)| is_command(path)) {
        for line in text.lines().map(str::trim_start) {
            let prints =
                ["println!(", "print!(", "eprint!("].iter().any(|word| line.starts_with(word));
            assert!(!prints, "{path}: {line}");
        }
    }
}

#[test]
fn nothing_is_left_for_later_without_an_issue() {
    for (path, text) in files("rs") {
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            for line in text.lines().filter(|line| line.contains(word)) {
                assert!(line.contains('#'), "{path}: {line}");
            }
        }
    }
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for (path, text) in files("md") {
        let directory = root().join(&path).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            let target = link.split('#').next().unwrap();
            assert!(directory.join(target).exists(), "{path}: {link} does not exist");
        }
    }
}

#[test]
fn sources_that_the_documents_name_are_there() {
    let sources: Vec<String> =
        files("rs").into_iter().map(|(path, _)| format!("/{path}")).collect();
    let is_name = |c: char| c.is_alphanumeric() || "/_-.".contains(c);
    for (path, text) in files("md") {
        for word in text.split(|c| !is_name(c)).filter(|word| word.ends_with(".rs")) {
            let is_there = sources.iter().any(|source| source.ends_with(&format!("/{word}")));
            assert!(is_there, "{path}: there is no {word}");
        }
    }
}

#[test]
fn the_version_on_the_wire_is_what_the_documents_say() {
    let text = fs::read_to_string(root().join("docs/format.md")).unwrap();
    let frame = text.lines().find(|line| line.starts_with("magic \"GLNT\"")).unwrap();
    let version = format!("| version {} |", glint_proto::limits::PROTOCOL_VERSION);
    assert!(frame.contains(&version), "docs/format.md: {frame}");
}

/// The crates that a manifest names, except those of this repository.
fn named_crates(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lists = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            lists = line.contains("dependencies]");
        } else if lists && let Some(name) = line.split(['.', ' ', '=']).next() {
            let ours = name.is_empty() || name.starts_with('#') || name.starts_with("glint");
            found.extend((!ours).then(|| name.to_owned()));
        }
    }
    found
}

#[test]
fn each_dependency_is_argued_for() {
    let list = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let cells = list.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let listed: Vec<String> = cells
        .flat_map(|cell| cell.split(", ").map(|name| name.trim_matches('`').to_owned()))
        .collect();
    let mut used: Vec<String> = files("toml")
        .into_iter()
        .filter(|(path, _)| path.ends_with("Cargo.toml"))
        .flat_map(|(_, text)| named_crates(&text))
        .collect();
    used.sort_unstable();
    used.dedup();
    for name in &used {
        assert!(listed.contains(name), "docs/dependencies.md does not say why {name} is there");
    }
    for name in &listed {
        assert!(used.contains(name), "docs/dependencies.md lists {name}, which nobody uses");
    }
}
