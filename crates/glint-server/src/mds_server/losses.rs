//! OSTs that do not exist any more: what is lost with one, said before it is given up, and that.
//!
//! Invariants:
//! - An OST that is heard of is not given up. It may serve, and nobody waits for it longer than for a
//!   start of its server.
//! - Nor is one that may acknowledge changes which would be lost with it: a head that is cut off and was
//!   the last that served asks nobody, and executes requests of clients for half a lease.

use super::MdsServer;
use glint_kv::Kv;
use glint_mds::{ChainLoss, GiveUpError, LosesData, Loss, Losses, NamedFile};
use glint_ost::disk::Disk;
use glint_proto::limits::MEMBER_LOST_MS;
use glint_proto::{Errno, Ino};
use serde_json::{Value, json};
use std::time::Duration;

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// How long an OST was not heard of; an error if there is none of this number.
    fn silence_of(&self, ost: u16) -> Result<Duration, String> {
        if ost < self.osts.count() {
            return Ok(Duration::ZERO);
        }
        let servers = self.osses.unheard();
        let its = servers.into_iter().find(|(osts, _)| osts.contains(&ost));
        its.map(|(_, silence)| silence)
            .ok_or_else(|| format!("there is no OST {ost}; `glint ost list` shows which there are"))
    }

    /// Loss if an OST is given up: chains, and a page of files from an inode number on.
    pub(super) async fn preview_loss(&self, ost: u16, from: Ino) -> Result<String, String> {
        let silence = self.silence_of(ost)?;
        let losses = self.mds.chains().losses(ost, &self.heard());
        let files = self.mds.lost_files(ost, &losses, self.osts.count(), from).await;
        let (files, next) = files.map_err(failed)?;
        Ok(json!({
            "ost": ost,
            "silent_ms": silence.as_millis() as u64,
            "number": losses.number(),
            "chains": losses.chains.iter().map(chain_row).collect::<Vec<_>>(),
            "files": files.iter().map(file_row).collect::<Vec<_>>(),
            "next": next.map(|ino| ino.0),
        })
        .to_string())
    }

    /// Gives up an OST in all chains, if these lose what is `said`, and if it is drained where it is
    /// `taken_away`.
    pub(super) async fn lose_ost(
        &self,
        ost: u16,
        said: u64,
        taken_away: bool,
    ) -> Result<String, String> {
        // Before somebody is told to stop its server.
        if taken_away && !self.mds.drained().contains(&ost) {
            return Err(not_drained(ost));
        }
        let listening = self.listening();
        let silence = self.silence_of(ost)?.min(listening);
        if silence < Duration::from_millis(MEMBER_LOST_MS) {
            return Err(format!(
                "OST {ost} is heard of, and is given up only while it is not: stop its server. If \
                 only its disk is lost, `glint ost replace` puts another one in its place"
            ));
        }
        // Chains lose no more than was said, or it is not given up.
        let acts = self.settings.lease / 2;
        if silence < acts && !Losses::is_nothing(said) {
            let left = acts.saturating_sub(silence).as_secs() + 1;
            return Err(format!(
                "OST {ost} may have acknowledged changes until now that would be lost with it: it was \
                 not heard of for {} s only; nothing was done: try again in {left} s",
                silence.as_secs()
            ));
        }
        let given_up = match taken_away {
            true => self.mds.take_away_ost(ost, &self.heard(), said).await,
            false => self.mds.give_up_ost(ost, &self.heard(), said).await,
        };
        // What it was told that emptied members lack, those that go on without it were not.
        self.filling.begin_anew();
        let chains = match given_up {
            Ok(chains) => chains,
            Err(GiveUpError::OtherLosses) => {
                return Err(format!(
                    "something else would be lost with OST {ost} than was said, because members of \
                     its chains came or went meanwhile; nothing was done: look again"
                ));
            }
            Err(GiveUpError::NotDrained) => return Err(not_drained(ost)),
            Err(GiveUpError::Store(errno)) => return Err(failed(errno)),
        };
        self.osses.give_up(&*self.records, ost).map_err(failed)?;
        self.avoid_absent();
        // New chains are laid over others.
        self.place_chains().await;
        tracing::warn!(ost, chains, "an administrator has given up an OST");
        Ok(json!({ "ost": ost, "chains": chains }).to_string())
    }
}

fn failed(errno: Errno) -> String {
    format!("the table of chains or the files cannot be read or stored: {errno}")
}

fn not_drained(ost: u16) -> String {
    format!(
        "OST {ost} is not drained, and new files would use it if its server came back: run `glint \
         ost drain {ost}` first"
    )
}

fn chain_row(ChainLoss { chain, loss, others, heard }: &ChainLoss) -> Value {
    let loses = match loss {
        Loss::Nothing => "nothing",
        Loss::Changes => "changes",
        Loss::Everything => "everything",
    };
    json!({ "chain": chain.to_string(), "loses": loses, "others": others, "heard": heard })
}

fn file_row(file: &NamedFile<LosesData>) -> Value {
    json!({
        "ino": file.ino.0,
        "path": file.path.as_deref().map(String::from_utf8_lossy),
        "changed": file.changed,
        "loses": if file.says.0 { "data" } else { "changes" },
    })
}
