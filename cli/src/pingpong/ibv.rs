//! Pingpong with rdma-core's `ibv_rc_pingpong`, using its exchange of addresses and its messages.
//!
//! The exchange (`pp_client_exch_dest`, `pp_server_exch_dest` of
//! libibverbs/examples/rc_pingpong.c): on a TCP stream the client sends `LID:QPN:PSN:GID` in
//! hexadecimal digits, 52 bytes with the terminating zero. The server connects its queue pair and
//! sends its own address. The client sends `done` with its zero, and both close the stream. Then
//! the client sends messages and the server answers each. The C program sends from its receive
//! buffer, so a C server returns the data that it received.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use uverbs::gid::GidReason;
use uverbs::qp::PostFlags;
use uverbs::{Endpoint, Gid, Mtu, op};

use super::Plan;
use super::report::{self, Report};
use crate::args::{Op, Pingpong};
use crate::device::{self, Chosen};
use crate::failure::{Context, Failure, Outcome};
use crate::latency::Latency;
use crate::link::{Link, LocalRange, Shape, USUAL_INLINE};
use crate::output::{print, remark};
use crate::pattern;
use crate::rendezvous::{PATIENCE, host, listen};

/// The C program's own default size.
pub(super) const DEFAULT_SIZE: u32 = 4096;
/// The C program's own default number of round trips.
pub(super) const DEFAULT_ITERS: u64 = 1000;
/// The C program's default path MTU.
const MTU: Mtu = Mtu::B1024;
/// The number of receives posted at a time, each with its own slot.
const SLOTS: u64 = 2;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DONE: &[u8; 5] = b"done\0";
/// Length of an address with its terminating zero.
const ADDRESS: usize = 52;

/// Runs either end.
pub(super) fn run(arguments: &Pingpong, plan: Plan) -> Outcome {
    if plan.op != Op::Send || arguments.events {
        return Err(Failure::usage("--peer ibv goes with --op send and --poll only"));
    }
    if arguments.host.is_none() && arguments.pair.listen.is_none() {
        return Err(Failure::usage("--peer ibv needs a HOST or --listen"));
    }
    let chosen = device::choose(&arguments.pair.choice)?;
    let mut end = End::new(&chosen, plan)?;
    match (&arguments.host, arguments.pair.listen) {
        (Some(host), _) => end.meet_server(host, arguments.port)?,
        (None, address) => end.meet_client(arguments, address.unwrap_or(LOOPBACK))?,
    }
    let peer = arguments.host.clone().unwrap_or_else(|| "ibv_rc_pingpong".into());
    if !arguments.pair.json {
        report::announce(&chosen, &peer, plan, false)?;
    }
    let began = Instant::now();
    let latency = end.play(arguments.host.is_some()).map_err(|failure| end.rounds_of(failure))?;
    let elapsed = began.elapsed();
    Report::new(&chosen, peer, plan, false, end.verified, elapsed, latency)
        .print(arguments.pair.json)
}

struct End {
    link: Link,
    plan: Plan,
    scratch: Vec<u8>,
    verified: u64,
    /// The number of completed round trips.
    played: u64,
    /// The number of sends that have not completed yet.
    sending: u64,
    /// Whether GIDs are used. Always on RoCE; on InfiniBand only if requested. The C program then
    /// also needs a GID of its own (`-g`).
    is_global: bool,
}

impl End {
    fn new(chosen: &Chosen, plan: Plan) -> Outcome<Self> {
        let bytes = stride(plan) * (1 + SLOTS as usize);
        let shape = Shape {
            bytes,
            sends: 4,
            receives: SLOTS as u32,
            sleeps: false,
            inline_bytes: USUAL_INLINE,
        };
        let mut link = Link::new(chosen, shape)?;
        (0..SLOTS).try_for_each(|message| link.receive(Some(incoming(plan, message))))?;
        let scratch = vec![0; plan.size as usize];
        let is_global = chosen.gid.reason != GidReason::InfiniBandDefault;
        Ok(Self { link, plan, scratch, verified: 0, played: 0, sending: 0, is_global })
    }

    fn meet_server(&mut self, host: &str, port: u16) -> Outcome {
        let addresses = host::addresses(host, port)?;
        let mut stream = TcpStream::connect(&*addresses)
            .context(|| format!("cannot reach ibv_rc_pingpong at {host}, port {port}"))?;
        self.say(&mut stream)?;
        let peer = self.hear(&mut stream)?;
        stream.write_all(DONE).context(|| "the peer has gone away".into())?;
        self.connect(&peer)
    }

    fn meet_client(&mut self, arguments: &Pingpong, address: IpAddr) -> Outcome {
        let listener = listen(address, arguments.port)?;
        if !arguments.pair.json {
            let port = listener.local_addr().context(|| "cannot tell the port".into())?.port();
            print(format_args!("listening on port {port}"))?;
        }
        let (mut stream, peer) = self.first_client(&listener)?;
        self.connect(&peer)?;
        self.say(&mut stream)?;
        let mut done = [0; DONE.len()];
        stream.read_exact(&mut done).context(|| "the peer has gone away".into())
    }

    /// Waits for the first client that uses `ibv_rc_pingpong`'s protocol. Refuses other clients.
    fn first_client(&self, listener: &TcpListener) -> Outcome<(TcpStream, Endpoint)> {
        loop {
            let (mut stream, from) = listener.accept().context(|| "cannot accept a peer".into())?;
            match self.hear(&mut stream) {
                Ok(peer) => return Ok((stream, peer)),
                Err(failure) => {
                    let at = from.ip();
                    remark(format_args!("uverbs: a peer at {at}: {failure}; still waiting"));
                }
            }
        }
    }

    fn say(&self, stream: &mut TcpStream) -> Outcome {
        let own = self.link.own_endpoint();
        let own = Endpoint { gid: own.gid.filter(|_| self.is_global), ..own };
        let address = to_address(&own);
        stream.write_all(&address).context(|| "the peer has gone away".into())
    }

    fn hear(&self, stream: &mut TcpStream) -> Outcome<Endpoint> {
        let mut address = [0; ADDRESS];
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.read_exact(&mut address))
            .context(|| "the peer does not answer".into())?;
        from_address(&address, &self.link.own_endpoint()).ok_or_else(|| {
            Failure::failed("the peer speaks another protocol (is it ibv_rc_pingpong?)")
        })
    }

    fn connect(&mut self, peer: &Endpoint) -> Outcome {
        if self.is_global && peer.lid == 0 && peer.gid.is_none() {
            return Err(Failure::failed("ibv_rc_pingpong gives no GID: run it with -g"));
        }
        self.link.connect_to(peer)
    }

    /// Adds the most likely cause to a failure during a run: different numbers of round trips,
    /// which the ends do not exchange.
    fn rounds_of(&self, failure: Failure) -> Failure {
        let Plan { iters, .. } = self.plan;
        match failure {
            Failure::Failed(text) if self.played < iters && self.link.has_device() => {
                Failure::failed(format!(
                    "{text} (after {} of {iters} round trips: ibv_rc_pingpong needs -n {iters})",
                    self.played
                ))
            }
            failure => failure,
        }
    }

    /// Bounces all messages, and returns the times of the rounds.
    fn play(&mut self, begins: bool) -> Outcome<Latency> {
        let mut latency = Latency::new();
        for message in 0..self.plan.iters {
            let began = Instant::now();
            if begins {
                self.send(pattern::question(message))?;
                self.arrival()?;
                latency.record(began.elapsed());
                self.verify(message, pattern::question(message))?;
            } else {
                self.arrival()?;
                latency.record(began.elapsed());
                // The C client's first message has its own contents. The following ones have the
                // contents of the message that it received last.
                if let Some(before) = message.checked_sub(1) {
                    self.verify(message, pattern::answer(before))?;
                }
                self.send(pattern::answer(message))?;
            }
            self.link.receive(Some(incoming(self.plan, message)))?;
            self.played += 1;
        }
        while self.sending > 0 {
            self.next()?;
        }
        Ok(latency)
    }

    fn send(&mut self, number: u64) -> Outcome {
        pattern::fill(&mut self.scratch, number);
        self.link.memory().write(0, &self.scratch)?;
        self.sending += 1;
        let range = LocalRange { offset: 0, length: self.plan.size as usize };
        self.link.post(op::Send, range, PostFlags::SIGNALED)
    }

    fn arrival(&mut self) -> Outcome {
        while !self.next()? {}
        Ok(())
    }

    /// Waits for a completion; returns whether it is of a receive. The stream is closed by now, so
    /// silence is the only sign that the peer has died.
    fn next(&mut self) -> Outcome<bool> {
        let began = Instant::now();
        loop {
            if let Some(completion) = self.link.try_next()? {
                self.sending -= u64::from(completion.is_send());
                return Ok(!completion.is_send());
            }
            if began.elapsed() > SILENCE {
                return Err(Failure::failed("ibv_rc_pingpong has fallen silent"));
            }
            self.link.pause_alone()?;
        }
    }

    fn verify(&mut self, message: u64, number: u64) -> Outcome {
        let range = incoming(self.plan, message);
        self.link.memory().read(range.offset, &mut self.scratch)?;
        if let Some(at) = pattern::first_difference(&self.scratch, number) {
            return Err(Failure::failed(format!(
                "message {message} arrived with wrong contents from byte {at} on"
            )));
        }
        self.verified += u64::from(self.plan.size);
        Ok(())
    }
}

/// The longest wait for an answer.
const SILENCE: Duration = Duration::from_secs(20);

fn stride(plan: Plan) -> usize {
    (plan.size as usize).next_multiple_of(64)
}

fn incoming(plan: Plan, message: u64) -> LocalRange {
    let offset = stride(plan) * (1 + (message % SLOTS) as usize);
    LocalRange { offset, length: plan.size as usize }
}

/// `LID:QPN:PSN:GID` and a zero.
fn to_address(own: &Endpoint) -> [u8; ADDRESS] {
    let gid: String =
        own.gid.unwrap_or_default().0.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{:04x}:{:06x}:{:06x}:{gid}\0", own.lid, own.qpn, own.psn);
    let mut address = [0; ADDRESS];
    address.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    address
}

/// Parses an address. The exchange omits some values, for which those of the C program are used:
/// MTU 1024, one READ at a time, the same type of GID.
fn from_address(address: &[u8; ADDRESS], own: &Endpoint) -> Option<Endpoint> {
    let text = std::str::from_utf8(address.strip_suffix(&[0])?).ok()?;
    let mut words = text.split(':');
    let mut number = |digits: usize| {
        let word = words.next().filter(|word| word.len() == digits)?;
        u128::from_str_radix(word, 16).ok()
    };
    let (lid, qpn, psn, gid) = (number(4)?, number(6)?, number(6)?, number(32)?);
    let gid = Gid(gid.to_be_bytes());
    Some(Endpoint {
        lid: lid as u16,
        qpn: qpn as u32,
        psn: psn as u32,
        gid: (!gid.is_zero()).then_some(gid),
        mtu: MTU,
        responder_reads: 1,
        initiator_reads: 1,
        qkey: 0,
        srqn: 0,
        ..*own
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs::{GidKind, LinkLayer};

    fn endpoint() -> Endpoint {
        Endpoint {
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gid: "::ffff:127.18.1.2".parse().ok(),
            gid_kind: GidKind::RoceV2,
            qpn: 0x40,
            psn: 0x00ab_cdef,
            mtu: MTU,
            responder_reads: 1,
            initiator_reads: 1,
            qkey: 0,
            srqn: 0,
        }
    }

    #[test]
    fn addresses_are_those_of_the_c_program() {
        let address = to_address(&endpoint());
        let text = b"0000:000040:abcdef:00000000000000000000ffff7f120102\0";
        assert_eq!(&address, text);
        assert_eq!(from_address(&address, &endpoint()), Some(endpoint()));
    }

    #[test]
    fn other_words_are_refused() {
        for text in ["GET / HTTP/1.1\r\n", "0000:000040:abcdef:zz", ":::"] {
            let mut address = [0; ADDRESS];
            address[..text.len()].copy_from_slice(text.as_bytes());
            assert_eq!(from_address(&address, &endpoint()), None, "{text}");
        }
    }
}
