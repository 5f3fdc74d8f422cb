//! Scrubbing: what the disk gives is compared with its checksums, one object after the other, so
//! that damage is found while somebody still has a copy.
//!
//! Invariants:
//! - Damage is told only of bytes that nobody was changing. The checksums of an object are off
//!   before its first byte changes (`object.rs`), so a mismatch counts only if the same checksums
//!   are still there after it, in two readings (`pass.rs`).
//! - Pages in memory do not count, and none stay behind: bytes come from the disk where it can be
//!   told so ([`Disk::open_uncached`]).
//! - Nobody waits for it: no lock of an object is taken, and no open file of the store, but to note
//!   damage that was found (`object/noted.rs`).
//! - A pass ends: it looks into each directory once, and goes on behind what it cannot read.
//! - Damage that was found is forgotten only when a later look at its object finds none, when the
//!   object is gone, or at the end of a pass from the first directory to the last in which it did
//!   not appear. Of an object that is being changed, the look is at what is known of its blocks.
//! - What is kept and logged of a pass is bounded, however much is damaged; all of it is counted.

mod pass;
#[cfg(test)]
mod tests;

use crate::disk::Disk;
use crate::store::checksum::Sums;
use crate::store::object_store::{ObjectStore, path_of};
use crate::store::passing::Passing;
use glint_proto::limits::{SCRUB_DAMAGE_KEPT_MAX, SCRUB_LOG_LINES_MAX};
use glint_proto::{ObjectId, Timestamp};
use glint_telemetry::event;
use parking_lot::Mutex;
use pass::{Outcome, Pass, Verdict};
use std::collections::BTreeMap;
use std::path::Path;

/// An object that does not match its checksums, or that the disk does not give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Damaged object.
    pub object: ObjectId,
    /// Reason to call it damaged.
    pub reason: String,
    /// Number of the last pass that found it so.
    pub pass: u64,
}

/// How far the scrubbing of an OST is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScrubReport {
    /// A pass is under way.
    pub is_running: bool,
    /// The part of it that is done, from 0 to 1.
    pub done: f64,
    /// Objects and bytes that were compared in this pass or, between two, in the last one.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
    /// Objects of it that have no checksums, because they changed lately.
    pub unsealed: u64,
    /// Objects of it, and whole directories, that could not be read for reasons that are no damage.
    pub not_compared: u64,
    /// Damaged objects, in this pass or the one before.
    pub damaged: u64,
    /// Of them, [`SCRUB_DAMAGE_KEPT_MAX`] at most.
    pub damage: Vec<Damage>,
    /// End of the last pass.
    pub finished: Option<Timestamp>,
}

/// Result of one step of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubStep {
    /// There is no pass.
    Idle,
    /// Bytes read in this step.
    Read(u64),
    /// The pass has ended.
    Ended,
}

/// The scrubbing of a store.
#[derive(Default)]
pub(crate) struct Scrubber {
    pass: Mutex<Option<Pass>>,
    /// Apart from the pass, because a step of that may wait for the disk.
    progress: Mutex<Progress>,
}

/// How far it is.
#[derive(Default)]
struct Progress {
    /// Without damage.
    report: ScrubReport,
    /// Number of the pass.
    pass: u64,
    /// Damaged objects.
    found: BTreeMap<ObjectId, FoundDamage>,
    /// Number of damaged objects for which `found` had no room, in this pass and the one before.
    more: u64,
    more_before: u64,
    /// Lines of the log that this pass wanted.
    lines: u64,
}

/// What is known of a damaged object.
struct FoundDamage {
    /// Number of the last pass that found it so.
    pass: u64,
    /// Number of the last pass that came to it: this one or, if that is still to come, the one
    /// before.
    seen: u64,
    /// The damage is in a block, and noted there.
    is_noted: bool,
    reason: String,
}

impl Progress {
    /// Counts a line of the log. Returns whether it is written.
    fn logs(&mut self, path: &Path) -> bool {
        self.lines += 1;
        if self.lines == SCRUB_LOG_LINES_MAX + 1 {
            tracing::error!(path = %path.display(),
                "more is damaged or cannot be compared; `glint scrub --status` counts it");
        }
        self.lines <= SCRUB_LOG_LINES_MAX
    }

    /// Remembers an object that is damaged. `path` names the OST.
    fn note_damage(&mut self, object: ObjectId, reason: String, is_noted: bool, path: &Path) {
        let is_known = self.found.contains_key(&object);
        if !is_known && self.logs(path) {
            let path = path.join("objects").join(path_of(object));
            tracing::error!(event = event::OBJECT_DAMAGED,
                path = %path.display(), ino = object.ino.0, reason,
                "an object is damaged; restore its file from a copy");
        }
        if is_known || self.found.len() < SCRUB_DAMAGE_KEPT_MAX {
            let found = FoundDamage { pass: self.pass, seen: self.pass, is_noted, reason };
            self.found.insert(object, found);
        } else {
            self.more += 1;
        }
    }

    /// Counts something in the OST `path` that could not be compared.
    fn note_not_compared(&mut self, name: &str, reason: &str, path: &Path) {
        self.report.not_compared += 1;
        if self.logs(path) {
            let path = path.join("objects").join(name);
            tracing::warn!(
                event = event::NOT_COMPARED, path = %path.display(), reason,
                "not compared with its checksums"
            );
        }
    }

    /// Takes up what became of an object: if that is damage, whether it `is_noted` in a block, and
    /// if it could not be compared while it changes, whether what was found before `stays`.
    fn note(
        &mut self,
        object: ObjectId,
        verdict: Verdict,
        (is_noted, stays): (bool, bool),
        path: &Path,
    ) {
        let stays = match verdict {
            Verdict::More => return,
            Verdict::Damaged(reason) => {
                self.report.objects += 1;
                return self.note_damage(object, reason, is_noted, path);
            }
            Verdict::NotCompared(reason) => {
                self.note_not_compared(&path_of(object), &reason, path);
                true
            }
            Verdict::Right => {
                self.report.objects += 1;
                false
            }
            Verdict::Unsealed => {
                self.report.unsealed += 1;
                stays
            }
            Verdict::Changing => stays,
            Verdict::Gone => false,
        };
        if !stays {
            self.found.remove(&object);
        } else if let Some(found) = self.found.get_mut(&object) {
            found.seen = self.pass;
        }
    }

    /// Ends the pass.
    fn end(&mut self, pass: &Pass, path: &Path) {
        // Of other numbers, the objects are gone, but in directories that nobody saw.
        self.found.retain(|object, found| found.seen == pass.number || !pass.lists(*object));
        self.more_before = 0;
        let report = &mut self.report;
        (report.is_running, report.done) = (false, 1.0);
        report.finished = Some(Timestamp::now());
        if report.not_compared > 0 {
            tracing::warn!(path = %path.display(), count = report.not_compared,
                "some objects or directories could not be compared with their checksums");
        }
    }
}

impl Scrubber {
    /// Begins a pass, unless one is under way.
    pub(crate) fn begin(&self) {
        let mut progress = self.progress.lock();
        if !progress.report.is_running {
            progress.pass += 1;
            progress.more_before = progress.more_before.max(progress.more);
            (progress.more, progress.lines) = (0, 0);
            let finished = progress.report.finished;
            progress.report = ScrubReport { is_running: true, finished, ..ScrubReport::default() };
        }
    }

    /// Ends the pass that is under way; the next one begins from the start.
    pub(crate) fn stop(&self) {
        self.progress.lock().report.is_running = false;
    }

    /// How far it is.
    pub(crate) fn report(&self) -> ScrubReport {
        let progress = self.progress.lock();
        let told = |(object, found): (&ObjectId, &FoundDamage)| Damage {
            object: *object,
            reason: found.reason.clone(),
            pass: found.pass,
        };
        ScrubReport {
            damaged: progress.found.len() as u64 + progress.more.max(progress.more_before),
            damage: progress.found.iter().map(told).collect(),
            ..progress.report.clone()
        }
    }

    /// Goes on with the pass that is under way, by a chunk of an object at most. `path` names the
    /// OST. A block that is damaged is told to `note`; `is_damaged` knows it of objects that are
    /// being changed.
    pub(crate) fn step(
        &self,
        disk: &impl Disk,
        passing: &Passing,
        path: &Path,
        note: impl Fn(ObjectId, &Sums, usize),
        is_damaged: impl Fn(ObjectId) -> bool,
    ) -> ScrubStep {
        let mut held = self.pass.lock();
        let number = {
            let progress = self.progress.lock();
            progress.report.is_running.then_some(progress.pass)
        };
        let Some(number) = number else {
            *held = None;
            return ScrubStep::Idle;
        };
        // A pass of another number was stopped.
        let mut pass =
            held.take().filter(|pass| pass.number == number).unwrap_or_else(|| Pass::new(number));
        let outcome = pass.step(disk, passing);
        // Without the progress: both may wait for the disk.
        let stays = match &outcome {
            Outcome::Object { object, wrong: Some(wrong), .. } => {
                note(*object, &wrong.sums, wrong.index);
                true
            }
            Outcome::Object { object, verdict: Verdict::Unsealed | Verdict::Changing, .. } => {
                let found = self.progress.lock().found.get(object).map(|found| found.is_noted);
                found.is_some_and(|is_noted| !is_noted || is_damaged(*object))
            }
            Outcome::Object { .. } | Outcome::Unlisted(..) | Outcome::End => false,
        };
        let mut progress = self.progress.lock();
        if progress.pass != number {
            // The pass was stopped, and a new one begun, which looks at everything.
            return ScrubStep::Read(0);
        }
        let bytes = match outcome {
            Outcome::End if progress.report.is_running => {
                progress.end(&pass, path);
                return ScrubStep::Ended;
            }
            Outcome::End => return ScrubStep::Idle,
            Outcome::Unlisted(name, error) => {
                progress.note_not_compared(&name, &error.to_string(), path);
                0
            }
            Outcome::Object { object, bytes, verdict, wrong } => {
                progress.note(object, verdict, (wrong.is_some(), stays), path);
                bytes
            }
        };
        progress.report.done = pass.done();
        progress.report.bytes += bytes;
        *held = Some(pass);
        ScrubStep::Read(bytes)
    }
}

impl<D: Disk> ObjectStore<D> {
    /// Whether blocks of an object are known to be damaged, or that is not known.
    pub(super) fn has_damage(&self, object: ObjectId) -> bool {
        let file = self.file(object, None);
        file.and_then(|file| file.map_or(Ok(false), |file| file.has_damage())).unwrap_or(true)
    }

    /// Has it known to who opens the object, or has it open, that a block is damaged. Who cannot be
    /// told finds it anew.
    pub(super) fn note_scrubbed(&self, object: ObjectId, compared: &Sums, index: usize) {
        let file = self.file(object, None);
        let noted = file.and_then(|file| match file {
            Some(file) => file.note_scrubbed(compared, index),
            None => Ok(()),
        });
        if let Err(error) = noted {
            tracing::warn!(%error, %object, "could not note that an object is damaged");
        }
    }
}
