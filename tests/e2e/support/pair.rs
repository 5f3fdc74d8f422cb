//! Two mounts of one server.

use super::{Process, World, free_port};
use std::path::PathBuf;

/// Two mounts, and a server for both.
pub struct Pair {
    _server: Process,
    _mounts: Vec<Process>,
    pub a: PathBuf,
    pub b: PathBuf,
    _world: World,
}

/// Starts them.
pub fn pair() -> Pair {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    Pair { _server: server, _mounts: vec![one, two], a, b, _world: world }
}
