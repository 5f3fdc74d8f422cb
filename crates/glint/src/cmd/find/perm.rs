//! Modes of -perm, in digits or symbols.

use glint_proto::FileType;

/// Permissions that are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Perm {
    Exactly(Wanted),
    All(Wanted),
    Any(Wanted),
}

/// The bits of a mode, which X makes other ones for directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    directory: u32,
    other: u32,
}

impl Perm {
    /// From octal digits or symbols (u=rw,g+r), after - for all or / for any of them.
    pub(super) fn parse(text: &str) -> Result<Perm, String> {
        let (make, rest): (fn(Wanted) -> Perm, &str) = match text.as_bytes().first() {
            Some(b'-') => (Perm::All, &text[1..]),
            Some(b'/') => (Perm::Any, &text[1..]),
            _ => (Perm::Exactly, text),
        };
        let octal = rest.starts_with(|first: char| first.is_ascii_digit());
        let mode = |is_directory| match octal {
            true => u32::from_str_radix(rest, 8).ok().filter(|mode| *mode <= 0o7777),
            false => symbols(rest, is_directory),
        };
        let wanted = mode(true).zip(mode(false));
        wanted.map(|(directory, other)| make(Wanted { directory, other })).ok_or_else(|| {
            format!("-perm {text:?}: say a mode as 644 or u=rw,go=r, after - for all or / for any")
        })
    }

    pub(super) fn holds(self, mode: u32) -> bool {
        let (Perm::Exactly(wanted) | Perm::All(wanted) | Perm::Any(wanted)) = self;
        let is_directory = FileType::from_mode(mode) == Some(FileType::Directory);
        let wanted = if is_directory { wanted.directory } else { wanted.other };
        let mode = mode & 0o7777;
        match self {
            Perm::Exactly(_) => mode == wanted,
            Perm::All(_) => mode & wanted == wanted,
            Perm::Any(_) => wanted == 0 || mode & wanted != 0,
        }
    }
}

/// The bits that letters stand for.
fn letters(text: &str, bits_of: fn(char) -> Option<u32>) -> Option<u32> {
    text.chars().try_fold(0, |bits, letter| Some(bits | bits_of(letter)?))
}

/// A mode in symbols, as chmod(1) would make it of 0 without a umask.
fn symbols(text: &str, is_directory: bool) -> Option<u32> {
    const OPERATORS: [char; 3] = ['=', '+', '-'];
    let mut mode = 0;
    for clause in text.split(',') {
        let (who, mut rest) = clause.split_at(clause.find(OPERATORS)?);
        let affected = letters(who, |letter| match letter {
            'u' => Some(0o4700),
            'g' => Some(0o2070),
            'o' => Some(0o1007),
            'a' => Some(0o7777),
            _ => None,
        })?;
        let affected = if who.is_empty() { 0o7777 } else { affected };
        while let Some(operator) = rest.chars().next() {
            let end = rest[1..].find(OPERATORS).map_or(rest.len(), |at| at + 1);
            let what = &rest[1..end];
            let said = match what {
                "u" => copied(mode >> 6),
                "g" => copied(mode >> 3),
                "o" => copied(mode),
                _ => letters(what, |letter| match letter {
                    'r' => Some(0o444),
                    'w' => Some(0o222),
                    'x' => Some(0o111),
                    'X' => Some(0),
                    's' => Some(0o6000),
                    't' => Some(0o1000),
                    _ => None,
                })?,
            };
            // Execution where it makes sense.
            let executes = what.contains('X') && (is_directory || mode & 0o111 != 0);
            let bits = (said | if executes { 0o111 } else { 0 }) & affected;
            // Of a directory, set-id bits change only if they are named.
            let kept = if is_directory { 0o6000 & !bits } else { 0 };
            match operator {
                '=' => mode = mode & (!affected | kept) | bits,
                '+' => mode |= bits,
                _ => mode &= !bits,
            }
            rest = &rest[end..];
        }
    }
    Some(mode)
}

/// The lowest three bits, for everybody.
fn copied(mode: u32) -> u32 {
    (mode & 0o7) * 0o111
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_digits_or_symbols() {
        for (text, directory, other) in [
            ("644", 0o644, 0o644),
            ("u=rw,go=r", 0o644, 0o644),
            ("a+x", 0o111, 0o111),
            ("+t", 0o1000, 0o1000),
            ("u+t", 0, 0),
            ("u+s", 0o4000, 0o4000),
            ("g=s", 0o2000, 0o2000),
            ("u=rwx,u-x", 0o600, 0o600),
            ("u=rw,g=u", 0o660, 0o660),
            ("u=rw+x-r", 0o300, 0o300),
            ("a+X", 0o111, 0),
            ("u+x,g+X", 0o110, 0o110),
            ("g+s,g=r", 0o2040, 0o040),
        ] {
            let wanted = Wanted { directory, other };
            assert_eq!(Perm::parse(text), Ok(Perm::Exactly(wanted)), "{text}");
        }
        for wrong in ["", "-", "a", "u+q", "+644", "8", "10000", "u=rw,"] {
            Perm::parse(wrong).unwrap_err();
        }
        let holds = |text, mode| Perm::parse(text).unwrap().holds(mode);
        assert!(holds("-111", 0o755) && !holds("-022", 0o755));
        assert!(holds("/000", 0) && holds("/011", 0o010));
        assert!(holds("-a+X", libc::S_IFREG) && !holds("-a+X", libc::S_IFDIR));
    }
}
