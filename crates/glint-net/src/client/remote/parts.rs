//! The answer to several reads, in its parts.

use glint_proto::{Errno, FsResult};

/// What belongs to each of several reads. EPROTO if it is not what was asked for: nobody must be given
/// what belongs to another read.
pub(super) fn parts_of<'a>(
    mut data: &'a [u8],
    asked: &[u32],
    lengths: &[FsResult<u32>],
) -> FsResult<Vec<FsResult<&'a [u8]>>> {
    if lengths.len() != asked.len() {
        return Err(Errno::EPROTO);
    }
    let mut parts = Vec::with_capacity(asked.len());
    for (asked, len) in asked.iter().zip(lengths) {
        let len = match len {
            Ok(len) if len <= asked => *len as usize,
            Ok(_) => return Err(Errno::EPROTO),
            Err(errno) => {
                parts.push(Err(*errno));
                continue;
            }
        };
        let (part, rest) = data.split_at_checked(len).ok_or(Errno::EPROTO)?;
        parts.push(Ok(part));
        data = rest;
    }
    if data.is_empty() { Ok(parts) } else { Err(Errno::EPROTO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_other_lengths_is_given_to_nobody() {
        let parts = |lengths: &[FsResult<u32>]| parts_of(b"abcdef", &[4, 4, 4], lengths);
        let failed = Err(Errno::ENXIO);
        let good = parts(&[Ok(2), failed, Ok(4)]).unwrap();
        assert_eq!(good, [Ok(&b"ab"[..]), failed.map(|_: u32| &b""[..]), Ok(b"cdef")]);
        for wrong in [&[Ok(2), Ok(4)][..], &[Ok(2), Ok(4), Ok(1)], &[Ok(2), failed, Ok(3)]] {
            assert_eq!(parts(wrong), Err(Errno::EPROTO), "{wrong:?}");
        }
        assert_eq!(parts(&[Ok(1), Ok(5), Ok(0)]), Err(Errno::EPROTO), "more than was asked for");
    }
}
