//! The published experiments that Glint repeats: each starts what it measures and writes a report.

pub(crate) mod disk;
pub(crate) mod gluster_2022;
pub(crate) mod lustre_2009;
pub(crate) mod lustre_2011;
pub(crate) mod lustre_ssf;
pub(crate) mod memory;
pub(crate) mod pvfs_2006;
pub(crate) mod report;
pub(crate) mod served_cluster;
pub(crate) mod space;
pub(crate) mod stage;
