//! The way to the process behind a mount that does not lead through the file system: how it is
//! can be asked while its calls wait for a server.
//!
//! A socket for each mount, named by the kernel's number of it, in a directory that is this
//! user's alone. A question is a word, one of those in [`answer_word`], or names a part of the
//! namespace; the answer is `+` and the text or the page, or `-` and why not.

use glint_client::Client;
use glint_net::Transport;
use glint_proto::limits::BODY_BYTES_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery, OstOrder, decode, encode};
use serde_json::Value;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long an answer may take: longer than the process behind the mount waits for a server.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long a question may take; who asks has it ready.
const QUESTION_MAX: Duration = Duration::from_secs(2);
/// Begins a question for a part of the namespace. The query follows it, and in the answer the page
/// follows the `+`, both as on the wire.
const CHECK: &[u8] = b"check ";
/// Bytes of a question that are read: a query is as long as a message.
const QUESTION_BYTES_MAX: usize = CHECK.len() + BODY_BYTES_MAX;
/// Why a question is not answered.
const UNKNOWN: &str = "it is asked for something that it does not know";

fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/glint".into());
    }
    Some(PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("glint"))
}

fn socket_of(mount: &Path) -> Option<PathBuf> {
    let device = glint_mount::mounted_at(mount)?.device.replace(':', "-");
    Some(directory()?.join(format!("mount-{device}.sock")))
}

/// Servers of a mount, as the process behind it can ask them.
pub(crate) trait MountServers: Send + 'static {
    /// The state of the servers, as JSON, also when they are away.
    fn status(&self) -> String;

    /// Times by layer and operation: rows of the process behind the mount, and of servers
    /// elsewhere.
    fn stats(&self) -> Vec<Value>;

    /// Begins to count anew in servers elsewhere.
    fn reset_stats(&self) -> Result<String, String>;

    /// Has heal rest, or go on.
    fn heal(&self, paused: bool) -> Result<String, String>;

    /// Asks the server with the MDS what is to become of an OST.
    fn order(&self, order: OstOrder) -> Result<String, String>;

    /// Has the server with the MDS compare its data with its checksums, or end that.
    fn scrub(&self, begins: bool) -> Result<String, String>;

    /// Reads a part of the namespace, for a check of it.
    fn check_namespace(&self, query: NamespaceQuery) -> Result<NamespacePage, String>;
}

/// Answer to a question about a mount, whose options `own` are.
fn answer(
    question: &[u8],
    client: &Client<impl Transport>,
    own: &str,
    servers: &impl MountServers,
) -> Result<Vec<u8>, String> {
    let Some(query) = question.strip_prefix(CHECK) else {
        let word = String::from_utf8_lossy(question);
        return answer_word(&word, client, own, servers).map(String::into_bytes);
    };
    let page = servers.check_namespace(decode(query).map_err(|_| UNKNOWN)?)?;
    let mut bytes = Vec::new();
    encode(&page, &mut bytes).map_err(|errno| errno.to_string())?;
    Ok(bytes)
}

/// The same, if the question is a word.
fn answer_word(
    question: &str,
    client: &Client<impl Transport>,
    own: &str,
    servers: &impl MountServers,
) -> Result<String, String> {
    match question {
        "status" => Ok(String::from_utf8_lossy(&client.status(servers.status())).into_owned()),
        "stats" => Ok(Value::Array(servers.stats()).to_string()),
        "reset" => {
            glint_telemetry::reset();
            servers.reset_stats()
        }
        "options" => Ok(own.to_owned()),
        "scrub" => servers.scrub(true),
        "scrub-stop" => servers.scrub(false),
        "heal-pause" => servers.heal(true),
        "heal-resume" => servers.heal(false),
        other => match OstOrder::parse(other) {
            Some(order) => servers.order(order),
            None => Err(UNKNOWN.into()),
        },
    }
}

/// Answers questions about a mount, until it is dropped.
pub(crate) struct Control {
    socket: PathBuf,
    /// The inode of it: when the mount has gone, the kernel may give its number to another one,
    /// which then has its own socket under this name.
    inode: u64,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts to answer, also while servers are away. Where there is no place for a socket, nobody
    /// can ask.
    pub(crate) fn start<T: Transport + Send + Sync + 'static>(
        mount: &Path,
        client: Arc<Client<T>>,
        own: String,
        servers: impl MountServers,
    ) -> Option<Control> {
        let started =
            Control::listen(mount, move |question| answer(question, &client, &own, &servers));
        if let Err(error) = &started {
            tracing::debug!(%error, "no socket for questions about the mount");
        }
        started.ok()
    }

    fn listen(
        mount: &Path,
        answer: impl Fn(&[u8]) -> Result<Vec<u8>, String> + Send + 'static,
    ) -> io::Result<Control> {
        Control::listen_at(socket_of(mount).ok_or(ErrorKind::NotFound)?, answer)
    }

    fn listen_at(
        socket: PathBuf,
        answer: impl Fn(&[u8]) -> Result<Vec<u8>, String> + Send + 'static,
    ) -> io::Result<Control> {
        if let Some(directory) = socket.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        // The kernel has given this number to a mount before, whose process was killed.
        match std::fs::remove_file(&socket) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        rustix::fs::chmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        let inode = std::fs::symlink_metadata(&socket)?.ino();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, accepting) = (stop.clone(), listener.try_clone()?);
        let serve = move || {
            for stream in accepting.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                // A caller that has gone needs no answer.
                let _ = stream.and_then(|stream| reply(stream, &answer));
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(Control { socket, inode, listener, stop, thread: Some(thread) })
    }
}

fn reply(
    mut stream: UnixStream,
    answer: &impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(QUESTION_MAX))?;
    stream.set_write_timeout(Some(QUESTION_MAX))?;
    let mut question = Vec::new();
    (&stream).take(QUESTION_BYTES_MAX as u64).read_to_end(&mut question)?;
    match answer(&question) {
        Ok(text) => stream.write_all(&[&b"+"[..], text.as_slice()].concat()),
        Err(error) => write!(stream, "-{error}"),
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread in accept(2) is woken; a connection by name could reach another mount.
        let woken = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok();
        if std::fs::symlink_metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode) {
            // A socket file that is left over is taken over by the next mount.
            let _ = std::fs::remove_file(&self.socket);
        }
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // The thread does not panic; and there is nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Asks the process behind the mount at `mount`; `None` if nobody listens there.
pub(crate) fn ask(mount: &Path, question: &str) -> Option<Result<String, String>> {
    let answer = exchange(mount, question.as_bytes())?;
    Some(answer.map(|text| String::from_utf8_lossy(&text).into_owned()))
}

/// Asks the same for a part of the namespace.
pub(crate) fn namespace_page(
    mount: &Path,
    query: &NamespaceQuery,
) -> Option<Result<NamespacePage, String>> {
    let mut question = CHECK.to_vec();
    if let Err(errno) = encode(query, &mut question) {
        return Some(Err(errno.to_string()));
    }
    let answer = exchange(mount, &question)?;
    let other = |_| format!("the process behind {} sent something else", mount.display());
    Some(answer.and_then(|page| decode(&page).map_err(other)))
}

fn exchange(mount: &Path, question: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let mut stream = UnixStream::connect(socket_of(mount)?).ok()?;
    let mut answer = Vec::new();
    let asked = (|| {
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(question)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_to_end(&mut answer)
    })();
    let shown = mount.display();
    Some(match (asked, answer.split_first()) {
        (Ok(_), Some((b'+', text))) => Ok(text.to_vec()),
        (Ok(_), Some((_, error))) => Err(format!("{shown}: {}", String::from_utf8_lossy(error))),
        _ => Err(format!("the process behind {shown} does not answer")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel gives the number of a mount that has gone to the next one.
    #[test]
    fn the_end_of_one_leaves_the_socket_of_the_next_alone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mount-0-40.sock");
        let (first, second) = (
            Control::listen_at(socket.clone(), |_| Ok("first".into())).unwrap(),
            Control::listen_at(socket.clone(), |_| Ok("second".into())).unwrap(),
        );
        drop(first);
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "+second");
        drop(second);
        assert!(!socket.exists());
    }

    /// As those for a part of the namespace are.
    #[test]
    fn a_question_may_be_long_and_of_any_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mount-0-40.sock");
        let echo = |question: &[u8]| Ok(question.to_vec());
        let _control = Control::listen_at(socket.clone(), echo).unwrap();
        let mut stream = UnixStream::connect(&socket).unwrap();
        let question = vec![0xff; BODY_BYTES_MAX];
        stream.write_all(&question).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.split_first() == Some((&b'+', question.as_slice())));
    }
}
