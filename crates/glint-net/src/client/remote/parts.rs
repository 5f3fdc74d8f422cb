//! The data of an answer to one read, or to several, in its parts.

use glint_proto::message::Reply;
use glint_proto::{Errno, FsResult, OstReply};
use glint_telemetry::Counter;

/// Copies the data of an answer. EPROTO if it is more than was asked for, or not as long as the answer
/// says: the bytes behind it were not read.
pub(super) fn copy_data(room: &mut [u8], reply: &Reply, data: &[u8]) -> FsResult<()> {
    let said = match reply {
        Reply::Ost { reply: Ok(OstReply::Data(len)), .. } => *len as usize,
        _ => data.len(),
    };
    let part = room.get_mut(..data.len()).filter(|part| part.len() == said);
    part.ok_or(Errno::EPROTO)?.copy_from_slice(data);
    glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
    Ok(())
}

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
    fn data_is_as_long_as_the_answer_says() {
        let mut room = [0; 4];
        let mut copy = |len: u32, data: &[u8]| {
            let reply = Reply::Ost { transaction: 0, reply: Ok(OstReply::Data(len)) };
            copy_data(&mut room, &reply, data)
        };
        assert_eq!(copy(3, b"abc"), Ok(()));
        for (len, data) in [(4, &b"abc"[..]), (2, b"abc"), (1, b""), (5, b"abcde")] {
            assert_eq!(copy(len, data), Err(Errno::EPROTO), "{len} {data:?}");
        }
        assert_eq!(copy(0, b""), Ok(()));
        assert_eq!(&room, b"abc\0");
    }

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
