//! Files that are used without a name: open or found when their last name went, or named by a file handle.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::adapter::{on_both_kinds, open_to_all};
use std::path::Path;
use support::paths::quoted;
use support::sh;

/// Names inodes by numbers, and opens them by these.
pub(super) const HANDLES: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
def name(path):
    h, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return h
def opened(mount, h, flags=0):
    m = os.open(mount, os.O_RDONLY)
    fd = libc.open_by_handle_at(m, ctypes.byref(h), flags)
    error = ctypes.get_errno()
    os.close(m)
    if fd < 0: raise OSError(error, os.strerror(error))
    return fd
";
/// Of scripts that have two mounts.
const MOUNTS: &str = "
import errno, mmap, time
a, b = sys.argv[1:3]
";

fn python(mounts: [&Path; 2], script: &str) {
    let [a, b] = mounts.map(quoted);
    // A script that waits for ever fails, too.
    sh(Path::new("/"), &format!("timeout 300 python3 - {a} {b} <<'E'{HANDLES}{MOUNTS}{script}\nE"));
}

/// The mount that removes the name is the one that has the file open, and opened it without asking.
#[test]
fn files_stay_while_they_are_open_and_can_be_opened_by_handle() {
    let script = "
def read(fd):
    # Around the page cache, which may have everything.
    page = mmap.mmap(-1, 4096)
    direct = os.open('/proc/self/fd/%d' % fd, os.O_RDONLY | os.O_DIRECT)
    n = os.preadv(direct, [page], 0)
    os.close(direct)
    return page[:n]
ways = {
    'unlink': lambda p: os.unlink(p),
    'rename': lambda p: os.rename(p + '.other', p),
    'links': lambda p: (os.link(p, p + '.2'), os.unlink(p), os.unlink(p + '.2')),
    'moved': lambda p: (os.rename(p, p + '.3'), os.unlink(p + '.3')),
}
for path in ways:
    for more in '', '.other':
        with open(a + '/' + path + more, 'w') as f: f.write('text')
for way, remove in ways.items():
    path = a + '/' + way
    handle = name(path)
    fds = [os.open(path, os.O_RDONLY) for again in range(2)]
    os.close(fds.pop())
    remove(path)
    assert os.fstat(fds[0]).st_nlink == 0, way
    for flags in os.O_RDONLY, os.O_RDWR:
        fds.append(opened(a, handle, flags))
        assert os.read(fds[-1], 9) == b'text', way
    os.write(fds[2], b'more')
    # The first one is not the last to be closed.
    os.close(fds.pop(0))
    time.sleep(0.5)
    for fd in fds: assert read(fd) == b'textmore', way
    for fd in fds: os.close(fd)
    until = time.time() + 60
    while True:
        try: os.close(opened(a, handle))
        except OSError as e:
            assert e.errno == errno.ESTALE, e
            break
        assert time.time() < until, 'it never goes'
        time.sleep(0.05)
os.mkdir(a + '/d')
os.stat(b + '/d')
d = os.open(a + '/d', os.O_RDONLY)
os.rmdir(a + '/d')
assert os.fstat(d).st_nlink == 0
assert os.listdir(d) == []
";
    on_both_kinds(|a, b| {
        open_to_all(a);
        python([a, b], script);
    });
}

/// A file that nobody looked up by name, and which another mount changes without asking.
#[test]
fn a_file_that_is_named_by_handle_is_the_one_that_its_maker_has() {
    let script = "
nobody = 65534
def as_nobody(call):
    os.setegid(nobody); os.seteuid(nobody)
    call()
    os.seteuid(0); os.setegid(0)
os.makedirs(a + '/d')
os.chmod(a + '/d', 0o711)
for again in range(10):
    top = a + '/d/%d' % again
    os.makedirs(top + '/sub')
    path = top + '/f'
    with open(path, 'w') as f: f.write('text')
    directory, handle = name(top + '/sub'), name(path)
    # The servers may not have heard of any of these.
    os.chmod(path, 0o604); os.utime(path, (5, 6)); os.chmod(top + '/sub', 0o705)
    s = os.fstat(opened(b, handle))
    assert (s.st_mode & 0o7777, s.st_mtime, s.st_size) == (0o604, 6, 4), s
    assert os.fstat(opened(b, directory)).st_mode & 0o7777 == 0o705
    fd = opened(b, handle, os.O_RDWR)
    assert os.read(fd, 9) == b'text'
    for mode in 0o600, 0o640, 0o666:
        os.chmod(path, mode)
        assert os.fstat(fd).st_mode & 0o7777 == mode, (oct(mode), oct(os.fstat(fd).st_mode))
    # What a write takes is gone for its maker.
    os.chmod(path, 0o4777)
    as_nobody(lambda: os.write(fd, b'more'))
    assert os.stat(path).st_mode & 0o7777 == 0o777, oct(os.stat(path).st_mode)
    # What was renamed and removed without asking is so.
    os.rename(path, top + '/g')
    assert os.readlink('/proc/self/fd/%d' % opened(b, directory)) != ''
    os.close(fd)
# One that is changed before it was ever looked at.
for again in range(10):
    path = a + '/d/x%d' % again
    with open(path, 'w') as f: f.write('text')
    handle = name(path)
    if again % 2: time.sleep(1)
    os.chmod(path, 0o4777)
    fd = opened(b, handle, os.O_RDWR)
    as_nobody(lambda: os.write(fd, b'more'))
    assert os.stat(path).st_mode & 0o7777 == 0o777, oct(os.stat(path).st_mode)
    os.unlink(path)
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
";
    on_both_kinds(|a, b| {
        open_to_all(a);
        python([a, b], script);
    });
}

/// The kernel looks the name up again once only.
#[test]
fn a_file_that_others_replace_all_the_time_is_there_for_each_call() {
    let script = "
import threading
os.mkdir(a + '/r')
path = a + '/r/x'
def replace(at):
    with open(at + '/r/t', 'w') as f: f.write('text')
    os.rename(at + '/r/t', at + '/r/x')
    os.symlink('x', at + '/r/u')
    os.rename(at + '/r/u', at + '/r/l')
def write(at):
    with open(at + '/r/x', 'r+') as f: f.write('more')
calls = [
    lambda at: os.truncate(at + '/r/x', 1),
    lambda at: os.utime(at + '/r/x'),
    lambda at: os.chmod(at + '/r/x', 0o640),
    lambda at: os.setxattr(at + '/r/x', 'user.a', b'1'),
    lambda at: open(at + '/r/x').read(),
    lambda at: os.readlink(at + '/r/l'),
    lambda at: os.stat(at + '/r/l'),
    write,
]
def loop(call, at, until, failed):
    while time.time() < until and not failed:
        try: call(at)
        except OSError as e: failed.append((str(e), at))
replace(a)
for at in (a, a), (a, b):
    failed = []
    until = time.time() + (3 if 'E2E_LONG' in os.environ else 2)
    threads = [threading.Thread(target=loop, args=(call, at[0], until, failed)) for call in calls]
    threads.append(threading.Thread(target=loop, args=(replace, at[1], until, failed)))
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failed, failed
";
    on_both_kinds(|a, b| {
        open_to_all(a);
        python([a, b], script);
    });
}
