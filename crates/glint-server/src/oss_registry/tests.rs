//! Beats of OSSes and what they are told, with records on a real disk.

use super::destruction::ORDERED_OBJECTS_MAX;
use super::*;
use crate::process::data_dir::{DataDir, Role};
use glint_proto::ObjectId;

fn beat(uuid: u128, done: (u64, u64)) -> Heartbeat {
    let address = format!("host{uuid}:1");
    let (fenced, failed, space) = (Vec::new(), Vec::new(), Vec::new());
    Heartbeat {
        uuid,
        fs_uuid: 0,
        address,
        osts: 2,
        fenced,
        done,
        failed,
        space,
        boot_verifier: 1,
        chains: 0,
        failure_domain: "host".into(),
        replaced: Vec::new(),
        leaves: false,
        searching: Vec::new(),
        failed_osts: Vec::new(),
        held_up: Vec::new(),
    }
}

#[test]
fn who_leaves_is_waited_for_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    let say = |leaves| {
        let said = Heartbeat { leaves, ..beat(1, (0, 0)) };
        osses.beat(&data, None, said.clone()).unwrap();
        osses.accept(&said);
        let [(osts, silence, _)] = &osses.silences()[..] else { panic!() };
        assert_eq!(*osts, 3..5);
        (osses.know_row(&[3], 1), osses.rows_known_everywhere(1), *silence == Duration::MAX)
    };
    assert_eq!(say(false), (false, 0, false));
    assert_eq!(say(true), (true, 1, true));
    assert_eq!(say(false), (false, 0, false));
}

#[test]
fn an_oss_says_at_each_beat_which_osts_take_part_in_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    let say = |searching: &[u16], failed: &[u16]| {
        let (searching, failed_osts) = (searching.to_vec(), failed.to_vec());
        osses.beat(&data, None, Heartbeat { searching, failed_osts, ..beat(1, (0, 0)) }).unwrap();
        [3, 4, 5].map(|ost| osses.not_ready(ost))
    };
    assert_eq!(say(&[0, 1], &[]), [Some(Seen::Searched), Some(Seen::Searched), None]);
    assert_eq!(say(&[1], &[1]), [None, Some(Seen::Failed), None]);
    assert_eq!(say(&[], &[]), [None; 3]);
}

#[test]
fn a_failure_domain_without_a_label_is_named_by_its_address_and_stays_when_that_changes() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    let alone = Heartbeat { failure_domain: String::new(), ..beat(2, (0, 0)) };
    osses.beat(&data, None, alone.clone()).unwrap();
    assert_eq!(osses.domain_names(), ["host", "host2:1"]);
    let placed = osses.placed();
    osses.beat(&data, None, Heartbeat { address: "moved:1".into(), ..alone }).unwrap();
    assert_eq!(osses.domain_names(), ["host", "moved:1"]);
    assert_eq!(osses.placed(), placed);
}

#[test]
fn nobody_waits_for_osts_that_were_given_up_until_they_are_heard_of() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    [1, 2].iter().for_each(|uuid| drop(osses.beat(&data, None, beat(*uuid, (0, 0))).unwrap()));
    let placed = |osses: &OssRegistry| -> Vec<u16> {
        osses.placed().iter().map(|placed| placed.ost).collect()
    };
    osses.give_up(&data, 3).unwrap();
    assert_eq!((placed(&osses), osses.infos_for_clients().len()), (vec![1, 2, 4], 2));
    osses.give_up(&data, 4).unwrap();
    drop((osses, data));
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 8, Duration::from_secs(1));
    assert_eq!((placed(&osses), osses.infos_for_clients().len()), (vec![1, 2], 1));
    assert_eq!((osses.absent(), osses.given_up().concat()), (vec![3, 4], vec![3, 4]));
    assert_eq!((osses.osts(1), osses.infos().len()), (5, 2), "their numbers are not given again");

    osses.accept(&beat(2, (0, 0)));
    assert!(!osses.knows(None, &beat(2, (0, 0))), "that is news");
    osses.beat(&data, None, beat(2, (0, 0))).unwrap();
    assert_eq!((placed(&osses), osses.infos_for_clients().len()), (vec![1, 2, 3, 4], 2));
    assert!(osses.absent().is_empty());
}

#[test]
fn orders_are_told_until_they_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    assert_eq!(osses.beat(&data, None, beat(1, (0, 0))).unwrap().first_ost, 3);
    assert_eq!(osses.beat(&data, None, beat(2, (0, 0))).unwrap().first_ost, 5);
    assert_eq!(osses.beat(&data, None, beat(1, (0, 0))).unwrap().first_ost, 3);
    assert_eq!(osses.osts(3), 7);
    let moved = Heartbeat { address: "elsewhere:1".into(), ..beat(2, (0, 0)) };
    let known = [beat(1, (0, 0)), beat(2, (0, 0)), beat(3, (0, 0)), moved];
    assert!(!osses.knows(None, &known[0]), "the table of chains does not know its run");
    [1, 2].iter().for_each(|uuid| osses.accept(&beat(*uuid, (0, 0))));
    assert_eq!(known.map(|beat| osses.knows(None, &beat)), [true, true, false, false]);
    let foreign = Heartbeat { fs_uuid: 5, ..beat(3, (0, 0)) };
    assert_eq!(osses.beat(&data, None, foreign), Err(Errno::ESTALE));

    let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
    osses.destroy(&[(4, object(1)), (6, object(2)), (0, object(3))], 11);
    assert_eq!((osses.durable(10), osses.durable(20)), (10, 10));
    let told = osses.beat(&data, None, beat(1, (0, 0))).unwrap().orders;
    assert_eq!(told, [(1, Destroy { ost: 1, objects: vec![object(1)] })]);
    assert_eq!(
        osses.beat(&data, None, beat(1, (6, 1))).unwrap().orders,
        told,
        "of another sequence"
    );
    assert!(osses.beat(&data, None, beat(1, (7, 1))).unwrap().orders.is_empty());
    assert_eq!(osses.durable(20), 10);
    osses.beat(&data, None, beat(2, (7, 2))).unwrap();
    assert_eq!(osses.durable(20), 20);

    // Remembered by the next run.
    drop(data);
    let data = DataDir::open(dir.path()).unwrap();
    assert_eq!(OssRegistry::new(&data, 8, Duration::from_secs(1)).osts(3), 7);
}

#[test]
fn what_could_not_be_stored_is_not_so_and_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    osses.accept(&beat(1, (0, 0)));
    std::fs::remove_dir_all(dir.path()).unwrap();
    let moved = || Heartbeat { address: "elsewhere:1".into(), ..beat(1, (0, 0)) };
    for _ in 0..2 {
        assert!(osses.beat(&data, None, moved()).is_err());
        assert!(!osses.knows(None, &moved()) && osses.knows(None, &beat(1, (0, 0))));
        assert!(osses.beat(&data, None, beat(2, (0, 0))).is_err());
    }
    assert_eq!(osses.osts(1), 3);
}

#[test]
fn orders_for_who_is_away_are_bounded_and_what_fails_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
    let many = ORDERED_OBJECTS_MAX as u64 + 10;
    let objects: Vec<_> = (0..many).map(|ino| (1, object(ino))).collect();
    osses.destroy(&objects, 1);
    assert_eq!(osses.take_left().len(), 10, "there was no room for them");
    assert!(osses.take_left().is_empty());
    let mut done = 0;
    while osses.durable(1) < 1 {
        let told = osses.beat(&data, None, beat(1, (7, done))).unwrap().orders;
        done = told.last().map_or(done, |(number, _)| *number);
    }
    osses.destroy(&[(1, object(1)), (1, object(2))], 2);
    let failed = vec![object(2)];
    osses.beat(&data, None, Heartbeat { failed, ..beat(1, (7, done + 1)) }).unwrap();
    assert_eq!((osses.durable(2), osses.take_left()), (2, vec![Ino(2)]));
}

#[test]
fn sessions_to_fence_are_told_in_parts_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::ZERO);
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    (0..FENCES as u64 + 1).for_each(|session| osses.fence(session));
    let told = osses.beat(&data, None, beat(1, (7, 0))).unwrap();
    assert!(told.fence.len() == FENCES && told.more_to_fence);
    let rest = Heartbeat { fenced: told.fence, ..beat(1, (7, 0)) };
    let told = osses.beat(&data, None, rest).unwrap();
    assert!(told.fence.len() == 1 && !told.more_to_fence);
    (0..FENCES_MAX as u64).for_each(|session| osses.fence(session));
    let told = osses.beat(&data, None, beat(1, (7, 0))).unwrap();
    assert_eq!((told.sequence, told.fence.len()), (8, 1), "it asks about all that it knows");
}

#[test]
fn nobody_takes_the_place_of_an_oss() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(3), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    // The OSS had no certificate when it joined.
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    osses.beat(&data, Some("one"), beat(1, (0, 0))).unwrap();
    drop(data);
    let data = DataDir::open(dir.path()).unwrap();
    let osses = OssRegistry::new(&data, 8, Duration::from_secs(1));
    for name in [None, Some("two")] {
        let taken = Heartbeat { address: "evil:1".into(), ..beat(1, (8, 1000)) };
        assert_eq!(osses.beat(&data, name, taken), Err(Errno::EPERM), "{name:?}");
    }
    assert_eq!(osses.infos()[0].address, "host1:1");
    osses.beat(&data, Some("one"), beat(1, (0, 0))).unwrap();
}

#[test]
fn a_session_is_held_up_while_an_oss_says_so_that_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let lease = Duration::from_secs(2);
    clock::simulate(Some(clock::now()));
    let osses = OssRegistry::new(&data, 7, lease);
    let say = |uuid, held_up| {
        osses.beat(&data, None, Heartbeat { held_up, ..beat(uuid, (0, 0)) }).unwrap();
        [98, 99].map(|session| osses.holds_up(session))
    };
    assert_eq!(say(1, vec![99]), [false, true]);
    assert_eq!(say(2, vec![98]), [true, true]);
    assert_eq!(say(1, vec![]), [true, false]);
    clock::simulate(Some(clock::now() + lease + Duration::from_millis(1)));
    assert_eq!(say(1, vec![]), [false, false], "the other one is silent");
    clock::simulate(None);
}

#[test]
fn a_session_is_fenced_when_all_have_said_so_or_are_silent() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let lease = Duration::from_secs(2);
    clock::simulate(Some(clock::now()));
    let osses = OssRegistry::new(&data, 7, lease);
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    let start = clock::now();
    osses.beat(&data, None, beat(2, (0, 0))).unwrap();
    osses.fence(99);
    // The first one is heard all the time.
    let told = || osses.beat(&data, None, beat(1, (0, 0))).unwrap().fence;
    assert!(told() == [99] && !osses.is_fenced(99));
    let fenced = Heartbeat { fenced: vec![99], ..beat(1, (0, 0)) };
    assert!(osses.beat(&data, None, fenced).unwrap().fence.is_empty());
    assert!(!osses.is_fenced(99), "the other one was heard just now");
    clock::simulate(Some(start + lease + Duration::from_millis(1)));
    assert!(osses.is_fenced(99), "it was silent");
    clock::simulate(None);
    let again = osses.beat(&data, None, beat(2, (0, 0))).unwrap().fence;
    assert_eq!(again, [99], "it learns of it when it is back");
}

/// The table of chains reaches an OSS once, and counts as known there when it has said so.
#[test]
fn a_row_is_known_when_its_servers_say_so_or_are_silent() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    clock::simulate(Some(clock::now()));
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(10));
    let start = clock::now();
    for uuid in [1, 2] {
        osses.beat(&data, None, beat(uuid, (0, 0))).unwrap();
    }
    let knowing = |uuid, chains| Heartbeat { chains, ..beat(uuid, (7, 0)) };
    let accepted = |beat: Heartbeat| {
        osses.beat(&data, None, beat.clone()).unwrap();
        osses.accept(&beat);
    };
    accepted(knowing(1, 4));
    accepted(Heartbeat { chains: 9, ..beat(2, (6, 0)) });
    assert_eq!((osses.rows_known(1), osses.rows_known(2)), (4, 0), "of another sequence");
    assert!(osses.know_row(&[0, 1, 2], 4), "OSTs of the MDS's own server, and of one that knows");
    assert!(!osses.know_row(&[1], 5) && !osses.know_row(&[1, 3], 4));
    clock::simulate(Some(start + CHAIN_LEASE));
    assert!(osses.know_row(&[1, 3], 5), "they serve nobody any more");
    assert!(!osses.have_heard(&[1, 3], 5), "and may have changed something before");
    // The server of a disk that was replaced may be refused each time.
    osses.beat(&data, None, knowing(2, 3)).unwrap();
    assert!(osses.know_row(&[1, 3], 5), "one that is refused acts by no row");
    accepted(knowing(2, 5));
    assert!(osses.know_row(&[1, 3], 5) && !osses.know_row(&[3], 6));
    assert!(osses.have_heard(&[0, 3], 5) && !osses.have_heard(&[3], 6));
    clock::simulate(None);
}

/// Chains are laid out at the start, before anybody is heard.
#[test]
fn failure_domains_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    osses.beat(&data, None, beat(1, (0, 0))).unwrap();
    let nameless = Heartbeat { failure_domain: String::new(), ..beat(2, (0, 0)) };
    osses.beat(&data, None, nameless).unwrap();
    drop(data);
    let data = DataDir::open(dir.path()).unwrap();
    let osses = OssRegistry::new(&data, 8, Duration::from_secs(1));
    let domains: Vec<String> = osses.placed().into_iter().map(|placed| placed.domain).collect();
    let nameless = format!("{:032x}", 2);
    assert_eq!(domains, ["host", "host", &nameless, &nameless]);
    let moved = Heartbeat { failure_domain: "rack".into(), ..beat(2, (0, 0)) };
    osses.accept(&moved);
    assert!(!osses.knows(None, &moved));
    osses.beat(&data, None, moved).unwrap();
    assert_eq!(osses.placed().last().unwrap().domain, "rack");
}

#[test]
fn new_files_avoid_osts_that_are_full() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
    let osses = OssRegistry::new(&data, 7, Duration::from_secs(1));
    let space = |available| SpaceInfo { total: 1 << 40, available, ..SpaceInfo::default() };
    let say = |space| {
        osses.beat(&data, None, Heartbeat { space, ..beat(1, (0, 0)) }).unwrap();
        osses.absent()
    };
    assert!(say(vec![]).is_empty(), "nothing is known");
    assert!(say(vec![space(1 << 30), space(1 << 39)]).is_empty());
    assert_eq!(say(vec![space(1 << 39), space((1 << 30) - 1)]), [2]);
    assert!(!SpaceInfo::default().is_full());
    let small = SpaceInfo { total: 300 << 20, available: 2 << 20, ..SpaceInfo::default() };
    assert!(small.is_full());
}
