//! Random programs resolve, connect, accept, refuse and disconnect by IP addresses through
//! rdma_cm's state machine. The network loses, duplicates and reorders datagrams. A model checks
//! the events of each id.
//!
//! `SEED=n cargo test -p uverbs-soft-cm --test rdma_cm_ids one_seed` repeats one run; `RUNS=n` sets
//! how many seeds each test tries.

#[path = "connections/seeds.rs"]
mod seeds;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use uverbs_soft_cm::cma::{
    Address, Addresses, Cma, CmaConfig, CmaError, CmaEvent, CmaId, CmaState, DeviceInfo, GidSlot,
    Interface, Payload, Route, Target,
};
use uverbs_soft_packet::prng::Prng;
use uverbs_soft_packet::{Addressing, Gid};
use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::connect::{ConnParam, Ece};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::enums::QpType;
use zerocopy::IntoBytes;

const HOSTS: usize = 3;
const PORT: u16 = 7000;
const SECOND: u64 = 1_000_000_000;
/// Longer than all repetitions and timewait: 16 tries of 4.6 s on each side, plus the delays that
/// MRA allows.
const FOR_EVER: u64 = 1000 * SECOND;

/// The network's faults: rates in parts per million, and the longest delay in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Faults {
    drop: u32,
    duplicate: u32,
    delay: u64,
}

const GOOD: Faults = Faults { drop: 0, duplicate: 0, delay: 5 };
/// Datagrams arrive up to twenty seconds late.
const HARSH: Faults = Faults { drop: 300_000, duplicate: 200_000, delay: 20_000 };

fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host as u8 + 1)
}

fn host_of(address: IpAddr) -> Option<usize> {
    (0..HOSTS).find(|host| IpAddr::from(ip(*host)) == address)
}

/// The IP stack of a host: one device, with one address.
struct Stack(usize);

impl Addresses for Stack {
    fn interface_of(&self, address: IpAddr) -> Result<Interface, CmaError> {
        match host_of(address) {
            Some(host) if host == self.0 => {
                Ok(Interface { device: 0, gid: Gid::from_ipv4(ip(host)) })
            }
            _ => Err(CmaError(libc::EADDRNOTAVAIL)),
        }
    }

    fn route(&self, _: Option<IpAddr>, to: SocketAddr, _: PortSpace) -> Result<Route, CmaError> {
        let IpAddr::V4(v4) = to.ip() else { return Err(CmaError(libc::ENETUNREACH)) };
        let addressing = Addressing::roce(Gid::from_ipv4(ip(self.0)), Gid::from_ipv4(v4));
        Ok(Route { device: 0, source: ip(self.0).into(), addressing })
    }

    fn answers(&self, _: u64, _: usize, to: &Addressing) -> bool {
        to.destination.to_ipv4().is_some_and(|v4| host_of(v4.into()).is_some())
    }
}

/// The last event of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Resolving,
    Routing,
    Connecting,
    /// A request that the program has not answered.
    Asked,
    Accepted,
    Established,
    Disconnected,
    Over,
}

/// A program's view of an id: its attempt and its last event.
#[derive(Clone, Copy, Debug)]
struct View {
    attempt: u32,
    seen: Seen,
}

/// What a program does at a planned time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Start,
    Answer(usize, CmaId),
    Disconnect(usize, CmaId),
    Destroy(usize, CmaId),
}

/// The states in which an id may get an event, and the state after it.
fn step(event: EventType) -> (&'static [Seen], Seen) {
    use Seen::*;
    match event {
        EventType::ADDR_RESOLVED => (&[Resolving], Routing),
        EventType::ROUTE_RESOLVED => (&[Routing], Connecting),
        EventType::CONNECT_RESPONSE => (&[Connecting], Established),
        EventType::ESTABLISHED => (&[Accepted], Established),
        EventType::REJECTED => (&[Connecting, Accepted, Asked, Established], Over),
        EventType::UNREACHABLE => (&[Connecting, Accepted], Over),
        EventType::DISCONNECTED => (&[Established, Accepted], Disconnected),
        EventType::TIMEWAIT_EXIT => (&[Disconnected], Over),
        other => panic!("event {other}"),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    attempts: u32,
    accepted: u32,
    refused: u32,
    established: u32,
    rejected: u32,
    unreachable: u32,
    /// Requests that arrived again, after the server had refused and destroyed the id.
    again: u32,
    disconnected: u32,
    /// A hash of all arrivals and their times: equal in equal runs.
    trace: u64,
}

/// Arrival time, a number that makes the order total, receiver, ends, bytes.
type Datagram = Reverse<(u64, u64, usize, Ends, Vec<u8>)>;

/// Source and destination, ordered so that they fit into a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends(Gid, Gid);

struct World {
    hosts: Vec<Cma>,
    views: BTreeMap<(usize, CmaId), View>,
    /// Attempts whose requests have arrived.
    asked: BTreeSet<u32>,
    acts: BinaryHeap<Reverse<(u64, u64, Act)>>,
    in_transit: BinaryHeap<Datagram>,
    faults: Faults,
    prng: Prng,
    now: u64,
    order: u64,
    outcome: Outcome,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut prng = Prng::new(seed);
        let hosts = (0..HOSTS).map(|host| new_host(host, prng.next())).collect();
        let (views, asked, acts, in_transit) = Default::default();
        let mut world = Self {
            hosts,
            views,
            asked,
            acts,
            in_transit,
            faults,
            prng,
            now: 0,
            order: 0,
            outcome: Outcome::default(),
        };
        for _ in 0..12 {
            world.plan(20 * SECOND, Act::Start);
        }
        world
    }

    /// Plans an action of the program at a random time.
    fn plan(&mut self, within: u64, act: Act) {
        let at = self.now + self.prng.below(within);
        self.order += 1;
        self.acts.push(Reverse((at, self.order, act)));
    }

    fn run(mut self) -> Outcome {
        while let Some(next) = self.next().filter(|next| *next < FOR_EVER) {
            self.now = self.now.max(next);
            self.deliver();
            for host in 0..HOSTS {
                self.hosts[host].step(self.now, &Stack(host));
            }
            self.act();
            self.run_to_idle();
        }
        self.finish()
    }

    fn next(&self) -> Option<u64> {
        let acts = self.acts.peek().map(|Reverse((at, ..))| *at);
        let in_transit = self.in_transit.peek().map(|Reverse((at, ..))| *at);
        self.hosts.iter().filter_map(Cma::next_wake).chain(acts).chain(in_transit).min()
    }

    fn deliver(&mut self) {
        while self.in_transit.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((at, _, to, Ends(from, own), bytes))) = self.in_transit.pop() else {
                return;
            };
            for byte in at.to_le_bytes().iter().chain(&bytes) {
                self.outcome.trace =
                    (self.outcome.trace ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            self.hosts[to].receive(self.now, 0, &Addressing::roce(from, own), &bytes);
            self.run_to_idle();
        }
    }

    fn act(&mut self) {
        while self.acts.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, act))) = self.acts.pop() else { return };
            match act {
                Act::Start => self.start(),
                Act::Answer(host, id) => self.answer(host, id),
                Act::Disconnect(host, id) => self.disconnect(host, id),
                Act::Destroy(host, id) => self.destroy(host, id),
            }
            self.run_to_idle();
        }
    }

    fn start(&mut self) {
        let (host, peer) = (self.prng.below(3) as usize, self.prng.below(3) as usize);
        let id = self.hosts[host].create(PortSpace::TCP, QpType::RC).expect("an id");
        let destination = Address::Ip(SocketAddr::new(ip(peer).into(), PORT + peer as u16));
        let target = Target { source: None, destination, timeout_ms: 2000 };
        self.hosts[host].resolve_addr(self.now, id, &target, &Stack(host)).expect("a route");
        let attempt = self.outcome.attempts;
        self.outcome.attempts += 1;
        self.views.insert((host, id), View { attempt, seen: Seen::Resolving });
        if self.prng.chance(100_000) {
            self.plan(30 * SECOND, Act::Destroy(host, id));
        }
    }

    fn answer(&mut self, host: usize, id: CmaId) {
        let Some(view) = self.views.get(&(host, id)).copied() else { return };
        if view.seen != Seen::Asked {
            return;
        }
        let param = param(view.attempt, self.prng.below(1 << 24) as u32);
        match self.prng.below(4) {
            0 => {
                let refused = self.hosts[host].reject(self.now, id, 28, &[7; 148]);
                self.outcome.refused += u32::from(refused.is_ok());
                self.destroy(host, id);
            }
            _ => match self.hosts[host].accept(self.now, id, Some(&param), Ece::default()) {
                Ok(()) => {
                    self.outcome.accepted += 1;
                    self.set_seen(host, id, Seen::Accepted);
                }
                // The peer gave up meanwhile.
                Err(_) => self.destroy(host, id),
            },
        }
    }

    fn disconnect(&mut self, host: usize, id: CmaId) {
        if self.views.contains_key(&(host, id)) {
            self.hosts[host].disconnect(self.now, id).expect("it had a request");
            // The id of a connection that has already ended is destroyed later, too.
            self.plan(100 * SECOND, Act::Destroy(host, id));
        }
    }

    fn destroy(&mut self, host: usize, id: CmaId) {
        if self.views.remove(&(host, id)).is_some() {
            self.hosts[host].destroy(self.now, id);
        }
    }

    fn set_seen(&mut self, host: usize, id: CmaId, seen: Seen) {
        self.views.get_mut(&(host, id)).expect("known").seen = seen;
    }

    /// Handles all events, and sends all datagrams.
    fn run_to_idle(&mut self) {
        for host in 0..HOSTS {
            while let Some(event) = self.hosts[host].take_event() {
                self.handle(host, &event);
            }
            while let Some((_, out)) = self.hosts[host].take_mad() {
                assert_eq!(out.addressing.source, Gid::from_ipv4(ip(host)));
                self.transmit(&out.addressing, out.mad.as_bytes());
            }
        }
    }

    fn transmit(&mut self, addressing: &Addressing, bytes: &[u8]) {
        let Some(to) = addressing.destination.to_ipv4().and_then(|v4| host_of(v4.into())) else {
            panic!("to a host");
        };
        let dropped = self.prng.chance(self.faults.drop);
        let copies = 1 + u64::from(self.prng.chance(self.faults.duplicate));
        for _ in 0..if dropped { 0 } else { copies } {
            let at = self.now + self.prng.within(1, self.faults.delay) * 1_000_000;
            self.order += 1;
            let route = Ends(addressing.source, addressing.destination);
            self.in_transit.push(Reverse((at, self.order, to, route, bytes.to_vec())));
        }
    }

    fn handle(&mut self, host: usize, event: &CmaEvent) {
        let id = event.id;
        if event.event == EventType::CONNECT_REQUEST {
            return self.on_request(host, event);
        }
        let view = *self.views.get(&(host, id)).expect("an id that is not destroyed");
        let (may_be, seen) = step(event.event);
        assert!(may_be.contains(&view.seen), "{} after {:?}", event.event, view.seen);
        match event.event {
            EventType::REJECTED | EventType::UNREACHABLE | EventType::TIMEWAIT_EXIT => {
                self.on_end(host, event);
            }
            EventType::DISCONNECTED => self.on_disconnect(host, event),
            _ => self.go_on(host, event, view.attempt),
        }
        self.set_seen(host, id, seen);
    }

    /// Takes the next step towards a connection, and plans the connection's end.
    fn go_on(&mut self, host: usize, event: &CmaEvent, attempt: u32) {
        let (id, now) = (event.id, self.now);
        let cma = &mut self.hosts[host];
        match event.event {
            EventType::ADDR_RESOLVED => return cma.resolve_route(id, 2000).expect("resolved"),
            EventType::ROUTE_RESOLVED => {
                let param = param(attempt, self.prng.below(1 << 24) as u32);
                let connects = cma.connect(now, id, &param, Ece::default(), &Stack(host));
                return connects.expect("a route");
            }
            EventType::CONNECT_RESPONSE => {
                assert_eq!(attempt_of(&event.payload, 196), attempt);
                cma.accept(now, id, None, Ece::default()).expect("a reply");
                self.outcome.established += 1;
            }
            _ => {}
        }
        self.plan(10 * SECOND, Act::Disconnect(host, id));
    }

    fn on_end(&mut self, host: usize, event: &CmaEvent) {
        match event.event {
            EventType::REJECTED => {
                self.outcome.rejected += 1;
                assert!([4, 10, 28].contains(&event.status), "status {}", event.status);
            }
            EventType::UNREACHABLE => {
                self.outcome.unreachable += 1;
                assert_eq!(event.status, -libc::ETIMEDOUT);
            }
            _ => {}
        }
        self.plan(SECOND, Act::Destroy(host, event.id));
    }

    fn on_disconnect(&mut self, host: usize, event: &CmaEvent) {
        self.outcome.disconnected += 1;
        assert!([0, -libc::ETIMEDOUT].contains(&event.status));
        let cma = &mut self.hosts[host];
        assert_eq!(cma.state(event.id), Some(CmaState::Disconnect));
        cma.disconnect(self.now, event.id).expect("it had a request");
    }

    fn on_request(&mut self, host: usize, event: &CmaEvent) {
        let attempt = attempt_of(&event.payload, 56);
        assert!(attempt < self.outcome.attempts);
        self.outcome.again += u32::from(!self.asked.insert(attempt));
        let asked = self.hosts[host].query_addr(event.id).expect("an id");
        let own = Address::read(&asked.src_addr).expect("an address");
        assert_eq!(own, Address::Ip(SocketAddr::new(ip(host).into(), PORT + host as u16)));
        self.views.insert((host, event.id), View { attempt, seen: Seen::Asked });
        self.plan(6 * SECOND, Act::Answer(host, event.id));
    }

    /// Destroys the remaining ids, and checks that all tables are empty.
    fn finish(mut self) -> Outcome {
        let left: Vec<(usize, CmaId)> = self.views.keys().copied().collect();
        left.into_iter().for_each(|(host, id)| self.destroy(host, id));
        for (host, mut cma) in self.hosts.into_iter().enumerate() {
            cma.destroy(self.now, CmaId(0));
            assert_eq!(cma.id_count(), 0, "host {host}");
            assert_eq!(cma.engine(0).map(|engine| engine.id_count()), Some(0), "host {host}");
        }
        self.outcome
    }
}

fn new_host(host: usize, seed: u64) -> Cma {
    let mut cma = Cma::new(CmaConfig { seed: Some(seed), ..CmaConfig::default() });
    let gid = Gid::from_ipv4(ip(host));
    cma.add_device(
        DeviceInfo {
            node_guid: (0x0002_c903_0000_0000 + host as u64).to_be_bytes(),
            gids: vec![GidSlot { gid, is_default_type: true }],
            mtu: 3,
            ack_delay: 16,
            ..DeviceInfo::default()
        },
        Some(seed ^ 1),
    );
    let listener = cma.create(PortSpace::TCP, QpType::RC).expect("an id");
    let own = if host == 0 { Ipv4Addr::UNSPECIFIED } else { ip(host) };
    let address = Address::Ip(SocketAddr::new(own.into(), PORT + host as u16));
    cma.bind(listener, address, false, &Stack(host)).expect("free");
    cma.listen(listener, &Stack(host)).expect("bound");
    cma
}

fn param(attempt: u32, qp_num: u32) -> ConnParam {
    let mut param = ConnParam {
        qp_num,
        private_data_len: 56,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..ConnParam::default()
    };
    param.private_data[..4].copy_from_slice(&attempt.to_le_bytes());
    param
}

fn attempt_of(payload: &Payload, len: u8) -> u32 {
    let Payload::Conn(conn) = payload else { panic!("of a connection") };
    assert_eq!(conn.private_data_len, len, "the message's field");
    assert_eq!((conn.responder_resources, conn.initiator_depth), (5, 3), "mirrored");
    let mut attempt = [0; 4];
    attempt.copy_from_slice(&conn.private_data[..4]);
    u32::from_le_bytes(attempt)
}

fn runs() -> u64 {
    seeds::runs(15)
}

fn run(seed: u64, faults: Faults) -> Outcome {
    seeds::print_if_panics(seed, || World::new(seed, faults).run())
}

#[test]
fn every_id_gets_the_events_of_its_answer_on_a_good_network() {
    for seed in 0..runs() {
        let outcome = run(seed, GOOD);
        // A client whose request was refused does not answer the reply to the repeated request.
        assert!(outcome.unreachable <= outcome.again, "seed {seed}: {outcome:?}");
        assert!(outcome.established <= outcome.accepted, "seed {seed}: {outcome:?}");
        let ends = outcome.established + outcome.rejected;
        assert!(ends <= outcome.attempts && ends + 4 > outcome.attempts, "{seed}: {outcome:?}");
    }
}

#[test]
fn every_id_gets_only_allowed_events_on_a_terrible_network() {
    let total: u32 = (2000..2000 + runs()).map(|seed| run(seed, HARSH).established).sum();
    assert!(u64::from(total) > runs(), "{total} connections only");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(2007, HARSH), run(2007, HARSH));
    assert_ne!(run(2007, HARSH).trace, run(2008, HARSH).trace);
}

/// The IP stack of a host whose neighbours all answer (`true`), or all do not.
struct OneAnswer(Stack, bool);

impl Addresses for OneAnswer {
    fn interface_of(&self, address: IpAddr) -> Result<Interface, CmaError> {
        self.0.interface_of(address)
    }

    fn route(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
        space: PortSpace,
    ) -> Result<Route, CmaError> {
        self.0.route(source, to, space)
    }

    fn answers(&self, _: u64, _: usize, _: &Addressing) -> bool {
        self.1
    }
}

/// Before it repeats a request, the client checks whether the peer still exists. A silent peer that
/// exists gets all repetitions.
#[test]
fn a_request_to_a_peer_that_ended_is_not_repeated() {
    for is_there in [true, false] {
        let mut cma = new_host(0, 1);
        let id = cma.create(PortSpace::TCP, QpType::RC).expect("an id");
        let destination = Address::Ip(SocketAddr::new(ip(1).into(), PORT));
        let target = Target { source: None, destination, timeout_ms: 2000 };
        cma.resolve_addr(0, id, &target, &OneAnswer(Stack(0), true)).expect("a route");
        cma.resolve_route(id, 2000).expect("resolved");
        cma.connect(0, id, &param(1, 7), Ece::default(), &Stack(0)).expect("asked");
        while cma.take_event().is_some() {}
        let repeated = cma.next_wake().expect("a repetition");
        cma.step(repeated, &OneAnswer(Stack(0), is_there));
        let event = cma.take_event().map(|event| event.event);
        assert_eq!(event, (!is_there).then_some(EventType::REJECTED));
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = seeds::single() {
        println!("{:?}", run(seed, if seed < 1000 { GOOD } else { HARSH }));
    }
}
