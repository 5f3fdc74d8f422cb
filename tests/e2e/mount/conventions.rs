//! Conventions that administrators rely on: safe defaults, mount(8), logs, signals, pipes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::paths::{mount_line, quoted};
use support::*;

/// Options of a mount in /proc/mounts.
fn options_of(mount: &Path) -> Vec<String> {
    let line = mount_line(mount);
    let line = line.unwrap_or_else(|| panic!("{} is not mounted", mount.display()));
    line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
}

fn has(mount: &Path, option: &str) -> bool {
    options_of(mount).iter().any(|found| found == option)
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// The log of a mount in the background.
fn log_of(mount: &Path) -> std::path::PathBuf {
    let name: String = text(mount).bytes().fold(String::new(), |name, byte| match byte {
        b'/' => name + "-",
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => {
            name + &char::from(byte).to_string()
        }
        other => format!("{name}%{other:02x}"),
    });
    format!("/var/log/glint/mount{name}.log").into()
}

/// Unmounts when the test ends, and removes the log that a mount in the background leaves.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        let _ = fs::remove_file(log_of(&self.0));
    }
}

#[test]
fn by_default_a_server_is_for_root_alone() {
    let world = World::new();
    let data = world.data();
    let server = Process::start(&["serve", "--data", text(&data)], world.path("serve.log"), None);
    server.wait_for_event(event::SERVING);
    let socket = data.join("glint.sock");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    // The directory is all that has to be said.
    let (mount, dir) = world.mount_from(text(&data), "m", &[]);
    fs::write(dir.join("f"), b"x").unwrap();
    assert!(has(&dir, "nosuid") && has(&dir, "nodev"), "{:?}", options_of(&dir));
    run(glint().args(["status", &format!("unix:{}", text(&socket))]));
    mount.stop();
    let (mount, dir) = world.mount_from(text(&socket), "n", &["-o", "suid,dev"]);
    assert!(!has(&dir, "nosuid") && !has(&dir, "nodev"), "{:?}", options_of(&dir));
    mount.stop();
    server.stop();
    // A port of this host is for all its users, so it has to be asked for.
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let serve = ["serve", "--data", text(&data), "--listen", address];
        assert!(refused(glint().args(serve)).contains("--insecure"));
        let up = ["up", "--data", text(&data), "--mount", text(&dir), "--listen", address];
        assert!(refused(glint().args(up)).contains("--insecure"));
    }
    let oss = world.oss_data(1);
    let serve = ["oss", "--data", text(&oss), "--mds", text(&data), "--listen", "127.0.0.1:0"];
    assert!(refused(glint().args(serve)).contains("--insecure"));
    // Alone, a mount is as any local file system; with strangers about it is not.
    let up = world.up(&[]);
    assert!(!has(&world.mount_point(), "nosuid"));
    up.stop();
    let up = world.up(&["--listen", &address(free_port()), "--insecure"]);
    assert!(has(&world.mount_point(), "nosuid") && has(&world.mount_point(), "nodev"));
    up.stop();
}

#[test]
fn mount_8_and_its_options() {
    let _helper = MountHelper::install();
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let dir = world.mount_point();
    fs::create_dir(&dir).unwrap();
    let _mounted = Mounted(dir.clone());
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "fuse.glint", "-o", options, &address(port)]).arg(&dir).output().unwrap()
    };
    for options in [
        "strictatime,lazytime,dirsync,nodiratime,nosymfollow,silent,acl",
        "sync,owner,group,_netdev,nofail,x-systemd.automount,comment=mine",
        "users,exec,relatime,context=system_u:object_r:tmp_t:s0",
        "suid,dev",
        "trust",
        "trust,nosuid",
    ] {
        let output = mount(options);
        assert!(output.status.success(), "{options}: {}", said(&output));
        assert_eq!(said(&output), "", "it says nothing when all is well");
        fs::write(dir.join("f"), options).unwrap();
        for shown in ["sync", "dirsync", "nosymfollow"] {
            let asked = options.split(',').any(|option| option == shown);
            assert_eq!(has(&dir, shown), asked, "{shown}: {:?}", options_of(&dir));
        }
        // mount(8) itself takes suid and dev away, which are its defaults.
        let trusts = options.contains("trust");
        assert_eq!(has(&dir, "nodev"), !trusts, "{options}: {:?}", options_of(&dir));
        assert_eq!(has(&dir, "nosuid"), options != "trust", "{options}: {:?}", options_of(&dir));
        // In the order in which they are said: users is noexec, too.
        assert!(!has(&dir, "noexec"), "{:?}", options_of(&dir));
        run(Command::new("umount").arg(&dir));
    }
    // The helper itself: silent, with the exit codes of mount(8), and -f only pretends.
    let helper = |arguments: &[&str]| {
        let mut helper = Command::new("/sbin/mount.fuse.glint");
        helper.args(arguments).output().unwrap()
    };
    let at = address(port);
    let pretended = helper(&[&at, text(&dir), "-f", "-o", "ro"]);
    assert!(pretended.status.success() && !is_mounted(&dir), "{}", said(&pretended));
    let sloppy = helper(&[&at, text(&dir), "-snv", "-o", "colour"]);
    assert!(sloppy.status.success() && is_mounted(&dir), "{}", said(&sloppy));
    assert_eq!(said(&sloppy), "");
    assert!(log_of(&dir).exists(), "its log is where logs are");
    assert_eq!(fs::metadata(log_of(&dir)).unwrap().mode() & 0o777, 0o600);
    // Options that a remount does not name stay as they are.
    run(Command::new("mount").args(["-o", "remount,ro,noexec"]).arg(&dir));
    for option in ["ro", "noexec", "nosuid", "nodev"] {
        assert!(has(&dir, option), "{:?}", options_of(&dir));
    }
    assert_eq!(fs::write(dir.join("g"), b"").unwrap_err().raw_os_error(), Some(libc::EROFS));
    run(glint().args(["mount", &at, text(&dir), "-o", "remount,rw"]));
    assert!(has(&dir, "noexec") && !has(&dir, "ro"), "{:?}", options_of(&dir));
    fs::write(dir.join("g"), b"").unwrap();
    let late = glint().args(["mount", &at, text(&dir), "-o", "remount,noatime"]).output().unwrap();
    assert!(said(&late).contains("noatime"), "what cannot be done is not silently left out");
    for option in ["strictatime", "norelatime", "dirsync", "direct_io", "nowbmeta", "inodes=9"] {
        let again = format!("remount,rw,{option}");
        let late = refused(glint().args(["mount", &at, text(&dir), "-o", &again]));
        assert!(late.contains("cannot be changed while it is mounted"), "{option}: {late}");
    }
    let same = "remount,rw,relatime,wbmeta,polling=auto";
    run(glint().args(["mount", &at, text(&dir), "-o", same]));
    run(glint().args(["umount", text(&dir)]));

    let code = |output: Output| (output.status.code(), said(&output));
    let (status, text_of) = code(helper(&[&address(free_port()), text(&dir), "-o", "rw"]));
    assert_eq!(status, Some(32), "{text_of}");
    let (status, text_of) = code(helper(&[&at, text(&dir), "-o", "colour"]));
    assert_eq!(status, Some(1), "{text_of}");
    assert_eq!(helper(&[&at]).status.code(), Some(1));
    assert_eq!(glint().args(["umount", text(&dir)]).output().unwrap().status.code(), Some(32));
    server.stop();
    world.assert_sound();
}

/// `glint mount` returns when the mount is there, and what it logs goes where others cannot
/// write.
#[test]
fn a_mount_goes_to_the_background() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let dir = world.short("m");
    fs::create_dir(&dir).unwrap();
    let _mounted = Mounted(dir.clone());
    let output = run(glint().args(["mount", &address(port), text(&dir)]));
    assert_eq!(said(&output), "");
    fs::write(dir.join("f"), b"at once").unwrap();
    run(glint().args(["umount", text(&dir)]));
    eventually("the daemon ends", || support::events::is_in(&log_of(&dir), event::UNMOUNTED));
    // A link that somebody has put there is not followed.
    let victim = world.path("victim");
    fs::write(&victim, b"").unwrap();
    fs::remove_file(log_of(&dir)).unwrap();
    std::os::unix::fs::symlink(&victim, log_of(&dir)).unwrap();
    let message = refused(glint().args(["mount", &address(port), text(&dir)]));
    assert!(message.contains("symbolic link"), "{message}");
    assert!(!is_mounted(&dir) && fs::read(&victim).unwrap().is_empty());
    server.stop();
}

#[test]
fn a_second_signal_soon_after_the_first_is_the_same_request() {
    use rustix::process::Signal;
    for second in [Signal::TERM, Signal::INT] {
        let world = World::new();
        let up = world.up(&[]);
        fs::write(world.mount_point().join("f"), b"x").unwrap();
        up.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(20));
        up.signal(second);
        // Sends one more, of the other kind, only if both were one.
        eventually("it ends", || up.has_event(event::STOPPED));
        up.forget_ended();
        assert!(!is_mounted(&world.mount_point()));
        world.assert_sound();
    }
}

#[test]
fn a_closed_pipe_is_the_end_without_a_word() {
    let world = World::new();
    let up = world.up(&[]);
    for i in 0..50 {
        fs::write(world.mount_point().join(format!("f{i}")), b"x").unwrap();
    }
    let mount = world.mount_point();
    let data = world.data();
    for command in [
        vec!["stats", text(&mount)],
        vec!["stats", "--watch", "--json", text(&mount)],
        vec!["status", text(&mount)],
        vec!["getstripe", text(&mount)],
        vec!["--help"],
        vec!["fsck", "--data", text(&data)],
    ] {
        let mut child =
            glint().args(&command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!errors.contains("panicked") && !errors.contains("Broken pipe"), "{errors}");
        if command[0] == "stats" {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{command:?}: {errors}");
        }
    }
    up.stop();
    let permissions = fs::metadata(world.data()).unwrap().permissions();
    assert!(permissions.mode() & 0o022 == 0);
}

/// How things are can be asked while a server is away, and the only file system needs no name.
#[test]
fn status_while_a_server_is_away() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    fs::write(dir.join("f"), b"x").unwrap();
    let status = |path: &Path| glint().args(["status", text(path)]).output().unwrap();
    let there = status(&dir);
    assert!(there.status.success() && said(&there).contains("inodes cached"), "{}", said(&there));
    server.kill();
    let away = status(&dir.join("f"));
    assert_eq!(away.status.code(), Some(1), "{}", said(&away));
    let text_of = said(&away);
    assert!(text_of.contains("NOT REACHED for") && text_of.contains(&address(port)), "{text_of}");
    run(glint().args(["stats", text(&dir)]));
    // One that says nothing at all.
    server = world.serve(port, &[]);
    server.halt(true);
    let silent = status(&dir);
    assert!(said(&silent).contains("NOT REACHED for"), "{}", said(&silent));
    assert!(refused(glint().args(["status", &address(port)])).contains("server"));
    server.halt(false);
    eventually("it is reached again", || status(&dir).status.success());
    mount.wait_for_event(event::SERVER_REACHED);
    // A mount whose process is gone.
    run(Command::new("kill").args(["-9", &mount.pid().to_string()]));
    mount.forget();
    let gone = said(&status(&dir));
    assert!(gone.contains(&format!("glint umount {}", text(&dir))), "{gone}");
    let (above, name) = (dir.parent().unwrap(), dir.file_name().unwrap());
    let named = said(&glint().current_dir(above).arg("status").arg(name).output().unwrap());
    assert!(named.contains(&format!("glint umount {}", text(&dir))), "{named}");
    run(glint().args(["umount", text(&dir)]));
    let nothing = refused(glint().args(["status", text(&world.path("data/mds"))]));
    assert!(nothing.contains("not in a Glint mount"), "{nothing}");
    server.stop();
    world.assert_sound();
}

/// In a namespace of mounts of its own, so that no other test's is there.
#[test]
fn the_only_file_system_needs_no_name() {
    let world = World::new();
    let up = world.up(&[]);
    let second = World::new();
    let other = second.up(&[]);
    let alone = |others: &[&Path], command: &str| {
        // Mounts of other tests until then are left out; no more come.
        let kept: Vec<String> = others.iter().map(|keep| quoted(keep)).collect();
        let script = format!(
            r#"mounts=$(grep -F ' fuse.glint ' /proc/self/mountinfo)
            while read -r _ _ _ _ path _; do
                path=$(printf %b "$path")
                case "$path" in ''|{}) ;; *) umount -l "$path" 2>/dev/null ;; esac
            done <<END
$mounts
END
            exec {} {command}"#,
            if kept.is_empty() { "/".to_owned() } else { kept.join("|") },
            quoted(Path::new(binary::glint()))
        );
        Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap()
    };
    let (one, two) = (world.mount_point(), second.mount_point());
    for command in ["status", "stats", "status --json"] {
        let output = alone(&[&one], command);
        assert!(output.status.success(), "{command}: {}", said(&output));
    }
    let several = said(&alone(&[&one, &two], "status"));
    for mount in [&one, &two] {
        assert!(several.contains(text(mount)), "{several}");
    }
    let output = alone(&[&one], "umount --lazy --json");
    assert!(output.status.success() && said(&output).contains("unmounted"), "{}", said(&output));
    assert!(said(&alone(&[], "umount")).contains("no file system"));
    up.stop();
    other.stop();
}

#[test]
fn sizes_and_json_everywhere() {
    let world = World::new();
    let up = world.up(&["--osts", "2", "--ost-bandwidth", "2GiB"]);
    let mnt = world.mount_point();
    for size in ["1M", "1MB", "1MiB", "1048576"] {
        let output = run(glint().args(["setstripe", "--json", "-c", "2", "-S", size, text(&mnt)]));
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["stripe_size"], &row["stripe_count"]), (&1_048_576.into(), &2.into()));
    }
    assert!(refused(glint().args(["setstripe", "-S", "1G", text(&mnt)])).contains("64M"));
    let many = refused(glint().args(["setstripe", "-c", "3", text(&mnt)]));
    assert!(many.contains("OSTs, of which there are 2"), "{many}");
    let output = run(glint().args(["getstripe", "--json", text(&mnt)]));
    let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(row["path"], text(&mnt));
    up.stop();
    let data = world.data();
    run(glint().args(["fsck", text(&data)]));
    let serve = ["serve", "--data", text(&data), "--workers", "0"];
    assert!(refused(glint().args(serve)).contains("--workers"));
}

#[test]
fn what_is_no_socket_stays() {
    let world = World::new();
    let (data, file, link) = (world.data(), world.path("file"), world.path("link"));
    fs::write(&file, b"words").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let listen = format!("unix:{}", text(path));
        let said = refused(glint().args(["serve", "--data", text(&data), "--listen", &listen]));
        assert!(said.contains("is not a socket; choose another"), "{said}");
        assert_eq!(fs::read(path).unwrap(), b"words");
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// Clients would be told of a socket that only this host has.
#[test]
fn an_oss_that_nobody_could_reach_does_not_join() {
    let world = World::new();
    let (data, socket) = (world.oss_data(1), format!("unix:{}", text(&world.path("socket"))));
    for listen in [&[][..], &["--listen", &socket]] {
        let oss = ["oss", "--data", text(&data), "--mds", "127.0.0.1:1"];
        let said = refused(glint().args(oss).args(listen));
        assert!(said.contains("say --listen HOST:PORT, or --advertise"), "{said}");
    }
}

/// A command of the user nobody, who may look at what is in this world.
fn as_nobody(world: &World, command: &str, arguments: &[&str]) -> Command {
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(world.short(""), everybody).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", command]);
    nobody.args(arguments);
    nobody
}

#[test]
fn users_of_a_host_are_not_shown_other_clients() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let ask = ["--only-values", "-n", "glint.status", text(&a)];
    let status = |command: &mut Command| -> serde_json::Value {
        serde_json::from_slice(&run(command).stdout).unwrap()
    };
    let all = status(Command::new("getfattr").args(ask));
    assert_eq!(all["clients"].as_array().unwrap().len(), 2, "{all}");
    let seen = status(&mut as_nobody(&world, "getfattr", &ask));
    let clients = seen["clients"].as_array().unwrap();
    assert!(clients.len() == 1 && clients[0]["mount_point"] == text(&a), "{seen}");
    assert_eq!(seen["osts"].as_array().unwrap().len(), 1, "{seen}");
    for hidden in [text(&b), text(&world.data())] {
        assert!(all.to_string().contains(hidden) && !seen.to_string().contains(hidden), "{seen}");
    }
    one.stop();
    two.stop();
    server.stop();
}

#[test]
fn a_used_port_for_metrics_leaves_no_mount() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let user = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = user.local_addr().unwrap().to_string();
    let (data, dir) = (world.path("other"), world.mount_point());
    fs::create_dir(&dir).unwrap();
    let at = address(port);
    for command in [
        &["up", "--data", text(&data), "--mount", text(&dir)][..],
        &["mount", &at, text(&dir)],
        &["serve", "--data", text(&data)],
    ] {
        let said = refused(glint().args(command).args(["--metrics", &metrics]));
        assert!(said.contains(&format!("--metrics {metrics}: the port is in use")), "{said}");
        assert!(!is_mounted(&dir), "{command:?}");
    }
    // Nor is an address that is another host's an error without a word.
    let serve = ["serve", "--insecure", "--data", text(&data), "--listen", "192.0.2.1:5640"];
    let said = refused(glint().args(serve));
    assert!(said.contains("this host does not have that address"), "{said}");
    server.stop();
}

/// The operator who starts an OSS hears why it is not there yet.
#[test]
fn an_oss_says_what_it_waits_for() {
    let world = World::new();
    let (port, oss_port) = (free_port(), free_port());
    let (data, listen, mds) = (world.oss_data(1), address(oss_port), address(port));
    let oss = ["oss", "--daemon", "--insecure", "--data", text(&data), "--listen", &listen];
    let log = world.path("oss.log");
    let starting = Process::start(&[&oss[..], &["--mds", &mds]].concat(), log, None);
    starting.wait_for(&format!("waiting for the server of the MDS at {mds}"));
    let pid = fs::read_to_string(data.join("lock")).unwrap();
    assert!(starting.log().contains(&format!("process {} goes on", pid.trim())));
    let server = world.serve(port, &[]);
    starting.forget_ended();
    run(Command::new("kill").arg(pid.trim()));
    eventually("it ends", || support::events::is_in(&data.join("glint.log"), event::STOPPED));
    server.stop();
}

#[test]
fn a_server_says_whom_it_waits_for() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    server.kill();
    run(Command::new("kill").args(["-9", &mount.pid().to_string()]));
    mount.forget();
    run(glint().args(["umount", text(&dir)]));
    let server = world.serve(port, &[]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let named = format!("{} at {}", host.trim(), text(&dir));
    assert!(server.log().contains(&named), "{}", server.log());
    server.stop();
}

/// Commands that need root say so, and nothing that leads elsewhere.
#[test]
fn other_users_are_told_what_needs_root() {
    let world = World::new();
    let (data, dir, glint_of_all) = (world.short("data"), world.short("m"), world.short("glint"));
    fs::copy(binary::glint(), &glint_of_all).unwrap();
    fs::create_dir(&dir).unwrap();
    let serve = ["serve", "--data", text(&data)];
    let server = Process::start(&serve, world.path("serve.log"), None);
    server.wait_for_event(event::SERVING);
    let (other, free) = (world.short("other"), world.short("n"));
    let must_tell = |arguments: &[&str], expected: &str| {
        let said = refused(&mut as_nobody(&world, text(&glint_of_all), arguments));
        assert!(said.contains(expected), "{arguments:?}: {said}");
    };
    must_tell(&["status", text(&data)], "permission denied");
    must_tell(&["mount", text(&data), text(&dir)], "mounting needs root");
    must_tell(&["up", "--data", text(&other), "--mount", text(&free)], "mounting needs root");
    let (mount, dir) = world.mount_from(text(&data), "m", &[]);
    must_tell(&["setstripe", "-c", "1", text(&dir)], "only its owner and root");
    for command in ["find", "du", "ls"] {
        must_tell(&[command, text(&dir)], &format!("or use {command}(1) on the mount"));
    }
    mount.stop();
    server.stop();
}
