//! Two mounts of one server.

use super::{Process, World, free_port};
use std::fs;
use std::path::{Path, PathBuf};

/// Two mounts, and a server for both.
pub struct Pair {
    _server: Process,
    _mounts: Vec<Process>,
    pub a: PathBuf,
    pub b: PathBuf,
    pub world: World,
}

/// Starts them.
pub fn pair() -> Pair {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    Pair { _server: server, _mounts: vec![one, two], a, b, world }
}

/// Runs a test twice, with the mounts in both roles.
pub fn both_ways(pair: &Pair, name: &str, test: impl Fn(&Path, &Path)) {
    for (way, (x, y)) in [(&pair.a, &pair.b), (&pair.b, &pair.a)].into_iter().enumerate() {
        let directory = format!("{name}-{way}");
        fs::create_dir(x.join(&directory)).unwrap();
        test(&x.join(&directory), &y.join(&directory));
    }
}
