//! Another host: a network namespace, with a cable that can be pulled.

use super::run;
use std::process::Command;

/// A host of its own.
pub struct Host {
    name: String,
    cable: String,
    /// Where it reaches this host.
    pub address: String,
}

fn ip(words: &str) {
    run(Command::new("ip").args(words.split(' ')));
}

impl Host {
    /// Connects a new host to this one; `number` tells it from others.
    pub fn new(number: u8) -> Host {
        let id = std::process::id() % 60_000;
        let (name, cable) = (format!("glint-{id}-{number}"), format!("gl{id}-{number}"));
        let (third, other) = (id / 250, format!("gp{id}-{number}"));
        let net = format!("10.{}.{}", 100 + number, third);
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
