//! Crashes, losses of power, full and failing disks, clients that break the rules.

mod bench_copies;
mod checked_copies;
mod crashes;
mod disk_faults;
mod disks_of_copies;
mod faults;
mod formats;
mod lost;
mod online_check;
mod power;
mod replays;
mod space;
