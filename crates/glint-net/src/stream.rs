//! Where servers are, and the byte streams that lead there: TCP, or a Unix socket on the
//! same host (`unix:PATH`).

use compio_buf::{BufResult, IoBuf, IoBufMut};
use compio_io::{AsyncRead, AsyncWrite};
use compio_net::{TcpListener, TcpStream, UnixListener, UnixStream};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net as unix;
use std::path::PathBuf;
use std::time::Duration;

/// Prefix of the address of a Unix socket.
pub const UNIX_PREFIX: &str = "unix:";

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// Name or number of a host, and port.
    Tcp(String),
    /// Path of a socket.
    Unix(PathBuf),
}

impl Address {
    /// `unix:PATH` or `HOST:PORT`.
    pub fn parse(text: &str) -> Address {
        match text.strip_prefix(UNIX_PREFIX) {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(text.to_owned()),
        }
    }

    /// The socket addresses that a TCP address stands for, none for others.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Address::Tcp(address) => Ok(address.to_socket_addrs()?.collect()),
            Address::Unix(_) => Ok(Vec::new()),
        }
    }

    /// Connects, on the calling thread.
    pub(crate) fn connect_blocking(&self, limit: Duration) -> io::Result<Box<dyn ReadWrite>> {
        if let Address::Unix(path) = self {
            let stream = unix::UnixStream::connect(path)?;
            stream.set_read_timeout(Some(limit))?;
            return Ok(Box::new(stream));
        }
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for address in self.resolve()? {
            match std::net::TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(limit))?;
                    return Ok(Box::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str()).await?;
                if stream.local_addr().ok() == stream.peer_addr().ok() {
                    // TCP lets a socket connect to itself when nobody listens at a port that
                    // the kernel also hands out; that would keep the server from coming back.
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

pub(crate) trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// A bound address.
pub enum Listener {
    /// Of TCP.
    Tcp(std::net::TcpListener),
    /// A Unix socket, and its file.
    Unix(unix::UnixListener, PathBuf),
}

impl Listener {
    /// Binds. The socket of a server that is gone is taken over.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        let path = match address {
            Address::Tcp(address) => {
                return std::net::TcpListener::bind(address.as_str()).map(Listener::Tcp);
            }
            Address::Unix(path) => path,
        };
        let listener = match unix::UnixListener::bind(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                match unix::UnixStream::connect(path) {
                    Err(gone) if gone.kind() == ErrorKind::ConnectionRefused => {}
                    _ => return Err(e),
                }
                std::fs::remove_file(path)?;
                unix::UnixListener::bind(path)?
            }
            bound => bound?,
        };
        Ok(Listener::Unix(listener, path.clone()))
    }

    /// The file that is left when nobody listens any more.
    pub(crate) fn socket_file(&self) -> Option<PathBuf> {
        match self {
            Listener::Tcp(_) => None,
            Listener::Unix(_, path) => Some(path.clone()),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
            Listener::Unix(listener, path) => Listener::Unix(listener.try_clone()?, path.clone()),
        })
    }

    /// For the runtime of this thread.
    pub(crate) fn accept_here(self) -> io::Result<Acceptor> {
        Ok(match self {
            Listener::Tcp(listener) => Acceptor::Tcp(TcpListener::from_std(listener)?),
            Listener::Unix(listener, _) => Acceptor::Unix(UnixListener::from_std(listener)?),
        })
    }
}

/// A listener within a runtime.
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// The next connection, and who it is, for people.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Acceptor::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), peer.to_string()))
            }
            Acceptor::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), "a local process".into()))
            }
        }
    }
}

/// A byte stream to a peer.
#[derive(Clone)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Stream {
    async fn read<B: IoBufMut>(&mut self, buffer: B) -> BufResult<usize, B> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer).await,
            Stream::Unix(stream) => stream.read(buffer).await,
        }
    }
}

impl AsyncWrite for Stream {
    async fn write<B: IoBuf>(&mut self, buffer: B) -> BufResult<usize, B> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer).await,
            Stream::Unix(stream) => stream.write(buffer).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown().await,
            Stream::Unix(stream) => stream.shutdown().await,
        }
    }
}
