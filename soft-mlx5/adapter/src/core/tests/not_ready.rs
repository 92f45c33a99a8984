//! RNR NAKs for all operations, retry counts and timers, over reliable and unreliable wires.

use uverbs_mlx5_format::{Opcode, Syndrome as Status};

use super::harness::*;
use super::loss::Dice;
use crate::core::*;
use crate::packet::{self, Aeth, Bth, Operation, Packet, Psn, RnrTimer, Syndrome};

const LEN: u64 = 600;

/// Operations that need a receive.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    SendImmediate,
    WriteImmediate,
}

const KINDS: [Kind; 3] = [Kind::Send, Kind::SendImmediate, Kind::WriteImmediate];

impl Kind {
    fn request(self, from: Region, to: Region, number: u32) -> Wr {
        match self {
            Self::Send => Wr::send(),
            Self::SendImmediate => Wr::send().immediate(Opcode::SEND_IMMEDIATE, number),
            Self::WriteImmediate => {
                let write = Wr::write(to.address, to.key);
                write.immediate(Opcode::RDMA_WRITE_IMMEDIATE, number)
            }
        }
        .all_of(from)
    }
}

fn pair(rnr_retry: u8, timer: u8) -> Pair {
    Pair::with_attributes(QpType::Rc, |_, attributes| {
        attributes.mtu = Some(Mtu::M256);
        attributes.rnr_retry = Some(rnr_retry);
        attributes.min_rnr_timer = Some(timer);
        attributes.ack_timeout = Some(8);
    })
}

/// Whether a packet needs a receive: the first of a SEND, the last of a WRITE.
fn needs_receive(packet: &Packet) -> bool {
    packet.view().is_ok_and(|view| match view.operation {
        Operation::Send => view.position.starts(),
        Operation::Write => view.position.ends(),
        _ => false,
    })
}

/// Without a receive, the request is sent once and once per retry, with the timer's wait before
/// each retry.
#[test]
fn each_retry_waits_as_long_as_the_responder_says() {
    for kind in KINDS {
        for (retries, timer) in (0..7).flat_map(|n| [0, 1, 12, 31].map(|timer| (n, timer))) {
            let mut pair = pair(retries, timer);
            let (from, to) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
            pair.post(0, &kind.request(from, to, 1));
            let wait = RnrTimer::new(timer).nanoseconds();
            let mut requests = 0;
            let count = &mut |packet: &Packet| {
                requests += u32::from(needs_receive(packet));
                Fate::Pass
            };
            pair.world.pass(wait * u64::from(retries), count);
            let what = format!("{kind:?}, {retries} retries, timer {timer}");
            assert_eq!(pair.one(0).syndrome, Some(Status::RNR_RETRY_EXCEEDED), "{what}");
            assert_eq!(requests, u32::from(retries) + 1, "{what}");
            assert_eq!(pair.poll(1), [], "{what}");
            assert_eq!(pair.state(1), QpState::ReadyToSend, "{what}");
        }
    }
}

/// The retries must cover the time until the receive is posted: one retry fewer is not enough.
#[test]
fn a_receive_that_is_posted_before_the_last_retry_is_in_time() {
    for kind in KINDS {
        for (retries, timer) in (1..8).flat_map(|n| [0, 1, 12, 31].map(|timer| (n, timer))) {
            let mut pair = pair(retries, timer);
            let (from, to) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
            let data = pair.host(0).fill(from, retries);
            pair.post(0, &kind.request(from, to, 5));
            let wait = RnrTimer::new(timer).nanoseconds();
            pair.world.pass(wait * u64::from(retries) - 1, &mut |_| Fate::Pass);
            assert_eq!(pair.poll(0), [], "{kind:?}, {retries} retries, timer {timer}");
            pair.post_receive(1, to);
            pair.world.pass(1, &mut |_| Fate::Pass);
            assert_eq!(pair.one(0).syndrome, None);
            assert_eq!(pair.one(1).bytes, LEN as u32);
            assert!(pair.host(1).bytes(to.address, LEN) == data);
        }
    }
}

/// The numbers of the messages that were received: each is the first byte, and in the immediate
/// data.
fn seen(pair: &mut Pair, inbox: Region, kinds: &[Kind]) -> Vec<u8> {
    let done = pair.poll(1);
    let good = done.iter().filter(|done| done.syndrome.is_none());
    good.map(|done| match kinds[usize::from(done.index)] {
        Kind::Send => pair.host(1).bytes(inbox.address + u64::from(done.index) * LEN, 1)[0],
        Kind::SendImmediate | Kind::WriteImmediate => done.immediate as u8,
    })
    .collect()
}

const MESSAGES: usize = 24;

/// Sends messages over an unreliable wire, with receives that are posted late.
fn exercise(seed: u64, rnr_retry: u8, timer: u8) {
    println!("seed {seed}, {rnr_retry} retries, timer {timer}");
    let mut dice = Dice::new(seed);
    let mut pair = pair(rnr_retry, timer);
    let outbox = pair.host(0).region(LEN * MESSAGES as u64, ALL);
    let inbox = pair.host(1).region(LEN * MESSAGES as u64, ALL);
    let part = |region: Region, number: usize| Region {
        address: region.address + number as u64 * LEN,
        len: LEN,
        ..region
    };
    let kinds: Vec<Kind> = (0..MESSAGES).map(|_| KINDS[dice.roll(3) as usize]).collect();
    for (number, kind) in kinds.iter().enumerate() {
        let from = part(outbox, number);
        pair.host(0).fill(from, number as u8);
        pair.post(0, &kind.request(from, part(inbox, number), number as u32));
    }
    let fate = |dice: &mut Dice| match dice.roll(20) {
        0 => Fate::Drop,
        1 => Fate::Twice,
        2 => Fate::Late,
        _ => Fate::Pass,
    };
    let (mut completed, mut received) = (Vec::new(), Vec::new());
    for number in 0..MESSAGES {
        let wait = dice.roll(4 * RnrTimer::new(timer).nanoseconds());
        pair.world.pass(wait, &mut |_| fate(&mut dice));
        pair.post_receive(1, part(inbox, number));
        completed.extend(pair.poll(0));
        received.extend(seen(&mut pair, inbox, &kinds));
    }
    pair.world.pass(60_000_000_000, &mut |_| fate(&mut dice));
    completed.extend(pair.poll(0));
    received.extend(seen(&mut pair, inbox, &kinds));
    let sent = completed.iter().take_while(|done| done.syndrome.is_none()).count();
    let numbers: Vec<u8> = (0..MESSAGES as u8).collect();
    assert_eq!(completed.len(), MESSAGES, "each request completes once");
    assert_eq!(received, numbers[..received.len()], "in order, and once");
    // The acknowledgement of the last message may be lost with the queue.
    assert!([sent, sent + 1].contains(&received.len()), "{sent} sent, {} here", received.len());
    for number in 0..received.len() {
        let data = pair.host(0).bytes(part(outbox, number).address, LEN);
        assert!(pair.host(1).bytes(part(inbox, number).address, LEN) == data, "{number}");
    }
    if rnr_retry == 7 {
        assert_eq!(sent, MESSAGES, "{:?}", completed[sent].syndrome);
    } else if let Some(failed) = completed.get(sent) {
        assert_eq!(failed.syndrome, Some(Status::RNR_RETRY_EXCEEDED));
    }
}

#[test]
fn no_message_is_lost_or_doubled_while_receives_are_late() {
    for seed in 0..60 {
        exercise(seed, 7, [0, 1, 12][seed as usize % 3]);
    }
}

#[test]
fn messages_before_the_last_retry_are_neither_lost_nor_doubled() {
    for seed in 0..60 {
        exercise(1000 + seed, seed as u8 % 7, [0, 1, 12][seed as usize % 3]);
    }
}

/// An RNR NAK of side 1 for the request with this PSN.
fn not_ready(pair: &mut Pair, psn: Psn, timer: u8) {
    let (gid, qpn) = (pair.world.hosts[1].gid, pair.qps[0].qpn);
    let from = packet::Addressing::roce(gid, packet::Gid::default());
    let mut nak = Packet::new();
    nak.start(from, Bth::new(packet::Opcode::RC_ACKNOWLEDGE, 0xffff, qpn.0, psn));
    nak.push(Aeth::new(Syndrome::RnrNak(RnrTimer::new(timer)), 0));
    let now = pair.world.now;
    pair.host(0).core.receive(now, nak);
}

/// The PSN of a request for data.
fn asks(packet: &Packet) -> Option<Psn> {
    let view = packet.view().ok()?;
    let is_response = view.operation.is_response();
    (!is_response).then(|| view.bth.psn())
}

/// A responder that must page its memory in temporarily refuses READs and atomics (IBTA volume 1,
/// 9.7.5.2.8), even a READ that is repeated from its middle.
#[test]
fn a_read_or_atomic_that_is_not_ready_is_repeated_after_the_wait() {
    let wait = RnrTimer::new(12).nanoseconds();
    for (atomic, responses) in [(true, 0), (false, 0), (false, 1), (false, 2)] {
        let mut pair = pair(2, 1);
        let (local, remote) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
        let data = pair.host(1).fill(remote, 3);
        let (wr, len) = match atomic {
            true => (Wr::fetch_add(remote.address, remote.key, 0).from(local, 0, 8), 8),
            false => (Wr::read(remote.address, remote.key).all_of(local), LEN),
        };
        pair.post(0, &wr);
        // The request is lost once, or the responses from the middle on are.
        let mut answered = 0;
        let mut requested = Vec::new();
        pair.world.run_until_idle_with(&mut |packet| {
            requested.extend(asks(packet));
            let is_answer = asks(packet).is_none();
            answered += u32::from(is_answer);
            let passes = if is_answer { answered <= responses } else { responses > 0 };
            if passes { Fate::Pass } else { Fate::Drop }
        });
        let missing = requested[0] + responses;
        for retry in 0..2 {
            not_ready(&mut pair, missing, 12);
            let what = format!("atomic {atomic}, {responses} responses, retry {retry}");
            let mut early = 0;
            pair.world.pass(wait - 1, &mut |packet| {
                early += u32::from(asks(packet).is_some());
                Fate::Drop
            });
            assert_eq!(early, 0, "{what}: sent before the wait was over");
            let mut again = Vec::new();
            pair.world.pass(1, &mut |packet| {
                again.extend(asks(packet));
                Fate::Drop
            });
            assert_eq!(again, [missing], "{what}");
        }
        pair.world.pass(1_000_000_000, &mut |_| Fate::Pass);
        assert_eq!(pair.one(0).syndrome, None);
        assert!(pair.host(0).bytes(local.address, len) == data[..len as usize]);
    }
}

/// Each wait of a READ counts as a retry, also in its middle.
#[test]
fn a_read_that_is_never_ready_exceeds_its_rnr_retries() {
    for responses in 0..3 {
        let mut pair = pair(2, 1);
        let (local, remote) = (pair.host(0).region(LEN, ALL), pair.host(1).region(LEN, ALL));
        pair.post(0, &Wr::read(remote.address, remote.key).all_of(local));
        let mut answered = 0;
        pair.world.run_until_idle_with(&mut |packet| {
            let is_answer = packet.view().unwrap().operation == Operation::ReadResponse;
            answered += u32::from(is_answer);
            if is_answer && answered > responses { Fate::Drop } else { Fate::Pass }
        });
        let missing = Psn::new(100) + responses;
        for _ in 0..3 {
            assert_eq!(pair.poll(0), []);
            not_ready(&mut pair, missing, 1);
            pair.world.pass(RnrTimer::new(1).nanoseconds(), &mut |_| Fate::Drop);
        }
        assert_eq!(pair.one(0).syndrome, Some(Status::RNR_RETRY_EXCEEDED), "after {responses}");
    }
}
