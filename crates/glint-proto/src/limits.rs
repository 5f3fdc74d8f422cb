//! Every limit of the system, its unit in its name, and the relations between
//! limits asserted at compile time.

/// Version of the wire protocol. A peer of another version is refused.
pub const PROTOCOL_VERSION: u16 = 16;
/// Version of a data directory. Version 2 has a journal in front of the tables,
/// version 3 more servers than one, version 4 records of the journal that say what was durable.
pub const FORMAT_VERSION: u32 = 5;
/// Oldest version that is read, and written as the newest from then on.
pub const FORMAT_VERSION_MIN: u32 = 1;

/// Longest name of an entry (NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link (PATH_MAX less its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest name of an extended attribute (XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute (XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest list of attribute names (XATTR_LIST_MAX).
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;
/// Most extended attributes of one inode, and bytes of all their values together. Beyond it is
/// ENOSPC; the names are bounded by [`XATTR_LIST_BYTES_MAX`].
pub const XATTR_COUNT_MAX: usize = 1024;
/// See [`XATTR_COUNT_MAX`].
pub const XATTR_VALUES_BYTES_MAX: usize = 1 << 20;
/// Values of virtual attributes that a client keeps between the question for the length and the
/// reading.
pub const SNAPSHOTS_MAX: usize = 64;
/// How long it keeps one.
pub const SNAPSHOT_MS_MAX: u64 = 3_000;
/// Most links to one inode.
pub const LINK_COUNT_MAX: u32 = 1 << 31;
/// Most supplementary groups that a request carries (NGROUPS_MAX).
pub const GROUPS_MAX: usize = 65536;
/// Largest file: what a signed 64-bit offset can say.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Bytes of tables that the engine of an MDS keeps in memory, where nothing else was set.
pub const ENGINE_CACHE_BYTES: u64 = 32 << 20;
/// Fewest bytes that may be set.
pub const ENGINE_CACHE_BYTES_MIN: u64 = 1 << 20;
/// Largest object whose data an OST keeps in memory, where nothing else was set: larger ones pass
/// through.
pub const OBJECT_CACHE_BYTES_MAX: u64 = 8 << 20;
/// Smallest file that the kernel gets to read by itself: for less, asking for the object and giving
/// it back take longer than reading it through the mount.
pub const PASSED_BYTES_MIN: u64 = 256 << 10;
/// Most bytes of an object that are compared with their checksums before the kernel gets it to read
/// by itself: who opens the file waits for that.
pub const HAND_OUT_CHECK_BYTES_MAX: u64 = 512 << 20;
/// How long that may take: the disk may be slow. The rest is compared in the background.
pub const HAND_OUT_CHECK_MS_MAX: u64 = 1_000;

/// Smallest stripe.
pub const STRIPE_BYTES_LOG2_MIN: u8 = 16;
/// Largest stripe.
pub const STRIPE_BYTES_LOG2_MAX: u8 = 26;
/// Stripe size where nothing else was set: 1 MiB.
pub const STRIPE_BYTES_LOG2_DEFAULT: u8 = 20;
/// Most OSTs in one file system, and so most stripes of one file.
pub const OST_COUNT_MAX: u16 = 1024;

/// Layouts of a file, planned or left, of which there may still be objects: each is kept for a
/// lease after the file has moved, or for longer where a client has crashed.
pub const LAYOUTS_KEPT_MAX: usize = 64;
/// Most files of which a client says at once that it is going to read them.
pub const PREFETCHED_FILES_MAX: usize = 64;
/// Extents of a watched object that one answer has.
pub const CHANGED_EXTENTS_PER_REPLY: usize = 4;
/// Most objects that one request reads from.
pub const OBJECT_READS_MAX: usize = 64;
/// Largest bulk part of a frame, the maximum RPC size.
pub const BULK_BYTES_MAX: usize = 4 << 20;
/// Extents of an object that one request writes: enough to fill it with small pages of the
/// kernel, and not so many that their execution holds a core for long.
pub const EXTENTS_PER_WRITE_MAX: usize = 1024;
/// Largest encoded body of a frame: the largest xattr and a rename fit with room.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest read or write the kernel sends in one FUSE request.
pub const FUSE_IO_BYTES_MAX: usize = 1 << 20;
/// How far the kernel reads ahead of a sequential reader.
pub const READ_AHEAD_BYTES: usize = 2 << 20;
/// Most memory for the payload buffers of all FUSE queues together.
pub const FUSE_QUEUE_BYTES_MAX: usize = 128 << 20;
/// Most bytes of entries in one page of a directory.
pub const DIR_PAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of entries for which one page has room, whatever less is wished.
pub const DIR_PAGE_BYTES_MIN: usize = 4 << 10;
/// Bytes that an entry of it counts for beside its name, without attributes.
pub const DIR_ENTRY_BYTES: usize = 24;
/// Bytes that an entry of it counts for beside its name, with attributes.
pub const DIR_ENTRY_PLUS_BYTES: usize = 128;
/// Inodes above which a client asks the kernel to forget some. Each takes about 400 bytes, with its
/// name in its directory: all of them together less than 256 MB.
pub const KNOWN_INODES_MAX: usize = 3 << 17;
/// How long nobody must have used a mount before it returns its locks, where nothing else was set: ten
/// minutes.
pub const IDLE_MS: u64 = 600_000;
/// Names that a client remembers not to exist, in one directory and in all.
pub const NEGATIVE_DENTRIES_PER_DIRECTORY_MAX: usize = 1 << 12;
/// See [`NEGATIVE_DENTRIES_PER_DIRECTORY_MAX`].
pub const NEGATIVE_DENTRIES_MAX: usize = 1 << 17;
/// Most entries in one page of a directory.
pub const DIR_PAGE_ENTRIES_MAX: usize = 1024;
/// Most directories that one request of a scan names.
pub const SCAN_DIRECTORIES_MAX: usize = 256;
/// Most bytes of entries in the answer to it: some milliseconds of a server's core.
pub const SCAN_BYTES_MAX: usize = 256 << 10;
/// Most records of a page of the namespace that is checked: about a millisecond of a server's core.
pub const CHECKED_RECORDS_MAX: usize = 1024;
/// Most characters of what such a page says of a record that cannot be read.
pub const DAMAGE_CHARS_MAX: usize = 96;

/// Longest name of a host that a client says (that of Linux is shorter).
pub const HOST_NAME_BYTES_MAX: usize = 255;
/// Longest path of a mount that a client says (PATH_MAX).
pub const MOUNT_POINT_BYTES_MAX: usize = 4096;

/// A member of a chain serves only while it heard of the MDS so recently.
pub const CHAIN_LEASE_MS: u64 = 1_500;
/// A client that has changed something of a chain, and does not know yet that it is stable, hears of
/// the chain's rows several times in this time.
pub const CHAIN_NEWS_MS: u64 = 20_000;
/// An OSS that was not heard of for so long is taken out of its chains.
pub const MEMBER_LOST_MS: u64 = 3_000;
/// Most OSTs that have a copy of an object.
pub const REPLICAS_MAX: u8 = 7;
/// Entries that a server has in its index of pending changes, of all chains and members. With one
/// more, a member of which there are most lacks everything: of an OST that is away for long it costs
/// less to look at all files than to remember each change. An entry takes some 100 bytes of memory.
pub const PENDING_ENTRIES_MAX: usize = 1 << 18;
/// Objects of a chain in one page of a list of all.
pub const OBJECTS_PER_PAGE_MAX: usize = 64;
/// Length of the label of a failure domain.
pub const FAILURE_DOMAIN_BYTES_MAX: usize = 255;
/// Chains with the same number of members.
pub const CHAINS_MAX: u16 = 1 << 12;

/// Requests a client may have outstanding on one connection.
pub const SLOTS_PER_CONNECTION: u16 = 64;
/// Of these, those that only requests for data may have: what waits at the MDS for other
/// clients does not keep what these ask for from being read or written.
pub const SLOTS_FOR_DATA: u16 = 16;
/// Of these, those that only requests to the MDS may have: streams of data do not keep who lists a
/// directory waiting.
pub const SLOTS_FOR_METADATA: u16 = 8;
/// Requests for locks that may wait on one connection, beside those in slots.
pub const PATIENT_REQUESTS_MAX: usize = 4096;
/// Requests for locks that may wait in one session, over all its connections; one more is ENOLCK.
pub const WAITING_PER_SESSION_MAX: usize = 8192;
/// Requests of one kernel that may wait at once. Each holds the memory of what it writes or
/// reads.
pub const FUSE_WAITING_MAX: usize = 4096;
/// Of these, those that wait for locks of programs; one more is ENOLCK.
pub const LOCK_WAITERS_MAX: usize = 3072;
/// How long a mount that is being ended waits for servers that are away.
pub const AWAY_END_MS: u64 = 5_000;
/// After this time without a word a server is away: whoever waits for it may be interrupted.
pub const AWAY_MS: u64 = 3_000;
/// Requests that wait on one core of a server before it says that it is busy.
pub const QUEUED_REQUESTS_MAX: usize = 8192;
/// When a client that was told so may come back.
pub const BUSY_RETRY_MS: u32 = 5;
/// How long nothing more is read from a connection with more requests than slots.
pub const FLOOD_PAUSE_MS: u64 = 10;
/// How long a peer may take to say who it is.
pub const HELLO_MS_MAX: u64 = 10_000;
/// Most connections of peers that have not said it, and of those of one address.
pub const STRANGERS_MAX: usize = 2048;
/// See [`STRANGERS_MAX`].
pub const STRANGERS_PER_ADDRESS_MAX: usize = 512;
/// How long a peer may take for the rest of a frame.
pub const FRAME_MS_MAX: u64 = 10_000;
/// How long a request that nobody waits for may wait for another to travel with.
pub const SOON_MS: u64 = 2;
/// Requests and bytes that a client keeps until they are on stable storage.
pub const REPLAY_LOG_REQUESTS_MAX: usize = 1 << 16;
/// See [`REPLAY_LOG_REQUESTS_MAX`].
pub const REPLAY_LOG_BYTES_MAX: usize = 256 << 20;
/// Most data that a client has written and not sent, for one OST and in all.
pub const DIRTY_BYTES_PER_OST_MAX: usize = 64 << 20;
/// See [`DIRTY_BYTES_PER_OST_MAX`].
pub const DIRTY_BYTES_MAX: usize = 1 << 30;
/// Space that a client asks an OST to keep for what it will write.
pub const SPACE_GRANT_BYTES: u64 = 64 << 20;
/// Requests with data that a client has on their way to one OST.
pub const RPCS_PER_OST_MAX: usize = 8;
/// First and longest pause before data is sent again that could not be written.
pub const RESEND_MS_MIN: u64 = 50;
/// See [`RESEND_MS_MIN`].
pub const RESEND_MS_MAX: u64 = 1_000;
/// How long data is sent again to a disk that fails (EIO) before it is given up, if that was at
/// least [`DISK_FAILS_MIN`] times.
pub const DISK_FAILS_MS_MAX: u64 = 1_000;
/// See [`DISK_FAILS_MS_MAX`].
pub const DISK_FAILS_MIN: u32 = 5;
/// How long a recovery tries again what fails in it, in all. Others wait for it meanwhile.
pub const REPLAY_FAILS_MS_MAX: u64 = 10_000;
/// Changes of metadata that a client sends in one request, and their bytes.
pub const BATCH_CHANGES_MAX: u32 = 512;
/// See [`BATCH_CHANGES_MAX`].
pub const BATCH_BYTES_MAX: usize = 256 << 10;
/// Locks and opens that a client reclaims in one request from a server that started again.
pub const RECLAIMS_MAX: usize = 512;
/// Locks that a client returns in one request.
pub const RETURNS_MAX: usize = 4096;
/// Inode numbers that a client is granted at once.
pub const INODES_PER_GRANT_MAX: u32 = 1 << 16;
/// Questions of clients that an OSS has for the server of the MDS; one more is EAGAIN.
pub const QUESTIONS_FOR_MDS_MAX: usize = 4096;
/// Sessions that an OSS names in one beat whose requests a disk holds up that stands still. Clients that
/// are not named owe what they owe in their lease.
pub const SESSIONS_HELD_UP_MAX: usize = 1024;
/// How often a client says that it lives.
pub const PING_MS: u64 = 1_000;
/// Connections (one for each of its cores) a client may open.
pub const CONNECTIONS_PER_CLIENT_MAX: u16 = 1008;
/// Runs that a server remembers the end of. A client that missed more of them is evicted, so a
/// server that fails soon after each start must not reach it before clients have tried again.
pub const RUNS_MAX: usize = 1024;
/// Sessions of one server, and those that one certificate may have.
pub const SESSIONS_MAX: usize = 1 << 16;
/// See [`SESSIONS_MAX`].
pub const SESSIONS_PER_CERTIFICATE_MAX: usize = 1 << 14;
/// Locks on data of one file that a client keeps; then it is asked for some of them.
pub const DATA_LOCKS_PER_FILE_MAX: usize = 1024;
/// Locks of one file that a client has and owes; then it gets no more.
pub const DATA_LOCKS_OWED_MAX: usize = 8 * DATA_LOCKS_PER_FILE_MAX;
/// Locks that programs of one client have and wait for, in each of the shards of their table.
pub const POSIX_LOCKS_MAX: usize = 1 << 16;
/// Programs that are looked at to see whether one would wait for itself.
pub const DEADLOCK_OWNERS_MAX: usize = 256;
/// How long a client that is not heard of keeps its open files.
pub const LEASE_MS: u64 = 30_000;
/// A command that moves files between OSTs has ended if it was not heard of for so long. It is heard
/// of more often.
pub const BALANCE_TURN_MS: u64 = 30_000;
/// How often a thread that hears clients says that it runs.
pub const BEAT_MS: u64 = 250;
/// A server that stood still, or one of its threads, for so long heard nobody meanwhile.
pub const PAUSE_MS_MIN: u64 = 1_000;
/// How long it runs after that before anybody is evicted.
pub const SETTLE_MS: u64 = 1_500;
/// Shortest lease.
pub const LEASE_MS_MIN: u64 = 3_000;
/// How long attributes and entries may be cached while other clients exist and
/// no locks protect them.
pub const CACHE_MS_SHARED: u64 = 1_000;
/// How long they may be cached when this client core is the only one.
pub const CACHE_MS_ALONE: u64 = 3_600_000;
/// Longest time between an acknowledged operation and stable storage.
pub const COMMIT_INTERVAL_MS: u64 = 1_000;
/// Longest log of a process in the background; the one before it is kept beside it.
pub const LOG_BYTES_MAX: u64 = 4 << 20;
/// Damaged objects of an OST that a scrub keeps to tell them one by one; others are counted.
pub const SCRUB_DAMAGE_KEPT_MAX: usize = 1000;
/// Lines of the log about single objects and directories in one pass of a scrub over an OST.
pub const SCRUB_LOG_LINES_MAX: u64 = 100;
/// First and longest pause between attempts to reach a server again.
pub const RECONNECT_MS_MIN: u64 = 20;
/// See [`RECONNECT_MS_MIN`].
pub const RECONNECT_MS_MAX: u64 = 1_000;

/// Bytes of journals that the metadata engine keeps, where the disk is large enough.
pub const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Size at which the engine begins a new journal; it can keep no less.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 20;
/// Room for the engine to rewrite tables in.
const COMPACTION_BYTES: u64 = 32 << 20;

/// Bytes of journals that the metadata engine keeps on a disk of `total` bytes.
pub const fn journal_bytes(total: u64) -> u64 {
    clamp(total / 16, JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX)
}

/// Length of each of the three segments of the journal, whose blocks are allocated when
/// they are made.
pub const fn segment_bytes(total: u64) -> u64 {
    // A multiple of the size of a page.
    clamp(total / 128, 2 << 20, 32 << 20) & !0xffff
}

/// Free space below which operations that free space are accepted and nothing else:
/// they need to be journalled, too.
pub const fn reserve_metadata(total: u64) -> u64 {
    let want = journal_bytes(total) + JOURNAL_BYTES_MIN + COMPACTION_BYTES;
    clamp(want, 0, total / 2)
}

/// Free space that user data leaves alone.
pub const fn reserve_data(total: u64) -> u64 {
    reserve_metadata(total) + clamp(16 << 20, 0, total / 16)
}

/// Space that users may write below which new files avoid an OST, where they can.
pub const fn full_below(total: u64) -> u64 {
    clamp(total / 100, 0, 1 << 30)
}

/// Bytes of entries for which a page of a directory has room, where so many are wished.
pub const fn dir_page_bytes(wished: u32) -> usize {
    clamp(wished as u64, DIR_PAGE_BYTES_MIN as u64, DIR_PAGE_BYTES_MAX as u64) as usize
}

/// Descriptors of a server, by use. Each part has its own, so that none takes those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptors {
    /// Connections.
    pub connections: u64,
    /// Tables of the metadata engine that are kept open.
    pub tables: u64,
    /// Objects that are kept open, of all OSTs together.
    pub objects: u64,
}

/// Descriptors for logs, journals, sockets that listen, and what a request opens and closes.
const DESCRIPTORS_OTHER: u64 = 128;
/// Descriptors for each core: rings, what wakes them, the entrance of a mount.
const DESCRIPTORS_PER_CORE: u64 = 8;
/// Most tables that are kept open.
const TABLES_OPEN_MAX: u64 = 900;
/// Fewest tables that the engine works with.
const TABLES_OPEN_MIN: u64 = 16;
/// Most objects of an OST that are kept open.
const OBJECTS_OPEN_MAX: u64 = 1536;
/// Fewest with which an OST works.
const OBJECTS_OPEN_MIN: u64 = 8;

/// How a server with so many OSTs, on so many cores, divides `limit` descriptors; `None` if
/// they are too few.
pub const fn descriptors(limit: u64, cores: u64, osts: u64) -> Option<Descriptors> {
    // An OST holds its directory open.
    let fixed = DESCRIPTORS_OTHER + DESCRIPTORS_PER_CORE * cores + osts;
    let rest = limit.saturating_sub(fixed);
    let tables = clamp(rest / 4, 0, TABLES_OPEN_MAX);
    let objects = clamp(rest / 2, 0, OBJECTS_OPEN_MAX * osts);
    if tables < TABLES_OPEN_MIN || objects < OBJECTS_OPEN_MIN * osts {
        return None;
    }
    Some(Descriptors { connections: rest - tables - objects, tables, objects })
}

/// The fewest descriptors for which [`descriptors`] has a way.
pub const fn descriptors_min(cores: u64, osts: u64) -> u64 {
    let (tables, objects) = (4 * TABLES_OPEN_MIN, 2 * OBJECTS_OPEN_MIN * osts);
    let rest = if tables > objects { tables } else { objects };
    DESCRIPTORS_OTHER + DESCRIPTORS_PER_CORE * cores + osts + rest
}

const fn clamp(value: u64, min: u64, max: u64) -> u64 {
    if value > max {
        max
    } else if value < min {
        min
    } else {
        value
    }
}

const _: () = assert!(BODY_BYTES_MAX >= 2 * XATTR_VALUE_BYTES_MAX);
const _: () = assert!(BODY_BYTES_MAX >= 4 * GROUPS_MAX + 2 * NAME_BYTES_MAX);
const _: () = assert!(XATTR_VALUES_BYTES_MAX >= XATTR_VALUE_BYTES_MAX);
// One batch deletes all names of an inode, in the smallest segment of a journal.
const _: () = assert!(XATTR_LIST_BYTES_MAX + 32 * XATTR_COUNT_MAX < segment_bytes(0) as usize / 4);
const _: () = assert!(SLOTS_FOR_DATA + SLOTS_FOR_METADATA < SLOTS_PER_CONNECTION);
const _: () = assert!(LOCK_WAITERS_MAX < FUSE_WAITING_MAX);
const _: () = assert!(LOCK_WAITERS_MAX < PATIENT_REQUESTS_MAX);
// All requests of one kernel may wait.
const _: () = assert!(FUSE_WAITING_MAX < WAITING_PER_SESSION_MAX);
const _: () = assert!(PING_MS < AWAY_MS);
const _: () = assert!(FUSE_IO_BYTES_MAX <= BULK_BYTES_MAX);
const _: () = assert!(RESEND_MS_MAX <= DISK_FAILS_MS_MAX && 2 * DISK_FAILS_MS_MAX < LEASE_MS_MIN);
const _: () = assert!(READ_AHEAD_BYTES >= FUSE_IO_BYTES_MAX);
const _: () = assert!(DIR_PAGE_BYTES_MAX <= BODY_BYTES_MAX / 2);
const _: () = assert!(SCAN_BYTES_MAX <= BODY_BYTES_MAX / 2);
// An entry as it is sent is its name, and less than 64 bytes more; a character has up to four.
const _: () = assert!(CHECKED_RECORDS_MAX * (NAME_BYTES_MAX + 64) <= BODY_BYTES_MAX / 2);
const _: () = assert!(CHECKED_RECORDS_MAX * 4 * (DAMAGE_CHARS_MAX + 1) <= BODY_BYTES_MAX / 2);
const _: () = assert!(NEGATIVE_DENTRIES_PER_DIRECTORY_MAX <= NEGATIVE_DENTRIES_MAX);
const _: () = assert!(CACHE_MS_SHARED * 2 < LEASE_MS);
const _: () = assert!(RECONNECT_MS_MAX + PING_MS < LEASE_MS_MIN);
const _: () = assert!(LEASE_MS_MIN <= LEASE_MS);
// All slots of a client have numbers, and one number says that there is none.
const _: () = assert!(SLOTS_PER_CONNECTION.checked_mul(CONNECTIONS_PER_CLIENT_MAX).is_some());
const _: () = assert!(2 * STRANGERS_PER_ADDRESS_MAX <= STRANGERS_MAX);
const _: () = assert!(2 * BEAT_MS < PAUSE_MS_MIN && PAUSE_MS_MIN < LEASE_MS_MIN / 2);
const _: () = assert!(RECONNECT_MS_MAX < SETTLE_MS && PING_MS < SETTLE_MS);
const _: () =
    assert!(DATA_LOCKS_PER_FILE_MAX >= 4 && DATA_LOCKS_OWED_MAX > DATA_LOCKS_PER_FILE_MAX);
const _: () = assert!(reserve_metadata(1 << 40) < reserve_data(1 << 40));
const _: () = assert!(reserve_data(1 << 20) < 1 << 20);
// The usual soft limit, on a host of some size; and the smallest are the smallest.
const _: () = assert!(descriptors(1024, 32, 4).is_some());
const _: () = assert!(descriptors(descriptors_min(8, 4), 8, 4).is_some());
const _: () = assert!(descriptors(descriptors_min(8, 4) - 1, 8, 4).is_none());
const _: () = assert!(descriptors(descriptors_min(2, 100), 2, 100).is_some());
const _: () = assert!(descriptors(descriptors_min(2, 100) - 1, 2, 100).is_none());
const _: () = assert!(HAND_OUT_CHECK_MS_MAX < LEASE_MS_MIN);
const _: () = assert!(0 < PASSED_BYTES_MIN && PASSED_BYTES_MIN <= HAND_OUT_CHECK_BYTES_MAX);
const _: () = assert!(STRIPE_BYTES_LOG2_MIN <= STRIPE_BYTES_LOG2_DEFAULT);
const _: () = assert!(STRIPE_BYTES_LOG2_DEFAULT <= STRIPE_BYTES_LOG2_MAX);
