//! Attributes that are not stored: how tools ask a mount about itself.
//!
//! | name | value |
//! |---|---|
//! | `glint.layout` | `stripe_count=N stripe_size=BYTES first_ost=N osts=N`, readable and writable |
//! | `glint.restripe` | as above, and `avoid=N,N`: OSTs without a stripe of it, which gets as many as fit; only writable: moves data |
//! | `glint.status` | state dump of the servers, JSON; other users than root see no other client |
//! | `glint.stats` | statistics of the servers and this client, JSON |
//!
//! A value that is read in two steps, length first, is one value: see [`super::snapshots`]. Linux
//! takes at most 64 KiB of an attribute: a longer value is E2BIG, and `glint status HOST:PORT` has no limit.

use crate::calls::snapshots::Reader;
use crate::client::Client;
use crate::vfs::Caller;
use glint_net::{MdsSession, ServerStatistics, Transport, status_for_everybody};
use glint_proto::{Errno, FsResult, Ino, Layout, MdsReply, MdsRequest};
use std::time::Instant;

const LAYOUT: &[u8] = b"glint.layout";
const RESTRIPE: &[u8] = b"glint.restripe";
const STATUS: &[u8] = b"glint.status";
const STATS: &[u8] = b"glint.stats";

impl<T: Transport> Client<T> {
    /// Returns the value of an attribute for a caller with `room` bytes, or with 0 that asks for
    /// the length; `None` if the attribute is stored.
    pub(crate) async fn virtual_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        room: usize,
    ) -> Option<FsResult<Vec<u8>>> {
        let name = [LAYOUT, STATUS, STATS].into_iter().find(|known| *known == name)?;
        let reader = Reader::new(caller, ino, name);
        let kept = match room {
            0 => None,
            _ => self.snapshots.take(reader, room, Instant::now()),
        };
        // A layout is always the current one, unless that has become too long.
        let kept = match kept {
            Some(value) if name != LAYOUT => return Some(Ok(value)),
            kept => kept,
        };
        let value = match name {
            LAYOUT => self.layout_of(ino).await.map(format_layout),
            STATUS => self.status_for(caller).await,
            _ => self.transport.mds().stats().await.map(String::into_bytes),
        };
        let Ok(value) = value else { return Some(value) };
        if room == 0 || value.len() > room {
            if kept.is_some() {
                return kept.map(Ok);
            }
            self.snapshots.keep(reader, &value, Instant::now());
        }
        Some(Ok(value))
    }

    /// Sets an attribute; `None` if it is one that is stored.
    pub(crate) async fn set_virtual_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> Option<FsResult<()>> {
        if name.starts_with(b"glint.") {
            self.snapshots.forget(name);
        }
        match name {
            LAYOUT => Some(self.set_layout(caller, ino, value).await),
            RESTRIPE => Some(self.move_as(caller, ino, value).await),
            // The only thing that can be done to statistics.
            STATS => Some(match (value, caller.cred.is_superuser()) {
                (b"reset", true) => self.transport.mds().reset_stats().await,
                (b"reset", false) => Err(Errno::EPERM),
                _ => Err(Errno::EINVAL),
            }),
            _ => None,
        }
    }

    async fn set_layout(&self, caller: &Caller, ino: Ino, value: &[u8]) -> FsResult<()> {
        let layout = parse_layout(value, self.layout_of(ino).await?)?;
        let _update = self.begin_update(&[ino]);
        let reply = self.ask(caller, &MdsRequest::SetLayout { ino, layout }).await?;
        if let (Some(inode), MdsReply::Attr(attr)) = (self.inode(ino), reply) {
            inode.lock().rare.make().data.set_layout(attr.is_file().then_some(attr.layout));
        }
        Ok(())
    }

    async fn move_as(&self, caller: &Caller, ino: Ino, value: &[u8]) -> FsResult<()> {
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
        let (avoid, words): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.starts_with("avoid="));
        let osts = avoid.iter().flat_map(|word| word["avoid=".len()..].split(','));
        let osts: Result<Vec<u16>, _> = osts.map(str::parse).collect();
        let avoid = osts.map_err(|_| Errno::EINVAL)?;
        let layout = parse_layout(words.join(" ").as_bytes(), self.layout_of(ino).await?)?;
        // Apart from the state of other requests: it is large.
        Box::pin(self.restripe(caller, ino, layout, avoid)).await
    }

    /// The state of the servers for a user of this host: who is not its root is told what a
    /// limited certificate is told, and of clients only this one, whatever the certificate of the
    /// mount allows.
    async fn status_for(&self, caller: &Caller) -> FsResult<Vec<u8>> {
        let servers = self.transport.mds().status().await?;
        if caller.cred.is_superuser() {
            return Ok(self.status(servers));
        }
        let client = self.transport.mds().identity().client().to_string();
        Ok(self.status(status_for_everybody(&servers, Some(&client))))
    }
}

pub(crate) fn format_layout(layout: Layout) -> Vec<u8> {
    let Layout { stripe_count, first_ost, osts, .. } = layout;
    let size = layout.stripe_bytes();
    let mut text =
        format!("stripe_count={stripe_count} stripe_size={size} first_ost={first_ost} osts={osts}");
    if layout.replicas > 1 {
        text = format!("{text} replicas={}", layout.replicas);
    }
    text.into_bytes()
}

/// Parses what [`format_layout`] writes; what is left out keeps its value in `old`.
pub(crate) fn parse_layout(value: &[u8], old: Layout) -> FsResult<Layout> {
    let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    let mut layout = old;
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(Errno::EINVAL)?;
        let value: u64 = value.parse().map_err(|_| Errno::EINVAL)?;
        match key {
            "stripe_count" => {
                layout.stripe_count = u16::try_from(value).map_err(|_| Errno::EINVAL)?;
            }
            "stripe_size" if value.is_power_of_two() => {
                layout.stripe_bytes_log2 = value.trailing_zeros() as u8;
            }
            "replicas" => {
                layout.replicas = u8::try_from(value).map_err(|_| Errno::EINVAL)?;
            }
            "first_ost" | "osts" => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    if (layout.replicas, layout.stripe_count) != (old.replicas, old.stripe_count) {
        // Where it lies then the MDS chooses, and which objects it has: those of files with copies have
        // other numbers.
        (layout.first_ost, layout.osts, layout.first_object) = (0, 0, 0);
    }
    if layout.is_valid() { Ok(layout) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_can_be_written_and_read() {
        let layout = Layout { stripe_bytes_log2: 20, stripe_count: 4, ..Layout::default() };
        assert_eq!(parse_layout(&format_layout(layout), Layout::default()), Ok(layout));
        for bad in ["stripe_size=1000", "stripe_size=1", "stripe_count=x", "what=1", "nonsense"] {
            assert_eq!(parse_layout(bad.as_bytes(), layout), Err(Errno::EINVAL), "{bad}");
        }
        let mut of_copies = Layout { replicas: 2, first_ost: 5000, osts: 6000, ..layout };
        of_copies.number_objects(7);
        assert_eq!(parse_layout(b"replicas=1", of_copies), Ok(layout));
    }
}
