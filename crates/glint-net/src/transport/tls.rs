//! TLS 1.3 with certificates on both sides (RFC 8446), by rustls: who a peer is, and nobody
//! reads or changes what is said.
//!
//! Invariants:
//! - A peer whose certificate the file system's own authority has not issued gets no further
//!   than the handshake.
//! - What was encrypted leaves in the order in which it was: only the writer of a connection
//!   encrypts, and it sends all of that before it encrypts more.

use crate::NetError;
use crate::server::access::rights::{Peer, RIGHTS_OID, Rights};
use compio_buf::{BufResult, IoBufMut};
use compio_io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use compio_net::TcpStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use x509_parser::der_parser::oid::Oid;

/// Files of an identity: the authority's certificate, its own, and its key.
pub const CA_FILE: &str = "ca.pem";
/// See [`CA_FILE`].
pub const CERT_FILE: &str = "cert.pem";
/// See [`CA_FILE`].
pub const KEY_FILE: &str = "key.pem";

/// Least room offered to one read.
const READ_BYTES: usize = 64 << 10;

/// TLS identity of this process, with the authority it believes.
#[derive(Clone)]
pub struct TlsIdentity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    rights: Arc<Rights>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

impl TlsIdentity {
    /// Reads the files of an identity from a directory; `glint cert issue` makes them.
    pub fn load(directory: &Path) -> Result<TlsIdentity, NetError> {
        let path = |name: &str| directory.join(name);
        let bad = |name: &str, error: &dyn fmt::Display| NetError::Certificate {
            path: directory.join(name),
            reason: error.to_string(),
        };
        let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>, NetError> {
            let all = CertificateDer::pem_file_iter(path(name)).map_err(|e| bad(name, &e))?;
            all.collect::<Result<_, _>>().map_err(|e| bad(name, &e))
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(CA_FILE)? {
            roots.add(root).map_err(|e| bad(CA_FILE, &e))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(CERT_FILE)?;
        let rights = match chain.first() {
            Some(own) => rights_of(own).map_err(|e| bad(CERT_FILE, &e))?.0,
            None => Rights::default(),
        };
        let key = || PrivateKeyDer::from_pem_file(path(KEY_FILE)).map_err(|e| bad(KEY_FILE, &e));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| bad(CERT_FILE, &e))?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key()?)
            .map_err(|e| bad(CERT_FILE, &e))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| bad(CA_FILE, &e))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| bad(CERT_FILE, &e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key()?)
            .map_err(|e| bad(CERT_FILE, &e))?;
        // Connections last; nobody comes back with a ticket.
        server.send_tls13_tickets = 0;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(TlsIdentity { client, server, rights: Arc::new(rights) })
    }

    /// Rights of this process, as its certificate says.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    fn client(&self, address: &str) -> io::Result<ClientConnection> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            io::Error::new(ErrorKind::InvalidInput, format!("server name {host}: {error}"))
        })?;
        ClientConnection::new(self.client.clone(), name).map_err(other)
    }

    /// Begins to talk to the server at `address`.
    pub(crate) async fn connect(&self, address: &str, tcp: TcpStream) -> io::Result<TlsStream> {
        TlsStream::shake_hands(tcp, self.client(address)?.into()).await
    }

    /// Begins to talk to a client that has connected.
    pub(crate) async fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream> {
        let connection = ServerConnection::new(self.server.clone()).map_err(other)?;
        TlsStream::shake_hands(tcp, connection.into()).await
    }
}

fn other(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Rights that a certificate gives its owner, and the name in it.
fn rights_of(certificate: &[u8]) -> Result<(Rights, Option<String>), String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| "not to be understood".to_owned())?;
    let oid = Oid::from(&RIGHTS_OID).map_err(|_| "no such name".to_owned())?;
    let rights = match certificate.get_extension_unique(&oid) {
        Ok(None) => Rights::default(),
        Ok(Some(extension)) => {
            std::str::from_utf8(extension.value).map_err(|_| "not text".to_owned())?.parse()?
        }
        Err(_) => return Err("says twice what it may do".to_owned()),
    };
    let name = certificate.subject().iter_common_name().next();
    Ok((rights, name.and_then(|name| name.as_str().ok()).map(str::to_owned)))
}

/// An encrypted stream. Its clones are the same stream.
#[derive(Clone)]
pub(crate) struct TlsStream {
    pub(crate) tcp: TcpStream,
    session: Rc<RefCell<Session>>,
}

struct Session {
    connection: Connection,
    /// Decrypted, and read up to a point.
    plain: Vec<u8>,
    read: usize,
    /// Room for what comes next.
    received: Vec<u8>,
}

impl TlsStream {
    async fn shake_hands(tcp: TcpStream, mut connection: Connection) -> io::Result<TlsStream> {
        connection.set_buffer_limit(None);
        let (plain, received) = (Vec::new(), Vec::new());
        let session = Session { connection, plain, read: 0, received };
        let stream = TlsStream { tcp, session: Rc::new(RefCell::new(session)) };
        loop {
            stream.send_encrypted().await?;
            if !stream.session.borrow().connection.is_handshaking() {
                return Ok(stream);
            }
            match stream.receive().await {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => {
                    // The peer is told why; it may be gone.
                    let _ = stream.send_encrypted().await;
                    return Err(error);
                }
            }
        }
    }

    async fn send_encrypted(&self) -> io::Result<()> {
        let out = self.session.borrow_mut().take_encrypted()?;
        match out.is_empty() {
            true => Ok(()),
            false => self.tcp.clone().write_all(out).await.0,
        }
    }

    /// Peer, with the rights in its certificate: all of them, if it says nothing.
    pub(crate) fn peer(&self) -> Result<Peer, NetError> {
        let session = self.session.borrow();
        let Some([certificate, ..]) = session.connection.peer_certificates() else {
            return Err(NetError::Refused("it shows no certificate".into()));
        };
        let bad = |what: &str| NetError::Refused(format!("its certificate: {what}"));
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let digest = digest.as_ref().try_into().map_err(|_| bad("no such digest"))?;
        let (rights, name) = rights_of(certificate).map_err(|what| bad(&what))?;
        Ok(Peer { certificate: Some(digest), name, rights })
    }

    /// `bytes` as they are to be sent.
    pub(crate) fn encrypt(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut session = self.session.borrow_mut();
        session.connection.writer().write_all(bytes)?;
        session.take_encrypted()
    }

    /// Receives something, and decrypts what of it is complete. 0 is the end.
    async fn receive(&self) -> io::Result<usize> {
        let mut room = std::mem::take(&mut self.session.borrow_mut().received);
        room.clear();
        room.reserve(READ_BYTES);
        let BufResult(result, room) = self.tcp.clone().append(room).await;
        let n = result?;
        let mut session = self.session.borrow_mut();
        session.decrypt(&room)?;
        session.received = room;
        Ok(n)
    }

    /// Reads what has been decrypted; waits until something has.
    pub(crate) async fn read<B: IoBufMut>(&self, buffer: B) -> BufResult<usize, B> {
        loop {
            let ready = self.session.borrow().has_plain();
            if ready {
                break;
            }
            match self.receive().await {
                Ok(0) => return BufResult(Ok(0), buffer),
                Ok(_) => {}
                Err(error) => return BufResult(Err(error), buffer),
            }
        }
        let (plain, from) = {
            let mut session = self.session.borrow_mut();
            (std::mem::take(&mut session.plain), session.read)
        };
        let result = AsyncRead::read(&mut &plain[from..], buffer).await;
        let mut session = self.session.borrow_mut();
        session.read = from + *result.0.as_ref().unwrap_or(&0);
        session.plain = plain;
        if !session.has_plain() {
            session.plain.clear();
            session.read = 0;
        }
        result
    }
}

impl Session {
    fn has_plain(&self) -> bool {
        self.read < self.plain.len()
    }

    fn take_encrypted(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut out)?;
        }
        Ok(out)
    }

    fn decrypt(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.connection.read_tls(&mut bytes)?;
            let ready =
                self.connection.process_new_packets().map_err(other)?.plaintext_bytes_to_read();
            let start = self.plain.len();
            self.plain.resize(start + ready, 0);
            self.connection.reader().read_exact(&mut self.plain[start..])?;
        }
        Ok(())
    }
}
