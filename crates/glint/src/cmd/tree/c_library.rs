//! The parts of the C library that decide what find(1) finds and prints: patterns, names of users
//! and groups, dates.

use glint_proto::Timestamp;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

/// Room for the strings of an entry of passwd(5) or group(5).
const ENTRY_BYTES: usize = 64 << 10;

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

    /// Whether all of `text` matches.
    pub(in crate::cmd) fn matches(&self, text: &[u8]) -> bool {
        let Ok(text) = CString::new(text) else { return false };
        // SAFETY: both strings end with a 0, outlive the call, and are only read.
        unsafe { libc::fnmatch(self.pattern.as_ptr(), text.as_ptr(), self.flags) == 0 }
    }
}

/// Returns the name of a user.
pub(in crate::cmd) fn user_name(uid: u32) -> Option<Vec<u8>> {
    let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: the entry and its room outlive the call, and the room is as long as is said. What was
    // found is the entry, whose name lies in the room and ends with a 0.
    unsafe {
        let (place, bytes) = (entry.as_mut_ptr(), room.as_mut_ptr());
        let failed = libc::getpwuid_r(uid, place, bytes, room.len(), &raw mut found);
        (failed == 0 && !found.is_null())
            .then(|| CStr::from_ptr((*found).pw_name).to_bytes().to_vec())
    }
}

/// Returns the name of a group.
pub(in crate::cmd) fn group_name(gid: u32) -> Option<Vec<u8>> {
    let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: as in `user_name`.
    unsafe {
        let (place, bytes) = (entry.as_mut_ptr(), room.as_mut_ptr());
        let failed = libc::getgrgid_r(gid, place, bytes, room.len(), &raw mut found);
        (failed == 0 && !found.is_null())
            .then(|| CStr::from_ptr((*found).gr_name).to_bytes().to_vec())
    }
}

/// Returns the number of a user.
pub(in crate::cmd) fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: as in `user_name`; the name ends with a 0.
    unsafe {
        let (place, bytes) = (entry.as_mut_ptr(), room.as_mut_ptr());
        let failed = libc::getpwnam_r(name.as_ptr(), place, bytes, room.len(), &raw mut found);
        (failed == 0 && !found.is_null()).then(|| (*found).pw_uid)
    }
}

/// Returns the number of a group.
pub(in crate::cmd) fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
    let mut room = vec![0; ENTRY_BYTES];
    // SAFETY: as in `user_id`.
    unsafe {
        let (place, bytes) = (entry.as_mut_ptr(), room.as_mut_ptr());
        let failed = libc::getgrnam_r(name.as_ptr(), place, bytes, room.len(), &raw mut found);
        (failed == 0 && !found.is_null()).then(|| (*found).gr_gid)
    }
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
        assert_eq!(user_name(0).as_deref(), Some(&b"root"[..]));
        assert_eq!((user_id("root"), group_id("no such group")), (Some(0), None));
    }
}
