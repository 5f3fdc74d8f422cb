//! Files that are moved to other objects while workers write, read, truncate and remove them, as
//! `glint restripe` does: to other OSTs or chains, to more or fewer of them, to one copy and back.
//! Amid that, or just after the switch, the client that moves one dies or is cut off, the MDS is
//! started again, or power is lost.
//!
//! Where clients keep locks any of them moves any file, also those that all read and change. Where
//! they do not, each moves its own: nobody tells others then where data lies.
//!
//! Invariants:
//! - A move may be refused, but it ends.
//! - Whoever reads finds what was written last, wherever it was when that was opened. Only what was
//!   not durable of a file that another client moves may be lost if a server is out of reach
//!   meanwhile (docs/contract.md).
//! - Objects that a file does not have any more are destroyed in the end.

use crate::fate::{FATES, WATCH};
use crate::scenario::{Member, Run};
use crate::workload::Worker;
use crate::world::executor::{Executor, NOWHERE};
use crate::world::hosts::{LEASE, MDS};
use glint_client::{Caller, Vfs};
use glint_proto::{Errno, Ino, XattrFlags};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Moves in a run, at most, and fates for one of them.
const MOVES: u64 = 8;
const FATES_TO_A_MOVE: u64 = 4;
/// Stripes that a file gets, at most.
const STRIPES: u64 = 2;
/// How soon something goes wrong once a move has begun: before so many microseconds, most of it
/// much earlier.
const HARM_US_LOG2_MIN: u64 = 8;
const HARM_US_LOG2_MAX: u64 = 18;
/// How long the end of a move is waited for, if something is to go wrong just after it, and how
/// soon after it that does.
const SWITCHED: Duration = Duration::from_secs(1);
const JUST_AFTER: Duration = Duration::from_millis(1);
/// How long a move takes, at most, once nothing goes wrong any more.
const MOVE_MAX: Duration = Duration::from_secs(60);

/// Moves of files in a run.
pub(crate) struct Moves {
    left: Cell<u64>,
    all: RefCell<Vec<Rc<FileMove>>>,
    /// A file may have one copy where others have more.
    took_copies: Cell<bool>,
}

/// A file that a client moves, or has moved.
struct FileMove {
    mover: Rc<Member>,
    ino: Ino,
    /// The worker whose file it is, if that is at another client.
    owner: Option<Rc<Worker>>,
    ended: Cell<Option<Duration>>,
}

/// Notes the end of a move when it is dropped: also if the mover dies.
struct MoveGuard(Rc<Executor>, Rc<FileMove>);

impl Drop for MoveGuard {
    fn drop(&mut self) {
        self.1.ended.set(Some(self.0.now()));
    }
}

/// Whether a move may be refused like this: the file is used or was removed, there is no place for
/// what is asked for, disks fail, or a server was out of reach for a lease.
fn may_be_refused(errno: Errno) -> bool {
    let is_used = matches!(errno, Errno::EAGAIN | Errno::EBUSY | Errno::ENOENT | Errno::ESTALE);
    let has_no_place = matches!(errno, Errno::EINVAL | Errno::ENOSPC);
    is_used || has_no_place || matches!(errno, Errno::EIO | Errno::EMFILE | Errno::ETIMEDOUT)
}

impl Moves {
    /// Some moves, in every second run.
    pub(crate) fn new(executor: &Executor) -> Moves {
        let count = if executor.one_in(2) { 1 + executor.below(MOVES) } else { 0 };
        Moves { left: Cell::new(count), all: RefCell::default(), took_copies: Cell::default() }
    }

    /// Whether something would be lost with one OST.
    pub(crate) fn took_copies(&self) -> bool {
        self.took_copies.get()
    }
}

impl Run {
    /// A client begins to move a file, perhaps.
    pub(crate) async fn move_something(self: &Rc<Self>) {
        if self.moves.left.get() == 0 || !self.executor.one_in(FATES_TO_A_MOVE) {
            return;
        }
        let Some(one) = self.a_move() else { return };
        self.moves.left.set(self.moves.left.get() - 1);
        self.begin_move(&one);
        if self.harms_left.get() > 0 && self.executor.one_in(2) {
            self.harms_left.set(self.harms_left.get() - 1);
            self.harm(&one).await;
        }
    }

    /// A client that lives, and a file that it may move.
    fn a_move(&self) -> Option<Rc<FileMove>> {
        let members = self.members.borrow();
        let alive: Vec<&Rc<Member>> = members.iter().filter(|m| !m.dead.get()).collect();
        let mover = Rc::clone(self.executor.one_of(&alive)?);
        let (ino, owner) = match self.locks && self.executor.one_in(3) {
            true => (self.a_shared_file(&mover)?, None),
            false => {
                let all = self.workers.borrow();
                let workers: Vec<&Rc<Worker>> = match self.locks {
                    true => all.iter().filter(|worker| !worker.dead.get()).collect(),
                    false => mover.workers.iter().collect(),
                };
                let worker = Rc::clone(self.executor.one_of(&workers)?);
                let model = worker.model.borrow();
                let files = model.inodes.iter().filter(|(_, inode)| !inode.is_dir);
                let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
                let ino = *self.executor.one_of(&files)?;
                let is_own = mover.workers.iter().any(|own| Rc::ptr_eq(own, &worker));
                (ino, (!is_own).then(|| Rc::clone(&worker)))
            }
        };
        Some(Rc::new(FileMove { mover, ino, owner, ended: Cell::default() }))
    }

    /// A file that all clients read and change.
    fn a_shared_file(&self, mover: &Member) -> Option<Ino> {
        let contested = self.contested.borrow();
        let mut files: Vec<Ino> = contested.iter().map(|contested| contested.ino()).collect();
        let tree = mover.workers.first().and_then(|worker| worker.tree.as_ref());
        if let Some(tree) = tree.filter(|_| !self.executor.one_in(3)) {
            files = tree.inos();
        }
        self.executor.one_of(&files).copied()
    }

    /// Where a file is moved, in the words of `glint restripe` to its mount.
    fn a_layout(&self) -> String {
        let mut words = Vec::new();
        if self.executor.one_in(2) {
            words.push(format!("avoid={}", self.executor.below(self.hosts.osts().into())));
        }
        if self.executor.one_in(3) {
            words.push(format!("stripe_count={}", 1 + self.executor.below(STRIPES)));
        }
        // A disk that fails would take the only copy with it.
        if self.layout.replicas > 1 && self.fates < FATES && self.executor.one_in(2) {
            let takes_copies = self.executor.one_in(2);
            if takes_copies {
                self.moves.took_copies.set(true);
            }
            words.push(format!("replicas={}", if takes_copies { 1 } else { self.layout.replicas }));
        }
        words.join(" ")
    }

    fn begin_move(self: &Rc<Self>, one: &Rc<FileMove>) {
        let layout = self.a_layout();
        tracing::debug!(
            ino = %one.ino, mover = ?one.mover.machine, layout, at = ?self.executor.now(),
            "a file is moved"
        );
        // Nobody can say from now on where it lies.
        for worker in &*self.workers.borrow() {
            worker.layouts.borrow_mut().remove(&one.ino);
        }
        if self.contested.borrow().as_ref().is_some_and(|contested| contested.had_outage()) {
            self.doubt(one);
        }
        self.moves.all.borrow_mut().push(one.clone());
        let (run, guard) = (self.clone(), MoveGuard(self.executor.clone(), one.clone()));
        self.executor.spawn_on(one.mover.machine, async move {
            let MoveGuard(_, one) = &guard;
            let (name, how) = (b"glint.restripe", XattrFlags::default());
            let fs = &one.mover.fs;
            let moved = fs.setxattr(&Caller::ROOT, one.ino, name, layout.as_bytes(), how).await;
            tracing::debug!(ino = %one.ino, ?moved, at = ?run.executor.now(), "its move ends");
            match moved {
                Ok(()) => run.count(|outcome| outcome.moved += 1),
                Err(errno) if one.mover.dead.get() || may_be_refused(errno) => {}
                Err(errno) => run.fail(format!("moving {}: {errno}", one.ino)),
            }
        });
    }

    /// Something goes wrong while a file is moved, or just after that.
    async fn harm(self: &Rc<Self>, one: &FileMove) {
        let is_after = self.executor.one_in(3);
        let log2 = HARM_US_LOG2_MIN + self.executor.below(HARM_US_LOG2_MAX - HARM_US_LOG2_MIN);
        let (time, pause) = match is_after {
            true => (SWITCHED, JUST_AFTER),
            false => (Duration::from_micros(self.executor.below(1 << log2)), WATCH),
        };
        let until = self.executor.now() + time;
        while self.executor.now() < until && !(is_after && one.ended.get().is_some()) {
            let left = until.saturating_sub(self.executor.now());
            self.executor.sleep(left.min(pause)).await;
            self.end_what_failed().await;
        }
        let alive = self.members.borrow().iter().filter(|member| !member.dead.get()).count();
        let may_die = alive > 1 && !one.mover.dead.get();
        match self.executor.below(8) {
            0 if may_die => self.kill(&one.mover),
            1 if may_die && !self.cutting_off.get() => {
                let (run, mover) = (self.clone(), one.mover.clone());
                self.executor.spawn_on(NOWHERE, async move {
                    if !run.is_over.get() && !mover.dead.get() {
                        run.cut_off(&mover).await;
                    }
                });
            }
            2 | 3 => self.restart(MDS, false).await,
            4 | 5 => self.restart(MDS, true).await,
            6 => {
                for host in 0..self.hosts.count() {
                    self.restart(host, true).await;
                }
            }
            _ => self.restart(self.a_host(), is_after).await,
        }
    }

    /// A server is out of reach, or a client that moves a file is cut off: others may give up what
    /// they had not made durable of such a file.
    pub(crate) fn doubt_moves(&self) {
        let now = self.executor.now();
        let is_recent =
            |one: &&Rc<FileMove>| one.ended.get().is_none_or(|ended| now < ended + LEASE);
        self.moves.all.borrow().iter().filter(is_recent).for_each(|one| self.doubt(one));
    }

    /// Another client may lose what it has written last to a file that is moved, and be told so.
    fn doubt(&self, one: &FileMove) {
        if let Some(owner) = &one.owner {
            owner.model.borrow_mut().is_lost(one.ino);
            self.troubles.broken.borrow_mut().insert(one.ino);
        }
    }

    /// Waits for the moves of clients that live, once nothing goes wrong any more.
    pub(crate) async fn end_moves(&self) -> Result<(), String> {
        let until = self.executor.now() + MOVE_MAX;
        let is_under_way = |one: &Rc<FileMove>| one.ended.get().is_none() && !one.mover.dead.get();
        while self.moves.all.borrow().iter().any(is_under_way) {
            if self.executor.now() > until {
                return Err("a file is moved, and that does not end".into());
            }
            self.executor.sleep(WATCH).await;
            self.end_what_failed().await;
        }
        self.failure.take().map_or(Ok(()), Err)
    }
}
