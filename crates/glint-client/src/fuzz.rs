//! Entrance for the fuzz target.

use crate::calls::virtual_xattr::{format_layout, parse_layout};
use glint_proto::Layout;

/// The attribute `glint.layout` as a user sets it.
pub fn layout(bytes: &[u8]) {
    if let Ok(layout) = parse_layout(bytes, Layout::default()) {
        assert_eq!(parse_layout(&format_layout(layout), Layout::default()), Ok(layout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::limits::{
        OST_COUNT_MAX, REPLICAS_MAX, STRIPE_BYTES_LOG2_MAX, STRIPE_BYTES_LOG2_MIN,
    };
    use proptest::prelude::*;

    /// Numbers that are right, at their ends, and beyond.
    fn number() -> impl Strategy<Value = String> {
        let log2 = (0u32..64).prop_map(|bits| (1u64 << bits).to_string());
        let count = (0u64..=u64::from(OST_COUNT_MAX) + 1).prop_map(|count| count.to_string());
        let any = any::<u64>().prop_map(|number| number.to_string());
        prop_oneof![log2, count, any, "[-+]?[0-9]{0,22}"]
    }

    fn word() -> impl Strategy<Value = String> {
        let key = prop_oneof![
            Just("stripe_count"),
            Just("stripe_size"),
            Just("replicas"),
            Just("first_ost"),
            Just("osts"),
        ];
        prop_oneof![9 => (key, number()).prop_map(|(key, number)| format!("{key}={number}")),
                    1 => "[a-z_]{0,12}=?[0-9a-z]{0,8}"]
    }

    proptest! {
        #[test]
        fn parsing_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            layout(&bytes);
        }

        #[test]
        fn a_layout_that_is_taken_is_valid(words in proptest::collection::vec(word(), 0..6)) {
            let text = words.join(" ");
            layout(text.as_bytes());
            if let Ok(layout) = parse_layout(text.as_bytes(), Layout::default()) {
                prop_assert!(layout.is_valid(), "{}", text);
            }
        }

        #[test]
        fn a_layout_is_read_as_it_is_shown(
            stripe_bytes_log2 in STRIPE_BYTES_LOG2_MIN..=STRIPE_BYTES_LOG2_MAX,
            stripe_count in 0..=OST_COUNT_MAX,
            replicas in 1..=REPLICAS_MAX,
        ) {
            let layout = Layout { stripe_bytes_log2, stripe_count, replicas, ..Layout::default() };
            let old = Layout { stripe_count: 1, ..Layout::default() };
            prop_assert_eq!(parse_layout(&format_layout(layout), old), Ok(layout));
        }
    }
}
