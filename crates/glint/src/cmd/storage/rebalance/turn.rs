//! The turn of one command that moves files between OSTs: the server with the MDS gives it to one at
//! a time, on whatever host.

use crate::cmd::storage::order::ask;
use crate::signals::Stop;
use crate::target::Target;
use glint_proto::limits::BALANCE_TURN_MS;
use glint_proto::message::{BalanceStep, BalanceTurn};
use parking_lot::Mutex;
use serde_json::Value;
use std::error::Error;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the server hears of this command, and how long an answer is waited for.
const KEEP: Duration = Duration::from_millis(BALANCE_TURN_MS / 6);
/// Silence of the server after which the command stops: before another one may begin.
const LOST: Duration = Duration::from_millis(BALANCE_TURN_MS / 3 * 2);

/// The turn, until it is dropped.
pub(super) struct Turn {
    target: Target,
    token: u64,
    lost: Arc<Mutex<Option<String>>>,
    keeping: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// Takes a step of the turn. Returns what the server says, or its refusal because another command
/// has the turn; the outer error says that the server did not answer.
fn step(
    target: &Target,
    token: u64,
    step: BalanceStep,
) -> Result<Result<Value, String>, Box<dyn Error>> {
    let answer = ask(target, &BalanceTurn { token, step })?;
    Ok(match answer["refused"].as_str() {
        Some(refused) => Err(refused.to_owned()),
        None => Ok(answer),
    })
}

/// Keeps the turn, if the server answers within this time: a question may wait for longer. `None`
/// if it does not, or cannot be reached.
fn keep_within(target: &Target, token: u64, limit: Duration) -> Option<Result<(), String>> {
    let (target, (said, answer)) = (target.clone(), mpsc::channel());
    let ask = move || {
        if let Ok(answer) = step(&target, token, BalanceStep::Keep) {
            // Nobody may wait for it any more.
            let _ = said.send(answer.map(drop));
        }
    };
    // It ends by itself, some seconds later.
    std::thread::Builder::new().name("turn-ask".into()).spawn(ask).ok()?;
    answer.recv_timeout(limit).ok()
}

impl Turn {
    /// Takes it, and keeps it with a thread. If it is lost, `stop` is asked for: at once if the server
    /// has given it to another command, else when the server was away for long.
    pub(super) fn take(target: &Target, stop: &Stop) -> Result<Turn, Box<dyn Error>> {
        let token = getrandom::u64().map_err(|error| error.to_string())?;
        // The server counts from when it hears, which is later.
        let mut heard = Instant::now();
        step(target, token, BalanceStep::Keep)??;
        let lost = Arc::<Mutex<Option<String>>>::default();
        let (end, ended) = mpsc::channel::<()>();
        let (its, is_lost, stop) = (target.clone(), lost.clone(), stop.clone());
        let keep = move || {
            while ended.recv_timeout(KEEP) == Err(mpsc::RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                let limit = KEEP.min(LOST.saturating_sub(heard.elapsed()));
                let why = match keep_within(&its, token, limit) {
                    Some(Ok(())) => {
                        heard = asked;
                        continue;
                    }
                    Some(Err(refused)) => {
                        format!("the server has given the turn to another command: {refused}")
                    }
                    None if heard.elapsed() < LOST => continue,
                    None => format!(
                        "the server was not heard of for {} s, and may give the turn to another \
                         command",
                        heard.elapsed().as_secs()
                    ),
                };
                *is_lost.lock() = Some(why);
                return stop.ask();
            }
        };
        let thread = std::thread::Builder::new().name("turn".into()).spawn(keep)?;
        Ok(Turn { target: target.clone(), token, lost, keeping: Some((end, thread)) })
    }

    /// How many files have moved whose objects take space still.
    pub(super) fn moved(&self) -> Result<u64, Box<dyn Error>> {
        let answer = step(&self.target, self.token, BalanceStep::Moved)??;
        Ok(answer["moved"].as_u64().ok_or("the server cannot say which files have moved")?)
    }

    /// Why it was lost, if it was.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.lock().clone()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.keeping.take() {
            drop(end);
            // A thread that panicked keeps nothing.
            let _ = thread.join();
        }
        // If it is not heard, the turn ends by itself.
        let _ = step(&self.target, self.token, BalanceStep::End);
    }
}
