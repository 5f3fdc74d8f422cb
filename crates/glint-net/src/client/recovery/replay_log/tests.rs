//! Tests of the log of what is sent again.

use super::*;
use glint_proto::limits::REPLAY_LOG_BYTES_MAX;

fn log() -> ReplayLog {
    ReplayLog::new(ReplayBudget::simulated())
}

fn request(n: u8) -> UncommittedRequest {
    UncommittedRequest {
        frame: vec![n; 10].into(),
        reply: MdsReply::Done,
        capability: None,
        retry: None,
    }
}

fn object(ost: u16, ino: u64) -> Object {
    (ost, ObjectId { ino: Ino(ino), stripe: 0 })
}

fn change(object: Object, frame: Vec<u8>) -> UncommittedWrite {
    UncommittedWrite { frame: frame.into(), object, retry: None }
}

fn first_bytes(lost: &ToReplay) -> Vec<u8> {
    lost.ost.iter().map(|change| change.frame.head[0]).collect()
}

#[test]
fn what_is_durable_leaves_and_the_rest_comes_back_in_order() {
    let mut log = log();
    for n in [5u8, 3, 9, 7] {
        log.add_mds(n.into(), request(n));
        log.add_ost(n.into(), change(object(0, 7), vec![n; 100]));
    }
    let mut spares = 0;
    log.committed(Committed { mds: 4, ost: 5 }, &mut |_| spares += 1);
    assert_eq!((spares, log.len(), log.bytes), (3, 5, [30, 200]));
    log.after_restart(Survived { mds: 5, ost: 0 });
    let lost = std::mem::take(log.unreplayed());
    assert_eq!(lost.mds.iter().map(|r| r.frame.head[0]).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(first_bytes(&lost), [7, 9]);
    assert_eq!((log.len(), log.bytes), (0, [0, 0]));
}

#[test]
fn what_was_not_replayed_comes_after_what_was() {
    let mut log = log();
    (1..=4).for_each(|n| log.add_mds(n.into(), request(n)));
    log.after_restart(Survived { mds: 0, ost: u64::MAX });
    // Two are sent again, and get new numbers; then the server is lost.
    for number in [1, 2] {
        let request = log.unreplayed().mds.pop_front().unwrap();
        log.add_mds(number, request);
    }
    // The second start knows the first one of them.
    log.after_restart(Survived { mds: 1, ost: u64::MAX });
    let lost = std::mem::take(log.unreplayed());
    assert_eq!(lost.mds.iter().map(|r| r.frame.head[0]).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn what_a_sync_of_its_object_made_durable_is_not_sent_again() {
    let mut log = log();
    let (synced, other, elsewhere) = (object(0, 7), object(0, 8), object(1, 7));
    for (n, of) in [(1, synced), (2, other), (3, elsewhere), (4, synced)] {
        log.add_ost(n.into(), change(of, vec![n; 10]));
    }
    let mark = log.mark();
    // Answered after the sync was sent: nobody knows whether it includes them. But a smaller
    // number says that it was executed before a change that was answered.
    log.add_ost(6, change(synced, vec![6; 10]));
    log.add_ost(0, change(synced, vec![0; 10]));
    log.wait();
    let mut spares = Vec::new();
    log.synced(synced, mark, &mut |frame| spares.push(frame.head[0]));
    assert_eq!(spares, [0, 1, 4]);
    assert_eq!((log.len(), log.bytes[1], log.waits()), (3, 30, None));
    log.synced(synced, mark, &mut |_| panic!("they have left"));
    // A mark says nothing of transactions that are counted anew.
    log.after_restart(Survived { mds: 0, ost: 0 });
    let lost = std::mem::take(log.unreplayed());
    assert_eq!(first_bytes(&lost), [2, 3, 6]);
    assert_eq!((log.mark(), log.of_objects.len()), (0, 0));
}

#[test]
fn what_others_may_change_is_not_replayed_over_it() {
    let mut log = log();
    let (ours, others) = (object(0, 7), object(1, 8));
    log.add_ost(1, change(ours, vec![1]));
    log.add_ost(2, change(others, vec![2]));
    log.after_restart(Survived { mds: 0, ost: 0 });
    // While it is replayed it counts: its lock is not returned before.
    assert_eq!(log.objects_of(Ino(7)), [ours]);
    assert!(log.note_retry(Some(ours), (64, 1)) && !log.note_retry(Some(others), (64, 2)));
    log.add_ost(1, change(ours, vec![3]));
    log.end_replay();
    let of = |(transaction, change): (_, UncommittedWrite)| (transaction, change.frame.head[0]);
    let abandoned = log.abandon(Ino(7), |_| true).into_iter().map(of);
    assert_eq!(abandoned.collect::<Vec<_>>(), [(None, 1), (Some(1), 3)]);
    assert!(log.abandon(Ino(7), |_| true).is_empty());
    assert!(log.objects_of(Ino(7)).is_empty() && log.bytes == [0; 2]);
    assert_eq!(first_bytes(log.unreplayed()), [2]);
    // The number of a retry does not become that of the next write.
    assert!(!log.note_retry(Some(ours), (64, 3)));
    assert_eq!(log.unreplayed().ost[0].retry, None);
    log.clear();
    assert!(log.unreplayed().ost.is_empty());
}

#[test]
fn a_change_that_is_being_replayed_leaves_only_with_its_answer() {
    let mut log = log();
    let (ours, others) = (object(1, 7), object(1, 8));
    for (n, of) in [(1, ours), (2, ours), (3, others), (4, ours)] {
        log.add_ost(n.into(), change(of, vec![n]));
    }
    log.after_restart(Survived { mds: 0, ost: 0 });
    let first = |change: Option<UncommittedWrite>| change.map(|change| change.frame.head[0]);
    assert!(!log.is_replaying(Ino(7)));
    assert_eq!(first(log.begin_replay()), Some(1));
    assert!(log.is_replaying(Ino(7)) && !log.is_replaying(Ino(8)));
    assert_eq!(log.abandon(Ino(7), |_| true).len(), 2);
    assert_eq!((first_bytes(log.unreplayed()), log.is_replaying(Ino(7))), (vec![1, 3], true));
    // Another connection sends it under the same number, and this one is told that it failed.
    assert_eq!(first(log.begin_replay()), Some(1));
    log.end_replay();
    assert!(!log.is_replaying(Ino(7)));
    assert!(log.note_retry(Some(ours), (64, 1)) && log.is_replaying(Ino(7)));
    log.end_replay();
    assert_eq!(log.abandon(Ino(7), |_| true).len(), 1);
    assert!(!log.note_retry(Some(ours), (64, 2)), "it is not sent any more");
    // A run that has ended makes nothing.
    assert_eq!(first(log.begin_replay()), Some(3));
    log.after_restart(Survived { mds: 0, ost: 0 });
    assert!(!log.is_replaying(Ino(8)));
    assert_eq!(log.abandon(Ino(8), |_| true).len(), 1);
}

#[test]
fn data_that_cannot_be_written_again_is_an_error_once() {
    let mut log = log();
    log.add_ost(1, change(object(0, 7), vec![1]));
    log.after_restart(Survived { mds: 0, ost: 0 });
    let lost = std::mem::take(log.unreplayed());
    log.fail(lost.ost[0].object.1.ino, Errno::ENOSPC);
    assert_eq!(log.take_failure(Ino(8)), None);
    assert_eq!(log.take_failure(Ino(7)), Some(Errno::ENOSPC));
    assert_eq!(log.take_failure(Ino(7)), None);
}

#[test]
fn it_is_full_by_bytes() {
    let mut log = log();
    log.add_ost(1, change(object(0, 7), vec![0; REPLAY_LOG_BYTES_MAX / 2]));
    assert!(log.is_filling() && !log.is_full(Kind::Ost));
    log.add_ost(2, change(object(0, 7), vec![0; REPLAY_LOG_BYTES_MAX / 2]));
    assert!(log.is_full(Kind::Ost) && !log.is_full(Kind::Mds), "each has its own room");
    log.wait();
    assert!(log.waits().is_some());
    log.after_restart(Survived { mds: 0, ost: u64::MAX });
    assert!(log.unreplayed().ost.is_empty());
    assert!(!log.is_filling());
    assert!(log.take_freed() && !log.take_freed(), "who waits is told once");
}
