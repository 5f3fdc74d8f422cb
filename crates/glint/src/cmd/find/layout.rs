//! Tests of where the data of a file lies: -layout and -ost.

use super::entry::{Entry, Missing};
use super::test::Comparison;
use glint_proto::{Attr, Layout};

/// A part of a layout, as `glint getstripe` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LayoutPart {
    StripeCount,
    StripeSize,
    FirstOst,
    Osts,
    Replicas,
}

/// Wanted parts of a layout: all of them hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WantedLayout(Vec<(LayoutPart, Comparison)>);

impl LayoutPart {
    fn parse(name: &str) -> Option<LayoutPart> {
        Some(match name {
            "stripe_count" => LayoutPart::StripeCount,
            "stripe_size" => LayoutPart::StripeSize,
            "first_ost" => LayoutPart::FirstOst,
            "osts" => LayoutPart::Osts,
            "replicas" => LayoutPart::Replicas,
            _ => return None,
        })
    }

    fn of(self, layout: &Layout) -> u64 {
        match self {
            LayoutPart::StripeCount => layout.stripe_count.into(),
            LayoutPart::StripeSize => layout.stripe_bytes(),
            LayoutPart::FirstOst => layout.first_ost.into(),
            LayoutPart::Osts => layout.osts.into(),
            LayoutPart::Replicas => layout.replicas.max(1).into(),
        }
    }
}

impl WantedLayout {
    /// Parses `NAME=N`, `NAME=+N` or `NAME=-N`, and several of them with commas or spaces between,
    /// as `glint getstripe` prints them.
    pub(super) fn parse(text: &str) -> Result<WantedLayout, String> {
        let one = |word: &str| {
            let wrong = || {
                format!(
                    "-layout {text:?}: say NAME=N, NAME=+N or NAME=-N, of stripe_count, stripe_size, \
                     first_ost, osts and replicas, with commas between"
                )
            };
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let part = LayoutPart::parse(name).ok_or_else(wrong)?;
            let (sign, digits) = value.split_at(usize::from(value.starts_with(['+', '-'])));
            let number = match part {
                _ if digits.starts_with(['+', '-']) => None,
                LayoutPart::StripeSize => crate::size::parse(digits).ok(),
                _ => digits.parse().ok(),
            };
            let number = number.ok_or_else(wrong)?;
            Ok((
                part,
                match sign {
                    "+" => Comparison::More(number),
                    "-" => Comparison::Less(number),
                    _ => Comparison::Exactly(number),
                },
            ))
        };
        let words = text.split([',', ' ', '\n']).filter(|word| !word.is_empty());
        let parts: Vec<_> = words.map(one).collect::<Result<_, String>>()?;
        if parts.is_empty() {
            one("").map(|_| WantedLayout(parts))
        } else {
            Ok(WantedLayout(parts))
        }
    }

    /// Whether a file has such a layout, or gives it to new files in it.
    pub(super) fn holds(&self, attr: &Attr) -> bool {
        let has_layout = attr.is_file() || attr.is_dir();
        has_layout && self.0.iter().all(|(part, wanted)| wanted.holds(part.of(&attr.layout)))
    }
}

/// Parses the numbers of OSTs after -ost, with commas between.
pub(super) fn osts(text: &str) -> Result<Vec<u16>, String> {
    let one = |number: &str| {
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| number.parse().ok()).flatten()
    };
    let osts: Option<Vec<u16>> = text.split(',').map(one).collect();
    osts.ok_or_else(|| {
        format!("-ost {text:?}: say a number that `glint ost list` shows, or several with commas")
    })
}

/// Whether the layout of a file alone says on which OSTs it lies. The MDS knows which OSTs are the
/// members of a chain.
fn says_osts(layout: &Layout) -> bool {
    layout.replicas <= 1 && layout.osts > 0
}

/// Whether it takes a request to learn on which OSTs a file lies.
pub(super) fn asks_for_osts(attr: &Attr) -> bool {
    attr.is_file() && !says_osts(&attr.layout)
}

/// Whether an object of a file lies on one of these OSTs.
pub(super) fn is_on(osts: &[u16], entry: &Entry) -> Result<bool, Missing> {
    let attr = entry.attr()?;
    if !attr.is_file() {
        return Ok(false);
    }
    let layout = &attr.layout;
    if !says_osts(layout) {
        let known = entry.facts.osts.as_ref().ok_or(Missing::Osts)?;
        return Ok(known.iter().any(|ost| osts.contains(ost)));
    }
    let mut stripes = 0..layout.stripe_count.max(1);
    Ok(stripes.any(|stripe| osts.contains(&layout.ost_of(stripe, layout.osts))))
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::*;

    fn with(mode: u32, layout: Layout) -> Entry {
        let mut entry = entry(b"a", mode);
        entry.attr.as_mut().unwrap().layout = layout;
        entry
    }

    #[test]
    fn layouts_are_wanted_in_the_words_of_getstripe() {
        let layout = Layout {
            stripe_bytes_log2: 20,
            stripe_count: 4,
            first_ost: 2,
            osts: 6,
            replicas: 1,
            first_object: 0,
        };
        let (file, fifo) = (with(libc::S_IFREG, layout), with(libc::S_IFIFO, layout));
        for (text, expected) in [
            ("stripe_count=4", true),
            ("stripe_count=+4", false),
            ("stripe_count=+3", true),
            ("stripe_count=-5", true),
            ("stripe_size=1M", true),
            ("stripe_size=-1MiB", false),
            ("stripe_size=+64K", true),
            ("replicas=1", true),
            ("replicas=+1", false),
            ("stripe_count=4,stripe_size=1M", true),
            ("stripe_count=4,stripe_size=2M", false),
            ("stripe_count=4 stripe_size=1048576 first_ost=2 osts=6", true),
        ] {
            let wanted = WantedLayout::parse(text).unwrap();
            assert_eq!(wanted.holds(file.attr().unwrap()), expected, "{text}");
            assert!(!wanted.holds(fifo.attr().unwrap()), "{text}");
        }
        for wrong in [
            "",
            ",",
            "4",
            "stripe_count",
            "stripe_count=",
            "stripe_count=x",
            "count=1",
            "stripe_count=++1",
            "stripe_count=4K",
            "stripe_count=-+1",
            "stripe_size=1.5M",
            "stripe_count=4,x=1",
        ] {
            let said = WantedLayout::parse(wrong).unwrap_err();
            assert!(said.starts_with("-layout ") && said.contains("stripe_count"), "{said}");
        }
    }

    #[test]
    fn a_file_lies_on_the_osts_of_its_layout_or_of_its_chains() {
        // Stripes on 5, 0 and 1.
        let layout = Layout { stripe_count: 3, first_ost: 5, osts: 6, ..Layout::default() };
        let file = with(libc::S_IFREG, layout);
        let on: Vec<u16> = (0..8).filter(|ost| is_on(&[*ost], &file) == Ok(true)).collect();
        assert_eq!(on, [0, 1, 5]);
        assert_eq!(is_on(&[3, 5], &file), Ok(true));
        assert_eq!(is_on(&[5], &with(libc::S_IFDIR, layout)), Ok(false));
        for asks in [Layout { replicas: 2, ..layout }, Layout { osts: 0, ..layout }] {
            let mut file = with(libc::S_IFREG, asks);
            assert!(asks_for_osts(file.attr().unwrap()));
            assert_eq!(is_on(&[5], &file), Err(Missing::Osts));
            file.facts.osts = Some(vec![5, 7]);
            assert_eq!((is_on(&[5], &file), is_on(&[0], &file)), (Ok(true), Ok(false)));
        }
        assert_eq!(osts("0,12"), Ok(vec![0, 12]));
        for wrong in ["", "+1", "1,", "x", "70000", "-1", "1 2"] {
            osts(wrong).unwrap_err();
        }
    }
}
