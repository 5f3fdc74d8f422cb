//! The parts of the C library that decide what find(1) finds and prints: patterns, names of users
//! and groups, dates.

use glint_proto::{Errno, Timestamp};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;

/// Room for the strings of an entry of passwd(5) or group(5), at first and at most.
const ENTRY_BYTES: usize = 64 << 10;
const ENTRY_BYTES_MAX: usize = 16 << 20;
/// How often an entry is asked for that needs more room, or while signals come.
const ATTEMPTS_MAX: usize = 100;

/// A pattern of fnmatch(3), on bytes: a leading dot is no exception, and `*` matches a slash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cmd) struct Pattern {
    pattern: CString,
    flags: i32,
}

impl Pattern {
    /// A pattern; `None` if a byte of it is 0.
    pub(in crate::cmd) fn new(pattern: &[u8], ignores_case: bool) -> Option<Pattern> {
        let flags = if ignores_case { libc::FNM_CASEFOLD } else { 0 };
        Some(Pattern { pattern: CString::new(pattern).ok()?, flags })
    }

    /// What every text that matches begins and ends with.
    pub(in crate::cmd) fn ends(&self) -> (&[u8], &[u8]) {
        if self.flags != 0 {
            return (&[], &[]);
        }
        let pattern = self.pattern.to_bytes();
        let is_special = |byte: &u8| b"*?[]\\".contains(byte);
        let begin = pattern.iter().position(is_special).unwrap_or(pattern.len());
        let end = pattern.iter().rposition(is_special).map_or(0, |last| last + 1);
        (&pattern[..begin], &pattern[end..])
    }

    /// Whether all of `text` matches.
    pub(in crate::cmd) fn matches(&self, text: &[u8]) -> bool {
        let Ok(text) = CString::new(text) else { return false };
        // SAFETY: both strings end with a 0, outlive the call, and are only read.
        unsafe { libc::fnmatch(self.pattern.as_ptr(), text.as_ptr(), self.flags) == 0 }
    }
}

/// Asks for an entry of passwd(5) or group(5), with more room as long as it says that there is too
/// little. `ask` is given the place of the entry, room for its strings, and where to say that it was
/// found; `take` reads what was found. An error says that nobody knows whether there is one.
fn entry<E, T>(
    ask: impl Fn(*mut E, *mut c_char, usize, *mut *mut E) -> c_int,
    take: impl FnOnce(&E) -> T,
) -> Result<Option<T>, Errno> {
    let mut bytes = ENTRY_BYTES;
    for _ in 0..ATTEMPTS_MAX {
        let (mut entry, mut found) = (MaybeUninit::<E>::uninit(), std::ptr::null_mut());
        let mut room = vec![0; bytes];
        match ask(entry.as_mut_ptr(), room.as_mut_ptr(), bytes, &raw mut found) {
            // As some of the services behind it say that there is none.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            // SAFETY: what was found is the entry, which lives as long as its room.
            0 => return Ok(Some(take(unsafe { &*found }))),
            // A group may have very many members.
            libc::ERANGE if bytes < ENTRY_BYTES_MAX => bytes *= 2,
            libc::EINTR => {}
            error => return Err(Errno(error)),
        }
    }
    Err(Errno::EINTR)
}

/// Copies a name of an entry.
///
/// # Safety
///
/// It must end with a 0.
unsafe fn copied(name: *const c_char) -> Vec<u8> {
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(name).to_bytes().to_vec() }
}

/// Returns the name of a user.
pub(in crate::cmd) fn user_name(uid: u32) -> Result<Option<Vec<u8>>, Errno> {
    // SAFETY: entry and room outlive the call, and the room is as long as is said. The name of what
    // was found ends with a 0.
    entry(
        |entry, room, bytes, found| unsafe { libc::getpwuid_r(uid, entry, room, bytes, found) },
        |found: &libc::passwd| unsafe { copied(found.pw_name) },
    )
}

/// Returns the name of a group.
pub(in crate::cmd) fn group_name(gid: u32) -> Result<Option<Vec<u8>>, Errno> {
    // SAFETY: as in `user_name`.
    entry(
        |entry, room, bytes, found| unsafe { libc::getgrgid_r(gid, entry, room, bytes, found) },
        |found: &libc::group| unsafe { copied(found.gr_name) },
    )
}

/// Returns the number of a user.
pub(in crate::cmd) fn user_id(name: &str) -> Result<Option<u32>, Errno> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: as in `user_name`; the name ends with a 0, and outlives the call.
    entry(
        |entry, room, bytes, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, room, bytes, found)
        },
        |found: &libc::passwd| found.pw_uid,
    )
}

/// Returns the number of a group.
pub(in crate::cmd) fn group_id(name: &str) -> Result<Option<u32>, Errno> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: as in `user_id`.
    entry(
        |entry, room, bytes, found| unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, room, bytes, found)
        },
        |found: &libc::group| found.gr_gid,
    )
}

/// Returns when a date is: year, month, day, hour, minute, second.
pub(in crate::cmd) fn local_time(date: [i32; 6], is_utc: bool) -> Option<i64> {
    let [year, month, day, hour, minute, second] = date;
    // SAFETY: a `tm` is numbers, and a pointer to the name of a time zone, which may be null.
    let mut parts: libc::tm = unsafe { MaybeUninit::zeroed().assume_init() };
    (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year.checked_sub(1900)?, month - 1, day);
    (parts.tm_hour, parts.tm_min, parts.tm_sec, parts.tm_isdst) = (hour, minute, second, -1);
    // SAFETY: the parts outlive the call, which writes them only.
    let secs =
        unsafe { if is_utc { libc::timegm(&raw mut parts) } else { libc::mktime(&raw mut parts) } };
    // A day that its month does not have has become another one.
    (parts.tm_mday == day && parts.tm_mon == month - 1).then_some(secs)
}

/// Returns a number as %g of printf(3) writes it.
pub(in crate::cmd) fn short(number: f64) -> Vec<u8> {
    let mut text = [0u8; 64];
    // SAFETY: the text is as long as is said, and the format ends with a 0 and takes one `double`.
    let len =
        unsafe { libc::snprintf(text.as_mut_ptr().cast(), text.len(), c"%g".as_ptr(), number) };
    text[..usize::try_from(len).unwrap_or_default().min(text.len())].to_vec()
}

/// Returns a time in the local time zone, as strftime(3) writes it.
pub(in crate::cmd) fn date(time: Timestamp, format: &CStr) -> Vec<u8> {
    let mut parts = MaybeUninit::<libc::tm>::uninit();
    let mut text = [0u8; 256];
    // SAFETY: the time and its parts outlive the call; the parts are read only if it has filled
    // them. The text is as long as is said, and the format ends with a 0.
    let len = unsafe {
        if libc::localtime_r(&raw const time.secs, parts.as_mut_ptr()).is_null() {
            return time.secs.to_string().into_bytes();
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), parts.as_ptr())
    };
    text[..len].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_find() {
        for (pattern, text, expected) in [
            (&b"*"[..], &b".hidden"[..], true),
            (b"a*c", b"a/b/c", true),
            (b"?", b"\xff", true),
            (b"[!a]", b"b", true),
            (b"[", b"[", true),
            (b"\\*", b"*", true),
            (b"\\*", b"a", false),
            (b"{a,b}", b"a", false),
            (b"A", b"a", false),
        ] {
            let found = Pattern::new(pattern, false).unwrap().matches(text);
            assert_eq!(found, expected, "{pattern:?} {text:?}");
        }
        assert!(Pattern::new(b"A*", true).unwrap().matches(b"abc"));
    }

    #[test]
    fn root_has_a_name() {
        assert_eq!(user_name(0), Ok(Some(b"root".to_vec())));
        assert_eq!(group_name(u32::MAX - 7), Ok(None));
        assert_eq!((user_id("root"), group_id("no such group")), (Ok(Some(0)), Ok(None)));
        assert_eq!(user_id("a\0b"), Ok(None));
    }

    #[test]
    fn an_entry_is_given_the_room_that_it_needs() {
        let asked = |needed: usize, error: c_int| {
            entry(
                |place: *mut u64, _, bytes, found| {
                    if bytes < needed {
                        return error;
                    }
                    // SAFETY: both outlive the call.
                    unsafe {
                        place.write(7);
                        found.write(place);
                    }
                    0
                },
                |found| *found,
            )
        };
        for needed in [0, ENTRY_BYTES + 1, ENTRY_BYTES_MAX] {
            assert_eq!(asked(needed, libc::ERANGE), Ok(Some(7)), "{needed}");
        }
        assert_eq!(asked(ENTRY_BYTES_MAX + 1, libc::ERANGE), Err(Errno(libc::ERANGE)));
        assert_eq!(asked(ENTRY_BYTES + 1, libc::EIO), Err(Errno::EIO));
        assert_eq!(asked(ENTRY_BYTES + 1, libc::EINTR), Err(Errno::EINTR));
        assert_eq!(asked(ENTRY_BYTES + 1, libc::ESRCH), Ok(None));
        assert_eq!(asked(ENTRY_BYTES + 1, 0), Ok(None));
    }
}
