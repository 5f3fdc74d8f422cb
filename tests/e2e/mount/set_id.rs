//! What a change of data, owner or group takes from a file: set-id bits and capabilities. Each
//! combination is compared with a local disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::adapter::does_as_a_local_disk;

const SCRIPT: &str = "
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(fd, mode, length):
    if libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), 'fallocate')
def opened(path, flags, call=lambda fd: None):
    fd = os.open(path, flags)
    try: call(fd)
    finally: os.close(fd)
def mapped(fd):
    with mmap.mmap(fd, 100) as pages: pages[0] = 7
def direct(fd): os.pwritev(fd, [mmap.mmap(-1, 4096)], 0)
def copied(fd):
    source = os.open(top + '/source', os.O_RDONLY)
    os.copy_file_range(source, fd, 9)
RW = os.O_RDWR
calls = {
    'write': lambda p: opened(p, RW, lambda f: os.write(f, b'x')),
    'direct': lambda p: opened(p, RW | os.O_DIRECT, direct),
    'append': lambda p: opened(p, RW | os.O_APPEND, lambda f: os.write(f, b'x')),
    'map': lambda p: opened(p, RW, mapped),
    'ftruncate': lambda p: opened(p, RW, lambda f: os.ftruncate(f, 9)),
    'truncate': lambda p: os.truncate(p, 9),
    'open': lambda p: opened(p, RW | os.O_TRUNC),
    'creat': lambda p: opened(p, RW | os.O_TRUNC | os.O_CREAT),
    'falloc': lambda p: opened(p, RW, lambda f: fallocate(f, 0, 1 << 17)),
    'keep': lambda p: opened(p, RW, lambda f: fallocate(f, 1, 1 << 17)),
    'punch': lambda p: opened(p, RW, lambda f: fallocate(f, 3, 4096)),
    'zero': lambda p: opened(p, RW, lambda f: fallocate(f, 0x10, 4096)),
    'copy': lambda p: opened(p, RW, copied),
    'utime': lambda p: os.utime(p),
    'into': lambda p: os.chown(p, -1, 9), 'own': lambda p: os.chown(p, 7, 7),
    'same': lambda p: os.chown(p, -1, os.stat(p).st_gid),
    'chmod': lambda p: os.chmod(p, os.stat(p).st_mode & 0o7777),
}
def told(path):
    s = os.lstat(path)
    try: capable = len(os.getxattr(path, 'security.capability'))
    except OSError: capable = None
    return os.path.basename(path), oct(s.st_mode), s.st_uid, s.st_gid, s.st_size, capable
kinds = [(m, False) for m in (0o6666, 0o6676, 0o2666, 0o2767, 0o2777)] + [(0o6666, True), (0o777, True)]
if sys.argv[2] == 'make':
    os.mkdir(top)
    with open(top + '/source', 'w') as f: f.write('0123456789')
    for who in users:
        for c, call in enumerate(calls):
            for g, gid in enumerate((7, 9, 12)):
                for k, (mode, capable) in enumerate(kinds):
                    # Half of these, in which each two meet; all of them in `make long`.
                    if (c + g + k) % 2 and 'E2E_LONG' not in os.environ: continue
                    path = f'{top}/{who}.{call}.{gid}.{mode:o}.{capable}'
                    with open(path, 'w') as f: f.write('x' * 8192)
                    os.chown(path, 7, gid)
                    os.chmod(path, mode)
                    if capable: os.setxattr(path, 'security.capability', CAPABILITY)
                    print(as_user(who, lambda: calls[call](path)), *told(path))
else:
    for name in sorted(os.listdir(top)): print(*told(f'{top}/{name}'))
";

#[test]
fn changes_take_from_a_file_what_they_take_on_a_local_disk() {
    does_as_a_local_disk(SCRIPT);
}
