//! Several mounts and servers as one file system: coherence, leases, copies, certificates.

mod certificates;
mod coherence;
mod heal;
mod hosts;
mod leases;
mod ledger;
mod network;
mod oss;
mod replication;
mod restripe;
mod write_back;
