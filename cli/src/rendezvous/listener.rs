//! The listening end before its session: greets every client, and takes the first one that has
//! the code.
//!
//! One thread serves every connection that has not been taken, so a silent one blocks no other. A
//! connection that closes, says something else or has another code ends itself alone.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde_json::json;

use super::admission::{Greeting, Refusal, admit};
use super::code::{Code, Nonce, random};
use super::{Rendezvous, to_line};
use crate::failure::{Context, Failure, Outcome};
use crate::output::remark;

/// How long a client may take for its introduction.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// The longest introduction.
const LONGEST: usize = 1024;
/// Clients that may be introducing themselves at a time; a further one replaces the oldest.
const MOST: usize = 64;
/// After the first wrong code no other is looked at for this long; after each further one for twice
/// as long as before.
const FIRST_PAUSE: Duration = Duration::from_millis(125);
/// The longest such pause: less than 20,000 codes can be tried in a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A socket on which one peer is waited for.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    service: &'static str,
    code: Code,
    waiting: Vec<Waiting>,
    wrong_codes: u32,
    /// Until then no introduction is looked at.
    pause_until: Option<Instant>,
}

/// A client that has not introduced itself yet.
#[derive(Debug)]
struct Waiting {
    stream: TcpStream,
    from: IpAddr,
    nonce: Nonce,
    line: Vec<u8>,
    deadline: Instant,
}

/// What came of reading from a client.
enum Heard {
    Part,
    Line,
    Closed,
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
        Ok(Self { socket, service, code, waiting: Vec::new(), wrong_codes: 0, pause_until: None })
    }

    /// Where it listens, with the port that was chosen.
    pub(crate) fn address(&self) -> Outcome<SocketAddr> {
        self.socket.local_addr().context(|| "cannot tell the port".into())
    }

    /// The code, if this end made it up.
    pub(crate) fn code_to_pass_on(&self) -> Option<&str> {
        self.code.to_pass_on()
    }

    /// Waits for a peer that has the code, however long it takes, and listens no more.
    pub(crate) fn accept(mut self) -> Outcome<Rendezvous> {
        self.admit_next()
    }

    fn admit_next(&mut self) -> Outcome<Rendezvous> {
        loop {
            self.wait()?;
            self.greet_new()?;
            if let Some(peer) = self.serve()? {
                return Ok(peer);
            }
        }
    }

    /// Until a client connects or speaks, or a time comes.
    fn wait(&self) -> Outcome {
        let mut fds = vec![PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let unheard = self.waiting.iter().filter(|client| !client.has_line());
        fds.extend(unheard.map(|client| PollFd::new(client.stream.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, self.timeout()) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Failure::failed(format!("cannot wait: {}", errno.desc()))),
        }
    }

    fn timeout(&self) -> PollTimeout {
        let now = Instant::now();
        let times = self.waiting.iter().map(|client| client.deadline);
        let first = times.chain(self.pause_until).min();
        first.map_or(PollTimeout::NONE, |first| {
            // Rounded up: a time that has not quite come would be polled for again and again.
            let left = first.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        })
    }

    fn greet_new(&mut self) -> Outcome {
        loop {
            let (stream, from) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => return Err(error).context(|| "cannot accept a peer".into()),
            };
            if self.waiting.len() == MOST {
                self.waiting.remove(0);
            }
            let client = Waiting::greet(stream, from.ip(), self.service, &self.code)?;
            self.waiting.extend(client);
        }
    }

    /// Hears every client, and judges those that have spoken. Gives the first one that is admitted.
    fn serve(&mut self) -> Outcome<Option<Rendezvous>> {
        let mut silent = Vec::new();
        let mut spoken = Vec::new();
        for mut client in std::mem::take(&mut self.waiting) {
            match client.hear() {
                Heard::Part if client.deadline > Instant::now() => silent.push(client),
                Heard::Line => spoken.push(client),
                Heard::Foreign => client.refuse(Refusal::Foreign),
                Heard::Part | Heard::Closed => {}
            }
        }
        self.pause_until = self.pause_until.filter(|until| *until > Instant::now());
        for mut client in spoken {
            if self.pause_until.is_some() {
                client.deadline = Instant::now() + INTRODUCTION;
                silent.push(client);
            } else if let Some(peer) = self.judge(client)? {
                return Ok(Some(peer));
            }
        }
        self.waiting = silent;
        Ok(None)
    }

    fn judge(&mut self, mut client: Waiting) -> Outcome<Option<Rendezvous>> {
        match admit(&client.line, self.service, &self.code, &client.nonce) {
            // One that has gone away meanwhile is none.
            Ok(admission) => Ok(client.say(&admission).then(|| client.into_peer()).transpose()?),
            Err(refusal) => {
                if refusal == Refusal::WrongCode {
                    self.pause();
                }
                client.refuse(refusal);
                Ok(None)
            }
        }
    }

    fn pause(&mut self) {
        let pause = FIRST_PAUSE * (1 << self.wrong_codes.min(10));
        self.wrong_codes = self.wrong_codes.saturating_add(1);
        self.pause_until = Some(Instant::now() + pause.min(LONGEST_PAUSE));
    }
}

/// accept(2): errors that are of the connection, not of the socket.
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
    /// Greets a client; nothing if it has gone already.
    fn greet(stream: TcpStream, from: IpAddr, service: &str, code: &Code) -> Outcome<Option<Self>> {
        let (nonce, deadline) = (random()?, Instant::now() + INTRODUCTION);
        let mut client = Self { stream, from, nonce, line: Vec::new(), deadline };
        let is_there = client.stream.set_nonblocking(true).is_ok()
            && client.say(&Greeting::new(service, code, &nonce));
        Ok(is_there.then_some(client))
    }

    /// Sends a line, which fits a new connection's buffer. Says whether the client is still
    /// there.
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
            // A client says nothing more until it is admitted.
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
    fn admitted_after(strangers: impl FnOnce(u16)) -> Listener {
        let mut listener =
            Listener::bind(Ipv4Addr::LOCALHOST.into(), 0, "perf", tulip()).expect("listen");
        let port = listener.address().expect("address").port();
        let friend = thread::scope(|scope| {
            let serving = scope.spawn(|| listener.admit_next().expect("a peer"));
            strangers(port);
            connect(port, &tulip()).expect("the right code");
            serving.join().expect("serve")
        });
        drop(friend);
        listener
    }

    #[test]
    fn connections_that_close_or_are_silent_or_foreign_do_not_end_it() {
        let (mut silent, mut refusal) = (Vec::new(), None);
        admitted_after(|port| {
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
    fn a_wrong_code_is_told_and_slows_down_the_next_one() {
        let listener = admitted_after(|port| {
            for _ in 0..2 {
                let failure = connect(port, &Code::Given("rose".into())).expect_err("wrong");
                assert!(failure.to_string().contains("the code is wrong"), "{failure}");
            }
        });
        assert_eq!(listener.wrong_codes, 2);
    }

    #[test]
    fn more_silent_connections_than_there_is_room_for_keep_nobody_out() {
        let mut silent = Vec::new();
        admitted_after(|port| {
            silent.extend((0..2 * MOST).map(|_| TcpStream::connect(("127.0.0.1", port))));
        });
    }

    #[test]
    fn both_ends_must_agree_that_there_is_no_code() {
        admitted_after(|port| {
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
    fn pauses_grow_to_a_bound() {
        let mut listener =
            Listener::bind(Ipv4Addr::LOCALHOST.into(), 0, "perf", tulip()).expect("listen");
        for expected in [125, 250, 500, 1000, 2000, 4000, 5000, 5000] {
            let before = Instant::now();
            listener.pause();
            let until = listener.pause_until.expect("a pause");
            assert!(until - before >= Duration::from_millis(expected));
            assert!(until - Instant::now() <= Duration::from_millis(expected));
        }
    }
}
