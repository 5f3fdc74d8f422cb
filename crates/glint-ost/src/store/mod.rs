//! Objects in files: where they are, how they are changed, and what protects them at rest.

pub(crate) mod allocated;
pub(crate) mod checksum;
pub(crate) mod compare;
pub(crate) mod files;
pub(crate) mod object;
pub(crate) mod object_store;
pub(crate) mod passing;
pub(crate) mod scrub;
pub(crate) mod sealer;
pub(crate) mod write;
pub(crate) mod written;
