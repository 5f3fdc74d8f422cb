//! The servers: one with the MDS and an OST, and three of OSTs, each with a disk of its own, all of
//! them hosts at one switch.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::crew::Course;
use glint_telemetry::event;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::copies::content;
use support::disk::Disk;
use support::switch::Switch;
use support::*;

/// Servers beside the one with the MDS.
pub(super) const OSSES: usize = 3;
const DISK_MEGABYTES: u64 = 400;

/// A server, and its host at the switch: the one with the MDS is 0, and OSSes have their numbers.
pub(super) type Member = u16;
pub(super) const MDS: Member = 0;

pub(super) struct Cluster<'a> {
    /// The server with the MDS first.
    servers: [Option<Process>; 1 + OSSES],
    mounts: Vec<Process>,
    /// Both mounts.
    pub(super) dirs: [PathBuf; 2],
    _disks: Vec<Disk<'a>>,
    /// Where the disks are mounted.
    places: &'a [PathBuf; OSSES],
    pub(super) switch: Switch,
    ports: [u16; 1 + OSSES],
    world: &'a World,
}

impl<'a> Cluster<'a> {
    /// Starts all servers, and mounts twice. `places` is where the disks of OSSes get mounted.
    pub(super) fn start(world: &'a World, places: &'a [PathBuf; OSSES], kind: &str) -> Self {
        let disk = |(n, at): (u16, &'a PathBuf)| {
            let disk = Disk::new(&world.path(&format!("image{n}")), at, kind, DISK_MEGABYTES);
            let (data, ost) = (world.oss_data(n), at.join("ost0"));
            fs::create_dir(&data).unwrap();
            fs::create_dir(&ost).unwrap();
            symlink(&ost, data.join("ost0")).unwrap();
            disk
        };
        let mut cluster = Cluster {
            servers: [const { None }; 1 + OSSES],
            mounts: Vec::new(),
            dirs: ["a", "b"].map(|name| world.short(name)),
            _disks: (1..).zip(places).map(disk).collect(),
            places,
            switch: Switch::new(1 + OSSES as u16),
            ports: [(); 1 + OSSES].map(|()| free_port()),
            world,
        };
        (MDS..=OSSES as u16).for_each(|member| cluster.start_server(member));
        for name in ["a", "b"] {
            let (mount, _) = world.mount_from(&cluster.address(MDS), name, &[]);
            cluster.mounts.push(mount);
        }
        wait_until_whole(text(&cluster.dirs[0]));
        cluster
    }

    fn address(&self, member: Member) -> String {
        format!("{}:{}", self.switch.address(member), self.ports[usize::from(member)])
    }

    /// Starts a server, for the first time or again.
    pub(super) fn start_server(&mut self, member: Member) {
        let (address, mds) = (self.address(member), self.address(MDS));
        let mut command = self.switch.command(member, binary::glint());
        let (data, log) = if member == MDS {
            command.args(["serve", "--replicas", "3"]);
            (self.world.data(), "serve.log".to_owned())
        } else {
            command.args(["oss", "--mds", &mds]);
            (self.world.oss_data(member), format!("oss{member}.log"))
        };
        command.args(["--insecure", "--listen", &address, "--data", text(&data)]);
        let process = Process::start_as(&mut command, self.world.new_log(&log), None);
        process.wait_for_event(event::SERVING);
        self.servers[usize::from(member)] = Some(process);
    }

    /// The process of a server that runs.
    pub(super) fn server(&self, member: Member) -> &Process {
        self.servers[usize::from(member)].as_ref().unwrap()
    }

    pub(super) fn kill(&mut self, member: Member) {
        self.servers[usize::from(member)].take().unwrap().kill();
    }

    /// Ends a server as Ctrl-C does.
    pub(super) fn stop(&mut self, member: Member) {
        let process = self.servers[usize::from(member)].take().unwrap();
        let log = process.log_path();
        process.signal(rustix::process::Signal::INT);
        let status = process.ends();
        assert!(status.success(), "{status}: {}", fs::read_to_string(log).unwrap());
    }

    /// Where the disk of an OSS is mounted.
    pub(super) fn disk(&self, oss: Member) -> &'a Path {
        &self.places[usize::from(oss) - 1]
    }

    /// Directory of the OST of a server.
    pub(super) fn ost(&self, member: Member) -> PathBuf {
        if member == MDS { self.world.data().join("ost0") } else { self.disk(member).join("ost0") }
    }

    /// Waits until all members of all chains serve. No server may have ended by itself.
    pub(super) fn wait_until_whole(&self, course: &Course) {
        let mut last = serde_json::Value::Null;
        course.wait_until("all members serve", || {
            self.must_run(course);
            let now = chains(text(&self.dirs[0]));
            let is_whole = now["not_serving"].as_array().is_some_and(Vec::is_empty);
            if now != last {
                last = now;
                println!("{} of {} chains are whole", last["whole"], last["count"]);
            }
            is_whole
        });
    }

    fn must_run(&self, course: &Course) {
        for (member, server) in self.servers.iter().enumerate() {
            let has_ended = server.as_ref().is_some_and(Process::has_ended);
            assert!(!has_ended, "{}: server {member} has ended by itself", course.now());
        }
    }

    /// Nothing is lacking, and a check of all that is served finds nothing.
    pub(super) fn must_be_sound(&self, course: &Course) {
        course.wait_until("nothing is lacking", || {
            let mut info = glint();
            let info = info.args(["heal", "info", "--json", text(&self.dirs[0])]).output();
            info.is_ok_and(|info| info.status.success() && info.stdout.is_empty())
        });
        let mut said = String::new();
        // What was removed may be on its way to be destroyed.
        for tries in 0..10 {
            std::thread::sleep(Duration::from_millis(500 * tries));
            let fsck = glint().args(["fsck", "--json", "--online", text(&self.dirs[1])]).output();
            let fsck = fsck.unwrap();
            if fsck.status.code() == Some(0) {
                return;
            }
            said = format!("{}{}", String::from_utf8_lossy(&fsck.stdout), fsck.status);
        }
        panic!("{}: glint fsck --online: {said}", course.now());
    }

    /// An object with fewer copies than it must have, or whose copies are not the same, of those for
    /// which `least` says how many there must be.
    pub(super) fn difference(&self, least: impl Fn(&Path) -> Option<usize>) -> Option<String> {
        let mut copies = BTreeMap::<PathBuf, Vec<(Member, Vec<u8>)>>::new();
        for member in MDS..=OSSES as u16 {
            for (object, bytes) in content(&self.ost(member)) {
                copies.entry(object).or_default().push((member, bytes));
            }
        }
        let differ = |object: &Path, copies: &[(Member, Vec<u8>)]| {
            least(object).is_some_and(|least| {
                copies.len() < least || copies.iter().any(|copy| copy.1 != copies[0].1)
            })
        };
        let (object, copies) =
            copies.into_iter().find(|(object, copies)| differ(object, copies))?;
        let sizes: Vec<_> = copies.iter().map(|(member, bytes)| (member, bytes.len())).collect();
        Some(format!("{}, bytes of each member that has it: {sizes:?}", object.display()))
    }

    /// Ends all, and compares all copies.
    pub(super) fn end(mut self, course: &Course) {
        for dir in &self.dirs {
            run(Command::new("sync").arg("-f").arg(dir));
        }
        let differ = format!("{}: copies that differ", course.now());
        eventually_none(&differ, || self.difference(|_| Some(2)));
        self.mounts.drain(..).for_each(Process::stop);
        (MDS..=OSSES as u16).rev().for_each(|member| self.stop(member));
        assert_eq!(self.difference(|_| Some(2)), None, "{}", course.now());
        self.world.assert_sound_with(&self.world.data(), &[1, 2, 3]);
    }
}
