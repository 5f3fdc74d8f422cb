//! `kill -9` of the server under load, again and again: what was acknowledged is
//! there afterwards, and nothing else that was not at least asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;
use support::load::{Load, Model, Progress, unknown, verify, work};
use support::*;

/// Compares all that is there with all that was done.
fn compare(world: &World, models: &[Model]) {
    models.iter().for_each(verify);
    let unknown = unknown(&world.mount_point(), models);
    assert!(unknown.is_empty(), "nobody asked for {unknown:?}");
}

/// One process serves and mounts, and is killed: calls fail, and the next start has
/// everything they had acknowledged.
#[test]
fn kills_of_a_mount_lose_nothing_acknowledged() {
    let rounds = at_length(4, 10);
    enable_uring();
    let world = World::new();
    let mut models = Vec::new();
    let mut total = 0;
    for round in 0..rounds {
        let mut up = world.up(&["-o", TRANSPORTS[round as usize % 2]]);
        compare(&world, &models);
        let workers: Vec<_> = (0..3u64)
            .map(|worker| {
                let (progress, dir) = (Arc::<Progress>::default(), world.mount_point());
                let its = progress.clone();
                (progress, std::thread::spawn(move || work(&dir, round * 10 + worker, &its)))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150 + 97 * round));
        workers.iter().for_each(|(progress, _)| progress.reach(40));
        up.kill_and_stay_mounted();
        for (progress, worker) in workers {
            progress.stop();
            let model = worker.join().unwrap();
            total += model.len();
            models.push(model);
        }
        drop(up);
        world.assert_sound();
    }
    let up = world.up(&[]);
    compare(&world, &models);
    println!("{total} names compared");
    assert!(total as u64 > 100 * rounds, "the load was too small to mean anything: {total}");
    up.stop();
    world.assert_sound();
}

/// The server is killed under a client that stays: no call fails, and all are
/// executed exactly once.
#[test]
fn kills_of_a_server_are_not_noticed_by_its_clients() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let load = Load::start([&dir, &dir]);
    for round in 0..at_length(4, 10) {
        std::thread::sleep(Duration::from_millis(200 + 61 * round));
        server.kill();
        server = world.serve(port, &[]);
    }
    load.end(200);
    mount.stop();
    server.stop();
    world.assert_sound();
}
