//! The listening end before its session: greets every client, and accepts the first one that has
//! the code.
//!
//! One thread serves all connections that are not accepted yet, so a silent client blocks no other.
//! If a client disconnects, uses another protocol or has another code, only its connection ends.
//! Wrong codes only slow down clients of the same source ([`Source`]). If there are too many
//! clients, one of the source with the most clients is dropped.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde_json::json;

use super::code::{Code, Nonce, random};
use super::introduction::{Greeting, Refusal, check_introduction};
use super::source::Source;
use super::{Rendezvous, to_line};
use crate::failure::{Context, Failure, Outcome};
use crate::output::remark;

/// Timeout for a client's introduction.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// The longest introduction, in bytes.
const LONGEST: usize = 1024;
/// The most clients that may be introducing themselves at a time; a further one replaces another.
const MOST: usize = 64;
/// The pause before the next accept if no file descriptor is left.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);
/// The pause after a source's first wrong code, in which none of its codes is checked. Each further
/// wrong code doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(125);
/// The longest such pause: a source can try fewer than 20,000 codes a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Number of sources whose wrong codes are counted separately. Further sources share one count.
const MAX_SOURCES: usize = 1024;

/// A socket that waits for one peer.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    service: &'static str,
    code: Code,
    waiting: Vec<Waiting>,
    pauses: Vec<Pause>,
    /// No client is accepted before this time.
    full_until: Option<Instant>,
    /// The key from which nonces are derived: reading random numbers would need a descriptor.
    secret: Nonce,
    greeted: u64,
}

/// The pause of a source that sent wrong codes.
#[derive(Debug)]
struct Pause {
    source: Source,
    wrong_codes: u32,
    /// No introduction of the source is checked before this time.
    until: Instant,
}

/// A client that has not introduced itself yet.
#[derive(Debug)]
struct Waiting {
    stream: TcpStream,
    from: IpAddr,
    source: Source,
    nonce: Nonce,
    line: Vec<u8>,
    deadline: Instant,
}

/// The result of reading from a client.
enum Heard {
    /// A part of the introduction, which is one line.
    Part,
    /// The whole introduction.
    Line,
    Closed,
    /// Bytes of another protocol.
    Foreign,
}

impl Listener {
    /// Binds the socket; port 0 lets the system choose.
    pub(crate) fn bind(
        address: IpAddr,
        port: u16,
        service: &'static str,
        code: Code,
    ) -> Outcome<Self> {
        let socket = super::listen(address, port)?;
        socket.set_nonblocking(true).context(|| "cannot listen".into())?;
        Ok(Self {
            socket,
            service,
            code,
            waiting: Vec::new(),
            pauses: Vec::new(),
            full_until: None,
            secret: random()?,
            greeted: 0,
        })
    }

    /// The address that it listens on, with the chosen port.
    pub(crate) fn address(&self) -> Outcome<SocketAddr> {
        self.socket.local_addr().context(|| "cannot tell the port".into())
    }

    /// The code, if this end generated it.
    pub(crate) fn code_to_pass_on(&self) -> Option<&str> {
        self.code.to_pass_on()
    }

    /// Waits for a peer that has the code, and stops listening. There is no timeout.
    pub(crate) fn accept(mut self) -> Outcome<Rendezvous> {
        self.accept_next()
    }

    /// As [`Listener::accept`], but keeps the listener, for tests.
    fn accept_next(&mut self) -> Outcome<Rendezvous> {
        loop {
            self.wait()?;
            self.greet_new()?;
            if let Some(peer) = self.serve()? {
                return Ok(peer);
            }
        }
    }

    /// Waits until a client connects or sends something, or until the earliest deadline.
    fn wait(&mut self) -> Outcome {
        self.full_until = self.full_until.filter(|until| *until > Instant::now());
        let accepts = self.full_until.is_none().then(|| self.socket.as_fd());
        let unread = self.waiting.iter().filter(|client| !client.has_line());
        let fds = accepts.into_iter().chain(unread.map(|client| client.stream.as_fd()));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, self.timeout()) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Failure::failed(format!("cannot wait: {}", errno.desc()))),
        }
    }

    fn timeout(&self) -> PollTimeout {
        let now = Instant::now();
        let time_of = |client: &Waiting| match self.pause_of(client.source) {
            Some(pause) if client.has_line() => pause.until,
            _ => client.deadline,
        };
        let first = self.waiting.iter().map(time_of).chain(self.full_until).min();
        first.map_or(PollTimeout::NONE, |first| {
            // Rounded up, because a wait of zero milliseconds would be repeated until the deadline.
            let left = first.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        })
    }

    fn greet_new(&mut self) -> Outcome {
        while self.full_until.is_none() {
            match self.socket.accept() {
                Ok((stream, from)) => self.greet(stream, from),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) if is_shortage(&error) => self.drop_one_or_pause(),
                Err(error) => return Err(error).context(|| "cannot accept a peer".into()),
            }
        }
        Ok(())
    }

    fn greet(&mut self, stream: TcpStream, from: SocketAddr) {
        self.greeted += 1;
        let nonce = *blake3::keyed_hash(&self.secret, &self.greeted.to_le_bytes()).as_bytes();
        let source =
            stream.local_addr().map_or(Source::Network(from.ip()), |own| Source::of(from, own));
        let client = Waiting::new(stream, from.ip(), source, nonce);
        self.waiting.extend(client.greet(self.service, &self.code));
        if self.waiting.len() > MOST {
            self.drop_one();
        }
    }

    /// Drops a client of the source with the most clients: the one that has been silent for the
    /// longest, or else the oldest one.
    fn drop_one(&mut self) {
        self.hear();
        let count = |source| self.waiting.iter().filter(|client| client.source == source).count();
        let Some(most) = self.waiting.iter().map(|client| client.source).max_by_key(|s| count(*s))
        else {
            return;
        };
        let is_of_it = |client: &Waiting| client.source == most;
        let silent = self.waiting.iter().position(|client| is_of_it(client) && !client.has_line());
        if let Some(at) = silent.or_else(|| self.waiting.iter().position(is_of_it)) {
            self.waiting.remove(at);
        }
    }

    /// Handles the lack of free descriptors in the process or the system.
    fn drop_one_or_pause(&mut self) {
        if self.waiting.is_empty() {
            self.full_until = Some(Instant::now() + NO_DESCRIPTOR);
        }
        self.drop_one();
    }

    /// Reads from every client, and drops those that have disconnected, are too slow or use another
    /// protocol.
    fn hear(&mut self) {
        let now = Instant::now();
        for mut client in std::mem::take(&mut self.waiting) {
            match client.hear() {
                Heard::Line => self.waiting.push(client),
                Heard::Part if client.deadline > now => self.waiting.push(client),
                Heard::Foreign => client.refuse(Refusal::Foreign),
                Heard::Part | Heard::Closed => {}
            }
        }
    }

    /// Checks the clients that have sent a line. Returns the first one that is accepted.
    fn serve(&mut self) -> Outcome<Option<Rendezvous>> {
        self.hear();
        let now = Instant::now();
        let is_due = |listener: &Self, client: &Waiting| {
            let pause = listener.pause_of(client.source);
            client.has_line() && pause.is_none_or(|pause| pause.until <= now)
        };
        while let Some(at) = self.waiting.iter().position(|client| is_due(self, client)) {
            let client = self.waiting.remove(at);
            if let Some(peer) = self.judge(client)? {
                return Ok(Some(peer));
            }
        }
        Ok(None)
    }

    /// Accepts or refuses a client that has sent its introduction.
    fn judge(&mut self, mut client: Waiting) -> Outcome<Option<Rendezvous>> {
        match check_introduction(&client.line, self.service, &self.code, &client.nonce) {
            // A client that has disconnected meanwhile is not accepted.
            Ok(acceptance) if client.say(&acceptance) => {
                // Frees the file descriptors of the other clients, which may be needed.
                self.waiting.clear();
                client.into_peer().map(Some)
            }
            Ok(_) => Ok(None),
            Err(refusal) => {
                if refusal == Refusal::WrongCode {
                    self.pause(client.source);
                }
                client.refuse(refusal);
                Ok(None)
            }
        }
    }

    /// The pause of a source; sources that are not counted separately share the last one.
    fn pause_of(&self, source: Source) -> Option<&Pause> {
        let own = self.pauses.iter().find(|pause| pause.source == source);
        let shared = || self.pauses.last().filter(|_| self.pauses.len() == MAX_SOURCES);
        own.or_else(shared)
    }

    fn pause(&mut self, source: Source) {
        let now = Instant::now();
        if self.pause_of(source).is_none() {
            self.pauses.push(Pause { source, wrong_codes: 0, until: now });
        }
        let at = self.pauses.iter().position(|pause| pause.source == source);
        let last = self.pauses.len() - 1;
        let pause = &mut self.pauses[at.unwrap_or(last)];
        let length = FIRST_PAUSE * (1 << pause.wrong_codes.min(10));
        pause.wrong_codes = pause.wrong_codes.saturating_add(1);
        pause.until = now + length.min(LONGEST_PAUSE);
    }
}

/// Errors of accept(2) that report a lack of resources.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}

/// Errors of accept(2) that concern one connection and not the socket.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
        || matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(
                Errno::EPROTO
                    | Errno::EPERM
                    | Errno::ENETDOWN
                    | Errno::EHOSTDOWN
                    | Errno::EHOSTUNREACH
                    | Errno::ENETUNREACH
            )
        )
}

impl Waiting {
    fn new(stream: TcpStream, from: IpAddr, source: Source, nonce: Nonce) -> Self {
        let deadline = Instant::now() + INTRODUCTION;
        Self { stream, from, source, nonce, line: Vec::new(), deadline }
    }

    /// Greets the client; `None` if it has disconnected.
    fn greet(mut self, service: &str, code: &Code) -> Option<Self> {
        let greeting = Greeting::new(service, code, &self.nonce);
        let is_there = self.stream.set_nonblocking(true).is_ok() && self.say(&greeting);
        is_there.then_some(self)
    }

    /// Sends a line, which fits into a new connection's buffer; returns whether the client is still
    /// connected.
    fn say(&mut self, message: &impl Serialize) -> bool {
        to_line(message).is_ok_and(|line| self.stream.write_all(&line).is_ok())
    }

    fn has_line(&self) -> bool {
        self.line.ends_with(b"\n")
    }

    fn hear(&mut self) -> Heard {
        let mut bytes = [0; LONGEST];
        while !self.has_line() {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Heard::Closed,
                Ok(length) => self.line.extend(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Part,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Heard::Closed,
            }
            let end = self.line.iter().position(|byte| *byte == b'\n');
            // A client sends nothing more until it is accepted.
            if self.line.len() > LONGEST || end.is_some_and(|end| end + 1 != self.line.len()) {
                return Heard::Foreign;
            }
        }
        Heard::Line
    }

    fn into_peer(self) -> Outcome<Rendezvous> {
        self.stream.set_nonblocking(false).context(|| "cannot set up the TCP stream".into())?;
        Rendezvous::over(self.stream)
    }

    fn refuse(mut self, refusal: Refusal) {
        let (reason, text) = match refusal {
            Refusal::GaveUp(reason) => return self.remark(&format!("gave up: {reason}")),
            Refusal::Foreign => ("another protocol is spoken here", "speaks another protocol"),
            Refusal::WrongCode => ("the code is wrong", "has a wrong code"),
        };
        self.say(&json!({ "abort": reason }));
        self.remark(text);
    }

    fn remark(&self, text: &str) {
        remark(format_args!("uverbs: a peer at {} {text}; still waiting", self.from));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    fn tulip() -> Code {
        Code::Given("tulip".into())
    }

    fn connect(port: u16, code: &Code) -> Outcome<Rendezvous> {
        Rendezvous::connect("127.0.0.1", port, "perf", Some(code))
    }

    /// Runs `strangers` against a listener, then takes the peer with the right code.
    fn accepted_after(strangers: impl FnOnce(u16)) -> Listener {
        let mut listener =
            Listener::bind(Ipv4Addr::LOCALHOST.into(), 0, "perf", tulip()).expect("listen");
        let port = listener.address().expect("address").port();
        let friend = thread::scope(|scope| {
            let serving = scope.spawn(|| listener.accept_next().expect("a peer"));
            strangers(port);
            connect(port, &tulip()).expect("the right code");
            serving.join().expect("serve")
        });
        drop(friend);
        listener
    }

    #[test]
    fn connections_that_close_or_are_silent_or_foreign_do_not_end_the_listener() {
        let (mut silent, mut refusal) = (Vec::new(), None);
        accepted_after(|port| {
            let stranger = || TcpStream::connect(("127.0.0.1", port)).expect("connect");
            drop(stranger());
            silent.extend([stranger(), stranger()]);
            let mut foreign = stranger();
            foreign.set_read_timeout(Some(INTRODUCTION)).expect("a time-out");
            foreign.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
            let mut lines = BufReader::new(foreign).lines();
            let heard: Vec<String> = lines.by_ref().map_while(Result::ok).collect();
            refusal = heard.last().cloned();
        });
        // A panic above would leave the listener waiting.
        assert!(refusal.is_some_and(|line| line.contains("another protocol")));
    }

    #[test]
    fn a_wrong_code_is_reported_and_counted() {
        let listener = accepted_after(|port| {
            for _ in 0..2 {
                let failure = connect(port, &Code::Given("rose".into())).expect_err("wrong");
                assert!(failure.to_string().contains("the code is wrong"), "{failure}");
            }
        });
        assert_eq!(listener.pauses.iter().map(|pause| pause.wrong_codes).sum::<u32>(), 2);
    }

    #[test]
    fn many_silent_connections_do_not_keep_the_peer_out() {
        let mut silent = Vec::new();
        accepted_after(|port| {
            silent.extend((0..2 * MOST).map(|_| TcpStream::connect(("127.0.0.1", port))));
        });
    }

    #[test]
    fn a_client_without_the_listeners_code_is_refused() {
        accepted_after(|port| {
            for (code, words) in [(None, "--code CODE"), (Some(&Code::Off), "instead of")] {
                let failure = Rendezvous::connect("127.0.0.1", port, "perf", code);
                let failure = failure.expect_err("a code is needed");
                assert!(failure.to_string().contains(words), "{failure}");
                assert_eq!(failure.status(), 2);
            }
            let failure = Rendezvous::connect("127.0.0.1", port, "transfer", Some(&tulip()));
            let failure = failure.expect_err("another service");
            assert!(failure.to_string().contains("uverbs perf"), "{failure}");
        });
    }

    #[test]
    fn pauses_grow_to_a_bound_for_each_source() {
        let mut listener = listener();
        for expected in [125, 250, 500, 1000, 2000, 4000, 5000, 5000] {
            let before = Instant::now();
            listener.pause(Source::User(7));
            let until = listener.pause_of(Source::User(7)).expect("a pause").until;
            assert!(until - before >= Duration::from_millis(expected));
            assert!(until - Instant::now() <= Duration::from_millis(expected));
        }
        assert!(listener.pause_of(Source::User(8)).is_none());
    }

    #[test]
    fn sources_beyond_the_bound_share_one_pause() {
        let mut listener = listener();
        for user in 0..MAX_SOURCES as u32 + 5 {
            listener.pause(Source::User(user));
        }
        assert_eq!(listener.pauses.len(), MAX_SOURCES);
        assert_eq!(listener.pause_of(Source::User(1 << 30)).expect("shared").wrong_codes, 6);
    }

    fn listener() -> Listener {
        Listener::bind(Ipv4Addr::LOCALHOST.into(), 0, "perf", tulip()).expect("listen")
    }

    /// Connects a client whose introduction is `line`. Returns the client's end.
    fn client(listener: &mut Listener, user: u32, line: &[u8]) -> TcpStream {
        let port = listener.address().expect("address").port();
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        let before = listener.greeted;
        while listener.greeted == before {
            listener.wait().expect("wait");
            listener.greet_new().expect("greet");
        }
        if let Some(client) = listener.waiting.last_mut() {
            client.source = Source::User(user);
            client.line = line.to_vec();
        }
        stream
    }

    #[test]
    fn wrong_codes_of_one_source_neither_displace_nor_delay_another() {
        let mut listener = listener();
        let (honest, other) = (1000, 1001);
        listener.pause(Source::User(other));
        // Longer than the test takes on any machine.
        listener.pauses[0].until += Duration::from_secs(3600);
        let mut ends = vec![client(&mut listener, honest, b"honest\n")];
        ends.extend((0..3 * MOST).map(|_| client(&mut listener, other, b"guess\n")));
        assert_eq!(listener.waiting.len(), MOST);
        assert_eq!(listener.waiting[0].source, Source::User(honest), "it has not been displaced");
        assert!(listener.serve().expect("serve").is_none());
        let left = listener.waiting.iter();
        assert!(left.clone().all(|client| client.source == Source::User(other)), "and was judged");
        assert_eq!(left.count(), MOST - 1, "but not they");
    }
}
