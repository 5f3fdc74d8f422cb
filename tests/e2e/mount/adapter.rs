//! Requests of the kernel besides names and data: rights that a write takes away, file handles,
//! locks of open files, to forget, attributes that are not stored.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::handles::HANDLES;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use support::disk::Disk;
use support::pair::pair;
use support::paths::quoted;
use support::{TRANSPORTS, World, enable_uring, sh};

/// A file system that this process mounts itself, and one that two mounts have over TCP.
pub(super) fn on_both_kinds(test: impl Fn(&Path, &Path)) {
    enable_uring();
    let pair = pair();
    test(&pair.a, &pair.b);
    drop(pair);
    let world = World::new();
    open_to_all(&world.mount_point());
    let up = world.up(&[]);
    test(&world.mount_point(), &world.mount_point());
    up.stop();
    world.assert_sound();
}

/// Lets other users come to a mount point: its parents are private.
pub(super) fn open_to_all(mount: &Path) {
    let parent = mount.parent().unwrap();
    fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A file with set-id bits, which everybody may write and the kernel knows.
fn set_id(directory: &Path) -> PathBuf {
    open_to_all(directory);
    sh(directory, "rm -f f; cp /usr/bin/id f; chmod 6777 f; test $(stat -c %a f) = 6777");
    directory.join("f")
}

const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn set_id_bits_go_with_what_takes_them_and_the_kernel_forgets_them() {
    let ways = [
        "dd if=/usr/bin/id of=f conv=notrunc bs=1M status=none",
        "dd if=/usr/bin/id of=f conv=notrunc bs=4096 oflag=direct status=none",
        "truncate -s 100000 f",
        "fallocate -l 200k f",
        "sh -c 'echo x >> f'",
        "sh -c 'cat /usr/bin/id > f'",
    ];
    on_both_kinds(|a, b| {
        for way in ways {
            set_id(a);
            sh(a, &format!("{NOBODY} {way}"));
            // Only the mode is asked for, as exec(2) does.
            assert_eq!(sh(a, "stat -c %a f").trim(), "777", "{way}");
            assert_eq!(sh(b, "stat -c %a f").trim(), "777", "{way}");
        }
        let calls = [
            "os.copy_file_range(os.open('g', 0), os.open('f', 1), 9)",
            "os.pwrite(os.open('f', 2), b'x', 1)",
            "os.posix_fallocate(os.open('f', 2), 0, 1 << 20)",
            "os.ftruncate(os.open('f', 2), 9)",
        ];
        sh(a, "cp /usr/bin/id g");
        for call in calls {
            set_id(a);
            let script = format!("import os; os.setegid(65534); os.seteuid(65534); {call}");
            sh(a, &format!("python3 -c \"{script}\""));
            assert_eq!(sh(a, "stat -c %a f").trim(), "777", "{call}");
        }
        set_id(a);
        sh(a, &format!("{NOBODY} dd if=/usr/bin/id of=f conv=notrunc bs=1M status=none"));
        assert_eq!(sh(a, &format!("{NOBODY} ./f -u")).trim(), "65534");
        // Set-id bits stay if the writer may keep them.
        set_id(a);
        sh(a, "echo x >> f");
        assert_eq!(sh(a, "stat -c %a f").trim(), "6777");
    });
}

#[test]
fn bits_that_come_while_a_file_is_written_go_with_the_next_write() {
    let script = "
import os, sys
a, b = sys.argv[1:]
f = os.open(a + '/g', os.O_CREAT | os.O_WRONLY, 0o777)
os.fchmod(f, 0o777)
os.chown(a + '/g', 65534, 65534)
def mode(): return os.stat(b + '/g').st_mode & 0o7777
def capable():
    try: return bool(os.getxattr(b + '/g', 'security.capability'))
    except OSError: return False
def as_nobody():
    os.setegid(65534); os.seteuid(65534)
    os.write(f, b'x')
    os.seteuid(0); os.setegid(0)
cap = bytes.fromhex('0100000200200000000000000000000000000000')
for other in (a, b) * 3:
    as_nobody()
    os.chmod(other + '/g', 0o4777)
    assert mode() == 0o4777
    as_nobody()
    assert mode() == 0o777, oct(mode())
    os.setxattr(other + '/g', 'security.capability', cap)
    assert capable()
    os.write(f, b'y')
    assert not capable()
";
    on_both_kinds(|a, b| {
        open_to_all(a);
        let script = format!("python3 - {} {} <<'E'{script}E", quoted(a), quoted(b));
        sh(a, &script);
    });
}

/// Changes of attributes by the owner, by others and by root, of files that nobody has heard of yet:
/// the same answers as from a local file system, and for everybody else the same files.
#[test]
fn attributes_of_files_that_were_just_made_are_those_of_a_local_file_system() {
    let script = "
def told(path):
    s = os.lstat(path)
    old = s.st_mtime if s.st_mtime < 1e6 else None
    try: capable = len(os.getxattr(path, 'security.capability', follow_symlinks=False))
    except OSError: capable = None
    return oct(s.st_mode), s.st_uid, s.st_gid, old, capable
calls = {
    'away': lambda p: os.chown(p, 8, -1), 'mine': lambda p: os.chown(p, 7, 7),
    'into': lambda p: os.chown(p, -1, 9), 'outside': lambda p: os.chown(p, -1, 10),
    'both': lambda p: os.chown(p, 8, 10), 'setgid': lambda p: os.chmod(p, 0o2755),
    'setids': lambda p: os.chmod(p, 0o6711), 'plain': lambda p: os.chmod(p, 0o640),
    'old': lambda p: os.utime(p, (1, 2)), 'now': lambda p: os.utime(p),
}
if sys.argv[2] == 'make':
    os.mkdir(top)
    for who in users:
        for c, call in enumerate(calls):
            for gid in 7, 12:
                for m, mode in enumerate((0o644, 0o6755, 0o2755, 0o4711)):
                    for k, kind in enumerate(('file', 'capable', 'dir')):
                        # Half of these, in which each two meet; all of them in `make long`.
                        if (c + m + k) % 2 and 'E2E_LONG' not in os.environ: continue
                        path = f'{top}/{who}.{call}.{gid}.{mode:o}.{kind}'
                        if kind == 'dir': os.mkdir(path)
                        else: open(path, 'w').write('x')
                        os.chown(path, 7, gid)
                        os.chmod(path, mode)
                        if kind == 'capable': os.setxattr(path, 'security.capability', CAPABILITY)
                        errno = as_user(who, lambda: calls[call](path))
                        print(os.path.basename(path), errno, *told(path))
    # In a directory of the user everything is done by the user.
    os.mkdir(top + '/own'); os.chown(top + '/own', 7, 7)
    def own():
        for call in calls:
            path = f'{top}/own/{call}'
            open(path, 'w').write('x')
            os.chmod(path, 0o6755)
            try: calls[call](path); os.chown(path, 7, -1); errno = 0
            except OSError as e: errno = e.errno
            print(call, errno, *told(path), flush=True)
    sys.stdout.flush()
    print(as_user('owner', own))
else:
    for directory in '.', 'own':
        for name in sorted(os.listdir(f'{top}/{directory}')):
            if name != 'own': print(name, *told(f'{top}/{directory}/{name}'))
";
    does_as_a_local_disk(script);
}

/// Users, and what makes one of them do something in `top`.
const USERS: &str = "
import os, sys
top = sys.argv[1]
os.umask(0)
CAPABILITY = bytes.fromhex('0100000200200000000000000000000000000000')
# Number, group and other groups. Files belong to the first one.
users = {'owner': (7, 7, [9]), 'other': (8, 8, [9]), 'root': (0, 0, [])}
def as_user(who, call):
    pid = os.fork()
    if pid == 0:
        uid, gid, groups = users[who]
        try:
            os.setgroups(groups); os.setgid(gid); os.setuid(uid)
            call()
            os._exit(0)
        except OSError as e: os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
";

/// Runs a script with [`USERS`] that makes files, and looks at them, in a directory of a local disk and
/// on mounts of both kinds: what it prints must be the same.
pub(super) fn does_as_a_local_disk(script: &str) {
    let run = |top: &Path, how: &str| {
        sh(Path::new("/"), &format!("python3 - {} {how} <<'E'{USERS}{script}\nE", quoted(top)))
    };
    // A disk of its own: users may not reach the build, which is below the home of another one, nor
    // need its file system know all of this.
    let world = World::new();
    let local = world.short("local");
    let disk = Disk::new(&world.path("image"), &local, "ext4", 64);
    open_to_all(&local);
    let expected = run(&local.join("d"), "make");
    let listed = run(&local.join("d"), "look");
    drop(disk);
    on_both_kinds(|a, b| {
        open_to_all(a);
        same(&run(&a.join("d"), "make"), &expected);
        same(&run(&b.join("d"), "look"), &listed);
    });
}

/// Two texts are the same; says which lines differ.
pub(super) fn same(found: &str, expected: &str) {
    let differ = |(found, expected): &(&str, &str)| found != expected;
    let lines: Vec<_> = found.lines().zip(expected.lines()).filter(differ).collect();
    assert!(found == expected, "(found, expected): {lines:#?}");
}

#[test]
fn capabilities_go_with_every_change_of_data() {
    let ways = [
        "echo x >> f",
        "dd if=/dev/zero of=f conv=notrunc bs=4096 count=1 oflag=direct status=none",
        "truncate -s 100000 f",
        "fallocate -l 200k f",
        "cat /usr/bin/id > f",
    ];
    let give = "setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 f";
    on_both_kinds(|a, b| {
        for way in ways {
            sh(a, &format!("rm -f f; cp /usr/bin/id f; {give}; getfattr -n security.capability f"));
            sh(a, way);
            for seen in [a, b] {
                let gone = sh(seen, "getfattr -n security.capability f 2>&1 || true");
                assert!(gone.contains("No such attribute"), "{way}: {gone}");
            }
        }
    });
}

/// Keeps handles in files.
const KEPT: &str = "
def save(path, at):
    with open(at, 'wb') as f: f.write(bytes(name(path)))
def load(mount, at, flags=0):
    return opened(mount, Handle.from_buffer_copy(open(at, 'rb').read()), flags)
mount, keep = sys.argv[1:3]
";

#[test]
fn handles_of_files_stay_valid_as_long_as_these_exist() {
    enable_uring();
    let world = World::new();
    let port = support::free_port();
    let server = world.serve(port, &[]);
    let keep = world.path("keep");
    fs::create_dir(&keep).unwrap();
    let python = |mount: &Path, script: &str| {
        let (mount, keep) = (quoted(mount), quoted(&keep));
        sh(Path::new("/"), &format!("python3 - {mount} {keep} <<'E'{HANDLES}{KEPT}{script}\nE"));
    };
    let (a, mount) = world.mount(port, "a", &[]);
    let make = "
os.makedirs(mount + '/d/e')
for path, text in (('d/e/f', b'deep'), ('top', b'top'), ('gone', b'')):
    with open(mount + '/' + path, 'wb') as f: f.write(text)
os.symlink('x', mount + '/link')
for path in ('d/e/f', 'top', 'd', 'd/e', 'gone', 'link'):
    save(mount + '/' + path, keep + '/' + path.replace('/', '_'))
os.unlink(mount + '/gone')
";
    let look = "
assert os.read(load(mount, keep + '/d_e_f'), 9) == b'deep'
assert os.read(load(mount, keep + '/top'), 9) == b'top'
assert os.listdir(load(mount, keep + '/d_e')) == ['f']
assert os.readlink('', dir_fd=load(mount, keep + '/link', os.O_PATH)) == 'x'
at = load(mount, keep + '/d_e')
assert os.readlink('/proc/self/fd/%d' % at) == mount + '/d/e'
try: load(mount, keep + '/gone')
except OSError as e: assert e.errno == 116, e
else: raise AssertionError('a file that is gone was opened')
";
    python(&mount, make);
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    python(&mount, look);
    a.stop();
    let (a, mount) = world.mount(port, "a", &[]);
    python(&mount, look);
    // A new inode has another handle than the one before it.
    python(
        &mount,
        "save(mount + '/top', keep + '/top')\nos.rename(mount + '/top', mount + '/d/top')",
    );
    python(&mount, "assert os.read(load(mount, keep + '/top'), 9) == b'top'");
    a.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn locks_of_open_file_descriptions_end_with_the_last_descriptor() {
    let pair = pair();
    let script = "
import fcntl, os, struct, sys, time
a, b = sys.argv[1:]
SET, GET = 37, 36
def lock(kind): return struct.pack('hhqqi4x', kind, 0, 0, 0, 0)
f = os.open(a + '/f', os.O_CREAT | os.O_RDWR)
other = os.open(b + '/f', os.O_RDWR)
def held(fd):
    return struct.unpack('hhqqi4x', fcntl.fcntl(fd, GET, lock(fcntl.F_WRLCK)))[0] != fcntl.F_UNLCK
for again in range(20):
    f = os.open(a + '/f', os.O_CREAT | os.O_RDWR)
    fcntl.fcntl(f, SET, lock(fcntl.F_WRLCK))
    g = os.dup(f)
    os.close(f)
    # The other descriptor of the same description keeps it, and so it does across a fork.
    assert held(other)
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    assert held(other)
    os.close(g)
    here = os.open(a + '/f', os.O_RDWR)
    assert not held(here), again
    until = time.time() + 60
    while held(other): assert time.time() < until, again
    os.close(here)
";
    let (a, b) = (quoted(&pair.a), quoted(&pair.b));
    sh(&pair.a, &format!("python3 - {a} {b} <<'E'{script}E"));
}

fn python(mounts: [&Path; 2], script: &str) {
    let [a, b] = mounts.map(quoted);
    // A script that waits for ever fails, too.
    sh(Path::new("/"), &format!("timeout 300 python3 - {a} {b} <<'E'\n{script}\nE"));
}

#[test]
fn the_kernel_is_asked_to_forget_inodes() {
    let world = World::new();
    let port = support::free_port();
    let _server = world.serve(port, &[]);
    let (_mount, a) = world.mount(port, "a", &["-o", "inodes=300"]);
    let script = "
import json, os, sys, time
a = sys.argv[1]
for d in range(4):
    os.mkdir('%s/%d' % (a, d))
    for f in range(500): open('%s/%d/%d' % (a, d, f), 'w').write(str(f))
used = os.open(a + '/3/7', os.O_RDWR)
os.chdir(a + '/2')
def known(): return json.loads(os.getxattr(a, 'glint.status'))['client']['cached_inodes']
os.fsync(used)
until = time.time() + 120
while known() > 400:
    assert time.time() < until, known()
    time.sleep(0.1)
# What is used stays, and what was forgotten is found again.
assert os.pwrite(used, b'x', 0) == 1 and os.getcwd() == a + '/2'
for d in range(4):
    assert len(os.listdir('%s/%d' % (a, d))) == 500
    for f in range(0, 500, 50):
        if (d, f) != (3, 7): assert open('%s/%d/%d' % (a, d, f)).read() == str(f)
";
    python([&a, &a], script);
}

/// ls(1) asks for the label of each file unless it hears that there are none. Labels that programs
/// store are kept. A kernel with SELinux answers for labels by itself.
#[test]
fn a_label_that_is_not_there_is_one_that_is_not_supported() {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        return;
    }
    let world = World::new();
    let port = support::free_port();
    let _server = world.serve(port, &[]);
    let (_mount, a) = world.mount(port, "a", &[]);
    let script = "
import errno, os, sys
f, label = sys.argv[1] + '/f', 'security.selinux'
open(f, 'w').close()
def refused(name, expected):
    try: os.getxattr(f, name)
    except OSError as error: assert error.errno == expected, error
    else: assert False, name
refused(label, errno.EOPNOTSUPP)
refused('security.other', errno.ENODATA)
os.setxattr(f, label, b'user_u:object_r:user_home_t:s0')
assert os.getxattr(f, label) == b'user_u:object_r:user_home_t:s0' and label in os.listxattr(f)
refused('security.other', errno.ENODATA)
os.removexattr(f, label)
refused(label, errno.EOPNOTSUPP)
";
    python([&a, &a], script);
}

/// As getfattr(1) reads an attribute: it asks for the length, then for so many bytes. Other threads
/// go on in between, so the text of the servers' state changes.
#[test]
fn an_attribute_read_in_two_steps_is_one_value() {
    enable_uring();
    let script = "
import ctypes, errno, json, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
a = sys.argv[1]
def get(name, room):
    buffer = ctypes.create_string_buffer(room + 1)
    n = libc.getxattr(a.encode(), name, buffer, ctypes.c_size_t(room))
    if n < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return n, buffer.raw[:n]
done, failed = threading.Event(), []
def load():
    try:
        while not done.is_set():
            with open(a + '/f', 'w') as f:
                f.write('load')
                os.fsync(f.fileno())
            os.unlink(a + '/f')
    except Exception as e: failed.append(e)
def read(name):
    try:
        for again in range(300):
            length = get(name, 0)[0]
            time.sleep(0.001)
            n, text = get(name, length)
            assert n == length, (name, n, length)
            json.loads(text)
    except Exception as e: failed.append(e)
loader = threading.Thread(target=load)
loader.start()
readers = [threading.Thread(target=read, args=(b'glint.' + n,)) for n in (b'stats', b'stats', b'status')]
for t in readers: t.start()
for t in readers: t.join()
done.set()
loader.join()
assert not failed, failed
# A buffer that is too small is refused, and a larger one is enough.
try: get(b'glint.stats', 10)
except OSError as e: assert e.errno == errno.ERANGE, e
else: raise AssertionError('ten bytes were enough')
json.loads(get(b'glint.stats', 65536)[1])
";
    for transport in TRANSPORTS {
        let world = World::new();
        let up = world.up(&["-o", transport]);
        python([&world.mount_point(), &world.mount_point()], script);
        up.stop();
        world.assert_sound();
    }
}
