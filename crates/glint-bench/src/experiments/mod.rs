//! The published experiments that Glint repeats: each starts what it measures and writes a report.

pub mod lustre_2009;
pub mod lustre_ssf;
pub mod pvfs_2006;
mod report;
mod stage;
