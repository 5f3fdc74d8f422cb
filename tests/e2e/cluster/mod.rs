//! Several mounts and servers as one file system: coherence, leases, copies, certificates.

mod certificates;
mod coherence;
mod heal;
mod hosts;
mod leases;
mod ledger;
mod moves;
mod network;
mod oss;
mod replication;
mod times;
mod write_back;
