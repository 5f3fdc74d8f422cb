//! Another host: a network namespace, with a cable that can be pulled.

use crate::{Process, World, binary, claim, run, text};
use glint_telemetry::event;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A host of its own.
pub struct Host {
    name: String,
    cable: String,
    /// Where it reaches this host.
    pub address: String,
}

/// Runs `ip` with these words.
pub(super) fn ip(words: &str) {
    run(Command::new("ip").args(words.split(' ')));
}

impl Host {
    /// Connects a new host to this one.
    pub fn new() -> Host {
        let id = claim("host", 0, 25_000);
        let (name, cable, other) = (format!("glint-{id}"), format!("gl{id}"), format!("gp{id}"));
        // What a test left behind that was killed.
        let _ = Command::new("ip").args(["netns", "delete", &name]).output();
        let _ = Command::new("ip").args(["link", "delete", &cable]).output();
        let net = format!("10.{}.{}", 100 + id / 250, id % 250);
        ip(&format!("netns add {name}"));
        ip(&format!("link add {cable} type veth peer name {other}"));
        ip(&format!("link set {other} netns {name}"));
        ip(&format!("addr add {net}.1/24 dev {cable}"));
        ip(&format!("link set {cable} up"));
        ip(&format!("-n {name} addr add {net}.2/24 dev {other}"));
        ip(&format!("-n {name} link set {other} up"));
        ip(&format!("-n {name} link set lo up"));
        Host { name, cable, address: format!("{net}.1") }
    }

    /// A command that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        command
    }

    /// Mounts a server there, at `a` in `world`.
    pub fn mount(&self, world: &World, address: &str) -> (Process, PathBuf) {
        let directory = world.short("a");
        fs::create_dir(&directory).unwrap();
        let mut mount = self.command(binary::glint());
        mount.args(["mount", "-f", address, text(&directory)]);
        let process = Process::start_as(&mut mount, world.new_log("a.log"), Some(&directory));
        process.wait_for_event(event::MOUNTED);
        (process, directory)
    }

    /// Pulls the cable, or puts it in again.
    pub fn connect(&self, connected: bool) {
        ip(&format!("link set {} {}", self.cable, if connected { "up" } else { "down" }));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
        let _ = Command::new("ip").args(["link", "delete", &self.cable]).output();
    }
}
