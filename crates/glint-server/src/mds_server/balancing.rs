//! Commands that move files from fuller to emptier OSTs: one at a time, as each plans for itself and
//! would move what the other has counted already.

use super::MdsServer;
use glint_kv::Kv;
use glint_ost::disk::Disk;
use glint_proto::clock;
use glint_proto::limits::BALANCE_TURN_MS;
use glint_proto::message::{BalanceStep, BalanceTurn};
use serde_json::json;
use std::time::{Duration, Instant};

/// Silence after which a command does not count any more.
const SILENT: Duration = Duration::from_millis(BALANCE_TURN_MS);

/// The command that moves files between OSTs, and when it was heard of last.
#[derive(Default)]
pub(super) struct Turn(Option<(u64, Instant)>);

impl Turn {
    /// Gives it to a command. Returns how long the command that has it was not heard of, if that is
    /// another one.
    fn take(&mut self, token: u64, now: Instant) -> Result<(), Duration> {
        if let Some((other, heard)) = self.0.filter(|(other, _)| *other != token) {
            let silence = now.saturating_duration_since(heard);
            if silence < SILENT {
                return Err(silence);
            }
            tracing::warn!(token = other, "a command that moved files between OSTs has gone");
        }
        self.0 = Some((token, now));
        Ok(())
    }

    fn is_taken(&self, now: Instant) -> bool {
        self.0.is_some_and(|(_, heard)| now.saturating_duration_since(heard) < SILENT)
    }

    fn end(&mut self, token: u64) {
        self.0.take_if(|(of, _)| *of == token);
    }
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Whether a command moves files from fuller to emptier OSTs.
    pub(crate) fn is_balancing(&self) -> bool {
        self.turn.lock().is_taken(clock::now())
    }

    pub(super) async fn take_turn(
        &self,
        BalanceTurn { token, step }: BalanceTurn,
    ) -> Result<String, String> {
        if step == BalanceStep::End {
            self.turn.lock().end(token);
            return Ok(json!({}).to_string());
        }
        if let Err(silence) = self.turn.lock().take(token, clock::now()) {
            let refused = format!(
                "another `glint ost rebalance` moves files of this file system (heard of {} s ago): \
                 wait until it has ended, or end it with Ctrl-C; one that was killed counts for {} s",
                silence.as_secs(),
                SILENT.as_secs()
            );
            return Ok(json!({ "refused": refused }).to_string());
        }
        if step == BalanceStep::Keep {
            return Ok(json!({}).to_string());
        }
        let moved = self.mds.moved_and_kept().await.map_err(|errno| errno.to_string())?;
        Ok(json!({ "moved": moved }).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_has_the_turn_until_it_ends_or_is_silent() {
        let (mut turn, start) = (Turn::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert!(!turn.is_taken(start));
        assert_eq!(turn.take(1, start), Ok(()));
        assert!(turn.is_taken(start + second) && !turn.is_taken(start + SILENT));
        assert_eq!(turn.take(2, start + second), Err(second));
        assert_eq!(turn.take(1, start + 2 * second), Ok(()));
        turn.end(2);
        assert_eq!(turn.take(2, start + 3 * second), Err(second), "another one's end is not its");
        turn.end(1);
        assert_eq!(turn.take(2, start + 3 * second), Ok(()));
        let later = start + 3 * second + SILENT;
        assert_eq!(turn.take(3, later), Ok(()), "the second was killed");
        assert_eq!(turn.take(2, later), Err(Duration::ZERO), "and has lost its turn");
    }
}
