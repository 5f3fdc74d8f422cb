//! Names as ls(1) quotes them in the C locale: with backslashes, or as a word of the shell or of C.

use std::borrow::Cow;

/// How names are quoted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum QuotingStyle {
    /// As they are.
    #[default]
    Literal,
    /// As words of the shell, quoted where that is needed.
    Shell,
    /// As words of the shell, quoted always.
    ShellAlways,
    /// As `shell`, with $'' for bytes that cannot be printed.
    ShellEscape,
    /// As `shell-always`, with $'' for bytes that cannot be printed.
    ShellEscapeAlways,
    /// As strings of C.
    C,
    /// With backslashes, without quotes.
    Escape,
    /// In single quotes, with backslashes.
    Locale,
}

/// Quotes names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoting {
    pub(super) style: QuotingStyle,
    /// Bytes that are quoted, too, where a style can do so.
    pub(super) also: &'static [u8],
    /// Bytes that cannot be printed are shown as question marks, unless the style escapes them.
    pub(super) hides: bool,
}

/// A name as a word of an error.
pub(super) fn quoted(name: &[u8]) -> Cow<'_, [u8]> {
    Quoting { style: QuotingStyle::ShellEscapeAlways, also: b"", hides: false }.quote(name)
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// The letter that escapes a byte in C.
fn letter(byte: u8) -> Option<u8> {
    Some(match byte {
        b'\x07' => b'a',
        b'\x08' => b'b',
        b'\x0c' => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        b'\x0b' => b'v',
        _ => return None,
    })
}

fn octal(byte: u8) -> [u8; 3] {
    [b'0' + (byte >> 6), b'0' + ((byte >> 3) & 7), b'0' + (byte & 7)]
}

impl Quoting {
    /// Quotes a name.
    pub(super) fn quote<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        let also = |byte: u8| self.also.contains(&byte);
        let mut shown = match self.style {
            QuotingStyle::Literal => Cow::Borrowed(name),
            QuotingStyle::Escape => Cow::Owned(escaped(name, None, also)),
            QuotingStyle::C => Cow::Owned(escaped(name, Some(b'"'), also)),
            QuotingStyle::Locale => Cow::Owned(escaped(name, Some(b'\''), also)),
            QuotingStyle::Shell if !needs_quotes(name, false, also) => Cow::Borrowed(name),
            QuotingStyle::ShellEscape if !needs_quotes(name, true, also) => Cow::Borrowed(name),
            QuotingStyle::Shell | QuotingStyle::ShellAlways => Cow::Owned(word(name, false)),
            QuotingStyle::ShellEscape | QuotingStyle::ShellEscapeAlways => {
                Cow::Owned(word(name, true))
            }
        };
        let escapes = !matches!(
            self.style,
            QuotingStyle::Literal | QuotingStyle::Shell | QuotingStyle::ShellAlways
        );
        if self.hides && !escapes && !shown.iter().all(|byte| is_printable(*byte)) {
            let hide = |byte: &mut u8| *byte = if is_printable(*byte) { *byte } else { b'?' };
            shown.to_mut().iter_mut().for_each(hide);
        }
        shown
    }
}

/// A name with backslashes, between two quotes if there is one.
fn escaped(name: &[u8], quote: Option<u8>, also: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    out.extend(quote);
    for &byte in name {
        match letter(byte) {
            Some(letter) => out.extend_from_slice(&[b'\\', letter]),
            None if byte == b'\\' || Some(byte) == quote || also(byte) => {
                out.extend_from_slice(&[b'\\', byte]);
            }
            None if is_printable(byte) => out.push(byte),
            None => {
                out.push(b'\\');
                out.extend_from_slice(&octal(byte));
            }
        }
    }
    out.extend(quote);
    out
}

/// Whether the shell would see something else in a name.
fn needs_quotes(name: &[u8], escapes: bool, also: impl Fn(u8) -> bool) -> bool {
    let is_special = |(at, byte): (usize, &u8)| match byte {
        b'{' | b'}' => name.len() == 1,
        b'#' | b'~' => at == 0,
        b'\n' | b'\r' | b'\t' => true,
        b'?' | b'\\' | b' ' | b'!' | b'"' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b';'
        | b'<' | b'=' | b'>' | b'[' | b'^' | b'`' | b'|' => true,
        byte => (escapes && !is_printable(*byte)) || also(*byte),
    };
    name.is_empty() || name.iter().enumerate().any(is_special)
}

/// A name in single quotes. One that has some of them, and nothing else that is special in double
/// quotes, is put between those.
fn word(name: &[u8], escapes: bool) -> Vec<u8> {
    let is_plain = |(at, byte): (usize, &u8)| match byte {
        b'{' | b'}' => name.len() == 1,
        b'#' | b'~' => at == 0,
        b'?' | b'\\' | b'!' | b'"' | b'$' | b'&' | b'(' | b')' | b'*' | b';' | b'<' | b'='
        | b'>' | b'[' | b'^' | b'`' | b'|' => false,
        byte => is_printable(*byte),
    };
    if name.contains(&b'\'') && name.iter().enumerate().all(is_plain) {
        return escaped(name, Some(b'"'), |_| false);
    }
    let mut out = vec![b'\''];
    let mut is_escaping = false;
    for &byte in name {
        if escapes && !is_printable(byte) {
            if !is_escaping {
                out.extend_from_slice(b"'$'");
                is_escaping = true;
            }
            out.push(b'\\');
            match letter(byte) {
                Some(letter) => out.push(letter),
                None => out.extend_from_slice(&octal(byte)),
            }
            continue;
        }
        if byte == b'\'' {
            // It ends a word of escapes as well.
            out.extend_from_slice(b"'\\'");
        } else if is_escaping {
            out.extend_from_slice(b"''");
        }
        is_escaping = false;
        out.push(byte);
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_ls_does() {
        use QuotingStyle as Q;
        for (style, name, expected) in [
            (Q::Literal, &b"a\nb"[..], "a\nb"),
            (Q::Escape, b"a b\n\x01\\\"", "a b\\n\\001\\\\\""),
            (Q::C, b"a \"b'", "\"a \\\"b'\""),
            (Q::Locale, b"a \"b'", "'a \"b\\''"),
            (Q::Shell, b"plain", "plain"),
            (Q::Shell, b"a b", "'a b'"),
            (Q::Shell, b"", "''"),
            (Q::Shell, b"it's", "\"it's\""),
            (Q::Shell, b"it's $", "'it'\\''s $'"),
            (Q::Shell, b"a#~{}", "a#~{}"),
            (Q::Shell, b"~a", "'~a'"),
            (Q::Shell, b"{", "'{'"),
            (Q::ShellAlways, b"a", "'a'"),
            (Q::Shell, b"\x01", "\x01"),
            (Q::ShellEscape, b"\x01", "''$'\\001'"),
            (Q::ShellEscape, b"a\nb", "'a'$'\\n''b'"),
            (Q::ShellEscape, b"a\n\tb", "'a'$'\\n\\t''b'"),
            (Q::ShellEscapeAlways, b"a", "'a'"),
        ] {
            let quoting = Quoting { style, also: b"", hides: false };
            let shown = quoting.quote(name).into_owned();
            assert_eq!(String::from_utf8(shown).unwrap(), expected, "{style:?} {name:?}");
        }
        let quoting = Quoting { style: Q::Escape, also: b" ", hides: true };
        assert_eq!(*quoting.quote(b"a b\xff"), b"a\\ b\\377"[..]);
        let quoting = Quoting { style: Q::Literal, also: b" ", hides: true };
        assert_eq!(*quoting.quote(b"a b\xff"), b"a b?"[..]);
        let quoting = Quoting { style: Q::Shell, also: b":", hides: false };
        assert_eq!(*quoting.quote(b"a:b"), b"'a:b'"[..]);
    }
}
