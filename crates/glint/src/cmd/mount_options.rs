//! Options of `-o`: those that mount(8) documents for every file system, and Glint's. All of an
//! option is here: its help, its parsing, whether a remount could change it, its effect.

use glint_client::Client;
use glint_mount::{MountFlags, MountOptions, TransportKind};
use glint_net::Transport;
use glint_proto::limits::IDLE_MS;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Help of `-o`.
pub(crate) const HELP: &str = "\
    Options, separated by commas: all that mount(8) has for every file system (ro, noatime, \
    noexec, nosuid, nodev, sync, remount, ...), and direct_io, transport=auto|uring|devfuse, \
    keep_awake=auto|off, polling=auto|off, prefetch=on|off (on: whether small files are read \
    before a program asks, after others of their directory, and directories listed before a walk \
    comes to them), cert=DIR (the same as --cert), wbmeta (the default) \
    or nowbmeta: whether changes in directories that nobody else uses may be told to the server \
    up to half a second later; inodes=N: how many are kept in memory (393 216); idle=SECONDS: \
    how long nobody must have used the mount before it returns its locks (600; 0: never); of \
    `glint up` without --listen passthrough=on|off (off): whether the kernel (Linux 6.9) reads \
    files of 256 KiB or more from their objects by itself. Without --cert \
    a mount is nosuid,nodev unless trust is said: whoever reaches the server may make programs and \
    devices of root there. (suid,dev do it, too, but mount(8) does not pass them on)";

/// Options of mount(8) that are a flag of the kernel, and whether they set or clear it.
const FLAGS: [(&str, MountFlags, bool); 25] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("suid", MountFlags::NOSUID, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("dev", MountFlags::NODEV, false),
    ("nodev", MountFlags::NODEV, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("atime", MountFlags::NOATIME, false),
    ("noatime", MountFlags::NOATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    ("symfollow", MountFlags::NOSYMFOLLOW, false),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, true),
    ("silent", MountFlags::SILENT, true),
    ("loud", MountFlags::SILENT, false),
];

/// Options that mount(8) acts on itself, those that are so in any case, and what the kernel
/// shows of a mount of FUSE and mount(8) passes again when it remounts.
const IGNORED: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "nofail",
    "_netdev",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "acl",
    "user_xattr",
    "allow_other",
    "default_permissions",
];
const IGNORED_PREFIXES: [&str; 8] =
    ["x-", "X-", "comment=", "user_id=", "group_id=", "max_read=", "rootmode=", "uhelper="];
/// Words of Glint's own options, and the option that each is about.
const OWN_OPTIONS: [(&str, &str); 15] = [
    ("direct_io", "direct_io"),
    ("keep_awake", "keep_awake"),
    ("polling", "polling"),
    ("prefetch", "prefetch"),
    ("passthrough", "passthrough"),
    ("wbmeta", "wbmeta"),
    ("nowbmeta", "wbmeta"),
    ("transport", "transport"),
    ("inodes", "inodes"),
    ("idle", "idle"),
    ("trust", "trust"),
    ("context", "context"),
    ("fscontext", "context"),
    ("defcontext", "context"),
    ("rootcontext", "context"),
];
/// Glint's own options that are a choice, and what there is to choose.
const CHOICES: [(&str, &[&str]); 5] = [
    ("keep_awake", &["auto", "off"]),
    ("polling", &["auto", "off"]),
    ("prefetch", &["on", "off"]),
    ("passthrough", &["on", "off"]),
    ("transport", &["auto", "uring", "devfuse"]),
];
/// Glint's own options that are said without a value.
const PLAIN: [&str; 4] = ["direct_io", "wbmeta", "nowbmeta", "trust"];
/// Advice to who says `inodes` or `idle` otherwise.
const INODES: &str = "say a number of inodes, as inodes=393216";
const IDLE: &str = "say a number of seconds, as idle=600, or 0 for never";
/// Labels of SELinux: the kernel's own, where it has SELinux.
const CONTEXTS: [&str; 4] = ["context=", "fscontext=", "defcontext=", "rootcontext="];

/// Flags of a mount, as far as they were said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags {
    set: MountFlags,
    cleared: MountFlags,
}

impl Flags {
    const NONE: Flags = Flags { set: MountFlags::empty(), cleared: MountFlags::empty() };

    fn say(&mut self, flag: MountFlags, on: bool) {
        self.set.set(flag, on);
        self.cleared.set(flag, !on);
    }

    /// Whether one that has this name was said.
    fn say_named(&mut self, name: &str) -> bool {
        let found = FLAGS.iter().find(|(known, ..)| *known == name);
        if let Some((_, flag, on)) = found {
            self.say(*flag, *on);
        }
        found.is_some()
    }

    /// All of them, where what was not said is as in `others`.
    pub fn over(&self, others: MountFlags) -> MountFlags {
        (others - self.cleared) | self.set
    }

    /// Flags that a mount has, from the options that the kernel shows: of the mount and of the
    /// file system, where what is not set in one may be in the other.
    pub fn of_mount(shown: &str) -> MountFlags {
        let set = |option| FLAGS.iter().find(|(name, _, on)| *name == option && *on);
        shown.split(',').filter_map(set).map(|(_, flag, _)| *flag).collect()
    }
}

/// Parsed mount options.
pub struct ParsedOptions {
    /// For the kernel.
    pub flags: Flags,
    /// Labels, for the kernel.
    contexts: Vec<String>,
    /// Data never stays in the page cache.
    direct_io: bool,
    /// How requests reach us.
    pub transport: TransportKind,
    /// Cores are kept out of their sleep states while requests come in bursts.
    keep_awake: bool,
    /// Threads look for replies for a short time before they sleep.
    polling: bool,
    /// Small files are prefetched, and directories listed ahead.
    prefetch: bool,
    /// The kernel reads files from their objects by itself.
    passthrough: bool,
    /// Changes in directories that this client has for itself are told to servers later.
    write_back_metadata: bool,
    /// Inodes above which the kernel is asked to forget some.
    inodes: Option<usize>,
    /// Seconds without use after which locks are returned; 0 for never.
    idle_s: Option<u64>,
    /// A mount without a certificate is none of less trust: mount(8) does not pass `suid` and `dev`
    /// on, because they are its defaults.
    trust: bool,
    /// Certificate of this host; see `--cert`.
    cert: Option<PathBuf>,
    /// Only change the flags of a mount that is there.
    pub remount: bool,
    /// Glint's own options that were said, by their names in [`ParsedOptions::own`].
    said: Vec<&'static str>,
}

impl ParsedOptions {
    /// Sets this process up. What was switched off already stays off.
    pub fn apply(&self) {
        crate::identity::set(self.cert.clone());
        if !self.keep_awake {
            glint_net::keep_awake::enable(false);
        }
        if !self.polling {
            glint_net::polling::enable(false);
        }
    }

    /// Sets the client of the mount up.
    pub fn set_up(&self, client: &Client<impl Transport>) {
        if let Some(inodes) = self.inodes {
            client.limit_inodes(inodes);
        }
        let idle = self.idle_s.map_or(Duration::from_millis(IDLE_MS), Duration::from_secs);
        client.return_locks_after((!idle.is_zero()).then_some(idle));
        if self.prefetch {
            client.prefetch_files();
        }
        if !self.write_back_metadata {
            client.tell_changes_at_once();
        }
    }

    /// Glint's own options as they are, a line each: what the process behind a mount keeps to.
    pub fn own(&self) -> String {
        let lines = [
            ("direct_io", self.direct_io.to_string()),
            ("keep_awake", self.keep_awake.to_string()),
            ("polling", self.polling.to_string()),
            ("prefetch", self.prefetch.to_string()),
            ("passthrough", self.passthrough.to_string()),
            ("wbmeta", self.write_back_metadata.to_string()),
            ("transport", format!("{:?}", self.transport)),
            ("inodes", format!("{:?}", self.inodes)),
            ("idle", format!("{:?}", self.idle_s)),
            ("trust", self.trust.to_string()),
            ("context", format!("{:?}", self.contexts)),
        ];
        lines.map(|(name, value)| format!("{name}={value}\n")).concat()
    }

    /// The first of these that was said otherwise than it is in a mount, whose own are given.
    pub fn differs(&self, there: &str) -> Option<&'static str> {
        let (own, there) = (self.own(), there.lines().collect::<Vec<_>>());
        let of = |name: &str| {
            let is_it = |line: &&str| line.split_once('=').is_some_and(|(key, _)| key == name);
            own.lines().find(is_it).unwrap_or_default()
        };
        self.said.iter().copied().find(|name| !there.contains(&of(name)))
    }

    /// Whether reading changes no inode, whatever else holds.
    pub fn noatime(&self) -> bool {
        self.flags.set.contains(MountFlags::NOATIME)
    }

    /// How to mount `source`, where `others` are the flags that nothing was said of, unless it is
    /// trusted.
    pub fn mount(&self, source: String, others: MountFlags) -> MountOptions {
        let others = if self.trust { MountFlags::empty() } else { others };
        MountOptions {
            source,
            flags: self.flags.over(others),
            direct_io: self.direct_io,
            contexts: self.contexts.clone(),
            passthrough: self.passthrough,
        }
    }

    /// Refuses what needs the objects, and no other client, in the process of the mount, where that
    /// is otherwise.
    pub(crate) fn refuse_local_ones(&self) -> Result<(), String> {
        match self.passthrough {
            true => Err("mount option passthrough=on: only the mount of `glint up` without \
                         --listen has objects that nobody else may change; leave it out"
                .into()),
            false => Ok(()),
        }
    }
}

/// Cuts options at commas, but for those between quotation marks.
fn split(text: &str) -> Vec<String> {
    let (mut options, mut quoted) = (vec![String::new()], false);
    for c in text.chars() {
        quoted ^= c == '"';
        match (c, options.last_mut()) {
            (',', _) if !quoted => options.push(String::new()),
            (c, Some(last)) => last.push(c),
            _ => {}
        }
    }
    options
}

/// The value of an option without the quotation marks around it, if it has them.
fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

/// Parses `-o` options; one that nobody knows is an error, unless `sloppy`.
pub fn parse(options: &[String], sloppy: bool) -> Result<ParsedOptions, String> {
    let mut parsed = ParsedOptions {
        flags: Flags::NONE,
        contexts: Vec::new(),
        direct_io: false,
        transport: TransportKind::Auto,
        keep_awake: true,
        polling: true,
        prefetch: true,
        passthrough: false,
        write_back_metadata: true,
        inodes: None,
        idle_s: None,
        trust: false,
        cert: None,
        remount: false,
        said: Vec::new(),
    };
    for option in options.iter().flat_map(|text| split(text)).filter(|one| !one.is_empty()) {
        if parsed.flags.say_named(&option) {
            // With these options changes must be durable when a call returns, so none waits.
            if option == "sync" || option == "dirsync" {
                parsed.write_back_metadata = false;
            }
            continue;
        }
        let word = option.split('=').next().unwrap_or_default();
        parsed
            .said
            .extend(OWN_OPTIONS.iter().filter(|(said, _)| *said == word).map(|(_, name)| *name));
        match option.as_str() {
            "remount" => parsed.remount = true,
            "direct_io" => parsed.direct_io = true,
            "keep_awake=auto" => parsed.keep_awake = true,
            "keep_awake=off" => parsed.keep_awake = false,
            "polling=auto" => parsed.polling = true,
            "polling=off" => parsed.polling = false,
            "prefetch=on" => parsed.prefetch = true,
            "prefetch=off" => parsed.prefetch = false,
            "passthrough=on" => parsed.passthrough = true,
            "passthrough=off" => parsed.passthrough = false,
            "wbmeta" => parsed.write_back_metadata = true,
            "nowbmeta" => parsed.write_back_metadata = false,
            "trust" => parsed.trust = true,
            "transport=auto" => parsed.transport = TransportKind::Auto,
            "transport=uring" => parsed.transport = TransportKind::Uring,
            "transport=devfuse" => parsed.transport = TransportKind::DevFuse,
            // Users mount: as mount(8) says, they get nothing that could make them more.
            "owner" | "group" => unprivileged(&mut parsed.flags),
            "user" | "users" => {
                unprivileged(&mut parsed.flags);
                parsed.flags.say(MountFlags::NOEXEC, true);
            }
            other if other.starts_with("user=") => {
                unprivileged(&mut parsed.flags);
                parsed.flags.say(MountFlags::NOEXEC, true);
            }
            other if other.starts_with("cert=") => {
                parsed.cert = Some(unquoted(&other["cert=".len()..]).into());
            }
            other if other.starts_with("inodes=") => {
                parsed.inodes = Some(number::<NonZero<usize>>(other, INODES)?.get());
            }
            other if other.starts_with("idle=") => parsed.idle_s = Some(number(other, IDLE)?),
            other if CONTEXTS.iter().any(|label| other.starts_with(label)) => {
                parsed.contexts.push(option);
            }
            other if IGNORED.contains(&other) => {}
            other if IGNORED_PREFIXES.iter().any(|prefix| other.starts_with(prefix)) => {}
            _ if sloppy => {}
            other => return Err(format!("mount option {other}: {}", refusal(word))),
        }
    }
    Ok(parsed)
}

/// The number that an option says.
fn number<N: FromStr>(option: &str, advice: &str) -> Result<N, String> {
    let (_, value) = option.split_once('=').unwrap_or_default();
    value.parse().map_err(|_| format!("mount option {option}: {advice}"))
}

/// Why an option, which begins with this word, is refused, and what to say instead.
fn refusal(word: &str) -> String {
    if let Some((_, values)) = CHOICES.iter().find(|(name, _)| *name == word) {
        return format!("{word} has no such value; say {word}={}", values.join("|"));
    }
    match word {
        "inodes" => INODES.into(),
        "idle" => IDLE.into(),
        "cert" => "say a directory that `glint cert issue` made, as cert=DIR".into(),
        word if PLAIN.contains(&word) => format!("{word} takes no value; say {word}"),
        _ => "unknown; see `glint mount --help` for those there are".into(),
    }
}

fn unprivileged(flags: &mut Flags) {
    flags.say(MountFlags::NOSUID, true);
    flags.say(MountFlags::NODEV, true);
}

#[cfg(test)]
mod tests;
