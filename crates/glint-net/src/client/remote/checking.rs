//! Questions of a check of the namespace to the server with the MDS, over one connection at a time.

use crate::NetError;
use crate::client::link::{Link, PATIENCE};
use crate::client::remote::{Remote, random_client};
use crate::transport::stream::Address;
use glint_proto::clock;
use glint_proto::message::{NamespacePage, NamespaceQuery, Reply, Request};
use std::time::Duration;

/// How long a connection is used: a server keeps nobody for long who has not said hello.
const LINK_AGE_MAX: Duration = Duration::from_secs(1);

impl Remote {
    /// Asks for parts of the namespace, on the calling thread: for `first`, and then for what
    /// `next` says that comes after each answer, until that is nothing.
    pub fn check_namespace(
        address: &Address,
        first: NamespaceQuery,
        mut next: impl FnMut(NamespacePage) -> Option<NamespaceQuery>,
    ) -> Result<(), NetError> {
        let no_runtime = |source| NetError::Io { what: "starting to ask".into(), source };
        crate::runtime(None).map_err(no_runtime)?.block_on(async {
            let client = random_client();
            let mut query = Some(first);
            while query.is_some() {
                let begun = clock::now();
                let mut link = Link::open(address, client, PATIENCE).await?;
                while let Some(asked) = query.take() {
                    query = next(page_of(link.ask(&Request::Check(asked), PATIENCE).await?)?);
                    if clock::since(begun) > LINK_AGE_MAX {
                        break;
                    }
                }
            }
            Ok::<(), NetError>(())
        })
    }
}

fn page_of(reply: Reply) -> Result<NamespacePage, NetError> {
    match reply {
        Reply::Checked(page) => Ok(page),
        Reply::Refused(reason) => Err(NetError::Refused(reason)),
        Reply::Failed(_) => {
            Err(NetError::Refused("the certificate here does not allow that".into()))
        }
        _ => Err(NetError::Refused("it sent something else than a page".into())),
    }
}
