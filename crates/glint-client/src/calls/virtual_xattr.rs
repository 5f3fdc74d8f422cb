//! Attributes that are not stored: how tools ask a mount about itself.
//!
//! | name | value |
//! |---|---|
//! | `glint.layout` | `stripe_count=N stripe_size=BYTES first_ost=N osts=N`, readable and writable |
//! | `glint.status` | state dump of the servers, JSON; other users than root see no other client |
//! | `glint.stats` | statistics of the servers and this client, JSON |

use glint_proto::{Errno, FsResult, Layout};

pub(crate) const LAYOUT: &[u8] = b"glint.layout";
pub(crate) const STATUS: &[u8] = b"glint.status";
pub(crate) const STATS: &[u8] = b"glint.stats";

pub(crate) fn format_layout(layout: Layout) -> Vec<u8> {
    let Layout { stripe_count, first_ost, osts, .. } = layout;
    let size = layout.stripe_bytes();
    format!("stripe_count={stripe_count} stripe_size={size} first_ost={first_ost} osts={osts}")
        .into_bytes()
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
            "first_ost" | "osts" => {}
            _ => return Err(Errno::EINVAL),
        }
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
    }
}
