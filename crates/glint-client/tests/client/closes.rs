//! Closes of files that were written, and what is set meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]

use crate::support::{FILE, open, with_client, write};
use futures_util::future::join;
use glint_client::{Caller, Vfs};
use glint_net::host;
use glint_proto::{Op, SetAttr, SetTime, Timestamp};
use std::time::Duration;

/// A program closes a file, which returns before the server knows of it, and sets its size or time. A
/// close that arrived later would bring back what it knew before.
#[test]
fn what_is_set_after_a_close_is_not_overtaken_by_it() {
    let noon = SetTime::At(Timestamp { secs: 1_000_000_000, nanos: 0 });
    let sets = [
        SetAttr { mtime: Some(noon), ..SetAttr::default() },
        SetAttr { size: Some(0), ..SetAttr::default() },
    ];
    for set in sets {
        with_client(async |fake, client| {
            let file = open(&client).await;
            write(&client, file, 0, b"data").await.unwrap();
            fake.0.lock().holds_closes = true;
            let setting = async {
                while fake.0.lock().closing == 0 {
                    host::sleep(Duration::from_millis(1)).await;
                }
                client.setattr(&Caller::ROOT, FILE, &set).await.unwrap();
            };
            let arrival = async {
                // Time enough to overtake it.
                host::sleep(Duration::from_millis(100)).await;
                fake.0.lock().holds_closes = false;
            };
            let (closed, _) = join(client.release(file), join(setting, arrival)).await;
            closed.unwrap();
            let asked = fake.0.lock().asked.clone();
            let order: Vec<_> =
                asked.into_iter().filter(|op| matches!(op, Op::Release | Op::Setattr)).collect();
            assert_eq!(order, [Op::Release, Op::Setattr], "{set:?}");
        });
    }
}
