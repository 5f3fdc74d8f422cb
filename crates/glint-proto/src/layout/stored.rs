//! The encoded form of a layout, on the wire and in reply records: five numbers, and `first_object`
//! after them where it is not 0, which a bit of the fifth says. So a layout of a file that has not
//! moved is encoded as it was before files could.

use super::Layout;
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bit of the number of copies: `first_object` follows.
const HAS_FIRST_OBJECT: u8 = 0x80;
const FIELDS: usize = 5;

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Layout { stripe_bytes_log2, stripe_count, first_ost, osts, replicas, first_object } =
            self;
        let moved = *first_object != 0;
        let mut tuple = serializer.serialize_tuple(FIELDS + usize::from(moved))?;
        tuple.serialize_element(stripe_bytes_log2)?;
        for number in [stripe_count, first_ost, osts] {
            tuple.serialize_element(number)?;
        }
        let flag = if moved { HAS_FIRST_OBJECT } else { 0 };
        tuple.serialize_element(&(replicas & !HAS_FIRST_OBJECT | flag))?;
        if moved {
            tuple.serialize_element(first_object)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
        deserializer.deserialize_tuple(FIELDS + 1, LayoutVisitor)
    }
}

struct LayoutVisitor;

impl<'de> Visitor<'de> for LayoutVisitor {
    type Value = Layout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a layout")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Layout, A::Error> {
        let short = |at| A::Error::invalid_length(at, &"the fields of a layout");
        let stripe_bytes_log2 = seq.next_element()?.ok_or_else(|| short(0))?;
        let stripe_count = seq.next_element()?.ok_or_else(|| short(1))?;
        let first_ost = seq.next_element()?.ok_or_else(|| short(2))?;
        let osts = seq.next_element()?.ok_or_else(|| short(3))?;
        let copies: u8 = seq.next_element()?.ok_or_else(|| short(4))?;
        let first_object = match copies & HAS_FIRST_OBJECT {
            0 => 0,
            _ => seq.next_element()?.ok_or_else(|| short(5))?,
        };
        let replicas = copies & !HAS_FIRST_OBJECT;
        Ok(Layout { stripe_bytes_log2, stripe_count, first_ost, osts, replicas, first_object })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_that_has_not_moved_is_encoded_as_before_and_others_too() {
        let old = Layout { stripe_count: 2, first_ost: 3, osts: 4, ..Layout::default() };
        let bytes = postcard::to_allocvec(&(old, 9u8)).unwrap();
        assert_eq!(bytes[1..], [2, 3, 4, 1, 9]);
        for layout in [old, Layout { first_object: 300, replicas: 3, ..old }] {
            let bytes = postcard::to_allocvec(&(layout, 9u8)).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok((layout, 9u8)));
        }
    }
}
