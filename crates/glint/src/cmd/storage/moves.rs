//! Files that move to other OSTs while they are used, several at once. The process behind a mount
//! moves each, when the attribute `glint.restripe` of it is set.

mod files_left;

use super::file_handle::ByNumber;
use super::restripe::move_data;
use crate::live;
use crate::signals::Stop;
use crate::target::Target;
use files_left::{FilesLeft, SAY};
use glint_server::human_bytes;
use serde_json::json;
use std::error::Error;
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_millis(200);

/// How many files move at once.
///
/// A small file waits for answers and for stable storage most of the time, so several are moved in
/// the time of one; a large one has eight pieces of 1 MiB under way by itself.
#[derive(clap::Args)]
pub(super) struct AtOnce {
    /// Move so many files at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
}

/// A file to move.
pub(super) struct Move {
    pub(super) ino: u64,
    /// Bytes that move with it.
    pub(super) bytes: u64,
    pub(super) name: String,
    /// Values of the attribute: the next one where there is no place as the one before says.
    pub(super) words: Vec<String>,
    /// The OST that it leaves.
    pub(super) from: u16,
    /// The one that it goes to, where that is known.
    pub(super) to: Option<u16>,
}

/// What was moved.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Moves files through one mount.
pub(super) struct Mover<'a> {
    by_number: ByNumber,
    stop: &'a Stop,
    at_once: usize,
    json: bool,
    begun: Instant,
    files_left: FilesLeft,
    pub(super) moved: Moved,
}

impl<'a> Mover<'a> {
    /// Through the mount `target`.
    pub(super) fn new(
        target: &Target,
        AtOnce { jobs }: &AtOnce,
        json: bool,
        stop: &'a Stop,
    ) -> Result<Mover<'a>, Box<dyn Error>> {
        let Target::Mount(mount) = target else {
            return Err(
                "files are moved through a mount: name a mount point of the file system on \
                        this host"
                    .into(),
            );
        };
        let by_number = ByNumber::new(mount);
        Ok(Mover {
            by_number: by_number.map_err(|error| format!("{}: {error}", mount.display()))?,
            stop,
            at_once: usize::from(*jobs),
            json,
            begun: Instant::now(),
            files_left: FilesLeft::new(target.clone()),
            moved: Moved::default(),
        })
    }

    /// Moves files once, those first that come first. Returns those that stay, each with the reason.
    pub(super) fn pass<'m>(&mut self, moves: &'m [Move]) -> Vec<(&'m Move, String)> {
        let is_shown = !self.json && std::io::stderr().is_terminal();
        let mut shown = Instant::now();
        let (mut left, mut ended) = (Vec::new(), 0);
        self.files_left.begin(moves);
        let (by_number, stop, next) = (&self.by_number, self.stop, &AtomicUsize::new(0));
        let (done, results) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..self.at_once.min(moves.len()) {
                let done = done.clone();
                scope.spawn(move || {
                    while !stop.is_asked() {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        let Some(one) = moves.get(n) else { break };
                        if done.send((one, move_one(by_number, one, stop))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(done);
            loop {
                self.files_left.say_in_time();
                let (one, result) = match results.recv_timeout(SAY) {
                    Ok(moved) => moved,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                ended += 1;
                if self.json {
                    crate::say!("{}", row(one, &result));
                }
                match result {
                    Ok(()) => {
                        self.moved.files += 1;
                        self.moved.bytes += one.bytes;
                        self.files_left.on_moved(one);
                    }
                    Err(error) => left.push((one, error)),
                }
                if is_shown && shown.elapsed() >= REDRAW {
                    shown = Instant::now();
                    live::show(&progress(&self.moved, moves.len() - ended, self.begun.elapsed()));
                }
            }
        });
        if is_shown {
            live::show("\r\x1b[J");
        }
        self.files_left.say();
        left
    }
}

/// Moves a file.
fn move_one(by_number: &ByNumber, file: &Move, stop: &Stop) -> Result<(), String> {
    let fd = match by_number.open(file.ino) {
        Ok(fd) => fd,
        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
            return Err("it was removed meanwhile".into());
        }
        Err(error) => return Err(error.to_string()),
    };
    // Where it is now, whatever happens to its names.
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if path.metadata().is_ok_and(|metadata| metadata.nlink() == 0) {
        return Err("it is removed, and goes when it is closed".into());
    }
    move_data(&path, &file.words, stop)
}

fn row(file: &Move, result: &Result<(), String>) -> serde_json::Value {
    let (error, is_moved) = (result.as_ref().err(), result.is_ok());
    let mut row = json!({ "ino": file.ino, "path": file.name, "moved": is_moved, "error": error });
    if let Some(to) = file.to {
        row["from"] = json!(file.from);
        row["to"] = json!(to);
        row["bytes"] = json!(file.bytes);
    }
    row
}

fn progress(moved: &Moved, left: usize, took: Duration) -> String {
    let Moved { files, bytes } = moved;
    let seconds = took.as_secs_f64().max(0.001);
    let rate = human_bytes((*bytes as f64 / seconds) as u64);
    let more = (left as f64 * seconds / (*files).max(1) as f64).ceil();
    let bytes = human_bytes(*bytes);
    format!("\r\x1b[J{files} files with {bytes} moved at {rate}/s, {left} left, {more} s")
}
