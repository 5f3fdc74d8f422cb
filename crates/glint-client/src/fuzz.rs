//! Entrance for the fuzz target.

use crate::calls::virtual_xattr::{format_layout, parse_layout};
use glint_proto::Layout;

/// The attribute `glint.layout` as a user sets it.
pub fn layout(bytes: &[u8]) {
    if let Ok(layout) = parse_layout(bytes, Layout::default()) {
        assert_eq!(parse_layout(&format_layout(layout), Layout::default()), Ok(layout));
    }
}
