//! Data of files: over which OSTs it lies, what was written and is not sent, what is read ahead.

pub(crate) mod capabilities;
pub(crate) mod dirty;
pub(crate) mod extents;
pub(crate) mod file_data;
pub(crate) mod read_ahead;
mod stripes;
pub(crate) mod write_back;
pub(crate) mod write_limits;
