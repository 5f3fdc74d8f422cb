//! Addresses of servers, and the byte streams that lead there: TCP, encrypted or not, or a Unix
//! socket on the same host (`unix:PATH`).

use crate::NetError;
use crate::host::{self, Pipe};
use crate::server::access::rights::Peer;
use crate::transport::tls::{TlsIdentity, TlsStream};
use crate::transport::unix_socket;
use compio_buf::{BufResult, IoBuf, IoBufMut};
use compio_io::{AsyncRead, AsyncWrite};
use compio_net::{TcpStream, UnixStream};
use futures_util::future::{Either, select};
use glint_proto::limits::FRAME_MS_MAX;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net as unix;
use std::path::PathBuf;
use std::time::Duration;

/// Prefix of the address of a Unix socket.
pub const UNIX_PREFIX: &str = "unix:";

/// Address of a server.
#[derive(Clone, Debug)]
pub enum Address {
    /// Name or number of a host, and port.
    Tcp(String),
    /// Name or number of a host, and port, for TLS; with the identity of this process.
    Tls(String, TlsIdentity),
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

    /// Parses like [`Address::parse`]; encrypted, if the address leads out of this host and there
    /// is an identity.
    pub fn parse_as(text: &str, identity: Option<TlsIdentity>) -> Address {
        match (Address::parse(text), identity) {
            (Address::Tcp(address), Some(identity)) => Address::Tls(address, identity),
            (address, _) => address,
        }
    }

    /// The socket addresses that a TCP address stands for, none for others.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Address::Tcp(address) | Address::Tls(address, _) => {
                Ok(address.to_socket_addrs()?.collect())
            }
            Address::Unix(_) => Ok(Vec::new()),
        }
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        if let Some(world) = host::world() {
            return world.connect(&self.to_string()).map(Stream::Simulated);
        }
        match self {
            Address::Unix(path) => {
                let way = unix_socket::Way::to(path)?;
                Ok(Stream::Unix(UnixStream::connect(way.path()).await?))
            }
            Address::Tcp(address) | Address::Tls(address, _) => {
                let stream = TcpStream::connect(address.as_str()).await?;
                if stream.local_addr().ok() == stream.peer_addr().ok() {
                    // TCP lets a socket connect to itself when nobody listens at a port that
                    // the kernel also hands out; that would keep the server from coming back.
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                stream.set_nodelay(true)?;
                match self {
                    Address::Tls(_, identity) => {
                        Ok(Stream::Tls(identity.connect(address, stream).await?))
                    }
                    _ => Ok(Stream::Tcp(stream)),
                }
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) | Address::Tls(address, _) => f.write_str(address),
            Address::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

/// A bound address.
pub enum ListeningSocket {
    /// Of TCP; encrypted, if this process has an identity.
    Tcp(std::net::TcpListener, Option<TlsIdentity>),
    /// A Unix socket, and its file.
    Unix(unix::UnixListener, PathBuf),
}

impl ListeningSocket {
    /// Binds. The socket of a server that is gone is taken over.
    pub fn bind(address: &Address) -> io::Result<ListeningSocket> {
        let path = match address {
            Address::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address.as_str())?;
                return Ok(ListeningSocket::Tcp(listener, None));
            }
            Address::Tls(address, identity) => {
                let listener = std::net::TcpListener::bind(address.as_str())?;
                return Ok(ListeningSocket::Tcp(listener, Some(identity.clone())));
            }
            Address::Unix(path) => path,
        };
        Ok(ListeningSocket::Unix(unix_socket::bind(path)?, path.clone()))
    }

    /// The file that is left when nobody listens any more.
    pub(crate) fn socket_file(&self) -> Option<PathBuf> {
        match self {
            ListeningSocket::Tcp(..) => None,
            ListeningSocket::Unix(_, path) => Some(path.clone()),
        }
    }

    /// Waits for the next connection, on the calling thread. It can be carried to another
    /// one. Also says where it comes from.
    pub(crate) fn accept(&self) -> io::Result<(Accepted, Origin)> {
        match self {
            ListeningSocket::Tcp(listener, identity) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok((Accepted::Tcp(stream, identity.clone()), Origin::of(peer.ip())))
            }
            ListeningSocket::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok((Accepted::Unix(stream), Origin::Here))
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            ListeningSocket::Tcp(listener, _) => listener.as_fd(),
            ListeningSocket::Unix(listener, _) => listener.as_fd(),
        }
    }

    /// Waits until a connection can be accepted, for a time. Returns whether one can.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let fd = self.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        matches!(rustix::event::poll(&mut fds, Some(&time)), Ok(ready) if ready > 0)
    }

    /// Ends [`ListeningSocket::wait`] from now on.
    pub(crate) fn close(&self) {
        // Nobody waits any more; that is all it is for.
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Both);
    }
}

/// Origin of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Origin {
    /// A host; of IPv6 its network of 2^64, all of which a host may use.
    Host(IpAddr),
    /// A process of this host.
    Here,
}

impl Origin {
    pub(crate) fn of(address: IpAddr) -> Origin {
        Origin::Host(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
            v4 => v4,
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Host(address) => address.fmt(f),
            Origin::Here => f.write_str("a local process"),
        }
    }
}

/// A connection that belongs to no runtime yet.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream, Option<TlsIdentity>),
    Unix(unix::UnixStream),
}

impl Accepted {
    /// For the runtime of this thread. A peer that does not say who it is in time is refused.
    pub(crate) async fn attach(self) -> io::Result<Stream> {
        Ok(match self {
            Accepted::Tcp(stream, None) => Stream::Tcp(TcpStream::from_std(stream)?),
            Accepted::Tcp(stream, Some(identity)) => {
                let stream = TcpStream::from_std(stream)?;
                let accepting = std::pin::pin!(identity.accept(stream));
                let limit = std::pin::pin!(host::sleep(Duration::from_millis(FRAME_MS_MAX)));
                match select(accepting, limit).await {
                    Either::Left((accepted, _)) => Stream::Tls(accepted?),
                    Either::Right(_) => return Err(ErrorKind::TimedOut.into()),
                }
            }
            Accepted::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        })
    }
}

/// Probes of a silent peer, of which so many make up the limit.
const PROBES: u32 = 4;

/// See [`Stream::limit_silence`].
fn limit_silence(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let pause = (limit / PROBES).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, pause)?;
    sockopt::set_tcp_keepintvl(socket, pause)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(socket, limit.as_millis() as u32)?)
}

/// Of a call that takes what fits at once.
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// Parts that one call takes (sendmsg(2), UIO_MAXIOV).
const PARTS_MAX: usize = 1024;

/// Bytes that a call sent: none, if the socket has no room.
fn taken_at_once(sent: rustix::io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => Ok(sent?),
    }
}

fn pipe_takes(pipe: &Pipe, bytes: &[u8]) -> io::Result<usize> {
    if pipe.outgoing.is_cut() {
        return Err(ErrorKind::BrokenPipe.into());
    }
    pipe.outgoing.put(bytes);
    Ok(bytes.len())
}

/// A byte stream to a peer.
#[derive(Clone)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(TlsStream),
    Unix(UnixStream),
    Simulated(Pipe),
}

impl Stream {
    /// Encrypts `bytes`; `None` if they are sent as they are. All of the result must be sent before
    /// anything else is.
    pub(crate) fn seal(&self, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self {
            Stream::Tls(stream) => stream.encrypt(bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// Has the connection end when its peer's host is silent for so long: a host that loses its
    /// power, or a way to it, ends none (tcp(7), TCP_USER_TIMEOUT and SO_KEEPALIVE).
    pub(crate) fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        let socket = match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.tcp.as_fd(),
            Stream::Unix(_) | Stream::Simulated(_) => return Ok(()),
        };
        limit_silence(socket, limit)
    }

    /// Peer, as its certificate shows it.
    pub(crate) fn peer(&self) -> Result<Peer, NetError> {
        match self {
            Stream::Tls(stream) => stream.peer(),
            Stream::Simulated(pipe) if let Some(rights) = &pipe.rights => {
                Ok(Peer { certificate: Some([1; 32]), name: None, rights: rights.clone() })
            }
            _ => Ok(Peer::default()),
        }
    }

    /// Whether [`Stream::seal`] encrypts.
    pub(crate) fn encrypts(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Sends what the socket takes at once. With `more` it need not leave yet: more follows.
    pub(crate) fn try_send(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let mut flags = SEND_FLAGS;
        flags.set(SendFlags::MORE, more);
        match self.socket() {
            Ok(fd) => taken_at_once(rustix::net::send(fd, bytes, flags)),
            Err(pipe) => pipe_takes(pipe, bytes),
        }
    }

    /// Sends what the socket takes at once of these parts, one after the other, in one system call
    /// (sendmsg(2)).
    pub(crate) fn try_send_all(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.socket() {
            Ok(fd) => {
                let parts = &parts[..parts.len().min(PARTS_MAX)];
                let nothing = &mut SendAncillaryBuffer::default();
                taken_at_once(rustix::net::sendmsg(fd, parts, nothing, SEND_FLAGS))
            }
            Err(pipe) => parts.iter().map(|part| pipe_takes(pipe, part)).sum(),
        }
    }

    /// Its socket, or the pipe that stands for one.
    fn socket(&self) -> Result<BorrowedFd<'_>, &Pipe> {
        Ok(match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.tcp.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Simulated(pipe) => return Err(pipe),
        })
    }

    /// Both sides see the end of the stream.
    pub(crate) fn shut(&self) {
        match self.socket() {
            Ok(fd) => {
                // One that is gone needs no end.
                let _ = rustix::net::shutdown(fd, Shutdown::Both);
            }
            Err(pipe) => pipe.close(),
        }
    }
}

impl AsyncRead for Stream {
    async fn read<B: IoBufMut>(&mut self, mut buffer: B) -> BufResult<usize, B> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer).await,
            Stream::Tls(stream) => stream.read(buffer).await,
            Stream::Unix(stream) => stream.read(buffer).await,
            Stream::Simulated(pipe) => {
                let bytes = pipe.incoming.take_some(buffer.buf_capacity()).await;
                AsyncRead::read(&mut bytes.as_slice(), buffer).await
            }
        }
    }
}

/// Of what is sealed already.
impl AsyncWrite for Stream {
    async fn write<B: IoBuf>(&mut self, buffer: B) -> BufResult<usize, B> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer).await,
            Stream::Tls(stream) => stream.tcp.write(buffer).await,
            Stream::Unix(stream) => stream.write(buffer).await,
            Stream::Simulated(pipe) => {
                pipe.outgoing.put(buffer.as_init());
                BufResult(Ok(buffer.buf_len()), buffer)
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown().await,
            Stream::Tls(stream) => stream.tcp.shutdown().await,
            Stream::Unix(stream) => stream.shutdown().await,
            Stream::Simulated(pipe) => {
                pipe.close();
                Ok(())
            }
        }
    }
}
