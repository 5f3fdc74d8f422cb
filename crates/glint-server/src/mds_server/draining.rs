//! OSTs that files leave while they are used: new files avoid them, and whoever moves the others is
//! told which there are.

use super::MdsServer;
use glint_kv::Kv;
use glint_mds::{HeldPart, NamedFile};
use glint_ost::disk::Disk;
use glint_proto::message::{DrainOst, DrainStep};
use serde_json::{Value, json};

impl<K: Kv, D: Disk> MdsServer<K, D> {
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
        }
    }
}

fn row(file: &NamedFile<HeldPart>) -> Value {
    let HeldPart { stripes, copies, osts } = &file.says;
    let osts: Vec<(u16, u64)> = osts.iter().map(|(ost, bytes)| (*ost, *bytes)).collect();
    let path = file.path.as_deref().map(String::from_utf8_lossy);
    json!({ "ino": file.ino.0, "path": path, "size": file.size,
        "stripes": stripes, "copies": copies, "osts": osts })
}
