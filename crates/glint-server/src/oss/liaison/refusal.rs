//! What an OSS says when the MDS refuses it.

use glint_proto::Errno;

/// Why, and what to do.
pub(super) fn refusal(errno: Errno) -> String {
    match errno {
        Errno::ESTALE => "this data directory belongs to another file system, or to one that \
                          was restored from before it joined; choose another directory"
            .into(),
        Errno::EINVAL => "it knows this data directory with another number of OSTs".into(),
        Errno::ERANGE => "the file system would have too many OSTs".into(),
        Errno::EACCES => "the certificate here does not say that this may be a server of OSTs; \
                          issue it with --oss"
            .into(),
        Errno::EPERM => "it knows this data directory under another certificate; issue one of \
                         the same name"
            .into(),
        Errno::EBUSY => "an OST was replaced here that is the last with all data of some chains \
                         (`glint ost list` says of how many it is the last serving, and the log of \
                         the server with the MDS names them). Mount its old disk, or start the \
                         servers of the other members first; if the disk is lost for good, `glint \
                         ost replace --lose-last-copies` has the others go on with what they have"
            .into(),
        errno => format!("it refuses this server: {errno}"),
    }
}
