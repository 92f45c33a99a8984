//! The out-of-band connection: a TCP stream on which two ends tell each other their queue pairs' endpoints and what
//! they are about to do, one JSON object per line.
//!
//! The stream stays open for as long as the ends talk over RDMA: when it ends, the peer is gone. Either end may say
//! `{"abort": reason}` instead of whatever the other expects.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::{Context, Failure, Outcome};

/// The longest line that a peer may send; a longer one is not ours.
const LONGEST_LINE: u64 = 1 << 20;

/// How long a peer may take to answer during set-up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Seconds until a silent peer is asked for a sign of life, between two such questions, and how many: a machine that
/// vanishes without a word is noticed after ten seconds.
const KEEPALIVE: (u32, u32, u32) = (4, 2, 3);

/// A connected pair of lines.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// A message that came while nobody was waiting for one.
    early: Option<Value>,
}

/// Binds the listening side; port 0 lets the system choose.
pub(crate) fn listen(host: &str, port: u16) -> Outcome<TcpListener> {
    TcpListener::bind((host, port)).context(|| format!("cannot listen on port {port}"))
}

/// The port that was chosen.
pub(crate) fn port_of(listener: &TcpListener) -> Outcome<u16> {
    Ok(listener.local_addr().context(|| "cannot tell the port".into())?.port())
}

impl Rendezvous {
    /// Waits for one peer, however long it takes.
    pub(crate) fn accept(listener: &TcpListener) -> Outcome<Self> {
        let (stream, _) = listener.accept().context(|| "cannot accept a peer".into())?;
        Self::over(stream)
    }

    /// Reaches the peer at `host`, trying each of its addresses.
    pub(crate) fn connect(host: &str, port: u16) -> Outcome<Self> {
        let addresses: Vec<SocketAddr> = (host, port)
            .to_socket_addrs()
            .map_err(|error| Failure::usage(format!("no address for host '{host}': {error}")))?
            .collect();
        let stream = connect_any(&addresses).context(|| {
            format!("cannot reach {host}:{port} (is the other end running, on that port?)")
        })?;
        Self::over(stream)
    }

    fn over(stream: TcpStream) -> Outcome<Self> {
        let writer = set_up(&stream).context(|| "cannot set up the TCP stream".into())?;
        Ok(Self { reader: BufReader::new(stream), writer, early: None })
    }

    /// Where the peer is.
    pub(crate) fn peer(&self) -> String {
        self.writer
            .peer_addr()
            .map_or_else(|_| "unknown".to_owned(), |address| address.ip().to_string())
    }

    /// Sends one message.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Outcome {
        let mut line = serde_json::to_vec(message).context(|| "cannot encode a message".into())?;
        line.push(b'\n');
        self.writer.write_all(&line).context(|| "the peer has gone away".into())
    }

    /// Tells the peer that it is of no use to go on. The peer may be gone already.
    pub(crate) fn abort(&mut self, reason: &str) {
        let _ = self.send(&json!({ "abort": reason }));
    }

    /// Receives one message, within [`PATIENCE`].
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let message = match self.early.take() {
            Some(early) => early,
            None => self.read()?,
        };
        serde_json::from_value(message).context(foreign)
    }

    /// Waits for a message without a bound: for the end that has nothing to do until the other is ready.
    pub(crate) fn wait<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        self.set_patience(None)?;
        let message = self.receive();
        self.set_patience(Some(PATIENCE))?;
        message
    }

    fn read(&mut self) -> Outcome<Value> {
        let mut line = Vec::new();
        let length = (&mut self.reader).take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(
            |error| {
                Failure::failed(match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        "the peer does not answer".to_owned()
                    }
                    _ => format!("the peer has gone away: {error}"),
                })
            },
        )?;
        if length == 0 {
            return Err(Failure::failed("the peer closed the connection"));
        }
        let message: Value = serde_json::from_slice(&line).context(foreign)?;
        match message.get("abort") {
            Some(reason) => Err(Failure::failed(format!(
                "the peer gave up: {}",
                reason.as_str().unwrap_or("?")
            ))),
            None => Ok(message),
        }
    }

    fn set_patience(&self, patience: Option<Duration>) -> Outcome {
        self.writer.set_read_timeout(patience).context(|| "cannot set a time-out".into())
    }

    /// Looks, without waiting, whether the peer is still there. What it says meanwhile is kept for [`Rendezvous::receive`].
    ///
    /// Fails if it has gone or given up.
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
                self.early = Some(self.read()?);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Failure::failed(format!("the peer has gone away: {error}"))),
        }
    }

    /// What to wait on for [`Rendezvous::watch`] to find something; nothing while a message is kept already.
    pub(crate) fn fd_to_watch(&self) -> Option<BorrowedFd<'_>> {
        self.early.is_none().then(|| self.writer.as_fd())
    }
}

fn foreign() -> String {
    "the peer speaks another protocol (is it the same uverbs command?)".to_owned()
}

fn set_up(stream: &TcpStream) -> std::io::Result<TcpStream> {
    let (idle, interval, count) = KEEPALIVE;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
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
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Word {
        said: String,
    }

    fn pair() -> (Rendezvous, Rendezvous) {
        let listener = listen("127.0.0.1", 0).expect("listen");
        let port = port_of(&listener).expect("port");
        let near = Rendezvous::connect("127.0.0.1", port).expect("connect");
        (near, Rendezvous::accept(&listener).expect("accept"))
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
    fn another_protocol_is_named_as_such() {
        let (mut near, mut far) = pair();
        near.writer.write_all(b"GET / HTTP/1.1\r\n").expect("write");
        let failure = far.receive::<Word>().expect_err("not ours");
        assert!(failure.to_string().contains("another protocol"), "{failure}");
    }

    #[test]
    fn an_unknown_host_is_the_users_mistake() {
        let failure = Rendezvous::connect("no such host", 1).expect_err("no such host");
        assert_eq!(failure.status(), 2);
    }
}
