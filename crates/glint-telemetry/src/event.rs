//! Names of events in logs: the field `event` of a line, which stays when its sentence is reworded.
//! Operators watch for them, and tests rely on them. What is not listed here has no name.
//!
//! A line that repeats is left out after some time; the first twenty from one place in the code are
//! always logged, so an event that has no line did not happen.

/// A server ended the session of a client that was silent, or kept a lock, for its whole lease.
pub const CLIENT_EVICTED: &str = "client_evicted";
/// A server has a member of a chain taken out, because it could not do what it should.
pub const MEMBER_TAKEN_OUT: &str = "member_taken_out";
/// A client heard that a server had ended its session.
pub const SESSION_LOST: &str = "session_lost";
/// A client began to replay requests that a server lost in a power failure.
pub const REPLAY_STARTED: &str = "replay_started";
/// A server refused a replayed request, or data is lost that may not be written again: acknowledged
/// changes or data are lost.
pub const REPLAY_FAILED: &str = "replay_failed";
/// A file that is open could not be opened again after a server's restart.
pub const REOPEN_FAILED: &str = "reopen_failed";
/// Changes of names and attributes that a client made by itself are lost.
pub const CHANGES_LOST: &str = "changes_lost";
/// Data that a client had cached and not yet sent is lost.
pub const DATA_LOST: &str = "data_lost";
/// A server ended a connection because of a request that it cannot execute.
pub const REQUEST_REFUSED: &str = "request_refused";
/// A server takes no more connections, of all or of one address.
pub const CONNECTIONS_REFUSED: &str = "connections_refused";
/// A server is reached again after an outage.
pub const SERVER_REACHED: &str = "server_reached";
/// Data of an object does not match its checksum.
pub const OBJECT_DAMAGED: &str = "object_damaged";
/// An object or a directory could not be compared with its checksums.
pub const NOT_COMPARED: &str = "not_compared";
/// The mount of a daemon that has died was removed.
pub const STALE_MOUNT_REMOVED: &str = "stale_mount_removed";
/// What a server remembers of what was read most cannot be read: nothing is loaded before it is asked
/// for.
pub const WARM_START_SKIPPED: &str = "warm_start_skipped";
/// A server takes requests.
pub const SERVING: &str = "serving";
/// A mount is usable.
pub const MOUNTED: &str = "mounted";
/// A mount has ended.
pub const UNMOUNTED: &str = "unmounted";
/// A server has stopped, and everything is on stable storage.
pub const STOPPED: &str = "stopped";

/// All of them.
pub const ALL: [&str; 19] = [
    CLIENT_EVICTED,
    MEMBER_TAKEN_OUT,
    SESSION_LOST,
    REPLAY_STARTED,
    REPLAY_FAILED,
    REOPEN_FAILED,
    CHANGES_LOST,
    DATA_LOST,
    REQUEST_REFUSED,
    CONNECTIONS_REFUSED,
    SERVER_REACHED,
    OBJECT_DAMAGED,
    NOT_COMPARED,
    STALE_MOUNT_REMOVED,
    WARM_START_SKIPPED,
    SERVING,
    MOUNTED,
    UNMOUNTED,
    STOPPED,
];
