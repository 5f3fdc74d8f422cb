//! The wait list and turns, one step at a time, and with threads that run as they like.

use crate::{Turns, WaitList};
use futures_lite::future::block_on;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn times(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn one_that_is_polled_again_and_again_is_entered_once_for_each_wake() {
    let list = WaitList::default();
    let mut waits = Box::pin(list.until(|| None::<()>));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        (0..100).for_each(|_| assert!(waits.as_mut().poll(&mut context).is_pending()));
        assert_eq!(list.len(), 1);
        list.wake();
        assert_eq!(list.len(), 0);
    }
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert_eq!(list.len(), 1);
    drop(waits);
    assert_eq!(list.len(), 0, "dropped");
}

#[test]
fn the_last_waker_of_a_task_is_woken() {
    let list = WaitList::default();
    let mut waits = pin!(list.until(|| None::<()>));
    let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    for woken in [&first, &second] {
        let waker = Waker::from(woken.clone());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    list.wake();
    assert_eq!((first.times(), second.times()), (0, 1));
}

#[test]
fn those_of_a_key_are_woken() {
    let list = WaitList::default();
    let woken: [Arc<Woken>; 3] = Default::default();
    let mut tasks: Vec<_> =
        (0..3).map(|key| Box::pin(list.until_with(key, || None::<()>))).collect();
    for (task, woken) in tasks.iter_mut().zip(&woken) {
        let waker = Waker::from(woken.clone());
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    list.wake_where(|key| *key > 5);
    list.wake_where(|key| *key != 1);
    assert_eq!([1, 0, 1], [0, 1, 2].map(|at: usize| woken[at].times()));
    assert_eq!(list.len(), 1);
}

#[test]
fn each_takes_in_its_turn() {
    let (turns, free) = (Turns::default(), AtomicU32::new(0));
    let take = || (free.load(Ordering::Relaxed) > 0).then(|| free.fetch_sub(1, Ordering::Relaxed));
    let give = || {
        free.fetch_add(1, Ordering::Relaxed);
        turns.call(&0);
    };
    let woken: [Arc<Woken>; 4] = Default::default();
    let wakers = woken.clone().map(Waker::from);
    let times = || [0, 1, 2, 3].map(|at: usize| woken[at].times());
    let mut tasks: Vec<_> = (0..3).map(|_| Box::pin(turns.take(0, take))).collect();
    for (task, waker) in tasks.iter_mut().zip(&wakers) {
        assert!(task.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    give();
    assert_eq!(times(), [1, 0, 0, 0]);
    // The first has not looked yet. Neither one who comes now is faster, nor one who waits longer.
    let mut late = Box::pin(turns.take(0, take));
    assert!(late.as_mut().poll(&mut Context::from_waker(&wakers[3])).is_pending());
    assert!(tasks[1].as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
    assert!(pin!(turns.take(1, || Some(()))).poll(&mut Context::from_waker(&wakers[3])).is_ready());
    // The first is dropped before it looks.
    drop(tasks.remove(0));
    assert_eq!(times(), [1, 1, 0, 0]);
    assert!(tasks.remove(0).as_mut().poll(&mut Context::from_waker(&wakers[1])).is_ready());
    assert_eq!(times(), [1, 1, 1, 0], "who has taken calls the next");
    give();
    assert!(tasks.remove(0).as_mut().poll(&mut Context::from_waker(&wakers[2])).is_ready());
    assert_eq!(times(), [1, 1, 1, 1]);
    assert!(late.as_mut().poll(&mut Context::from_waker(&wakers[3])).is_pending());
    assert!(turns.is_awaited(|key| *key == 0) && !turns.is_awaited(|key| *key == 1));
    drop(late);
    assert!(turns.is_empty());
}

#[test]
fn no_wake_is_missed_between_threads() {
    let (list, count) = (Arc::new(WaitList::default()), Arc::new(AtomicU32::new(0)));
    let counting = {
        let (list, count) = (list.clone(), count.clone());
        std::thread::spawn(move || {
            for _ in 0..1000 {
                count.fetch_add(1, Ordering::Relaxed);
                list.wake();
                std::thread::yield_now();
            }
        })
    };
    for n in 1..=1000 {
        let seen = || (count.load(Ordering::Relaxed) >= n).then_some(());
        block_on(list.until(seen));
    }
    counting.join().unwrap();
}
