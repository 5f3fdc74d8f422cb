//! The data of answers to reads: copied into the buffer of a read, kept in the buffer that it was
//! received in (much from one object), or in the parts of several reads with one request.

use crate::client::remote::Remote;
use glint_proto::message::{ObjectRead, Reply, Request};
use glint_proto::{Bulk, Errno, FsResult, OstReply};
use glint_telemetry::Counter;

impl Remote {
    /// Reads from one object. Much data stays in the buffer into which it was received.
    pub(super) async fn read_one(&self, read: ObjectRead) -> FsResult<Vec<u8>> {
        let (to, request, capability) = (read.to, read.request(), read.capability);
        let call = Request::Ost { to, request, capability, forward: None };
        let (reply, data) = self.exchange(&call, &Bulk::None, &|| true).await?;
        match self.ost_reply(reply)? {
            OstReply::Data(len) if len <= read.len && len as usize == data.bytes().len() => {
                Ok(data.into_vec())
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Reads from several objects, and says of each what was read.
    pub(super) async fn read_many(
        &self,
        reads: Vec<ObjectRead>,
        says: &dyn Fn(usize, FsResult<Vec<u8>>),
    ) {
        let asked: Vec<u32> = reads.iter().map(|read| read.len).collect();
        let answer = self.exchange(&Request::ReadObjects(reads), &Bulk::None, &|| true).await;
        let parts = match &answer {
            Ok((Reply::ObjectsRead(lengths), data)) => parts_of(data.bytes(), &asked, lengths),
            Ok((Reply::Failed(errno), _)) | Err(errno) => Err(*errno),
            Ok(_) => Err(Errno::EPROTO),
        };
        let copied = |data: &[u8]| {
            glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
            data.to_vec()
        };
        match parts {
            Ok(parts) => {
                parts.into_iter().enumerate().for_each(|(at, part)| says(at, part.map(copied)));
            }
            Err(errno) => (0..asked.len()).for_each(|at| says(at, Err(errno))),
        }
    }
}

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
