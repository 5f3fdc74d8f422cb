//! What the servers would be sent again.

use super::Fake;
use glint_net::Durability;
use glint_proto::{FsResult, Ino, ObjectId};
use std::time::Duration;

impl Durability for Fake {
    async fn commit(&self) -> FsResult<()> {
        self.0.lock().uncommitted = false;
        Ok(())
    }

    fn has_uncommitted(&self) -> bool {
        self.0.lock().uncommitted
    }

    async fn send_again(&self) {
        self.0.lock().sent_again += 1;
    }

    fn unstable(&self, _: Ino) -> Vec<(u16, ObjectId)> {
        self.0.lock().unstable.clone()
    }

    async fn abandon(&self, ino: Ino) {
        self.0.lock().abandons += 1;
        self.until_answered(Some(ino)).await;
        self.0.lock().unstable.clear();
    }

    async fn until_answered(&self, _: Option<Ino>) {
        while self.0.lock().holds_resends {
            glint_net::host::sleep(Duration::from_millis(1)).await;
        }
    }
}
