//! Questions of a check of the namespace to the server with the MDS, and to those that have
//! objects.

use crate::NetError;
use crate::client::link::{Link, PATIENCE};
use crate::client::remote::random_client;
use crate::transport::stream::Address;
use compio_runtime::Runtime;
use glint_proto::message::{NamespacePage, NamespaceQuery, Reply, Request};
use glint_proto::{ClientId, clock};
use std::time::{Duration, Instant};

/// How long a connection is used: a server keeps nobody for long who has not said hello.
const LINK_AGE_MAX: Duration = Duration::from_secs(1);

/// Asks servers for parts of a namespace and for lists of objects, on the thread that has it, page
/// after page over one connection to each server.
pub struct NamespaceReader {
    /// Once something was asked.
    runtime: Option<Runtime>,
    client: ClientId,
    links: Vec<ReaderLink>,
}

/// The connection to a server.
struct ReaderLink {
    address: String,
    link: Link,
    opened: Instant,
}

impl Default for NamespaceReader {
    fn default() -> NamespaceReader {
        NamespaceReader { runtime: None, client: random_client(), links: Vec::new() }
    }
}

impl NamespaceReader {
    /// Asks a server for one page.
    pub fn page(
        &mut self,
        address: &Address,
        query: NamespaceQuery,
    ) -> Result<NamespacePage, NetError> {
        let no_runtime = |source| NetError::Io { what: "starting to ask".into(), source };
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => crate::runtime(None).map_err(no_runtime)?,
        };
        let runtime = self.runtime.insert(runtime);
        let (client, links) = (self.client, &mut self.links);
        runtime.block_on(async {
            links.retain(|link| clock::since(link.opened) <= LINK_AGE_MAX);
            let name = address.to_string();
            let mut to = match links.iter().position(|link| link.address == name) {
                Some(at) => links.swap_remove(at),
                None => {
                    let opened = clock::now();
                    let link = Link::open(address, client, PATIENCE).await?;
                    ReaderLink { address: name, link, opened }
                }
            };
            // One that fails is not used again.
            let page = page_of(to.link.ask(&Request::Check(query), PATIENCE).await?)?;
            links.push(to);
            Ok::<NamespacePage, NetError>(page)
        })
    }

    /// Asks a server for `first`, and then for what `next` says that comes after each answer, until
    /// that is nothing.
    pub fn walk(
        &mut self,
        address: &Address,
        first: NamespaceQuery,
        mut next: impl FnMut(NamespacePage) -> Option<NamespaceQuery>,
    ) -> Result<(), NetError> {
        let mut query = Some(first);
        while let Some(asked) = query {
            query = next(self.page(address, asked)?);
        }
        Ok(())
    }
}

impl Drop for NamespaceReader {
    fn drop(&mut self) {
        // Connections are closed where they were opened.
        let links = std::mem::take(&mut self.links);
        if let Some(runtime) = &self.runtime {
            runtime.block_on(async move { drop(links) });
        }
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
