//! Random programs on random queue pairs, and a model that executes the same operations on plain
//! bytes.

use std::collections::VecDeque;

use uverbs_mlx5_format::{CqeOpcode, Opcode};
use uverbs_soft::core::{CoreConfig, Mtu, Qpn};
use uverbs_soft::fault::FaultPlan;
use uverbs_soft::prng::Prng;
use uverbs_soft::sim::World;

use super::{Cq, Data, Done, Host, Qp, Region, Request};

/// Bytes of random data that requests send from.
const SOURCE: usize = 8192;
/// Bytes that one end may write in its peer's memory.
const TARGET: usize = 8192;
/// Longest message.
const MESSAGE: usize = 5000;
/// Counters in every host's memory that all queue pairs add to.
const COUNTERS: usize = 4;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) hosts: usize,
    pub(crate) pairs: usize,
    /// Requests per end.
    pub(crate) requests: usize,
    pub(crate) faults: [u32; 5],
}

/// One end of a connection: its queue pair, its memory, and the expected content at the end of the
/// run.
struct End {
    host: usize,
    peer: usize,
    qp: Qp,
    source: Region,
    /// The memory that the peer may write. The peer's `target` has the expected content.
    exposed: Region,
    /// The memory for results of READs and atomics of this end, one slot after the other.
    landing: Region,
    landed: Vec<u8>,
    /// Receive buffers, each used once.
    inbox: Region,
    posted_receives: usize,
    /// The expected content of the peer's exposed memory, with all writes of this end.
    target: Vec<u8>,
    /// READs of the target that no fence has separated from later writes.
    unfenced_read: bool,
    /// Messages to the peer: bytes, immediate data, and the opcode of the peer's completion.
    messages: Vec<(Vec<u8>, u32, CqeOpcode)>,
    received: usize,
    /// Signaled requests not yet completed, in order: index, opcode, blocks up to and including.
    outstanding: VecDeque<(u16, CqeOpcode, u16)>,
    /// Send ring blocks in use, and those of requests since the last signaled one.
    used: u16,
    unsignaled: u16,
    requests: usize,
}

/// A world with its programs.
pub(crate) struct Run {
    pub(crate) world: World,
    hosts: Vec<Host>,
    cqs: Vec<Cq>,
    ends: Vec<End>,
    counters: Vec<Region>,
    sums: Vec<[u64; COUNTERS]>,
    prng: Prng,
    requests: usize,
}

impl Run {
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        let mut prng = Prng::new(seed);
        let mut world = World::new(prng.next());
        let [drop, duplicate, corrupt, reorder, delay] = shape.faults;
        let plan = FaultPlan {
            seed,
            drop,
            duplicate,
            corrupt,
            reorder,
            delay,
            delay_range: (1_000, 300_000),
            ..FaultPlan::default()
        };
        let (mut hosts, mut cqs, mut counters) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..shape.hosts {
            // Enough even if every end is on this host.
            let end = 2 * MESSAGE * shape.requests + SOURCE + TARGET + (32 << 10);
            let memory = Host::memory((1 << 20) + 2 * shape.pairs * end);
            let node = world.add(CoreConfig::default(), memory.clone(), plan.clone()).unwrap();
            let mut host = Host::new(&mut world, node, memory);
            cqs.push(host.cq(&mut world));
            counters.push(host.region(&mut world, COUNTERS as u64 * 8));
            hosts.push(host);
        }
        let sums = vec![[0; COUNTERS]; shape.hosts];
        let (ends, requests) = (Vec::new(), shape.requests);
        let mut run = Self { world, hosts, cqs, ends, counters, sums, prng, requests };
        (0..shape.pairs).for_each(|_| run.connect());
        run
    }

    fn connect(&mut self) {
        let first = self.ends.len();
        for peer in [first + 1, first] {
            let host = self.prng.below(self.hosts.len() as u64) as usize;
            let end = self.end(host, peer);
            self.ends.push(end);
        }
        let mtus = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];
        let mtu = mtus[self.prng.below(5) as usize];
        for [here, there] in [[first, first + 1], [first + 1, first]] {
            let gid = self.world.station(self.ends[there].host).gid();
            let peer = (gid, self.ends[there].qp.qpn);
            let end = &self.ends[here];
            self.hosts[end.host].connect(&mut self.world, &end.qp, peer, mtu);
        }
    }

    fn end(&mut self, index: usize, peer: usize) -> End {
        let (host, world) = (&mut self.hosts[index], &mut self.world);
        let qp = host.qp(world, &self.cqs[index]);
        // The result of an atomic is stored after the source of requests.
        let source = host.region(world, SOURCE as u64 + 8);
        let bytes: Vec<u8> = (0..SOURCE).map(|_| self.prng.next() as u8).collect();
        host.write(source.address, &bytes);
        End {
            host: index,
            peer,
            qp,
            source,
            exposed: host.region(world, TARGET as u64),
            landing: host.region(world, (MESSAGE * self.requests) as u64),
            landed: Vec::new(),
            inbox: host.region(world, (MESSAGE * self.requests) as u64),
            posted_receives: 0,
            target: vec![0; TARGET],
            unfenced_read: false,
            messages: Vec::new(),
            received: 0,
            outstanding: VecDeque::new(),
            used: 0,
            unsignaled: 0,
            requests: 0,
        }
    }

    /// Posts everything in random portions while the world runs, then waits for the end.
    pub(crate) fn run(&mut self) {
        while self.ends.iter().any(|end| end.requests < self.requests) {
            let at = self.prng.below(self.ends.len() as u64) as usize;
            match self.prng.below(4) {
                0 => self.post_receives(at, 3),
                1 | 2 => self.post_requests(at),
                _ => self.poll(),
            }
            for _ in 0..self.prng.below(40) {
                self.world.step();
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        // Receive rings are shorter than the list of messages, so they are refilled until all
        // have arrived.
        for _ in 0..1000 {
            (0..self.ends.len()).for_each(|at| self.post_receives(at, self.requests));
            assert!(self.world.run_until_quiet(2_000_000), "the devices never come to rest");
            self.poll();
            if self.ends.iter().all(|end| end.outstanding.is_empty())
                && (0..self.ends.len()).all(|at| self.ends[at].received == self.expected(at).len())
            {
                return;
            }
        }
        for (at, end) in self.ends.iter().enumerate() {
            let (received, expected) = (end.received, self.expected(at).len());
            if !end.outstanding.is_empty() || received != expected {
                eprintln!(
                    "end {at} (host {}, {:?}): {:?} outstanding, {received} of {expected} messages",
                    end.host, end.qp.qpn, end.outstanding
                );
            }
        }
        for node in 0..self.hosts.len() {
            eprintln!("host {node}: {:?}", self.world.take_events(node));
        }
        panic!("requests or messages are missing");
    }

    fn expected(&self, at: usize) -> &[(Vec<u8>, u32, CqeOpcode)] {
        &self.ends[self.ends[at].peer].messages
    }

    fn post_receives(&mut self, at: usize, most: usize) {
        let end = &mut self.ends[at];
        let room = Host::RECEIVES - (end.posted_receives - end.received);
        let left = self.requests - end.posted_receives;
        for _ in 0..room.min(left).min(most) {
            let address = end.inbox.address + (end.posted_receives * MESSAGE) as u64;
            let host = &self.hosts[end.host];
            host.post_receive(&mut end.qp, address, MESSAGE as u32, end.inbox.key);
            end.posted_receives += 1;
        }
    }

    fn post_requests(&mut self, at: usize) {
        let count = self.prng.within(1, 6);
        for _ in 0..count {
            // A request has at most four blocks.
            if self.ends[at].requests == self.requests || self.ends[at].used + 4 > Host::SEND_BLOCKS
            {
                break;
            }
            self.post_request(at);
        }
        let end = &self.ends[at];
        self.hosts[end.host].ring(&mut self.world, &end.qp);
    }

    fn post_request(&mut self, at: usize) {
        self.ends[at].requests += 1;
        // Unsignaled requests must not fill the ring, and the last request must be signaled.
        let last = self.ends[at].requests == self.requests;
        let signaled = last || self.ends[at].unsignaled > 40 || self.prng.below(2) == 0;
        let (request, done) = match self.prng.below(8) {
            0 | 1 => self.send(at),
            2 | 3 => self.write(at),
            4 | 5 => self.read(at),
            6 => self.fetch_add(at),
            _ => (nop(), CqeOpcode::REQUESTER),
        };
        let request = Request { signaled, ..request };
        let end = &mut self.ends[at];
        let index = self.hosts[end.host].post(&mut end.qp, &request);
        end.used += request.blocks();
        end.unsignaled += request.blocks();
        if signaled {
            end.outstanding.push_back((index, done, end.unsignaled));
            end.unsignaled = 0;
        }
    }

    /// Random parts of the source, and their bytes.
    fn gather(&mut self, at: usize, limit: usize) -> (Data, Vec<u8>) {
        let (host, source) = (self.ends[at].host, self.ends[at].source);
        let len = match self.prng.below(4) {
            0 => self.prng.below(8),
            1 => self.prng.below(200),
            _ => self.prng.below(limit as u64 + 1),
        };
        let pieces = self.prng.within(1, 3);
        let (mut list, mut bytes) = (Vec::new(), Vec::new());
        for piece in 0..pieces {
            let part = (len * (piece + 1) / pieces - len * piece / pieces) as u32;
            // A data segment of length 0 means 2^31 bytes.
            if part != 0 {
                let from = source.address + self.prng.below(SOURCE as u64 - u64::from(part) + 1);
                list.push((from, part, source.key));
                bytes.extend(self.hosts[host].read(from, part as usize));
            }
        }
        match bytes.len() <= 100 && self.prng.below(2) == 0 {
            true => (Data::Inline(bytes.clone()), bytes),
            false => (Data::Gather(list), bytes),
        }
    }

    fn send(&mut self, at: usize) -> (Request, CqeOpcode) {
        let (data, bytes) = self.gather(at, MESSAGE);
        let with_immediate = self.prng.below(2) == 0;
        let immediate = if with_immediate { self.prng.next() as u32 } else { 0 };
        let (opcode, arrives) = match with_immediate {
            true => (Opcode::SEND_IMMEDIATE, CqeOpcode::RESPONDER_SEND_IMMEDIATE),
            false => (Opcode::SEND, CqeOpcode::RESPONDER_SEND),
        };
        self.ends[at].messages.push((bytes, immediate, arrives));
        (Request { opcode, immediate, data, ..nop() }, CqeOpcode::REQUESTER)
    }

    fn write(&mut self, at: usize) -> (Request, CqeOpcode) {
        let (data, bytes) = self.gather(at, MESSAGE);
        let offset = self.prng.below((TARGET - bytes.len()) as u64 + 1) as usize;
        let with_immediate = self.prng.below(3) == 0;
        let immediate = if with_immediate { self.prng.next() as u32 } else { 0 };
        let exposed = self.ends[self.ends[at].peer].exposed;
        let end = &mut self.ends[at];
        end.target[offset..offset + bytes.len()].copy_from_slice(&bytes);
        let mut opcode = Opcode::RDMA_WRITE;
        if with_immediate {
            opcode = Opcode::RDMA_WRITE_IMMEDIATE;
            end.messages.push((Vec::new(), immediate, CqeOpcode::RESPONDER_WRITE_IMMEDIATE));
        }
        // A repeated READ may see later writes, unless a fence is in between.
        let fence = std::mem::take(&mut end.unfenced_read);
        let remote = Some((exposed.address + offset as u64, exposed.key));
        (Request { opcode, immediate, fence, remote, data, ..nop() }, CqeOpcode::REQUESTER)
    }

    fn read(&mut self, at: usize) -> (Request, CqeOpcode) {
        let len = self.prng.within(1, MESSAGE as u64) as usize;
        let offset = self.prng.below((TARGET - len) as u64 + 1) as usize;
        let exposed = self.ends[self.ends[at].peer].exposed;
        let end = &mut self.ends[at];
        let to = end.landing.address + end.landed.len() as u64;
        end.landed.extend_from_slice(&end.target[offset..offset + len]);
        end.unfenced_read = true;
        let data = Data::Gather(vec![(to, len as u32, end.landing.key)]);
        let remote = Some((exposed.address + offset as u64, exposed.key));
        (Request { opcode: Opcode::RDMA_READ, remote, data, ..nop() }, CqeOpcode::REQUESTER)
    }

    /// The old value depends on other ends' additions; only the final sum is known.
    fn fetch_add(&mut self, at: usize) -> (Request, CqeOpcode) {
        let host = self.ends[self.ends[at].peer].host;
        let (which, addend) = (self.prng.below(COUNTERS as u64) as usize, self.prng.next());
        self.sums[host][which] = self.sums[host][which].wrapping_add(addend);
        let counter = self.counters[host];
        let source = self.ends[at].source;
        let to = (source.address + SOURCE as u64, 8, source.key);
        let request = Request {
            opcode: Opcode::ATOMIC_FETCH_ADD,
            remote: Some((counter.address + which as u64 * 8, counter.key)),
            atomic: Some((addend, 0)),
            data: Data::Gather(vec![to]),
            ..nop()
        };
        (request, CqeOpcode::REQUESTER)
    }

    fn poll(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(done) = self.hosts[host].poll(&mut self.cqs[host]) {
                let at = self.find(host, done.qpn);
                assert!(!done.opcode.is_error(), "end {at}: {done:?}");
                match done.opcode {
                    CqeOpcode::REQUESTER => self.completed(at, &done),
                    _ => self.arrived(at, &done),
                }
            }
        }
    }

    fn find(&self, host: usize, qpn: Qpn) -> usize {
        let mine = |end: &End| end.host == host && end.qp.qpn == qpn;
        self.ends.iter().position(mine).expect("a CQE of an unknown QP")
    }

    fn completed(&mut self, at: usize, done: &Done) {
        let end = &mut self.ends[at];
        let (index, opcode, blocks) = end.outstanding.pop_front().expect("nothing is outstanding");
        assert_eq!((done.index, done.opcode), (index, opcode), "out of order, or repeated");
        end.used -= blocks;
    }

    fn arrived(&mut self, at: usize, done: &Done) {
        let number = self.ends[at].received;
        let (bytes, immediate, opcode) = &self.expected(at)[number];
        assert_eq!(done.opcode, *opcode, "message {number} of end {at}");
        assert_eq!(done.index as usize, number % Host::RECEIVES, "receive ring slot");
        if *opcode != CqeOpcode::RESPONDER_SEND {
            assert_eq!(done.immediate, *immediate);
        }
        if *opcode != CqeOpcode::RESPONDER_WRITE_IMMEDIATE {
            assert_eq!(done.bytes as usize, bytes.len());
        }
        self.ends[at].received += 1;
    }

    /// Compares all memory with the model.
    pub(crate) fn verify(&mut self) {
        for (at, end) in self.ends.iter().enumerate() {
            let (host, peer) = (&self.hosts[end.host], &self.ends[end.peer]);
            let exposed = self.hosts[peer.host].read(peer.exposed.address, TARGET);
            assert!(exposed == end.target, "end {at}: memory that it wrote");
            let landed = host.read(end.landing.address, end.landed.len());
            assert!(landed == end.landed, "end {at}: results of its READs and atomics");
            for (number, (bytes, ..)) in peer.messages.iter().enumerate() {
                let address = end.inbox.address + (number * MESSAGE) as u64;
                assert!(host.read(address, bytes.len()) == *bytes, "end {at}: message {number}");
            }
        }
        for (host, sums) in self.sums.iter().enumerate() {
            for (which, sum) in sums.iter().enumerate() {
                let address = self.counters[host].address + which as u64 * 8;
                let bytes = self.hosts[host].read(address, 8).try_into().unwrap();
                assert_eq!(u64::from_ne_bytes(bytes), *sum, "host {host}, counter {which}");
            }
        }
    }
}

fn nop() -> Request {
    Request {
        opcode: Opcode::NOP,
        signaled: false,
        fence: false,
        immediate: 0,
        remote: None,
        atomic: None,
        data: Data::Gather(Vec::new()),
    }
}
