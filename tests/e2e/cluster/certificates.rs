//! Encrypted connections: who has a certificate of the file system's authority is let in, nobody
//! else, and nobody in between understands a word.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_net::tls::TlsIdentity;
use glint_net::{
    Address, Cluster, MdsRequests, MdsSession, OstRequests, Remote, RemoteOptions, Transport,
};
use glint_proto::lock::Grant;
use glint_proto::{
    Access, Bulk, Capability, Cred, Errno, Ino, MdsReply, MdsRequest, ObjectId, OpenFlags,
    OstRequest,
};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use support::paths::mount_line;
use support::*;

/// An authority, with certificates for a server and a client.
fn authority(world: &World, name: &str) -> (PathBuf, PathBuf) {
    let directory = world.path(name);
    run(glint().args(["cert", "init", text(&directory)]));
    run(glint().args(["cert", "issue", text(&directory), "server", "--host", "127.0.0.1"]));
    run(glint().args(["cert", "issue", text(&directory), "client", "--client"]));
    (directory.join("server"), directory.join("client"))
}

/// Passes connections on to a server, and keeps what it hears.
fn wiretap(server: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let tap = heard.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) =
                (client.unwrap(), TcpStream::connect(("127.0.0.1", server)).unwrap());
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                let tap = tap.clone();
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        tap.lock().unwrap().extend_from_slice(&buffer[..n]);
                        if to.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (port, heard)
}

fn contains(heard: &Mutex<Vec<u8>>, words: &[u8]) -> bool {
    heard.lock().unwrap().windows(words.len()).any(|window| window == words)
}

#[test]
fn nobody_in_between_understands_a_word() {
    let world = World::new();
    let (server_cert, client_cert) = authority(&world, "ca");
    let words = b"the words that nobody else may hear";
    for encrypted in [false, true] {
        let port = free_port();
        let (tapped, heard) = wiretap(port);
        let (server, client) = (["--cert", text(&server_cert)], ["--cert", text(&client_cert)]);
        let none: &[&str] = &[];
        let server = world.serve(port, if encrypted { &server } else { none });
        let more = if encrypted { &client } else { none };
        let (mount, directory) = world.mount(tapped, &format!("m{encrypted}"), more);
        fs::write(directory.join("secret-name"), words).unwrap();
        assert_eq!(fs::read(directory.join("secret-name")).unwrap(), words);
        mount.stop();
        server.stop();
        assert!(!heard.lock().unwrap().is_empty());
        for said in [&words[..], b"secret-name"] {
            assert_eq!(contains(&heard, said), !encrypted, "encrypted: {encrypted}");
        }
        fs::remove_dir_all(world.data()).unwrap();
    }
}

#[test]
fn a_file_system_over_encrypted_connections() {
    let world = World::new();
    let (server_cert, client_cert) = authority(&world, "ca");
    let serve = || ["--cert", text(&server_cert)];
    let port = free_port();
    let mut server = world.serve(port, &serve());
    let (one, a) = world.mount(port, "a", &["--cert", text(&client_cert)]);
    let (two, b) = world.mount(port, "b", &["-o", &format!("cert=\"{}\"", text(&client_cert))]);
    let data: Vec<u8> = (0..20_000_000u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/f"), &data).unwrap();
    assert!(fs::read(b.join("d/f")).unwrap() == data);
    for i in 0..500 {
        fs::write(b.join(format!("d/n{i}")), vec![i as u8; i]).unwrap();
    }
    server.kill();
    server = world.serve(port, &serve());
    for i in 0..500 {
        assert_eq!(fs::read(a.join(format!("d/n{i}"))).unwrap(), vec![i as u8; i]);
    }
    let asked = glint().args(["status", &address(port), "--cert", text(&client_cert)]).output();
    assert!(asked.unwrap().status.success());
    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn who_is_not_let_in() {
    let world = World::new();
    let (server_cert, client_cert) = authority(&world, "ca");
    let (strange_server, strange_client) = authority(&world, "another");
    let port = free_port();
    let server = world.serve(port, &["--cert", text(&server_cert)]);
    let (mount, directory) = world.mount(port, "m", &["--cert", text(&client_cert)]);
    let ask = |cert: Option<&PathBuf>, at: u16| {
        let mut command = glint();
        command.args(["status", &address(at)]);
        if let Some(cert) = cert {
            command.args(["--cert", text(cert)]);
        }
        refused(&mut command)
    };
    assert!(ask(None, port).contains("--cert"), "{}", ask(None, port));
    // An OSS, which goes on trying, says the same.
    let (data, mds) = (world.oss_data(9), address(port));
    let oss = ["oss", "--insecure", "--data", text(&data), "--listen", "127.0.0.1:0"];
    let log = world.path("oss9.log");
    let oss = Process::start(&[&oss[..], &["--mds", &mds]].concat(), log, None);
    oss.wait_for("say --cert, too");
    oss.stop();
    assert!(ask(Some(&strange_client), port).contains("UnknownIssuer"));
    // A client's certificate does not make a server, and a strange one neither.
    for (cert, why) in [(&client_cert, "certificate"), (&strange_server, "UnknownIssuer")] {
        let port = free_port();
        let other = World::new();
        let impostor = other.serve(port, &["--cert", text(cert)]);
        let said = ask(Some(&server_cert), port);
        assert!(said.contains(why), "{said}");
        impostor.stop();
    }
    // The name has to be right, too.
    let misnamed = format!("localhost:{port}");
    let said = refused(glint().args(["status", &misnamed, "--cert", text(&client_cert)]));
    assert!(said.contains("localhost") || said.contains("NotValidForName"), "{said}");
    // Connections that say nothing, or nonsense, are in nobody's way.
    let is_in_the_way = || {
        let silent: Vec<_> =
            (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let mut noise = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _ = noise.write_all(&[0x5a; 100_000]);
        // Somebody would have to wait until they are closed, if they were in the way.
        let patient = std::thread::spawn(move || {
            for mut stream in silent {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                assert!(is_closed(stream.read(&mut [0; 16])), "it is closed in the end");
            }
        });
        fs::write(directory.join("f"), b"content").unwrap();
        let waited = patient.is_finished();
        patient.join().unwrap();
        waited
    };
    // A machine with much else to do may take as long itself.
    assert!(!(0..5).all(|_| is_in_the_way()), "this had to wait until they were closed");
    mount.stop();
    server.stop();
    world.assert_sound();
}

/// Rights in a certificate hold for every request, whatever the mount thinks.
#[test]
fn rights_in_a_certificate() {
    let world = World::new();
    let (server_cert, admin_cert) = authority(&world, "ca");
    let ca = world.path("ca");
    let issue = |name: &str, rights: &[&str]| {
        run(glint().args(["cert", "issue", text(&ca), name, "--client"]).args(rights));
        ca.join(name)
    };
    let reader = issue("reader", &["--read-only"]);
    let squashed = issue("squashed", &["--squash", "root"]);
    let mapped = issue("mapped", &["--map-uid", "1000:5000:10", "--map-gid", "1000:6000"]);
    let port = free_port();
    let server = world.serve(port, &["--cert", text(&server_cert)]);
    let mount = |name: &str, cert: &PathBuf| world.mount(port, name, &["--cert", text(cert)]);
    let (admin_mount, admin) = mount("admin", &admin_cert);
    fs::write(admin.join("f"), b"content").unwrap();
    fs::set_permissions(admin.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(admin.join("open")).unwrap();
    fs::set_permissions(admin.join("open"), fs::Permissions::from_mode(0o777)).unwrap();

    // All names and inodes are for those who may do everything.
    for limited in [&reader, &squashed, &mapped] {
        let check = ["fsck", "--online", &address(port), "--cert", text(limited)];
        let said = refused(glint().args(check));
        assert!(said.contains("does not allow that"), "{said}");
    }
    let (reader_mount, root) = mount("reader", &reader);
    assert_eq!(fs::read(root.join("f")).unwrap(), b"content");
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    };
    let shown = mount_line(&root).unwrap();
    assert!(shown.contains(" ro,"), "{shown}");
    refused(fs::write(root.join("f"), b"more"));
    // The servers refuse it, too, whatever this host says of its mount.
    rustix::mount::mount_remount(&root, rustix::mount::MountFlags::empty(), "").unwrap();
    refused(fs::write(root.join("f"), b"more"));
    refused(fs::write(root.join("open/new"), b""));
    refused(fs::create_dir(root.join("d")));
    refused(fs::remove_file(root.join("f")));
    refused(fs::rename(root.join("f"), root.join("g")));
    refused(fs::set_permissions(root.join("f"), fs::Permissions::from_mode(0o777)));
    // Changes of others are seen.
    fs::write(admin.join("f"), b"changed").unwrap();
    assert_eq!(fs::read(root.join("f")).unwrap(), b"changed");
    reader_mount.stop();

    let (squashed_mount, root) = mount("squashed", &squashed);
    let denied = fs::create_dir(root.join("d")).unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied, "root is nobody here");
    fs::create_dir(root.join("open/d")).unwrap();
    fs::write(root.join("open/d/f"), b"").unwrap();
    for path in ["open/d", "open/d/f"] {
        assert_eq!(fs::metadata(admin.join(path)).unwrap().uid(), 65534, "{path}");
        assert_eq!(fs::metadata(root.join(path)).unwrap().uid(), 65534, "{path}");
    }
    squashed_mount.stop();

    let (mapped_mount, root) = mount("mapped", &mapped);
    let as_user = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1003", "--regid=1000", "--clear-groups", "sh", "-c", script]);
        let output = run(command.current_dir(root.join("open")));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    as_user("mkdir mine && echo text > mine/f && cat mine/f && chmod 600 mine/f");
    assert_eq!(as_user("stat -c '%u %g' mine mine/f"), "1003 1000\n1003 1000");
    for path in ["open/mine", "open/mine/f"] {
        let meta = fs::metadata(admin.join(path)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (5003, 6000), "{path}");
    }
    std::os::unix::fs::chown(admin.join("open/mine/f"), Some(7), Some(6000)).unwrap();
    let meta = fs::metadata(root.join("open/mine/f")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 1000), "a stranger's");
    mapped_mount.stop();
    admin_mount.stop();
    server.stop();
    world.assert_sound();
}

/// A client that asks OSTs for what no program could open: it says what it likes, and gets what
/// its certificate gives.
#[test]
fn an_ost_executes_only_what_the_mds_has_allowed() {
    let world = World::new();
    let (server_cert, admin_cert) = authority(&world, "ca");
    let ca = world.path("ca");
    run(glint().args(["cert", "issue", text(&ca), "nobody", "--client"]).args([
        "--read-only",
        "--squash",
        "all",
    ]));
    run(glint().args(["cert", "issue", text(&ca), "oss", "--oss", "--host", "127.0.0.1"]));
    let (port, oss_port) = (free_port(), free_port());
    let mut server = world.serve(port, &["--cert", text(&server_cert)]);
    let oss_cert = ca.join("oss");
    let oss = world.oss(1, oss_port, port, &["--osts", "2", "--cert", text(&oss_cert)]);
    let (admin_mount, admin) = world.mount(port, "admin", &["--cert", text(&admin_cert)]);
    let file = |name: &str, mode| {
        fs::write(admin.join(name), name).unwrap();
        fs::set_permissions(admin.join(name), fs::Permissions::from_mode(mode)).unwrap();
        fs::File::open(admin.join(name)).unwrap().sync_all().unwrap();
        Ino(fs::metadata(admin.join(name)).unwrap().ino())
    };
    // On each OST one of each kind.
    let secret: Vec<Ino> = (0..6).map(|n| file(&format!("secret {n}"), 0o600)).collect();
    let public: Vec<Ino> = (0..6).map(|n| file(&format!("public {n}"), 0o644)).collect();

    let identity = TlsIdentity::load(&ca.join("nobody")).unwrap();
    let connect = || {
        let address = Address::parse_as(&address(port), Some(identity.clone()));
        let mds = Remote::connect(RemoteOptions { address, mount_point: "/by hand".into() });
        Cluster::new(mds.unwrap(), Some(identity.clone()), "/by hand".into())
    };
    let open = |ino| {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        MdsRequest::Open { ino, flags }
    };
    let runtime = glint_net::runtime(None).unwrap();
    let (mut used, mut capabilities) = (std::collections::BTreeSet::new(), Vec::new());
    let (one, two) = (connect(), connect());
    let place = async |client: &Cluster<Remote>, ino| {
        let (reply, grants) = client.mds().request(&Cred::ROOT, &MdsRequest::Getattr { ino }).await;
        assert_eq!(grants, []);
        let Ok(MdsReply::Attr(attr)) = reply else { panic!("{reply:?}") };
        attr.layout.ost_of(0, client.mds().welcome().own_osts)
    };
    let read = async |client: &Cluster<Remote>, ino, capability| {
        let (object, mut room) = (ObjectId { ino, stripe: 0 }, [0; 8]);
        let request = OstRequest::Read { object, offset: 0, len: 8 };
        let ost = place(client, ino).await;
        let reply =
            client.ost(ost.into(), request, capability, Bulk::In(&mut room), &|| true).await;
        (reply.map(|_| String::from_utf8_lossy(&room).into_owned()), ost)
    };
    runtime.block_on(async {
        for (ino, secret) in public.iter().zip(&secret) {
            assert_eq!(one.mds().request(&Cred::ROOT, &open(*secret)).await.0, Err(Errno::EACCES));
            assert_eq!(read(&one, *secret, None).await.0, Err(Errno::EACCES));
            let (reply, grants) = one.mds().request(&Cred::ROOT, &open(*ino)).await;
            assert!(reply.is_ok(), "{reply:?}");
            let [Grant::Capability { capability, .. }] = grants[..] else { panic!("{grants:?}") };
            let allowed = Some(capability);
            let (data, ost) = read(&one, *ino, allowed).await;
            assert_eq!(data.unwrap(), format!("public {}", capabilities.len()));
            used.insert(ost);
            assert_eq!(read(&one, *secret, allowed).await.0, Err(Errno::EACCES), "another file");
            assert_eq!(read(&one, *ino, None).await.0, Err(Errno::EACCES));
            assert_eq!(read(&two, *ino, allowed).await.0, Err(Errno::EACCES), "another session");
            let more = Capability { access: Access::READ | Access::WRITE, ..capability };
            assert_eq!(read(&one, *ino, Some(more)).await.0, Err(Errno::EACCES), "not so sealed");
            let object = ObjectId { ino: *ino, stripe: 0 };
            let truncate = OstRequest::Truncate { object, size: 0 };
            let reply = one.ost(ost.into(), truncate, allowed, Bulk::None, &|| true).await;
            assert_eq!(reply, Err(Errno::EROFS));
            capabilities.push((*ino, allowed));
        }
    });
    assert_eq!(used.len(), 3, "not all OSTs were asked");
    // Sessions outlive the server, and so do their capabilities.
    server.kill();
    server = world.serve(port, &["--cert", text(&server_cert)]);
    runtime.block_on(async {
        for (ino, capability) in capabilities {
            assert!(read(&one, ino, capability).await.0.is_ok());
            assert_eq!(read(&two, ino, capability).await.0, Err(Errno::EACCES));
        }
    });
    drop((one, two));
    admin_mount.stop();
    oss.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn a_client_that_is_bound_to_a_subtree() {
    let world = World::new();
    let (server_cert, admin_cert) = authority(&world, "ca");
    let ca = world.path("ca");
    run(glint()
        .args(["cert", "issue", text(&ca), "bound", "--client"])
        .args(["--subtree", "/projects/one"]));
    let bound_cert = ca.join("bound");
    let port = free_port();
    let mut server = world.serve(port, &["--cert", text(&server_cert)]);
    // Other servers keep to the subtree as the server of the MDS does.
    let oss_port = free_port();
    let stranger = ["oss", "--data", text(&world.oss_data(2)), "--listen", &address(oss_port)]
        .map(str::to_owned);
    let mds = address(port);
    for cert in [&bound_cert, &admin_cert, &server_cert] {
        let cert = ["--mds", &mds, "--cert", text(cert)];
        let said = refused(glint().args(&stranger).args(cert));
        assert!(said.contains("--oss"), "{said}");
    }
    run(glint().args(["cert", "issue", text(&ca), "other", "--oss", "--host", "127.0.0.1"]));
    let oss_cert = ca.join("other");
    let oss = world.oss(1, oss_port, port, &["--osts", "7", "--cert", text(&oss_cert)]);
    let (admin_mount, admin) = world.mount(port, "admin", &["--cert", text(&admin_cert)]);
    let at = address(port);
    let nowhere = world.path("nowhere");
    fs::create_dir(&nowhere).unwrap();
    let said = refused(glint().args(["mount", &at, text(&nowhere), "--cert", text(&bound_cert)]));
    assert!(said.contains("/projects/one"), "{said}");

    fs::create_dir_all(admin.join("projects/one/d")).unwrap();
    fs::write(admin.join("projects/one/d/f"), b"mine").unwrap();
    fs::write(admin.join("projects/secret"), b"theirs").unwrap();
    fs::hard_link(admin.join("projects/secret"), admin.join("projects/one/link")).unwrap();
    let (bound_mount, root) = world.mount(port, "bound", &["--cert", text(&bound_cert)]);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["d", "link"]);
    // A bound client is told nothing of other clients, nor of hosts.
    let ask = |cert: &PathBuf, what: &[&str]| {
        glint().args(what).args([&at, "--cert", text(cert)]).output().unwrap()
    };
    let status =
        |cert: &PathBuf| String::from_utf8(ask(cert, &["status", "--json"]).stdout).unwrap();
    let seen = sh(&root, "getfattr --only-values -n glint.status .");
    for told in [&status(&bound_cert), &seen] {
        assert!(told.contains("uuid") && told.contains("available_bytes"), "{told}");
        for other in [text(&admin), text(&world.data())] {
            assert!(!told.contains(other), "{told}");
        }
    }
    assert!(seen.contains(text(&root)), "{seen}");
    let all = status(&admin_cert);
    assert!(all.contains(text(&admin)) && all.contains(text(&root)), "{all}");
    for (cert, may) in [(&bound_cert, false), (&admin_cert, true)] {
        let reset = ask(cert, &["stats", "--reset"]);
        assert_eq!(reset.status.success(), may, "{reset:?}");
    }
    assert_eq!(fs::read(root.join("d/f")).unwrap(), b"mine");
    // Everything works there, also after the server has started again, and others see it.
    fs::create_dir(root.join("new")).unwrap();
    fs::write(root.join("new/f"), vec![7; 100_000]).unwrap();
    for n in 0..16 {
        fs::write(root.join(format!("new/{n}")), format!("of the bound one, {n}")).unwrap();
    }
    for n in 0..16 {
        let content = fs::read_to_string(admin.join(format!("projects/one/new/{n}"))).unwrap();
        assert_eq!(content, format!("of the bound one, {n}"));
        fs::write(admin.join(format!("projects/one/new/{n}")), b"x").unwrap();
        assert_eq!(fs::read(root.join(format!("new/{n}"))).unwrap(), b"x");
    }
    fs::rename(root.join("new/f"), root.join("d/g")).unwrap();
    assert_eq!(fs::read(admin.join("projects/one/d/g")).unwrap(), vec![7; 100_000]);
    fs::write(admin.join("projects/one/at the top"), b"").unwrap();
    assert_eq!(names(), ["at the top", "d", "link", "new"]);
    server.kill();
    server = world.serve(port, &["--cert", text(&server_cert)]);
    assert_eq!(fs::read(root.join("d/g")).unwrap(), vec![7; 100_000]);
    fs::write(root.join("d/g"), b"again").unwrap();
    assert_eq!(fs::read(admin.join("projects/one/d/g")).unwrap(), b"again");
    // A file from elsewhere cannot be read here, whatever name it has here.
    let denied = fs::read(root.join("link")).unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    // Moved out of its sight while it is mounted.
    fs::rename(admin.join("projects/one/d"), admin.join("projects/two")).unwrap();
    assert_eq!(fs::read(root.join("d/f")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    bound_mount.stop();
    admin_mount.stop();
    oss.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn what_the_commands_make_and_refuse() {
    let world = World::new();
    let (server_cert, _) = authority(&world, "ca");
    let ca = world.path("ca");
    for key in [ca.join("ca-key.pem"), server_cert.join("key.pem")] {
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{key:?}");
    }
    assert!(!server_cert.join("ca-key.pem").exists());
    for (arguments, expected) in [
        (vec!["cert", "init", text(&ca)], "is there already"),
        (vec!["cert", "issue", text(&ca), "server"], "is there already"),
        (vec!["cert", "issue", text(&ca), "../up"], "use letters"),
        (vec!["cert", "issue", text(&ca), "a b"], "use letters"),
        (vec!["cert", "issue", text(&ca), "x", "--host", "a b"], "use letters"),
        (vec!["cert", "issue", text(&ca), "x", "--subtree", "/a/../b"], "path from the root"),
        (vec!["cert", "issue", text(&ca), "x", "--map-uid", "1:2:0"], "CLIENT:SERVER"),
        (vec!["cert", "issue", text(&ca), "x", "--oss", "--client"], "cannot be used"),
        (vec!["cert", "issue", text(&world.path("nowhere")), "x"], "glint cert init"),
    ] {
        let said = refused(glint().args(&arguments));
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let data = world.data();
    let serve = |cert: &PathBuf| {
        let at = address(free_port());
        refused(
            glint()
                .args(["serve", "--data", text(&data), "--listen", &at])
                .args(["--cert", text(cert)]),
        )
    };
    assert!(serve(&ca).contains("cert.pem"));
    fs::write(server_cert.join("key.pem"), "no key").unwrap();
    assert!(serve(&server_cert).contains("key.pem"));
    // Beyond this host only with a certificate, or if it is asked for.
    let open = refused(glint().args(["serve", "--data", text(&data), "--listen", "0.0.0.0:0"]));
    assert!(open.contains("--cert") && open.contains("--insecure"), "{open}");
}
