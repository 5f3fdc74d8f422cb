//! One pass over all objects of a disk, in steps of a chunk.
//!
//! Invariants:
//! - A step goes forward: a directory or an object that cannot be read is told and left behind, so
//!   that none stops a pass.
//! - An object is damaged if its bytes are not those of its checksums, or if the disk says that it
//!   lost them ([`is_damage`]). Any other error says nothing about the object: it is not compared.
//! - An object is open only while a chunk of it is read: who asks whether others have it open, to
//!   hand it to the kernel ([`crate::handed_out`]), finds it alone between two of them.
//! - A mismatch counts only if a second reading finds it, too: an object that is changed and
//!   changed back while a block is read has the same checksums before and after.

use crate::disk::{Disk, DiskFile};
use crate::store::checksum::Sums;
use crate::store::object::unreadable::{UNREADABLE, unreadable};
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
use crate::store::object_store::{DIRECTORIES, directory_name, parse_name, path_of, shard_of};
use crate::store::passing::Passing;
use glint_proto::ObjectId;
use rustix::io::Errno;
use std::io;

/// Bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;
/// Addresses and lengths of reads past the page cache are multiples of this many bytes.
const ALIGNMENT: usize = 4096;

/// A pass over all objects.
pub(super) struct Pass {
    /// Number that its scrubber gave it.
    pub(super) number: u64,
    /// The next directory.
    directory: usize,
    /// Directories behind it that could not be listed.
    unlisted: Vec<usize>,
    /// Objects left of the directory before it, and how many it had.
    objects: Vec<ObjectId>,
    in_directory: usize,
    reading: Option<Reading>,
    buffer: Vec<u8>,
}

/// Result of one step of a pass.
pub(super) enum Outcome {
    /// Some bytes of an object were read.
    Object { object: ObjectId, bytes: u64, verdict: Verdict, wrong: Option<Box<WrongBlock>> },
    /// A directory, by its path, could not be listed: its objects are not known.
    Unlisted(String, io::Error),
    /// There is nothing more.
    End,
}

/// A block that does not match its checksum, in two readings.
pub(super) struct WrongBlock {
    pub(super) sums: Sums,
    pub(super) index: usize,
}

/// Result of checking an object.
pub(super) enum Verdict {
    /// Not read to its end.
    More,
    /// Right in all of its bytes.
    Right,
    /// Changing just now.
    Changing,
    /// Not there any more.
    Gone,
    /// Without checksums.
    Unsealed,
    /// Not to be read now, for a reason that says nothing about it.
    NotCompared(String),
    /// Not what was written, for this reason.
    Damaged(String),
}

impl Verdict {
    /// Verdict on an object with which something failed.
    fn failed(doing: &str, errno: Errno) -> Verdict {
        let reason = format!("{doing}: {errno}");
        if is_damage(errno) { Verdict::Damaged(reason) } else { Verdict::NotCompared(reason) }
    }
}

/// Whether an error says that the disk lost what is asked for: the device does not give it (EIO;
/// around the page cache also ENODATA and EILSEQ), or the file system's own checks do not hold
/// (EUCLEAN, EBADMSG).
fn is_damage(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::UCLEAN | Errno::BADMSG)
}

/// An object that is being read.
struct Reading {
    object: ObjectId,
    /// Read through the page cache, because it cannot be read past it.
    is_cached: bool,
    /// The checksums, and as they are stored.
    sums: Sums,
    stored: Vec<u8>,
    block: usize,
    at: u64,
    sum: u32,
    /// Whether the block did not match and is read for the second time.
    is_second: bool,
    /// Whether it did not match then, either.
    is_wrong: bool,
}

/// Opens an object to read it, past the page cache or through it.
fn open<D: Disk>(disk: &D, object: ObjectId, is_cached: bool) -> Result<D::File, Verdict> {
    let path = path_of(object);
    let opened = if is_cached { disk.open_to_read(&path) } else { disk.open_uncached(&path) };
    opened.map_err(|errno| match errno {
        Errno::NOENT => Verdict::Gone,
        errno => Verdict::failed("opening it", errno),
    })
}

fn stored_sums(file: &impl DiskFile) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; ATTRIBUTE_BYTES_MAX];
    let len = file.attribute(ATTRIBUTE, &mut value)?;
    value.truncate(len);
    Ok(value)
}

impl Reading {
    /// Opens an object, if it has checksums.
    fn open<D: Disk>(disk: &D, object: ObjectId) -> Result<(Reading, D::File), Verdict> {
        let file = open(disk, object, false)?;
        let stored = match stored_sums(&file) {
            Ok(stored) => stored,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Err(Verdict::Unsealed),
            // Longer than any that a store puts on.
            Err(Errno::RANGE) => return Err(Verdict::Damaged("its checksums are damaged".into())),
            Err(errno) => return Err(Verdict::failed("reading its checksums", errno)),
        };
        if stored == UNREADABLE {
            return Err(Verdict::Damaged(unreadable().to_string()));
        }
        let Some(sums) = Sums::decode(&stored) else {
            return Err(Verdict::Damaged("its checksums are damaged".into()));
        };
        let reading = Reading {
            object,
            is_cached: false,
            sums,
            stored,
            block: 0,
            at: 0,
            sum: 0,
            is_second: false,
            is_wrong: false,
        };
        Ok((reading, file))
    }

    /// The verdict, if the object still has the checksums that it is about.
    fn unless_changed(&self, file: &impl DiskFile, verdict: Verdict) -> Verdict {
        // Who finds damage meanwhile notes it there.
        let is_same = |now: &[u8]| Sums::decode(now).is_some_and(|now| now.are_as(&self.sums));
        match stored_sums(file) {
            Ok(now) if now == self.stored || is_same(&now) => verdict,
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Verdict::Changing,
            Err(errno) => Verdict::failed("reading its checksums", errno),
        }
    }

    /// Verdict on an object that does not match its checksums, for this reason: damaged, if that is
    /// so when the block is read for the second time.
    fn mismatch(&mut self, file: &impl DiskFile, reason: String) -> Verdict {
        match self.unless_changed(file, Verdict::Damaged(reason)) {
            Verdict::Damaged(_) if !self.is_second => {
                let (from, _) = self.sums.block(self.block);
                (self.at, self.sum, self.is_second) = (from, 0, true);
                Verdict::More
            }
            verdict => verdict,
        }
    }

    /// Reads on, no more than a chunk. Returns how much that was.
    fn read(
        &mut self,
        file: &impl DiskFile,
        passing: &Passing,
        buffer: &mut [u8],
    ) -> (u64, Verdict) {
        if self.block == 0 && self.at == 0 {
            match file.stat() {
                Ok(stat) if stat.size == self.sums.size() => {}
                Ok(stat) => {
                    let (is, was) = (stat.size, self.sums.size());
                    return (0, self.mismatch(file, format!("it has {is} bytes, and had {was}")));
                }
                Err(errno) => return (0, Verdict::failed("its state", errno)),
            }
        }
        if self.block == self.sums.blocks() {
            return (0, Verdict::Right);
        }
        let (from, to) = self.sums.block(self.block);
        let left = (to - self.at) as usize;
        let len = left.min(CHUNK_BYTES);
        let room = &mut buffer[..len.next_multiple_of(ALIGNMENT)];
        let read = match self.is_cached {
            true => passing.read_adding_none(file, room, self.at),
            false => file.read(room, self.at),
        };
        let n = match read {
            Ok(n) => n.min(len),
            Err(Errno::INTR) => return (0, Verdict::More),
            // The file system cannot read the file in such pieces past the page cache.
            Err(Errno::INVAL) if !self.is_cached => {
                self.is_cached = true;
                return (0, Verdict::More);
            }
            Err(errno) => {
                let failed = Verdict::failed(&format!("reading it at byte {}", self.at), errno);
                return (0, self.unless_changed(file, failed));
            }
        };
        self.sum = crc32c::crc32c_append(self.sum, &buffer[..n]);
        self.at += n as u64;
        if self.at < to && n > 0 {
            return (n as u64, Verdict::More);
        }
        if self.sum != self.sums.expected(self.block) {
            let reason = format!("bytes {from}..{to} do not match their checksum");
            let verdict = self.mismatch(file, reason);
            self.is_wrong = matches!(verdict, Verdict::Damaged(_));
            return (n as u64, verdict);
        }
        (self.block, self.at, self.sum, self.is_second) = (self.block + 1, to, 0, false);
        let is_last = self.block == self.sums.blocks();
        (n as u64, if is_last { Verdict::Right } else { Verdict::More })
    }
}

impl Pass {
    pub(super) fn new(number: u64) -> Pass {
        Pass {
            number,
            directory: 0,
            unlisted: Vec::new(),
            objects: Vec::new(),
            in_directory: 0,
            reading: None,
            buffer: vec![0; CHUNK_BYTES + ALIGNMENT],
        }
    }

    /// The part that is done, from 0 to 1.
    pub(super) fn done(&self) -> f64 {
        let left = self.objects.len() as f64 / self.in_directory.max(1) as f64;
        (self.directory as f64 - left).max(0.0) / DIRECTORIES as f64
    }

    /// Whether the directory of an object could be listed, if the pass has come to it.
    pub(super) fn lists(&self, object: ObjectId) -> bool {
        !self.unlisted.contains(&shard_of(object))
    }

    /// The next object, once those of a directory are known. The outcome is why there is none.
    fn next(&mut self, disk: &impl Disk) -> Result<ObjectId, Outcome> {
        loop {
            if let Some(object) = self.objects.pop() {
                return Ok(object);
            }
            if self.directory == DIRECTORIES {
                return Err(Outcome::End);
            }
            let directory = self.directory;
            self.directory += 1;
            let names = disk.names(&directory_name(directory)).map_err(|error| {
                self.unlisted.push(directory);
                Outcome::Unlisted(directory_name(directory), error)
            })?;
            self.objects = names.iter().filter_map(|name| parse_name(name.to_str()?)).collect();
            // Neighbours lie next to each other, and the end comes first.
            self.objects.sort_unstable_by(|a, b| b.cmp(a));
            self.in_directory = self.objects.len();
        }
    }

    /// Goes on by a directory, or a chunk of an object.
    pub(super) fn step(&mut self, disk: &impl Disk, passing: &Passing) -> Outcome {
        let (object, opened) = match self.reading.take() {
            Some(reading) => {
                let object = reading.object;
                (object, open(disk, object, reading.is_cached).map(|file| (reading, file)))
            }
            None => match self.next(disk) {
                Ok(object) => (object, Reading::open(disk, object)),
                Err(outcome) => return outcome,
            },
        };
        let (mut reading, file) = match opened {
            Ok(opened) => opened,
            Err(verdict) => return Outcome::Object { object, bytes: 0, verdict, wrong: None },
        };
        let unaligned = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let (bytes, verdict) =
            reading.read(&file, passing, &mut self.buffer[unaligned..][..CHUNK_BYTES]);
        let mut wrong = None;
        if let Verdict::More = verdict {
            self.reading = Some(reading);
        } else if reading.is_wrong {
            wrong = Some(Box::new(WrongBlock { sums: reading.sums, index: reading.block }));
        }
        Outcome::Object { object, bytes, verdict, wrong }
    }
}
