//! Crashes, losses of power, full and failing disks, clients that break the rules.

mod bench_copies;
mod checked;
mod crashes;
mod disk_faults;
mod disks_apart;
mod disks_of_copies;
mod faults;
mod formats;
mod lost;
mod members;
mod power;
mod replays;
mod space;
