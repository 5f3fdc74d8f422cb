//! Options as they are said, and what becomes of them.

use super::*;
use std::collections::BTreeSet;

fn parsed(text: &str) -> ParsedOptions {
    parse(&[text.to_owned()], false).unwrap()
}

#[test]
fn numbers_that_are_told_are_those_that_hold() {
    use glint_proto::limits::KNOWN_INODES_MAX;
    let (thousands, rest) = (KNOWN_INODES_MAX / 1000, KNOWN_INODES_MAX % 1000);
    assert!(HELP.contains(&format!("({thousands} {rest:03})")), "{HELP}");
    assert!(INODES.ends_with(&format!("={KNOWN_INODES_MAX}")), "{INODES}");
    let seconds = IDLE_MS / 1000;
    assert!(HELP.contains(&format!("({seconds}; 0: never)")), "{HELP}");
    assert!(IDLE.contains(&format!("={seconds},")), "{IDLE}");
}

#[test]
fn an_unknown_option_is_named_and_a_sloppy_mount_does_not_mind() {
    let error = parse(&["ro,colour".into()], false).err().unwrap();
    assert!(error.contains("colour"), "{error}");
    assert!(parse(&["ro,colour".into()], true).is_ok());
}

#[test]
fn a_wrong_value_of_a_known_option_is_told_what_there_is() {
    for (option, told) in [
        ("transport=foo", "say transport=auto|uring|devfuse"),
        ("transport", "say transport=auto|uring|devfuse"),
        ("keep_awake=fast", "say keep_awake=auto|off"),
        ("polling=on", "say polling=auto|off"),
        ("direct_io=1", "say direct_io"),
        ("nowbmeta=yes", "say nowbmeta"),
        ("trust=yes", "say trust"),
        ("inodes=many", "inodes=393216"),
        ("inodes=0", "inodes=393216"),
        ("inodes", "inodes=393216"),
        ("idle=soon", "idle=600"),
        ("cert", "cert=DIR"),
    ] {
        let error = parse(&[option.into()], false).err().unwrap();
        assert!(error.contains(&format!("mount option {option}: ")), "{error}");
        assert!(error.contains(told) && !error.contains("unknown"), "{error}");
    }
    for (name, values) in CHOICES {
        for value in values {
            parsed(&format!("{name}={value}"));
        }
        assert!(HELP.contains(&format!("{name}={}", values.join("|"))), "{name}");
    }
    PLAIN.iter().for_each(|option| drop(parsed(option)));
}

/// A remount compares what was said with what [`ParsedOptions::own`] shows: an option that is
/// missing in one of the two would be refused always, or changed never.
#[test]
fn each_own_option_is_parsed_and_shown() {
    let own = parsed("rw").own();
    let shown: BTreeSet<&str> = own.lines().map(|line| line.split_once('=').unwrap().0).collect();
    let named: BTreeSet<&str> = OWN_OPTIONS.iter().map(|(_, name)| *name).collect();
    assert_eq!(shown, named);
    // Said otherwise than it is unless said.
    let said = [
        "direct_io",
        "keep_awake=off",
        "polling=off",
        "prefetch=off",
        "passthrough=on",
        "nowbmeta",
        "transport=devfuse",
        "inodes=7",
        "idle=0",
        "trust",
        "context=a",
        "fscontext=a",
        "defcontext=a",
        "rootcontext=a",
    ];
    for option in said {
        let parsed = parsed(option);
        let word = option.split('=').next().unwrap();
        let (_, name) = OWN_OPTIONS.iter().find(|(known, _)| *known == word).unwrap();
        assert_eq!(parsed.differs(&own), Some(*name), "{option}");
        assert_eq!(parsed.differs(&parsed.own()), None, "{option}");
        assert!(HELP.contains(name) || *name == "context", "{name} has no help");
    }
    let words = said.map(|option| option.split('=').next().unwrap());
    let untold = OWN_OPTIONS.iter().find(|(word, _)| !words.contains(word));
    assert_eq!(untold, Some(&("wbmeta", "wbmeta")), "the default");
}

#[test]
fn objects_are_read_by_the_kernel_only_where_they_are() {
    assert!(parsed("passthrough=on").refuse_local_ones().is_err());
    assert!(parsed("passthrough=on,passthrough=off").refuse_local_ones().is_ok());
    let passes = |options| parsed(options).mount(String::new(), MountFlags::empty()).passthrough;
    assert!(passes("passthrough=on") && !passes("rw"));
}

#[test]
fn options_of_mount_8_are_known() {
    for option in [
        "strictatime,lazytime,sync,dirsync,nodiratime,nosymfollow,silent,loud,acl,owner,group",
        "users,user,user=me,nouser,nofail,_netdev,noauto,defaults,comment=x,x-systemd.automount",
        "context=\"system_u:object_r:tmp_t:s0:c1,c2\",relatime,norelatime,iversion,nomand",
        "X-mount.mkdir,rw,suid,dev,exec,async,atime,diratime,symfollow",
    ] {
        parse(&[option.to_owned()], false).unwrap();
    }
    let quoted = parsed("context=\"a:s0:c1,c2\",ro");
    assert_eq!(quoted.contexts, ["context=\"a:s0:c1,c2\""]);
    assert_eq!(quoted.flags.set, MountFlags::RDONLY);
    assert_eq!(parsed("cert=\"/a,b\",ro").cert, Some("/a,b".into()));
}

#[test]
fn what_was_not_said_is_as_it_was() {
    let base = MountFlags::NOSUID | MountFlags::NODEV;
    assert_eq!(parsed("ro").flags.over(base), base | MountFlags::RDONLY);
    assert_eq!(parsed("defaults").flags.over(base), base);
    assert_eq!(parsed("suid,dev").flags.over(base), MountFlags::empty());
    let flags = |options| parsed(options).mount(String::new(), base).flags;
    assert_eq!((flags("rw"), flags("trust")), (base, MountFlags::empty()));
    assert_eq!(flags("trust,nosuid"), MountFlags::NOSUID);
    assert_eq!(flags("user,trust,exec"), base, "mounted by a user");
    let exec = parsed("users,exec").flags.over(MountFlags::empty());
    assert_eq!(exec, base, "the last word counts");
    let shown = Flags::of_mount("rw,nosuid,noatime,ro,user_id=0,allow_other");
    assert_eq!(shown, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOATIME);
    assert_eq!(parsed("rw").flags.over(shown), MountFlags::NOSUID | MountFlags::NOATIME);
}
