//! The turn of one command that moves files between OSTs: the server with the MDS gives it to one at
//! a time, on whatever host.

use crate::cmd::storage::order::ask;
use crate::signals::Stop;
use crate::target::Target;
use glint_proto::limits::BALANCE_TURN_MS;
use glint_proto::message::{BalanceStep, BalanceTurn};
use parking_lot::Mutex;
use std::error::Error;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the server hears of this command, and after which silence another one may begin.
const KEEP: Duration = Duration::from_millis(BALANCE_TURN_MS / 3);
const LOST: Duration = Duration::from_millis(BALANCE_TURN_MS);

/// The turn, until it is dropped.
pub(super) struct Turn {
    target: Target,
    token: u64,
    lost: Arc<Mutex<Option<String>>>,
    keeping: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Turn {
    /// Takes it, and keeps it with a thread. If it is lost, because the server was away for long and
    /// has given it to another command, `stop` is asked for.
    pub(super) fn take(target: &Target, stop: &Stop) -> Result<Turn, Box<dyn Error>> {
        let token = getrandom::u64().map_err(|error| error.to_string())?;
        ask(target, &BalanceTurn { token, step: BalanceStep::Keep })?;
        let lost = Arc::<Mutex<Option<String>>>::default();
        let (end, ended) = mpsc::channel::<()>();
        let (its, is_lost, stop) = (target.clone(), lost.clone(), stop.clone());
        let keep = move || {
            let mut heard = Instant::now();
            while ended.recv_timeout(KEEP) == Err(mpsc::RecvTimeoutError::Timeout) {
                match ask(&its, &BalanceTurn { token, step: BalanceStep::Keep }) {
                    Ok(_) => heard = Instant::now(),
                    Err(error) if heard.elapsed() >= LOST => {
                        *is_lost.lock() = Some(error.to_string());
                        return stop.ask();
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("turn".into()).spawn(keep)?;
        Ok(Turn { target: target.clone(), token, lost, keeping: Some((end, thread)) })
    }

    /// How many files have moved whose objects take space still.
    pub(super) fn moved(&self) -> Result<u64, Box<dyn Error>> {
        let answer =
            ask(&self.target, &BalanceTurn { token: self.token, step: BalanceStep::Moved })?;
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
        let _ = ask(&self.target, &BalanceTurn { token: self.token, step: BalanceStep::End });
    }
}
