//! Hello of a client, and its answer.

use crate::NetError;
use crate::client::remote::RemoteOptions;
use glint_proto::message::{Hello, Reply, Request, Welcome};

/// Hello of a client in this session, with the boot verifier that it heard last (0 for none).
pub(crate) fn hello_of(
    host: String,
    options: &RemoteOptions,
    boot_verifier: u64,
    session: u64,
    secret: u128,
) -> Request<'static> {
    let mount_point = options.mount_point.clone();
    let hello =
        Hello { host, mount_point, known: boot_verifier != 0, boot_verifier, session, secret };
    Request::Hello(hello)
}

/// The answer to hello.
pub(crate) fn welcome_of(reply: Reply) -> Result<Welcome, NetError> {
    match reply {
        Reply::Welcome(welcome) => Ok(welcome),
        _ => Err(NetError::Refused("it did not welcome this client".into())),
    }
}
