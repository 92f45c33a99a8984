//! The out-of-band connection: a TCP stream on which two ends exchange their queue pairs' endpoints
//! and their plans, one JSON object per line.
//!
//! The stream stays open as long as the ends communicate over RDMA; if it closes, the peer has
//! ended. Either end may send `{"abort": reason}` instead of the expected message. A peer's text is
//! escaped before it is shown ([`shown`]).

mod code;
pub(crate) mod host;
mod introduction;
mod listener;
mod source;

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::{Context, Failure, Outcome};
use crate::output::escaped;

pub(crate) use code::{CODE_VARIABLE, Code, random};
pub(crate) use listener::Listener;

/// The longest line that a peer may send, in bytes; a longer one is of another protocol.
const LONGEST_LINE: usize = 1 << 20;
/// The most characters of a peer's text that are shown.
const LONGEST_SHOWN: usize = 400;

/// Timeout for a message of a peer: for the whole line, not for each of its bytes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Interval of "still running" messages, if the other end cannot see that otherwise.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Seconds until a silent peer is probed, seconds between two probes, and the number of probes: the
/// failure of a peer's machine is noticed after ten seconds.
const KEEPALIVE: (u32, u32, u32) = (4, 2, 3);

/// A connection of two ends that exchange lines.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// A message that arrived while this end was not receiving.
    early: Option<Value>,
}

/// Binds a listening socket; port 0 lets the system choose.
pub(crate) fn listen(address: IpAddr, port: u16) -> Outcome<TcpListener> {
    let address = SocketAddr::new(address, port);
    TcpListener::bind(address).map_err(|error| {
        let cure = match error.kind() {
            ErrorKind::AddrInUse => " (--port 0 takes a free port and prints it)",
            ErrorKind::AddrNotAvailable => {
                " (ip address lists this machine's; 0.0.0.0 is every IPv4 one, :: every one)"
            }
            ErrorKind::PermissionDenied => " (ports below 1024 are for privileged programs)",
            _ => "",
        };
        Failure::failed(format!("cannot listen on {address}: {error}{cure}"))
    })
}

impl Rendezvous {
    /// Connects to the listening end of `service` at `host`, trying each of its addresses, and
    /// checks that both have the same code.
    pub(crate) fn connect(
        host: &str,
        port: u16,
        service: &str,
        code: Option<&Code>,
    ) -> Outcome<Self> {
        let stream = connect_any(&host::addresses(host, port)?).context(|| {
            format!("cannot reach {host} at port {port} (is the other end running, on that port?)")
        })?;
        let mut peer = Self::over(stream)?;
        introduction::introduce(&mut peer, service, code)?;
        Ok(peer)
    }

    fn over(stream: TcpStream) -> Outcome<Self> {
        let writer = set_up(&stream).context(|| "cannot set up the TCP stream".into())?;
        Ok(Self { reader: BufReader::new(stream), writer, early: None })
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> String {
        self.writer
            .peer_addr()
            .map_or_else(|_| "unknown".to_owned(), |address| address.ip().to_string())
    }

    /// Sends one message, within [`PATIENCE`].
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Outcome {
        let line = to_line(message)?;
        self.write(&line).map_err(|error| of_stream(&error))
    }

    fn write(&mut self, mut line: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !line.is_empty() {
            self.writer.set_write_timeout(Some(time_left(deadline)?))?;
            match self.writer.write(line) {
                Ok(length) => line = &line[length..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the peer that this end gives up. Errors are ignored, because the peer may have ended.
    pub(crate) fn abort(&mut self, reason: &str) {
        let _ = self.send(&json!({ "abort": reason }));
    }

    /// Receives one message, within [`PATIENCE`].
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        self.receive_within(PATIENCE)
    }

    /// Receives one message, for which the peer may take up to `patience`.
    pub(crate) fn receive_within<T: DeserializeOwned>(&mut self, patience: Duration) -> Outcome<T> {
        let message = match self.early.take() {
            Some(early) => early,
            None => self.read(patience)?,
        };
        serde_json::from_value(message).map_err(|_| Failure::failed(foreign()))
    }

    fn read(&mut self, patience: Duration) -> Outcome<Value> {
        parse(&self.line(patience)?)
    }

    /// A line with at least one byte.
    fn line(&mut self, patience: Duration) -> Outcome<Vec<u8>> {
        let line = self.read_line(Instant::now() + patience).map_err(|error| of_stream(&error))?;
        if line.is_empty() {
            return Err(Failure::failed("the peer closed the connection"));
        }
        Ok(line)
    }

    /// A line, or the bytes before the end of the stream, or the start of a line that is too long.
    fn read_line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        while line.len() < LONGEST_LINE {
            self.writer.set_read_timeout(Some(time_left(deadline)?))?;
            let ready = match self.reader.fill_buf() {
                Ok(ready) => ready,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = ready.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let length = end.unwrap_or(ready.len());
            line.extend_from_slice(&ready[..length]);
            self.reader.consume(length);
            if end.is_some() || length == 0 {
                break;
            }
        }
        Ok(line)
    }

    /// Checks, without waiting, that the peer still exists. A message that it has sent is kept for
    /// [`Rendezvous::receive`].
    ///
    /// Fails if the peer has ended or given up.
    pub(crate) fn watch(&mut self) -> Outcome {
        if self.early.is_some() {
            return Ok(());
        }
        let set_nonblocking =
            |is_on| self.writer.set_nonblocking(is_on).context(|| "cannot watch the peer".into());
        set_nonblocking(true)?;
        let peeked = self.writer.peek(&mut [0]);
        set_nonblocking(false)?;
        match peeked {
            Ok(0) => Err(Failure::failed("the peer has gone away")),
            Ok(_) => {
                self.early = Some(self.read(PATIENCE)?);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(of_stream(&error)),
        }
    }

    /// Whether the peer has sent a message.
    ///
    /// # Errors
    /// As for [`Rendezvous::watch`].
    pub(crate) fn has_news(&mut self) -> Outcome<bool> {
        self.watch()?;
        Ok(self.early.is_some())
    }

    /// The descriptor that becomes readable when [`Rendezvous::watch`] has something to read;
    /// `None` while a message is kept.
    pub(crate) fn fd_to_watch(&self) -> Option<BorrowedFd<'_>> {
        self.early.is_none().then(|| self.writer.as_fd())
    }
}

/// Fails if the peer's version of a service differs from this one.
pub(crate) fn require_version(service: &str, peer: u32, own: u32) -> Outcome {
    if peer == own {
        return Ok(());
    }
    Err(Failure::failed(format!("the peer's {service} is version {peer}, this one {own}")))
}

/// Parses a line as a message. Fails with the peer's reason if the peer gave up.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Outcome<T> {
    match abort_reason(line) {
        Some(reason) => Err(Failure::failed(format!("the peer gave up: {reason}"))),
        None => serde_json::from_slice(line).map_err(|_| Failure::failed(foreign())),
    }
}

fn foreign() -> String {
    "the peer speaks another protocol (is it the same uverbs command?)".to_owned()
}

fn of_stream(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::failed("the peer does not answer"),
        _ => Failure::failed(format!("the peer has gone away: {error}")),
    }
}

/// The time until `deadline`, which must not be zero for a socket.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn to_line(message: &impl Serialize) -> Outcome<Vec<u8>> {
    let mut line = serde_json::to_vec(message).context(|| "cannot encode a message".into())?;
    line.push(b'\n');
    Ok(line)
}

/// The reason for display, if `line` says that the peer gives up.
fn abort_reason(line: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(line).ok()?;
    Some(shown(message.get("abort")?.as_str().unwrap_or("?")))
}

/// A peer's text for display: escaped, and at most a few lines long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}…", escaped(&text[..end])),
        None => escaped(text),
    }
}

fn set_up(stream: &TcpStream) -> std::io::Result<TcpStream> {
    let (idle, interval, count) = KEEPALIVE;
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(stream, sockopt::TcpKeepCount, &count)?;
    stream.try_clone()
}

fn connect_any(addresses: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Word {
        said: String,
    }

    fn pair() -> (Rendezvous, Rendezvous) {
        Rendezvous::pair()
    }

    impl Rendezvous {
        /// Two connected ends.
        pub(crate) fn pair() -> (Self, Self) {
            let listener = listen(Ipv4Addr::LOCALHOST.into(), 0).expect("listen");
            let address = listener.local_addr().expect("address");
            let near = TcpStream::connect(address).map(Self::over);
            let (far, _) = listener.accept().expect("accept");
            (near.expect("connect").expect("near"), Self::over(far).expect("far"))
        }
    }

    fn hello() -> Word {
        Word { said: "hello\nthere".into() }
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let (mut near, mut far) = pair();
        near.send(&hello()).expect("send");
        assert_eq!(far.receive::<Word>().expect("receive"), hello());
    }

    #[test]
    fn an_early_message_is_kept_while_the_peer_is_watched() {
        let (mut near, mut far) = pair();
        far.watch().expect("nothing yet");
        assert!(far.fd_to_watch().is_some());
        near.send(&hello()).expect("send");
        while far.fd_to_watch().is_some() {
            far.watch().expect("alive");
        }
        far.watch().expect("kept");
        assert_eq!(far.receive::<Word>().expect("receive"), hello());
    }

    #[test]
    fn a_closed_peer_is_an_error_and_not_a_wait() {
        let (near, mut far) = pair();
        drop(near);
        let failure = far.receive::<Word>().expect_err("closed");
        assert!(failure.to_string().contains("closed the connection"), "{failure}");
        assert!(far.watch().expect_err("gone").to_string().contains("gone away"));
    }

    #[test]
    fn the_reason_of_a_peer_that_gives_up_is_told() {
        let (mut near, mut far) = pair();
        near.abort("the disk is full");
        let failure = far.receive::<Word>().expect_err("aborted");
        assert!(failure.to_string().contains("the disk is full"), "{failure}");
    }

    #[test]
    fn a_line_that_comes_byte_by_byte_has_one_deadline() {
        let (mut near, mut far) = pair();
        near.writer.write_all(b"{").expect("write");
        // If each read had its own timeout, the second read would wait as long as the first.
        let failure =
            far.receive_within::<Word>(Duration::from_millis(1)).expect_err("half a line");
        assert!(failure.to_string().contains("does not answer"), "{failure}");
        let past = Instant::now();
        near.writer.write_all(b"\n").expect("write");
        assert_eq!(far.read_line(past).expect_err("late").kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn what_a_peer_says_is_shown_escaped_and_cut() {
        let (mut near, mut far) = pair();
        near.abort(&format!("\u{1b}[2J\u{202e}{}", "x".repeat(1000)));
        let text = far.receive::<Word>().expect_err("aborted").to_string();
        assert!(text.contains("\\u{1b}[2J\\u{202e}x") && text.len() < 500, "{text}");
        near.send(&json!({ "said": 1, "\u{1b}": "\u{1b}" })).expect("send");
        let text = far.receive::<Word>().expect_err("foreign").to_string();
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn another_protocol_is_named_as_such() {
        let (mut near, mut far) = pair();
        near.writer.write_all(b"GET / HTTP/1.1\r\n").expect("write");
        let failure = far.receive::<Word>().expect_err("not ours");
        assert!(failure.to_string().contains("another protocol"), "{failure}");
    }

    #[test]
    fn an_unknown_host_is_the_users_mistake() {
        let connected = Rendezvous::connect("no such host", 1, "perf", None);
        let failure = connected.expect_err("no such host");
        assert_eq!(failure.status(), 2);
    }
}
