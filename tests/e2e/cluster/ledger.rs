//! The ledger: how many requests common work costs over TCP. More than `ledger.txt` says is an
//! error, and so is less, which `LEDGER=write` writes down.
//!
//! Counted are the requests that the server receives from the beginning of the work until its mount
//! has ended, so all that was written behind is among them. Nothing is sent because time passes
//! (`GLINT_NEVER_OLD`), so a slow machine counts as a fast one does. The kernel alone may drop a page
//! that is read again: many virtual machines page out what was not used for a minute, by regions, so
//! new pages, too (`/sys/kernel/mm/damon`). So work with more reads than written is done again, up to
//! [`TRIES`] times, and the fewest reads count. Ceilings (`<= N`) are for
//! figures that depend on speed: batches of a client that makes changes while it sends some,
//! questions for the size of an object that is being written, and opens of a file whose close is on
//! its way. All of that holds for the versions of programs that the table names; work with others is
//! compared as [`table`] says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use support::*;
use table::Figure;

mod table;

const LEDGER: &str = include_str!("ledger.txt");

/// One kind of work. Scripts run in the mount; `$S` is a local directory with what they need.
struct Work {
    name: &'static str,
    /// Programs, as the table names them, whose versions decide what it costs.
    programs: Programs,
    /// Makes the files that are there before.
    prepare: &'static str,
    /// The mount that made these does the work, too.
    is_same_mount: bool,
    script: &'static str,
}

type Programs = &'static [&'static str];

const fn work(
    name: &'static str,
    programs: Programs,
    prepare: &'static str,
    script: &'static str,
) -> Work {
    Work { name, programs, prepare, is_same_mount: false, script }
}

const fn same_mount(
    name: &'static str,
    programs: Programs,
    prepare: &'static str,
    script: &'static str,
) -> Work {
    Work { is_same_mount: true, ..work(name, programs, prepare, script) }
}

const UNPACK: &str = "tar xf $S/tree.tar";
/// A clone whose files are older than its index, so that git does not read them again.
const CLONE: &str = "git clone -q --no-hardlinks $S/repository clone; cd clone; \
    git ls-files | xargs touch -d 2020-01-01; git update-index -q --refresh";

const BUILD: Programs = &["make", "cc", "ld"];

const WORKS: &[Work] = &[
    work("tar x as root", &["tar"], "", UNPACK),
    work(
        "tar x as a user",
        &["tar"],
        "mkdir home; chown 7:7 home",
        "cd home; setpriv --reuid=7 --regid=7 --clear-groups tar xf - < $S/tree.tar",
    ),
    work("cp -a", &["coreutils"], "", "cp -a $S/tree ."),
    work("rsync -a", &["rsync"], "", "rsync -a $S/tree ."),
    same_mount("rsync -a, nothing changed", &["rsync"], "rsync -a $S/tree .", "rsync -a $S/tree ."),
    work(
        "rsync -a, nothing changed, new mount",
        &["rsync"],
        "rsync -a $S/tree .",
        "rsync -a $S/tree .",
    ),
    same_mount("rm -rf", &["coreutils"], UNPACK, "rm -rf tree"),
    work("rm -rf, new mount", &["coreutils"], UNPACK, "rm -rf tree"),
    work("find, new mount", &["find"], UNPACK, "find tree -printf '%s %T@' > $S/out"),
    work("cat, new mount", &["coreutils"], UNPACK, "cat tree/*/* > $S/out"),
    work(
        "cat of what find finds, new mount",
        &["find", "coreutils"],
        UNPACK,
        "find tree -type f -exec cat {} + > $S/out",
    ),
    work(
        "cat in a random order, new mount",
        &["find", "coreutils"],
        UNPACK,
        "xargs cat < $S/shuffled > $S/out",
    ),
    work(
        "cat by four processes, new mount",
        &["coreutils"],
        UNPACK,
        "for p in 0 1 2 3; do \
            (for d in $(seq $p 4 19); do cat tree/directory-$d/*; done > $S/$p) & \
         done; wait; test $(cat $S/0 $S/1 $S/2 $S/3 | wc -c) = $(cat $S/tree/*/* | wc -c)",
    ),
    work(
        "stat of each file, new mount",
        &["find", "coreutils"],
        UNPACK,
        "xargs stat -c '%s %Y' < $S/files > $S/out",
    ),
    work(
        "diff -r, new mount",
        &["diff"],
        "tar xf $S/tree.tar; mv tree other; tar xf $S/tree.tar",
        "diff -r other tree",
    ),
    work("tar c, new mount", &["tar"], UNPACK, "tar cf - tree > $S/out"),
    work("mv of a directory, new mount", &["coreutils"], UNPACK, "mv tree moved"),
    work("git clone", &["git"], "", "git clone -q --no-hardlinks $S/repository clone"),
    work(
        "git status, new mount",
        &["git"],
        CLONE,
        "cd clone; test -z \"$(git status --porcelain)\"",
    ),
    work("unzip", &["unzip"], "", "unzip -q $S/tree.zip"),
    same_mount("make", BUILD, "cp -r $S/source .", "make -s -C source; source/program"),
    work("make, new mount", BUILD, "cp -r $S/source .", "make -s -C source; source/program"),
    work("20 transactions of sqlite", &["sqlite"], "", "python3 $S/transactions.py"),
];

/// Makes the material of all work, the same on each machine: 300 small files in 20 directories,
/// archives and a repository of them, and their names in two orders; 36 sources in C.
fn material(at: &Path) {
    let mut files = Vec::new();
    for d in 0..20 {
        let directory = at.join(format!("tree/directory-{d}"));
        fs::create_dir_all(&directory).unwrap();
        for f in 0..15 {
            let path = directory.join(format!("file-{f}"));
            let line = format!("file {f} of directory {d}\n");
            fs::write(&path, line.repeat(1 + (d * 15 + f) * 37 % 200)).unwrap();
            let mode = if f == 0 { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            files.push(format!("tree/directory-{d}/file-{f}\n"));
        }
    }
    files.sort_unstable();
    fs::write(at.join("files"), files.concat()).unwrap();
    shuffle(&mut files);
    fs::write(at.join("shuffled"), files.concat()).unwrap();
    let source = at.join("source");
    fs::create_dir(&source).unwrap();
    let (mut declared, mut sum) = (String::new(), String::new());
    for n in 0..36 {
        let text = format!("#include \"all.h\"\nint f{n}(void) {{ return {n}; }}\n");
        fs::write(source.join(format!("f{n}.c")), text).unwrap();
        writeln!(declared, "int f{n}(void);").unwrap();
        write!(sum, " + f{n}()").unwrap();
    }
    let main = format!("#include \"all.h\"\nint main(void) {{ return (0{sum}) != 630; }}\n");
    fs::write(source.join("main.c"), main).unwrap();
    fs::write(source.join("all.h"), declared).unwrap();
    let rules = "program: $(sort $(patsubst %.c,%.o,$(wildcard *.c)))\n\tcc -o $@ $^\n\
                 %.o: %.c all.h\n\tcc -c -o $@ $<\n";
    fs::write(source.join("Makefile"), rules).unwrap();
    let transactions = "
import sqlite3
db = sqlite3.connect('data.db')
db.execute('create table t (k integer primary key, v text)')
for n in range(20):
    with db: db.executemany('insert into t (v) values (?)', [(f'{n} {i}',) for i in range(10)])
db.close()
";
    fs::write(at.join("transactions.py"), transactions).unwrap();
    sh(
        at,
        "find tree source -exec touch -d 2020-01-01 {} +
        chown -R 7:7 tree
        tar cf tree.tar --sort=name tree
        (cd tree; python3 -m zipfile -c ../tree.zip $(ls | sort))
        cp -r tree repository; chown -R 0:0 repository; cd repository
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 TZ=UTC
        git init -q -b main; git add .
        GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z \\
            git -c user.name=n -c user.email=e commit -qm all
        git -c pack.threads=1 gc -q",
    );
    let config = "[core]\n\tpreloadIndex = false\n[index]\n\tthreads = 1\n[pack]\n\tthreads = 1\n\
                  [checkout]\n\tworkers = 1\n[gc]\n\tauto = 0\n";
    fs::write(at.join(".gitconfig"), config).unwrap();
}

/// Brings names into an order that looks random, and is always the same.
fn shuffle(names: &mut [String]) {
    let mut random = 1_u64;
    for at in (1..names.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        names.swap(at, (random >> 33) as usize % (at + 1));
    }
}

type Counts = BTreeMap<String, u64>;

/// How often work is done whose pages the kernel may have dropped.
const TRIES: usize = 4;

/// Operations that are no work: connections, of which there are more if they are needed at once,
/// signs of life, and the question for these figures.
const IDLE: [&str; 3] = ["hello", "ping", "stats"];

/// Returns the requests that the server has received.
fn received(address: &str) -> Counts {
    let output = run(glint().args(["stats", address, "--json"]));
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    rows.filter(|row| row["process"] == "server" && row["layer"] == "net_queue")
        .map(|row| (row["op"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap()))
        .filter(|(op, _)| !IDLE.contains(&op.as_str()))
        .collect()
}

/// Pause between two looks at what was received.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns them when nothing is on its way any more. (The kernel tells a mount of a closed file
/// when nobody waits for it, and looks at a new mount by itself.)
fn received_at_rest(address: &str) -> Counts {
    let mut before = received(address);
    loop {
        thread::sleep(PAUSE);
        let now = received(address);
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Starts a mount that sends nothing because time passes.
fn mount(world: &World, port: u16, name: &str) -> (Process, PathBuf) {
    let directory = world.short(name);
    fs::create_dir_all(&directory).unwrap();
    let mut command = glint();
    command.args(["mount", "-f", &address(port), text(&directory)]);
    command.env("GLINT_NEVER_OLD", "1").env("GLINT_LOG", "info,glint_client::client=trace");
    let log = world.path(&format!("{name}.log"));
    let process = Process::start_as(&mut command, log, Some(&directory));
    process.wait_for_event(event::MOUNTED);
    (process, directory)
}

/// Requests of one kind of which each is named when there are more than are written down.
const NAMED: usize = 8;

/// Does some work on a file system of its own. Returns the requests, and lines about those to the MDS.
fn cost(material: &Path, work: &Work) -> (Counts, String) {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let run = |directory: &Path, script: &str| {
        let s = material.display();
        let script =
            format!("umask 022; export S='{s}' HOME='{s}' GIT_CONFIG_NOSYSTEM=1; {script}");
        sh(directory, &script);
    };
    let (mut process, mut directory) = mount(&world, port, "first");
    run(&directory, work.prepare);
    if !work.is_same_mount {
        process.stop();
        (process, directory) = mount(&world, port, "second");
    }
    // Everything that was written behind is sent, and what a mount asks for of its root is here.
    for _ in 0..2 {
        fs::File::open(&directory).unwrap().sync_all().unwrap();
        fs::metadata(&directory).unwrap();
    }
    let before = received_at_rest(&address(port));
    run(&directory, work.script);
    let log = process.log_path();
    process.stop();
    let mut counts = received(&address(port));
    for (op, count) in &mut counts {
        *count -= before.get(op).copied().unwrap_or(0);
    }
    counts.retain(|_, count| *count > 0);
    server.stop();
    world.assert_sound();
    (counts, fs::read_to_string(log).unwrap())
}

/// Does some work, again while it reads more than `expected`.
fn cost_with_pages(material: &Path, work: &Work, expected: Figure) -> (Counts, String) {
    let reads = |counts: &Counts| counts.get("obj_read").copied().unwrap_or(0);
    let mut cost_now = cost(material, work);
    for _ in 1..TRIES {
        if !expected.is_exceeded(reads(&cost_now.0)) {
            break;
        }
        println!("{}: {} reads, and again", work.name, reads(&cost_now.0));
        let again = cost(material, work);
        if reads(&again.0) < reads(&cost_now.0) {
            cost_now = again;
        }
    }
    cost_now
}

/// How much work is done at once: each has a server of its own, and waits most of the time.
const AT_ONCE: usize = 2;

/// Does all work; what reads more than `expected` is done again. Returns what each cost, in order.
fn costs(material: &Path, expected: impl Fn(&Work) -> Figure + Sync) -> Vec<(Counts, String)> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(work) = WORKS.get(index) else { return done };
            done.push((index, cost_with_pages(material, work, expected(work))));
        }
    };
    let mut done: Vec<(usize, (Counts, String))> = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, cost)| cost).collect()
}

#[test]
fn common_work_costs_what_is_written_down() {
    // Scripts name it without quotes.
    let scratch = tempfile::tempdir().unwrap();
    material(scratch.path());
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let ledger = table::figures();
    let writes = std::env::var("LEDGER").is_ok_and(|how| how == "write");
    let versions = table::versions_here();
    let differences = table::differences(&table::versions(), &versions);
    for (work, _) in ledger.keys() {
        assert!(WORKS.iter().any(|known| known.name == *work), "the ledger has an unknown {work}");
    }
    let mut rows = table::head(&versions);
    let mut wrong = Vec::new();
    let others_of = |work: &Work| table::of_work(&differences, work.programs);
    let figure_for = |work: &Work, op: &str| {
        let written = ledger.get(&(work.name, op)).copied().unwrap_or(Figure::Exactly(0));
        let has_slack = !writes && !others_of(work).is_empty();
        if has_slack { written.with_slack() } else { written }
    };
    let costs = costs(scratch.path(), |work| figure_for(work, "obj_read"));
    for (work, (counts, log)) in WORKS.iter().zip(costs) {
        let name = work.name;
        let others = others_of(work);
        if !others.is_empty() && !writes {
            println!("{name}: compared with ceilings a tenth higher: {}", others.join("; "));
        }
        let figure_of = |op: &str| figure_for(work, op);
        println!("{name}: {counts:?}");
        let written = ledger.keys().filter(|(of, _)| *of == name).map(|(_, op)| *op);
        let mut ops: Vec<&str> = counts.keys().map(String::as_str).chain(written).collect();
        ops.sort_unstable();
        ops.dedup();
        for op in ops {
            let count = counts.get(op).copied().unwrap_or(0);
            let figure = figure_of(op);
            if figure.is_exceeded(count) {
                // Which one it was, the count does not say.
                let is_named = |line: &&str| line.contains(&format!("op=\"{op}\""));
                log.lines().filter(is_named).take(NAMED).for_each(|line| println!("{line}"));
            }
            wrong.extend(figure.judge(count).map(|what| format!("{name}: {op}: {what}")));
            if count > 0 || matches!(figure, Figure::AtMost(_)) {
                writeln!(rows, "{name} | {op} | {}", figure.rewritten(count)).unwrap();
            }
        }
        rows.push('\n');
    }
    if writes {
        wrong.extend(differences.into_values());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/ledger.txt");
        fs::write(path, rows.trim_end().to_owned() + "\n").unwrap();
        assert!(wrong.is_empty(), "ledger.txt says now, instead of before:\n{}", wrong.join("\n"));
    }
    assert!(
        wrong.is_empty(),
        "requests of common work: LEDGER=write writes what was counted into ledger.txt, for which \
         more needs a reason:\n{}",
        wrong.join("\n")
    );
}
