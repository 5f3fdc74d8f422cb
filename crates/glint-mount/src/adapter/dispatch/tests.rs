//! Tests of how requests are dispatched.

use super::*;
use glint_client::Client;
use glint_net::Remote;

fn size<'a, F: Vfs + 'a, R: Future>(_: impl FnOnce(&'a Adapter<F>, Request<'a>) -> R) -> usize {
    size_of::<R>()
}

#[test]
fn who_watches_a_file_system_does_not_use_it() {
    for opcode in [Opcode::Getattr, Opcode::Opendir, Opcode::Statfs, Opcode::Releasedir] {
        assert!(!is_use(opcode, ROOT_NODE), "{opcode:?}, as df does");
    }
    for opcode in [Opcode::Lookup, Opcode::Readdir, Opcode::Readdirplus, Opcode::Open] {
        assert!(is_use(opcode, ROOT_NODE), "{opcode:?}");
    }
    assert!(is_use(Opcode::Getattr, 7));
}

#[test]
fn who_is_to_try_again_hears_that_from_setxattr() {
    let said = [Errno::EAGAIN, Errno::EOPNOTSUPP].map(as_setxattr_says);
    assert_eq!(said, [Errno::EBUSY, Errno::EOPNOTSUPP]);
}

/// Each level that takes a future and awaits it doubles its size, and what is large is moved
/// and zeroed with each request.
#[test]
fn the_future_of_a_request_is_small() {
    let bytes = size::<Client<Remote>, _>(Adapter::dispatch);
    assert!(bytes <= 6 << 10, "{bytes} bytes");
}
