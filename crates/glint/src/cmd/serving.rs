//! Options of servers, the same for `glint up`, `glint serve` and `glint oss`.

use crate::daemon;
use crate::live::Live;
use crate::signals::Stop;
use clap::builder::TypedValueParser;
use glint_net::ServerOptions;
use glint_ost::ObjectCache;
use glint_proto::Layout;
use glint_proto::limits::{
    COMMIT_INTERVAL_MS, ENGINE_CACHE_BYTES_MIN, FAILURE_DOMAIN_BYTES_MAX, LEASE_MS, LEASE_MS_MIN,
    OBJECT_CACHE_BYTES_MAX, OST_COUNT_MAX, REPLICAS_MAX,
};
use glint_server::Settings;
use glint_server::descriptors;
use rustix::fs::Mode;
use std::time::Duration;

/// When an answered change is on stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Commit {
    /// Before it is answered.
    Sync,
    /// Within this time.
    Within(Duration),
}

impl Default for Commit {
    fn default() -> Commit {
        Commit::Within(Duration::from_millis(COMMIT_INTERVAL_MS))
    }
}

impl std::fmt::Display for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Commit::Sync => f.write_str("sync"),
            Commit::Within(time) => write!(f, "{}", time.as_millis()),
        }
    }
}

impl std::str::FromStr for Commit {
    type Err = String;

    fn from_str(text: &str) -> Result<Commit, String> {
        if text == "sync" {
            return Ok(Commit::Sync);
        }
        match text.parse::<u64>() {
            Ok(ms @ 1..=60_000) => Ok(Commit::Within(Duration::from_millis(ms))),
            _ => Err("`sync`, or 1 to 60000 milliseconds".into()),
        }
    }
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Switch {
    /// Automatic: where it pays.
    Auto,
    /// Never.
    Off,
}

/// Whether something is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum OnOff {
    On,
    Off,
}

/// A number of bytes in a second.
fn bandwidth(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    if bytes >= 1000 { Ok(bytes) } else { Err("at least 1000".into()) }
}

/// Parses a bandwidth, or 0.
fn scrub_bandwidth(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { bandwidth(text) }
}

/// Parses the size of a cache.
fn engine_cache(text: &str) -> Result<u64, String> {
    match crate::size::parse(text)? {
        bytes @ ENGINE_CACHE_BYTES_MIN.. => Ok(bytes),
        _ => Err("at least 1M".into()),
    }
}

/// Largest object of which OSTs keep data in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectCacheMax(ObjectCache);

impl std::str::FromStr for ObjectCacheMax {
    type Err = String;

    fn from_str(text: &str) -> Result<ObjectCacheMax, String> {
        Ok(ObjectCacheMax(match text {
            "auto" => ObjectCache::UpToIfShort(OBJECT_CACHE_BYTES_MAX),
            "off" => ObjectCache::All,
            bytes => ObjectCache::UpTo(crate::size::parse(bytes)?),
        }))
    }
}

/// Parses a number of copies that a change needs, and whether it fails without them.
fn min_replicas(text: &str) -> Result<(u8, bool), String> {
    let (number, fails) = match text.strip_suffix(":fail") {
        Some(number) => (number, true),
        None => (text, false),
    };
    match number.parse() {
        Ok(number) if (1..=REPLICAS_MAX).contains(&number) => Ok((number, fails)),
        _ => Err(format!("a number from 1 to {REPLICAS_MAX}, or one with :fail behind it")),
    }
}

/// Parses a number of OSTs.
pub(crate) fn ost_count() -> impl TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=OST_COUNT_MAX.into())
}

/// Parses the label of a failure domain.
pub(crate) fn failure_domain(text: &str) -> Result<String, String> {
    match text.len() {
        1..=FAILURE_DOMAIN_BYTES_MAX => Ok(text.to_owned()),
        _ => Err(format!("1 to {FAILURE_DOMAIN_BYTES_MAX} bytes")),
    }
}

/// Options of a process that only serves.
#[derive(clap::Args)]
pub(crate) struct Alone {
    /// Number of OSTs, fixed when the data directory is created [default: 1].
    #[arg(long, value_name = "N", value_parser = ost_count())]
    pub osts: Option<u16>,
    /// Allow --listen HOST:PORT without --cert: unencrypted, and to everybody who reaches it.
    #[arg(long)]
    pub insecure: bool,
    #[command(flatten)]
    pub serving: Serving,
    /// Serve statistics for Prometheus at http://HOST:PORT/metrics.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// Label of all that fails together with this server, as a host, a rack or a power supply: no
    /// two copies of a file lie on OSTs with the same label, so say the same for all servers of one
    /// host [default: this server is apart from all others].
    #[arg(long, value_name = "LABEL", value_parser = failure_domain)]
    pub failure_domain: Option<String>,
    /// Go to the background when the server is ready.
    #[arg(long)]
    pub daemon: bool,
}

/// Says that the server is ready, and shows how things are until it is asked to stop, or
/// cannot go on. Returns why it cannot.
pub(crate) fn serve_until(
    stop: &Stop,
    state: impl Fn() -> String,
    failure: impl Fn() -> Option<String>,
) -> Option<String> {
    daemon::say_ready();
    let mut live = Live::new();
    let failed = loop {
        if let Some(reason) = failure() {
            break Some(reason);
        }
        if stop.is_asked() {
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
        live.tick(&state);
    };
    live.end();
    failed
}

/// Keeps files that servers write from being read by others.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// The options.
#[derive(clap::Args)]
pub(crate) struct Serving {
    /// When a change is on stable storage: within so many milliseconds of its answer, or
    /// `sync` for before it. (Calls of fsync(2) wait for it in any case.)
    #[arg(long, value_name = "MS|sync", default_value_t = Commit::default())]
    commit: Commit,
    /// How long a client may be silent before it is evicted, and how long a server that has
    /// started again waits for its clients.
    #[arg(long, value_name = "SECONDS", default_value_t = LEASE_MS / 1000,
          value_parser = clap::value_parser!(u64).range(LEASE_MS_MIN / 1000..=3600))]
    lease: u64,
    /// The disk lost what was not synced although this host kept running (a storage that was
    /// reset, a snapshot that was restored): wait for clients to do it again. A restart of
    /// the host is noticed without it.
    #[arg(long)]
    after_power_loss: bool,
    /// Memory in which the MDS keeps blocks of its tables, as 512M or 4G.
    #[arg(long, value_name = "BYTES", value_parser = engine_cache, default_value = "32MiB")]
    mds_cache: u64,
    /// Largest object of which OSTs keep data in memory: larger ones leave no pages behind, so that
    /// streams push nothing else out. `auto` is 8MiB once less than an eighth of memory is free; 0
    /// keeps data of no object; `off` leaves all to the kernel.
    #[arg(long, value_name = "BYTES|auto|off", default_value = "auto")]
    object_cache_max: ObjectCacheMax,
    /// Load what was read most before a restart into memory again, in the background and slowly: names
    /// and inodes of the MDS, objects of OSTs.
    #[arg(long, value_enum, value_name = "on|off", default_value_t = OnOff::On)]
    warm_start: OnOff,
    /// Most bytes that each OST reads and writes in a second, as 50M or 2G (or MB, MiB): keeps room on a
    /// disk or a network for others.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    ost_bandwidth: Option<u64>,
    /// Bytes a second that are compared with their checksums in the background, a pass a week; 0
    /// turns it off.
    #[arg(long, value_name = "BYTES", value_parser = scrub_bandwidth, default_value = "8MiB")]
    scrub_bandwidth: u64,
    /// Most bytes a second that this server copies to OSTs which lag behind, as 50M or 2G.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    heal_bandwidth: Option<u64>,
    /// Copies that must be in use for a change of a file with copies: with fewer, changes wait, or
    /// fail (EROFS) with `N:fail`. Stored until it is said again [default: 1, at first].
    #[arg(long, value_name = "N[:fail]", value_parser = min_replicas)]
    min_replicas: Option<(u8, bool)>,
    /// Copies that files get where no directory says otherwise (`glint setstripe`), on OSTs of so
    /// many servers or, if there is only one server, on so many of its OSTs; in a new file system.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(REPLICAS_MAX)))]
    replicas: u8,
    /// Number of service threads [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Bind each service thread to a core.
    #[arg(long)]
    pin: bool,
    /// Look for the next request for up to 100 us before going to sleep.
    #[arg(long, value_enum, default_value_t = Switch::Auto)]
    polling: Switch,
    /// Let cores sleep between the requests of a burst: saves power, costs up to 50 us each.
    #[arg(long)]
    no_keep_awake: bool,
}

impl Serving {
    /// Sets this process up, and says how its servers are to be.
    pub(crate) fn apply(&self) -> Settings {
        glint_net::polling::enable(self.polling == Switch::Auto);
        glint_net::keep_awake::enable(!self.no_keep_awake);
        let default = Settings::default();
        Settings {
            commit_interval: match self.commit {
                Commit::Sync => default.commit_interval,
                Commit::Within(time) => time,
            },
            commit_sync: self.commit == Commit::Sync,
            lease: Duration::from_secs(self.lease),
            after_power_loss: self.after_power_loss,
            engine_cache_bytes: self.mds_cache,
            object_cache: self.object_cache_max.0,
            warm_start: self.warm_start == OnOff::On,
            ost_bandwidth: self.ost_bandwidth,
            scrub_bandwidth: self.scrub_bandwidth,
            heal_bandwidth: self.heal_bandwidth,
            min_replicas: self.min_replicas,
            layout: Layout { replicas: self.replicas, ..default.layout },
            ..default
        }
    }

    /// How its service threads are to be.
    pub(crate) fn threads(&self, osts: u16) -> Result<ServerOptions, String> {
        let connections = Some(descriptors::budget(osts)?.connections as usize);
        Ok(ServerOptions { pin: self.pin, workers: self.workers.map(usize::from), connections })
    }
}
