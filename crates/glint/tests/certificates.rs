//! Encrypted connections: who has a certificate of the file system's authority is let in, nobody
//! else, and nobody in between understands a word.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
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
    let (two, b) = world.mount(port, "b", &["-o", &format!("cert={}", text(&client_cert))]);
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
    // Whoever says nothing, or nonsense, is in nobody's way.
    let silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let mut noise = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _ = noise.write_all(&[0x5a; 100_000]);
    let started = Instant::now();
    fs::write(directory.join("f"), b"content").unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0, "it is closed in the end");
    }
    mount.stop();
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
        (vec!["cert", "issue", text(&ca), "../up"], "name"),
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
