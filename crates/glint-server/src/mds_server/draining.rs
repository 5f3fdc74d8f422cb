//! OSTs that files leave while they are used: new files avoid them, and whoever moves the others is
//! told which there are, and says how many are left, so that others can ask for that.

use super::MdsServer;
use glint_kv::Kv;
use glint_mds::{HeldPart, NamedFile};
use glint_ost::disk::Disk;
use glint_proto::clock;
use glint_proto::limits::BALANCE_TURN_MS;
use glint_proto::message::{DrainOst, DrainStep, FilesToMove};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Silence after which a command that moves files does not count any more.
const SILENT: Duration = Duration::from_millis(BALANCE_TURN_MS);

/// OSTs that files leave, with how many are left as the command that moves them has said last, and
/// when that was. It is kept in memory only: the command says it again.
#[derive(Default)]
pub(super) struct FilesMoving(BTreeMap<u16, (FilesToMove, Instant)>);

impl FilesMoving {
    /// Notes what a command has said. One without files has ended.
    fn note(&mut self, ost: u16, left: FilesToMove, now: Instant) {
        match left.files {
            0 => _ = self.0.remove(&ost),
            _ => _ = self.0.insert(ost, (left, now)),
        }
    }

    /// What commands have to move that were heard of not long ago.
    fn now(&self, now: Instant) -> Vec<(u16, FilesToMove)> {
        let is_heard = |said: Instant| now.saturating_duration_since(said) < SILENT;
        let heard = self.0.iter().filter(|(_, (_, said))| is_heard(*said));
        heard.map(|(ost, (left, _))| (*ost, *left)).collect()
    }
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// OSTs that files are moved away from, with those that are left.
    pub(crate) fn moving(&self) -> Vec<(u16, FilesToMove)> {
        self.moving.lock().now(clock::now())
    }

    pub(super) async fn drain(&self, DrainOst { ost, step }: DrainOst) -> Result<String, String> {
        if ost >= self.mds.osts() {
            return Err(format!("there is no OST {ost}; `glint ost list` shows which there are"));
        }
        match step {
            DrainStep::Begin => {
                self.mds.begin_drain(ost).await.map_err(|error| error.to_string())?;
                self.avoid_absent();
                self.adopt_rows();
                tracing::info!(ost, "new files avoid an OST that is drained");
                let given_up = self.osses.given_up().concat().contains(&ost);
                Ok(json!({ "ost": ost, "given_up": given_up }).to_string())
            }
            DrainStep::End => {
                let was_drained = self.mds.end_drain(ost).await;
                let was_drained = was_drained.map_err(|errno| errno.to_string())?;
                self.avoid_absent();
                if was_drained {
                    tracing::info!(ost, "new files use an OST again that was drained");
                }
                Ok(json!({ "ost": ost, "was_drained": was_drained }).to_string())
            }
            DrainStep::Files(from) => {
                let files = self.mds.files_on(ost, self.osts.count(), from).await;
                let (files, next) =
                    files.map_err(|errno| format!("the files cannot be read: {errno}"))?;
                let files: Vec<Value> = files.iter().map(row).collect();
                let mut page = json!({ "files": files, "next": next.map(|ino| ino.0) });
                if next.is_none() {
                    let leaving = self.mds.leaving(ost, self.osts.count()).await;
                    page["leaving"] = json!(leaving.map_err(|errno| errno.to_string())?);
                }
                Ok(page.to_string())
            }
            DrainStep::Moves(left) => {
                self.moving.lock().note(ost, left, clock::now());
                Ok(json!({}).to_string())
            }
        }
    }
}

fn row(file: &NamedFile<HeldPart>) -> Value {
    let HeldPart { stripes, copies, osts, crowded } = &file.says;
    let osts: Vec<(u16, u64)> = osts.iter().map(|(ost, bytes)| (*ost, *bytes)).collect();
    let path = file.path.as_deref().map(String::from_utf8_lossy);
    json!({ "ino": file.ino.0, "path": path, "size": file.size,
        "stripes": stripes, "copies": copies, "osts": osts, "crowded": crowded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_known_until_the_command_ends_or_is_silent() {
        let (mut moving, start) = (FilesMoving::default(), Instant::now());
        let left = |files| FilesToMove { files, bytes: 10 * files };
        moving.note(3, left(9), start);
        moving.note(1, left(2), start);
        moving.note(3, left(8), start + SILENT / 2);
        assert_eq!(moving.now(start + SILENT / 2), [(1, left(2)), (3, left(8))]);
        assert_eq!(moving.now(start + SILENT), [(3, left(8))], "the other one was killed");
        moving.note(3, left(0), start + SILENT);
        assert!(moving.now(start + SILENT).is_empty());
        moving.note(1, left(1), start + 2 * SILENT);
        assert_eq!(moving.now(start + 2 * SILENT), [(1, left(1))], "it was only cut off");
    }
}
