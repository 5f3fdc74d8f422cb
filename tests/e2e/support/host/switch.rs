//! Hosts at one switch: network namespaces, each of which can be cut off from all others, and any
//! two from each other.

use super::namespace::ip;
use crate::claim;
use std::process::Command;

/// A switch, which is a bridge in a namespace of its own, with this host and others at it.
pub struct Switch {
    name: String,
    net: String,
    /// From this host to the switch.
    cable: String,
    hosts: Vec<WiredHost>,
}

/// A host at a switch.
struct WiredHost {
    name: String,
    /// Its end at the switch.
    port: String,
}

/// Names of a namespace, and of both ends of its cable, that no other test has.
fn claimed() -> (u16, String, String, String) {
    let id = claim("host", 0, 25_000);
    let (name, port, end) = (format!("glint-{id}"), format!("gl{id}"), format!("gp{id}"));
    // What a test left behind that was killed.
    delete(&name);
    let _ = Command::new("ip").args(["link", "delete", &port]).output();
    (id, name, port, end)
}

/// Deletes a namespace, if it is there, and cables that end there.
fn delete(name: &str) {
    let _ = Command::new("ip").args(["netns", "delete", name]).output();
}

impl Switch {
    /// Connects this host and so many new ones.
    pub fn new(hosts: u16) -> Switch {
        let (id, name, cable, end) = claimed();
        let net = format!("10.{}.{}", 100 + id / 250, id % 250);
        let mut switch = Switch { name, net, cable, hosts: Vec::new() };
        let Switch { name, net, cable, .. } = &switch;
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link add br0 type bridge"));
        ip(&format!("-n {name} link set br0 up"));
        ip(&format!("link add {cable} type veth peer name {end}"));
        ip(&format!("link set {end} netns {name}"));
        ip(&format!("-n {name} link set {end} master br0"));
        ip(&format!("-n {name} link set {end} up"));
        ip(&format!("addr add {net}.1/24 dev {cable}"));
        ip(&format!("link set {cable} up"));
        for n in 0..hosts {
            switch.add(n);
        }
        switch
    }

    fn add(&mut self, n: u16) {
        let (_, name, port, end) = claimed();
        let (switch, address) = (&self.name, self.address(n));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {switch} link add {port} type veth peer name {end}"));
        ip(&format!("-n {switch} link set {end} netns {name}"));
        ip(&format!("-n {switch} link set {port} master br0"));
        ip(&format!("-n {switch} link set {port} up"));
        ip(&format!("-n {name} addr add {address}/24 dev {end}"));
        ip(&format!("-n {name} link set {end} up"));
        ip(&format!("-n {name} link set lo up"));
        self.hosts.push(WiredHost { name, port });
    }

    /// Where all others reach a host, counted from 0.
    pub fn address(&self, host: u16) -> String {
        format!("{}.{}", self.net, host + 2)
    }

    /// A command that runs on a host.
    pub fn command(&self, host: u16, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.host(host).name)).arg(program);
        command
    }

    fn host(&self, host: u16) -> &WiredHost {
        &self.hosts[usize::from(host)]
    }

    /// Pulls the cable of a host, or puts it in again: what others send gets lost.
    pub fn connect(&self, host: u16, connected: bool) {
        let state = if connected { "up" } else { "down" };
        ip(&format!("-n {} link set {} {state}", self.name, self.host(host).port));
    }

    /// Carries nothing more between two hosts, or does so again. Both reach all others.
    pub fn connect_both(&self, one: u16, other: u16, connected: bool) {
        let isolated = if connected { "off" } else { "on" };
        for host in [one, other] {
            let port = &self.host(host).port;
            ip(&format!("-n {} link set {port} type bridge_slave isolated {isolated}", self.name));
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.hosts.iter().for_each(|host| delete(&host.name));
        delete(&self.name);
        let _ = Command::new("ip").args(["link", "delete", &self.cable]).output();
    }
}
