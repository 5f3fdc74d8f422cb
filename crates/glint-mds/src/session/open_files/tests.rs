//! Tests of [`super`].

use super::*;

#[test]
fn the_last_close_counts() {
    let opens = Opens::new();
    let (a, b) = (ClientId(1), ClientId(2));
    opens.add(a, Ino(5), true);
    opens.add(a, Ino(5), false);
    opens.add(b, Ino(5), false);
    assert!(!opens.remove(a, Ino(5), true, None).writers);
    assert!(!opens.is_writer(a, Ino(5)) && opens.is_open(Ino(5)));
    assert_eq!(opens.forget_client(a), 1);
    assert!(opens.is_open(Ino(5)));
    assert!(opens.unlink(Ino(5)));
    assert!(opens.remove(b, Ino(5), false, None).gone);
    assert!(!opens.is_open(Ino(5)));
}

#[test]
fn a_record_is_believed_until_somebody_writes() {
    let opens = Opens::new();
    let (a, b, ino) = (ClientId(1), ClientId(2), Ino(7));
    opens.first_writer(a, ino, false);
    opens.add(b, ino, true);
    assert!(opens.remove(b, ino, true, None).unchanged);
    opens.add(b, ino, true);
    opens.remove(b, ino, true, Some((1, Some(ObjectAttr::default()))));
    assert!(!opens.remove(a, ino, true, None).unchanged, "b wrote");
    opens.add(a, ino, true);
    assert!(!opens.remove(a, ino, true, None).unchanged, "not known to be the first");
    opens.first_writer(a, ino, false);
    opens.add(b, ino, true);
    opens.forget_client(b);
    assert!(!opens.remove(a, ino, true, None).unchanged, "b may have written");
}

#[test]
fn a_close_that_arrives_late_is_not_believed() {
    let opens = Opens::new();
    let (a, b, ino) = (ClientId(1), ClientId(2), Ino(7));
    let said = |number, size| Some((number, Some(ObjectAttr { size, ..ObjectAttr::default() })));
    let size = |left: AfterClose| left.wrote.map(|wrote| wrote.size);
    // Two closes of one client, the later one first.
    opens.add(a, ino, true);
    opens.add(a, ino, true);
    assert!(opens.remove(a, ino, true, said(2, 20)).writers);
    assert_eq!(size(opens.remove(a, ino, true, said(1, 10))), Some(20));
    // Another client truncates, or writes and closes, in between.
    opens.add(a, ino, true);
    opens.resized(b, ino);
    assert_eq!(size(opens.remove(a, ino, true, said(3, 30))), None);
    opens.add(a, ino, true);
    opens.add(b, ino, true);
    opens.remove(b, ino, true, said(1, 40));
    let left = opens.remove(a, ino, true, said(4, 30));
    assert!(left.doubtful && left.wrote.is_none());
    // The client itself.
    opens.add(a, ino, true);
    opens.resized(a, ino);
    assert_eq!(size(opens.remove(a, ino, true, said(5, 30))), Some(30));
    // Another client sets a time: whoever closes may say an older one.
    let noon = Timestamp { secs: 12 * 3600, nanos: 0 };
    opens.add(a, ino, true);
    opens.add(a, ino, true);
    opens.remove(a, ino, true, said(6, 60));
    opens.dated(a, ino, noon);
    let left = opens.remove(a, ino, true, None);
    assert_eq!(left.wrote.map(|wrote| (wrote.size, wrote.mtime)), Some((60, noon)));
    opens.add(a, ino, true);
    opens.dated(b, ino, noon);
    assert_eq!(size(opens.remove(a, ino, true, said(7, 70))), None);
    // After a restart nobody knows.
    opens.replace(a, ino, Count { writers: 1, ..Count::default() }, false);
    assert_eq!(size(opens.remove(a, ino, true, said(8, 30))), None);
}

#[test]
fn a_file_that_was_replaced_stays_for_a_moment() {
    let opens = Opens::new();
    let (client, ino, now) = (ClientId(1), Ino(7), Instant::now());
    opens.linger(ino, now);
    assert!(opens.unlink(ino), "it stays");
    // Who reached it has it until the close.
    opens.add(client, ino, false);
    assert!(!opens.remove(client, ino, false, None).gone);
    opens.add(client, ino, false);
    assert_eq!(opens.let_go(now + LINGER / 2), 0);
    assert_eq!(opens.let_go(now + LINGER), 0, "it is open");
    assert!(opens.remove(client, ino, false, None).gone);
    opens.linger(ino, now);
    opens.unlink(ino);
    assert_eq!((opens.let_go(now + LINGER), opens.is_open(ino)), (1, false));
    // There is room for so many.
    (0..LINGERING_MAX as u64 + 1).for_each(|ino| opens.linger(Ino(ino), now));
    assert!(!opens.is_open(Ino(LINGERING_MAX as u64)));
}

#[test]
fn clients_number_their_closes_apart() {
    let opens = Opens::new();
    let (a, b, reader, ino) = (ClientId(1), ClientId(2), ClientId(3), Ino(7));
    let said = |number, size| Some((number, Some(ObjectAttr { size, ..ObjectAttr::default() })));
    let size = |left: AfterClose| left.wrote.map(|wrote| wrote.size);
    // What is known of the file stays while somebody has it open.
    opens.add(reader, ino, false);
    opens.first_writer(a, ino, false);
    assert_eq!(size(opens.remove(a, ino, true, said(1_000, 100))), Some(100));
    opens.first_writer(b, ino, false);
    assert_eq!(size(opens.remove(b, ino, true, said(3, 200))), Some(200));
    // Also if the record does not know the size.
    opens.add(a, ino, true);
    assert_eq!(size(opens.remove(a, ino, true, said(1_001, 300))), Some(300));
}

#[test]
fn a_report_that_is_not_believed_is_not_kept_for_others() {
    let (a, b, reader, d, ino) = (ClientId(1), ClientId(2), ClientId(3), ClientId(4), Ino(7));
    let said = |number, size| Some((number, Some(ObjectAttr { size, ..ObjectAttr::default() })));
    // A truncation overtakes the report.
    let opens = Opens::new();
    opens.add(reader, ino, false);
    opens.first_writer(a, ino, false);
    opens.resized(b, ino);
    assert!(opens.remove(a, ino, true, said(1, 100)).wrote.is_none());
    opens.add(d, ino, true);
    let left = opens.remove(d, ino, true, None);
    assert!(left.wrote.is_none() && !left.unchanged);
    // Another report does.
    opens.first_writer(a, ino, false);
    opens.add(b, ino, true);
    opens.remove(b, ino, true, said(1, 200));
    opens.add(d, ino, true);
    opens.remove(a, ino, true, said(2, 100));
    assert!(opens.remove(d, ino, true, None).wrote.is_none());
    // A writer is evicted, who has written after its last report.
    opens.first_writer(a, ino, false);
    assert!(opens.remove(a, ino, true, said(3, 100)).wrote.is_some());
    opens.first_writer(a, ino, false);
    opens.add(d, ino, true);
    opens.forget_client(a);
    assert!(opens.remove(d, ino, true, None).wrote.is_none());
    // What the client itself could not ask for.
    opens.first_writer(a, ino, false);
    opens.add(a, ino, true);
    opens.add(d, ino, true);
    opens.remove(a, ino, true, Some((5, None)));
    opens.remove(a, ino, true, said(4, 100));
    assert!(opens.remove(d, ino, true, None).wrote.is_none());
}

#[test]
fn who_wrote_and_could_not_ask_leaves_nothing_to_believe() {
    let opens = Opens::new();
    let (a, ino) = (ClientId(1), Ino(7));
    opens.first_writer(a, ino, true);
    let left = opens.remove(a, ino, true, Some((1, None)));
    assert!(!left.unchanged && left.wrote.is_none());
    opens.add(a, ino, true);
    opens.add(a, ino, true);
    opens.remove(a, ino, true, Some((3, None)));
    let objects = ObjectAttr { size: 5, ..ObjectAttr::default() };
    assert!(opens.remove(a, ino, true, Some((2, Some(objects)))).wrote.is_none());
}
