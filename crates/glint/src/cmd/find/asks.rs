//! Which files an expression may need a request for.

use super::entry::Entry;
use super::expression::Expression;
use super::layout::asks_for_osts;
use super::test::Test;
use glint_proto::FileType;

/// Facts beside attributes that an expression may ask for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Asks {
    /// Targets of symbolic links.
    targets: bool,
    /// Whether directories are empty.
    contents: bool,
    /// Names of extended attributes.
    xattrs: bool,
    /// OSTs of files whose layouts do not say it alone.
    osts: bool,
}

impl Asks {
    pub(super) fn of(expression: &Expression) -> Asks {
        let mut asks = Asks::default();
        asks.add(expression);
        asks
    }

    fn add(&mut self, expression: &Expression) {
        match expression {
            Expression::Test(Test::Target(_)) | Expression::Ls(_) | Expression::Json => {
                self.targets = true;
            }
            Expression::Printf(format) => self.targets |= format.shows_targets(),
            Expression::Test(Test::Empty) => self.contents = true,
            Expression::Test(Test::Xattr(_)) => self.xattrs = true,
            Expression::Test(Test::Ost(_)) => self.osts = true,
            Expression::Not(inner) => self.add(inner),
            Expression::All(parts) | Expression::Any(parts) | Expression::List(parts) => {
                parts.iter().for_each(|part| self.add(part));
            }
            Expression::Test(_)
            | Expression::Prune
            | Expression::Quit
            | Expression::Print(_)
            | Expression::Action(_) => {}
        }
    }

    /// Whether there may be any.
    pub(super) fn is_some(self) -> bool {
        self != Asks::default()
    }

    /// Whether a file may need a request. Whether a directory is empty is a fact of the moment when it
    /// is looked at, which is after its contents if `contents_first`.
    pub(super) fn of_file(self, entry: &Entry, contents_first: bool) -> bool {
        let Ok(attr) = &entry.attr else { return false };
        (self.xattrs && !attr.has_no_xattrs)
            || (self.osts && asks_for_osts(attr))
            || match FileType::from_mode(attr.mode) {
                Some(FileType::Symlink) => self.targets,
                Some(FileType::Directory) => self.contents && !contents_first,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::super::expression::parse;
    use glint_proto::Timestamp;
    use std::ffi::OsString;

    #[test]
    fn all_osts_that_are_named_are_known() {
        for (text, osts) in
            [("-ost 3,1 -o ! ( -type f -ost 7 )", &[3, 1, 7][..]), ("-name -ost", &[])]
        {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            assert_eq!(parse(&words, Timestamp::default(), false).unwrap().osts, osts, "{text}");
        }
    }

    #[test]
    fn requests_are_for_files_that_an_expression_does_not_know() {
        let asks = |text: &str| {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            parse(&words, Timestamp::default(), false).unwrap().asks
        };
        assert!(!asks("-type f ( -size +1 -o ! -name x ) -layout replicas=2 -printf %p").is_some());
        let mut labelled = entry(b"f", libc::S_IFREG);
        labelled.attr.as_mut().unwrap().has_no_xattrs = false;
        let mut copied = entry(b"c", libc::S_IFREG);
        copied.attr.as_mut().unwrap().layout.replicas = 2;
        let (link, directory) = (entry(b"l", libc::S_IFLNK), entry(b"d", libc::S_IFDIR));
        let files = [&labelled, &copied, &link, &directory];
        for (text, expected) in [
            ("-xattr user.*", [true, false, false, false]),
            ("-true -o ! ( -size 1 , -xattr x )", [true, false, false, false]),
            ("-printf %l", [false, false, true, false]),
            ("-ls", [false, false, true, false]),
            ("-empty", [false, false, false, true]),
        ] {
            let asks = asks(text);
            assert!(asks.is_some());
            assert_eq!(files.map(|file| asks.of_file(file, false)), expected, "{text}");
        }
        assert!(!asks("-empty").of_file(&directory, true));
        assert!(asks("-ost 3").of_file(&copied, false));
    }
}
