//! Random requests in random ways on small rings, against a model of the queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use uverbs_mlx5::format::{AddressVector, Opcode, U32};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::queue_state::QpState;
use uverbs_mlx5::request::{Immediate, PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, Batch, BindWindow, Carries, Datagram, EthernetOffload, EthernetSend,
    EthernetSendHeader, FetchAdd, Header, Inline, LocalInvalidate, Nop, Operation, Payload,
    RawEthernet, Rc, Read, RequestId, RunTimeDestination, RunTimeOperation, Send, SendImmediate,
    SendQueue, SendRequest, Steps, Takes, To, Transport, Ud, WindowAccess, WindowType, Write,
    framed, segmented,
};

use crate::device::{Cq, Cqe, Random, Sq, send_queue_of};
use uverbs_mlx5::queue_state::Shape;

const NO_START: u64 = 0xffff_ffff_9d3a_c571;

trait Visitor<T: Transport> {
    type Out;
    fn visit<O, P>(self, operation: O, payload: P) -> Self::Out
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload;
}

trait Kinds: Transport + Sized {
    fn kinds() -> usize;
    fn visit<V: Visitor<Self>>(kind: &Kind, visitor: V) -> V::Out;
    fn run_time<'a>(_: &'a Kind, _: &'a [Sge], _: PostFlags, _: u64) -> Option<SendRequest<'a>> {
        None
    }
}

#[derive(Clone, Debug)]
struct Kind {
    which: usize,
    data: Vec<u8>,
    sges: Vec<Sge>,
    remote: Remote,
    /// A made up number.
    number: u32,
    av: AddressVector,
}

impl Kind {
    fn random<T: Kinds>(random: &mut Random, most: usize) -> Self {
        let length = match random.below(4) {
            0 => random.below(32),
            1 => random.below(70),
            2 => 44 + random.below(3),
            _ => random.below(most + 1),
        };
        let number = random.below(1 << 20) as u32;
        let sges = (0..random.below(9))
            .map(|i| Sge::new(i as u64 * 64 + 5, (random.below(6) * 64) as u32, number))
            .collect();
        Self {
            which: random.below(T::kinds()),
            data: (0..length).map(|i| (i as u8).wrapping_add(number as u8) | 1).collect(),
            sges,
            remote: Remote::new(8 * random.below(1 << 30) as u64, random.below(1 << 20) as u32),
            number,
            av: AddressVector::default().for_datagram(number, 7),
        }
    }
}

impl Kinds for Rc {
    fn kinds() -> usize {
        12
    }
    fn visit<V: Visitor<Self>>(kind: &Kind, v: V) -> V::Out {
        let (remote, inline, sges) = (kind.remote, Inline(&kind.data), kind.sges.as_slice());
        let one = Sge::new(0x1234, kind.number, 9);
        match kind.which {
            0 => v.visit(Nop, ()),
            1 => v.visit(Send, inline),
            2 => v.visit(Write(remote), inline),
            3 => v.visit(Send, sges),
            4 => v.visit(Write(remote), sges),
            5 => v.visit(Read(remote), sges),
            6 => v.visit(SendImmediate(Immediate::from_u32(kind.number)), one),
            7 => v.visit(FetchAdd { remote, add: 3 }, AtomicResult { address: 8, lkey: 3 }),
            8 => v.visit(LocalInvalidate(kind.number), ()),
            9 => v.visit(
                BindWindow {
                    window: kind.number,
                    window_type: WindowType::Type2,
                    new_rkey: 2,
                    lkey: 3,
                    address: 4,
                    length: 5,
                    access: WindowAccess::REMOTE_READ,
                    zero_based: false,
                },
                (),
            ),
            10 => v.visit(Write(remote), one),
            _ => v.visit(Send, ()),
        }
    }
    fn run_time<'a>(
        kind: &'a Kind,
        own: &'a [Sge],
        flags: PostFlags,
        wr_id: u64,
    ) -> Option<SendRequest<'a>> {
        use RunTimeOperation as O;
        let (operation, inline, data): (_, _, &'a [Sge]) = match kind.which {
            0 => (O::Nop, false, &[]),
            1 => (O::Send, true, own),
            2 => (O::Write(kind.remote), true, own),
            3 => (O::Send, false, &kind.sges),
            4 => (O::Write(kind.remote), false, &kind.sges),
            5 => (O::Read(kind.remote), false, &kind.sges),
            8 => (O::LocalInvalidate(kind.number), false, &[]),
            _ => return None,
        };
        let destination = RunTimeDestination::Connected;
        Some(SendRequest { wr_id, operation, destination, flags, inline, data })
    }
}

impl Kinds for Ud {
    fn kinds() -> usize {
        5
    }
    fn visit<V: Visitor<Self>>(kind: &Kind, v: V) -> V::Out {
        let (inline, sges) = (Inline(&kind.data), kind.sges.as_slice());
        let one = Sge::new(0x1234, kind.number, 9);
        let send = To(Datagram(&kind.av), Send);
        match kind.which {
            0 => v.visit(Nop, ()),
            1 => v.visit(send, inline),
            2 => v.visit(send, sges),
            3 => v.visit(send, one),
            _ => v.visit(send, ()),
        }
    }
    fn run_time<'a>(
        kind: &'a Kind,
        own: &'a [Sge],
        flags: PostFlags,
        wr_id: u64,
    ) -> Option<SendRequest<'a>> {
        use RunTimeOperation as O;
        let (operation, inline, data): (_, _, &'a [Sge]) = match kind.which {
            1 => (O::Send, true, own),
            2 => (O::Send, false, &kind.sges),
            4 => (O::Send, false, &[]),
            _ => return None,
        };
        let destination = RunTimeDestination::Datagram(&kind.av);
        Some(SendRequest { wr_id, operation, destination, flags, inline, data })
    }
}

impl Kinds for RawEthernet {
    fn kinds() -> usize {
        7
    }
    fn visit<V: Visitor<Self>>(kind: &Kind, v: V) -> V::Out {
        let (inline, sges) = (Inline(&kind.data), kind.sges.as_slice());
        let offload = EthernetOffload { metadata: kind.number, ..Default::default() };
        let start = [&[7; 18][..], &kind.data[..kind.data.len().min(180)]].concat();
        let header = [5; 18];
        match kind.which {
            0 => v.visit(Nop, ()),
            1 => v.visit(EthernetSend(offload), sges),
            2 => v.visit(EthernetSendHeader(offload, &header), sges),
            3 => v.visit(EthernetSendHeader(offload, &header), inline),
            4 => {
                let (operation, data) = segmented(offload, 1460, &start, sges);
                v.visit(operation, data)
            }
            5 => {
                let (operation, data) = framed(offload, &start, ());
                v.visit(operation, data)
            }
            _ => {
                let (operation, data) = framed(offload, &start, Sge::new(1, 2, 3));
                v.visit(operation, data)
            }
        }
    }
}

/// Encodes on a scratch queue.
struct Reference<'s, T: Transport>(&'s mut Sq<T>, PostFlags);

impl<T: Transport> Visitor<T> for Reference<'_, T> {
    type Out = (Vec<u8>, bool);
    fn visit<O, P>(self, operation: O, payload: P) -> Self::Out
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self(sq, flags) = self;
        let encoded = |sq: &mut Sq<T>| {
            sq.ring.write(0, &[0; 16 * 64]);
            let mut batch = sq.queue.batch().expect("ready");
            // SAFETY: no device reads the data.
            unsafe { batch.build(1, operation, payload, flags) }.expect("space");
            let blocks = batch.head();
            batch.abort();
            let bytes = sq.ring.read(0, 64 * blocks as usize);
            let length = usize::from(bytes[7] & 63) * 16;
            assert_eq!(length.div_ceil(64), blocks as usize);
            // Behind inline data.
            let data_end = O::DATA_START + payload.copied();
            let is_inline = payload.copied() > 0 && data_end.next_multiple_of(16) == length;
            bytes[..if is_inline { data_end } else { length }].to_vec()
        };
        let bytes = encoded(sq);
        assert_eq!(bytes[3], O::OPCODE.0);
        (bytes, O::OPCODE == Opcode::UMR)
    }
}

/// An id whose taking panics.
#[derive(Clone, Copy)]
struct Panics;
impl RequestId for Panics {
    fn take(self) -> u64 {
        std::panic::resume_unwind(Box::new("taken"))
    }
}

struct Post<'s, T: Transport>(&'s mut SendQueue<T>, u64, PostFlags, usize);

enum Posted {
    Ok,
    Err(PostError),
    Panicked,
    Unsuitable,
}

impl From<Result<(), PostError>> for Posted {
    fn from(result: Result<(), PostError>) -> Self {
        result.map_or_else(Self::Err, |()| Self::Ok)
    }
}

impl<T: Transport> Visitor<T> for Post<'_, T> {
    type Out = Posted;
    fn visit<O, P>(self, operation: O, payload: P) -> Posted
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self(queue, id, flags, way) = self;
        macro_rules! template {
            ($n:literal) => {
                match queue.long_template::<$n, _, _>(operation, payload, flags) {
                    // SAFETY: no device reads the data.
                    Ok(template) => queue.post_template(id, &template).into(),
                    Err(_) => Posted::Unsuitable,
                }
            };
        }
        // SAFETY: no device reads the data.
        unsafe {
            match way {
                0 => queue.post(id, operation, payload, flags).into(),
                1 => match queue.post_fast(id, operation, payload, flags) {
                    true => Posted::Ok,
                    false => queue.post_any(id, operation, payload, flags).into(),
                },
                2 => {
                    let run = || queue.post_as(Panics, operation, payload, flags);
                    match catch_unwind(AssertUnwindSafe(run)) {
                        Ok(Ok(())) => panic!("the id was not taken"),
                        Ok(Err(error)) => Posted::Err(error),
                        Err(_) => Posted::Panicked,
                    }
                }
                3 => template!(1),
                4 => template!(2),
                5 => template!(3),
                6 => template!(4),
                _ => template!(6),
            }
        }
    }
}

struct Build<'s, 'q, T: Transport>(&'s mut Batch<'q, T, BlueFlame>, u64, PostFlags, usize);

impl<T: Transport> Visitor<T> for Build<'_, '_, T> {
    type Out = Posted;
    fn visit<O, P>(self, operation: O, payload: P) -> Posted
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self(batch, id, flags, way) = self;
        // SAFETY: no device reads the data.
        unsafe {
            match way {
                0 | 1 => batch.build(id, operation, payload, flags).into(),
                _ => match batch.build_fast(id, operation, payload, flags) {
                    true => Posted::Ok,
                    false => batch.build_any(id, operation, payload, flags).into(),
                },
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Request {
    start: u32,
    blocks: u32,
    wr_id: u64,
    /// Without padding.
    bytes: Vec<u8>,
    fences: bool,
}

struct World<T: Kinds> {
    cq: Cq,
    sq: Sq<T>,
    scratch: Sq<T>,
    ring: u32,
    most: usize,
    half: u32,
    random: Random,
    head: u32,
    published: u32,
    rung: bool,
    /// Of the request before the head.
    fence: bool,
    in_flight: VecDeque<Request>,
    next_id: u64,
    full: u32,
    posted: u64,
    panicked: u32,
    lies: bool,
    straight: u32,
    log: VecDeque<String>,
}

impl<T: Kinds> World<T> {
    fn new(ring: u32, most: u32, half: u32, head: u32, seed: u64) -> Self {
        let cq = Cq::new(64, 64);
        let shape = Shape { send_wqebbs: ring, recv_wqes: 0, shared_receive: false };
        let handle = cq.table.register(shape, &cq.monitors(), None, 0xc0ffee).expect("an index");
        handle.set_number(0x1a2b3c);
        handle.set_state(QpState::Rts);
        let mut sq = send_queue_of(handle, [ring, most], half, false);
        // SAFETY: nothing was posted.
        unsafe { sq.queue.continue_at(head, false) };
        let shape = Shape { send_wqebbs: 64, recv_wqes: 0, shared_receive: false };
        let handle = cq.table.register(shape, &cq.monitors(), None, 0).expect("an index");
        handle.set_number(0x1a2b3c);
        handle.set_state(QpState::Rts);
        let scratch = send_queue_of(handle, [64, 64], 256, false);
        Self {
            cq,
            sq,
            scratch,
            ring,
            most: most as usize,
            half,
            random: Random::new(seed * 0x9e37_79b9 + 1),
            head,
            published: head,
            rung: false,
            fence: false,
            in_flight: VecDeque::new(),
            next_id: 1,
            full: 0,
            posted: 0,
            panicked: 0,
            lies: true,
            straight: 0,
            log: VecDeque::new(),
        }
    }

    fn note(&mut self, what: String) {
        self.log.push_back(what);
        if self.log.len() > 12 {
            self.log.pop_front();
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        if self.random.below(16) == 0 { NO_START } else { self.next_id }
    }

    fn flags(&mut self) -> PostFlags {
        let flags =
            [PostFlags::empty(), PostFlags::SIGNALED, PostFlags::FENCE, PostFlags::SOLICITED];
        flags[self.random.below(4)]
    }

    /// The request as it is to be at `head`, and whether there is space.
    fn expect(
        &mut self,
        kind: &Kind,
        flags: PostFlags,
        wr_id: u64,
        at: (u32, bool),
        built: &[Request],
    ) -> (Request, bool) {
        let (mut bytes, fences) = T::visit(kind, Reference(&mut self.scratch, flags));
        bytes[1..3].copy_from_slice(&(at.0 as u16).to_be_bytes());
        bytes[4..7].copy_from_slice(&0x1a2b3c_u32.to_be_bytes()[1..]);
        if at.1 && bytes[11] & 0xe0 == 0 {
            bytes[11] |= 0x20;
        }
        let blocks = bytes.len().div_ceil(64) as u32;
        let used: u32 = self.in_flight.iter().chain(built).map(|request| request.blocks).sum();
        let count = self.in_flight.len() + built.len();
        let fits = used + blocks <= self.ring && count < self.most;
        (Request { start: at.0, blocks, wr_id, bytes, fences }, fits)
    }

    fn read(&self, start: u32, len: usize) -> Vec<u8> {
        let size = self.ring as usize * 64;
        let at = (start as usize * 64) % size;
        let ring = self.sq.ring.read(0, size);
        (0..len).map(|i| ring[(at + i) % size]).collect()
    }

    fn take(&mut self, request: Request) {
        self.head = request.start.wrapping_add(request.blocks);
        self.fence = request.fences;
        self.posted += 1;
        self.in_flight.push_back(request);
    }

    fn publish(&mut self) {
        if self.published != self.head {
            self.rung = true;
        }
        self.published = self.head;
    }

    fn check(&mut self) {
        assert_eq!(self.sq.queue.head(), self.head, "{:#?}", self.log);
        assert_eq!(
            self.sq.queue.unpublished_blocks(),
            self.head.wrapping_sub(self.published),
            "{:#?}",
            self.log
        );
        let record = if self.rung { self.published & 0xffff } else { 0 };
        assert_eq!(self.sq.record.word(4), record, "{:#?}", self.log);
        // Two laps, so that no request ends behind them.
        let size = self.ring as usize * 64;
        let laps = self.sq.ring.read(0, size).repeat(2);
        for request in &self.in_flight {
            let at = (request.start as usize * 64) % size;
            let now = &laps[at..at + request.bytes.len()];
            assert_eq!(now, request.bytes, "{request:?} {:#?}", self.log);
        }
        if self.random.below(50) == 0 {
            let mut ids = Vec::new();
            self.sq.queue.for_each_outstanding(|id| ids.push(id));
            let wanted: Vec<u64> = self.in_flight.iter().map(|request| request.wr_id).collect();
            assert_eq!(ids, wanted, "{:#?}", self.log);
        }
        if self.random.below(50) == 0 {
            let used: u32 = self.in_flight.iter().map(|request| request.blocks).sum();
            assert_eq!(self.sq.queue.free_blocks(), self.ring - used, "{:#?}", self.log);
        }
        if self.random.below(50) == 0 {
            let free = self.most - self.in_flight.len();
            assert_eq!(self.sq.queue.free_requests() as usize, free, "{:#?}", self.log);
        }
    }

    /// Whether one of the halves begins with the last published request.
    fn check_register(&mut self, single: bool) {
        let last = self.in_flight.back().expect("one").clone();
        let halves = if self.half == 0 { vec![0] } else { vec![0, self.half as usize] };
        let copied = single && last.blocks * 64 <= self.half;
        let length = if copied { last.bytes.len() } else { 8 };
        let found =
            halves.iter().any(|at| self.sq.register.read(*at, length) == last.bytes[..length]);
        assert!(found, "copied {copied}: {last:?} {:#?}", self.log);
    }

    fn single(&mut self) {
        let kind = Kind::random::<T>(&mut self.random, 200);
        let (flags, id) = (self.flags(), self.id());
        let way = self.random.below(10);
        let (request, fits) = self.expect(&kind, flags, id, (self.head, self.fence), &[]);
        let before = self.read(0, self.ring as usize * 64);
        let was_unpublished = self.head != self.published;
        self.note(format!("single {way} {kind:?} at {:#x} {fits}", self.head));
        let mut runs = false;
        let posted = if way >= 8 {
            let own =
                Sge::new(kind.data.as_ptr().expose_provenance() as u64, kind.data.len() as u32, 7);
            let own = [own];
            match T::run_time(&kind, &own, flags, id) {
                // SAFETY: no device reads the data; inline data is there.
                Some(wr) if way == 8 => {
                    runs = true;
                    unsafe { self.sq.queue.post_request(&wr) }.into()
                }
                Some(wr) => {
                    runs = true;
                    // SAFETY: as above.
                    let done = unsafe { self.sq.queue.post_list([wr]) };
                    done.map_err(|error| {
                        assert_eq!(error.index, 0);
                        error.reason
                    })
                    .into()
                }
                None => Posted::Unsuitable,
            }
        } else {
            T::visit(&kind, Post(&mut self.sq.queue, id, flags, way))
        };
        match posted {
            Posted::Unsuitable => return,
            Posted::Panicked => {
                assert!(fits, "{:#?}", self.log);
                self.panicked += 1;
            }
            Posted::Ok => {
                assert!(fits, "{:#?}", self.log);
                self.take(request);
                self.publish();
                self.check();
                self.check_register(!was_unpublished);
            }
            Posted::Err(error) => {
                assert_eq!(error, PostError::Full, "{:#?}", self.log);
                assert!(!fits, "{:#?} {:?}", self.log, self.in_flight);
                assert_eq!(self.read(0, self.ring as usize * 64), before);
                self.full += 1;
                if runs {
                    // It rings for what was built before.
                    self.publish();
                }
            }
        }
        self.check();
    }

    /// A batch, which is published, dropped, aborted or forgotten.
    fn batch(&mut self) {
        let count = self.random.below(6);
        let end = self.random.below(8);
        let was_unpublished = self.head != self.published;
        let mut built: Vec<Request> = Vec::new();
        let (mut at, mut fence) = (self.head, self.fence);
        self.note(format!("batch of {count} ending {end} at {:#x}", self.head));
        let plans: Vec<_> = (0..count)
            .map(|_| {
                let kind = Kind::random::<T>(&mut self.random, 200);
                (kind, self.flags(), self.id(), self.random.below(8))
            })
            .collect();
        let mut expected = Vec::new();
        for (kind, flags, id, way) in &plans {
            let (request, fits) = self.expect(kind, *flags, *id, (at, fence), &built);
            if fits {
                at = at.wrapping_add(request.blocks);
                fence = request.fences;
                built.push(request.clone());
            }
            expected.push((request, fits, *way));
        }
        let mut batch = self.sq.queue.batch().expect("ready");
        let mut heads = Vec::new();
        for ((kind, flags, id, way), (request, fits, _)) in plans.iter().zip(&expected) {
            heads.push(batch.head());
            let own =
                Sge::new(kind.data.as_ptr().expose_provenance() as u64, kind.data.len() as u32, 7);
            let own = [own];
            let run_time = T::run_time(kind, &own, *flags, *id);
            // SAFETY: no device reads the data.
            let posted: Posted = unsafe {
                match (way, run_time) {
                    (3 | 4, Some(wr)) => batch.build_request(&wr).into(),
                    (5, _) => {
                        let mut bytes = request.bytes.clone();
                        bytes.resize(bytes.len().next_multiple_of(16), 0);
                        // The fence is the queue's to set.
                        if flags.bits() & 0xe0 == 0 {
                            bytes[11] &= !0x20;
                        }
                        bytes[1..3].fill(0xee);
                        bytes[4..7].fill(0xee);
                        if request.fences {
                            batch.build_key_change(*id, &bytes).into()
                        } else {
                            batch.build_encoded(*id, &bytes).into()
                        }
                    }
                    (6 | 7, _) => {
                        T::visit(kind, Templated(&mut batch, &mut self.scratch, *id, *flags, *way))
                    }
                    _ => T::visit(kind, Build(&mut batch, *id, *flags, *way)),
                }
            };
            let posted = match posted {
                Posted::Unsuitable => T::visit(kind, Build(&mut batch, *id, *flags, 0)),
                posted => posted,
            };
            match posted {
                Posted::Ok => assert!(fits, "{kind:?} {way} {:#?}", self.log),
                Posted::Err(error) => {
                    assert_eq!(
                        (error, *fits),
                        (PostError::Full, false),
                        "{kind:?} {way} {:#?}",
                        self.log
                    );
                    self.full += 1;
                }
                _ => panic!(),
            }
        }
        assert_eq!(batch.head(), at, "{plans:?} {:#?}", self.log);
        match end {
            0 => batch.abort(),
            1 => std::mem::forget(batch),
            2 => {
                drop(batch);
                built.into_iter().for_each(|request| self.take(request));
            }
            _ => {
                batch.publish();
                let some = !built.is_empty();
                built.into_iter().for_each(|request| self.take(request));
                let rings = some || was_unpublished;
                self.publish();
                if rings {
                    self.check_register(false);
                }
            }
        }
        if end != 1 || self.random.below(2) == 0 {
            self.check();
        }
    }

    fn list(&mut self) {
        let count = 2 + self.random.below(4);
        let was_unpublished = self.head != self.published;
        let mut plans = Vec::new();
        let mut built: Vec<Request> = Vec::new();
        let (mut at, mut fence, mut failed) = (self.head, self.fence, None);
        while plans.len() < count {
            let kind = Kind::random::<T>(&mut self.random, 200);
            let (flags, id) = (self.flags(), self.id());
            if T::run_time(&kind, &[], flags, id).is_none() {
                if T::kinds() == 7 {
                    return;
                }
                continue;
            }
            let (request, fits) = self.expect(&kind, flags, id, (at, fence), &built);
            if failed.is_none() {
                if fits {
                    at = at.wrapping_add(request.blocks);
                    fence = request.fences;
                    built.push(request);
                } else {
                    failed = Some(plans.len());
                }
            }
            plans.push((kind, flags, id));
        }
        self.note(format!("list of {count} at {:#x}, fails {failed:?}", self.head));
        let owns: Vec<_> = plans
            .iter()
            .map(|(kind, ..)| {
                let at = kind.data.as_ptr().expose_provenance() as u64;
                [Sge::new(at, kind.data.len() as u32, 7)]
            })
            .collect();
        let list: Vec<_> = plans
            .iter()
            .zip(&owns)
            .map(|((kind, flags, id), own)| T::run_time(kind, own, *flags, *id).expect("one"))
            .collect();
        // SAFETY: no device reads the data.
        let done = unsafe { self.sq.queue.post_list(&list) };
        match failed {
            None => assert_eq!(done.map_err(|error| error.index), Ok(()), "{:#?}", self.log),
            Some(index) => {
                let error = done.expect_err("full");
                assert_eq!(
                    (error.index, error.reason),
                    (index, PostError::Full),
                    "{:#?}",
                    self.log
                );
                self.full += 1;
            }
        }
        let some = !built.is_empty() || was_unpublished;
        built.into_iter().for_each(|request| self.take(request));
        self.publish();
        if some {
            self.check_register(false);
        }
        self.check();
    }

    fn complete(&mut self) {
        // Only what is published.
        let published = self.published;
        let count = self
            .in_flight
            .iter()
            .take_while(|request| (published.wrapping_sub(request.start) as i32) > 0)
            .count();
        if count == 0 {
            return;
        }
        for _ in 0..1 + self.random.below(2) {
            let count = self
                .in_flight
                .iter()
                .take_while(|request| (published.wrapping_sub(request.start) as i32) > 0)
                .count();
            if count == 0 {
                return;
            }
            if self.lies && self.random.below(12) == 0 {
                // Inside of a request, behind all, or before all.
                let lie = match self.random.below(3) {
                    0 => self.in_flight[self.random.below(count)].start.wrapping_add(1),
                    1 => published,
                    _ => self.in_flight[0].start.wrapping_sub(1),
                };
                let starts = self.in_flight.iter().take(count).any(|r| r.start == lie);
                if !starts {
                    self.cq.produce(Cqe::send(&self.sq.handle, lie));
                    assert!(self.cq.queue.poll().is_err(), "{lie:#x} {:#?}", self.log);
                    continue;
                }
            }
            let at = self.random.below(count);
            let last = self.in_flight.drain(..=at).next_back().expect("one");
            self.note(format!("complete {:#x}", last.start));
            let how = self.random.below(4);
            let cqe = Cqe::send(&self.sq.handle, last.start);
            self.cq.produce(cqe);
            let id = match how {
                0 => {
                    let mut id = 0;
                    let done = self.cq.queue.poll_up_to(4, |one| id = one.wr_id());
                    assert_eq!(done, Ok(1));
                    id
                }
                _ => self.cq.queue.poll().expect("a completion").wr_id(),
            };
            assert_eq!(id, last.wr_id, "{:#?}", self.log);
        }
    }

    fn reset(&mut self) {
        self.note("reset".into());
        self.sq.handle = self.sq.handle.renew();
        self.sq.queue.reset(self.sq.handle.clone());
        if self.random.below(2) == 0 {
            // SAFETY: no data.
            let refused = unsafe { self.sq.queue.post_fast(1, Nop, (), PostFlags::empty()) };
            assert!(!refused);
            assert_eq!(self.sq.queue.batch().map(drop), Err(PostError::BadState));
        }
        self.sq.handle.set_state(QpState::Rts);
        (self.head, self.published, self.fence) = (0, 0, false);
        self.rung = true;
        self.in_flight.clear();
        self.check();
    }

    fn publish_all(&mut self) {
        self.note("publish".into());
        self.sq.queue.publish();
        self.publish();
        self.check();
    }
}

struct Templated<'s, 'q, T: Transport>(
    &'s mut Batch<'q, T, BlueFlame>,
    &'s mut Sq<T>,
    u64,
    PostFlags,
    usize,
);

impl<T: Transport> Visitor<T> for Templated<'_, '_, T> {
    type Out = Posted;
    fn visit<O, P>(self, operation: O, payload: P) -> Posted
    where
        T: Carries<O> + Carries<O::Held>,
        O: Operation + Takes<P>,
        P: Payload,
    {
        let Self(batch, scratch, id, flags, way) = self;
        macro_rules! template {
            ($n:literal) => {
                match scratch.queue.long_template::<$n, _, _>(
                    operation,
                    payload,
                    PostFlags::empty(),
                ) {
                    // SAFETY: no device reads the data.
                    Ok(template) => {
                        return unsafe { batch.build_template_with(id, &template, flags) }.into();
                    }
                    Err(_) => {}
                }
            };
        }
        if way == 6 {
            template!(1);
            template!(2);
            template!(3);
            template!(4);
        }
        template!(6);
        Posted::Unsuitable
    }
}

/// What a request step by step says.
#[derive(Clone, Copy)]
struct Named {
    opcode: Opcode,
    remote: Option<Remote>,
    wr_id: u64,
    flags: PostFlags,
}

impl Header for Named {
    fn octowords(&self) -> usize {
        1 + usize::from(self.remote.is_some())
    }
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    fn immediate(&self) -> U32 {
        U32::ZERO
    }
    fn remote(&self) -> Remote {
        self.remote.unwrap_or_default()
    }
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn mode(&self) -> u32 {
        self.flags.bits().into()
    }
}

impl<T: Kinds> World<T> {
    /// Requests step by step, as `ibv_wr_*` builds them.
    fn steps(&mut self) {
        let count = 1 + self.random.below(4);
        let aborts = self.random.below(6) == 0;
        let was_unpublished = self.head != self.published;
        let is_ud = T::kinds() == 5;
        self.note(format!("{count} in steps at {:#x}, aborted {aborts}", self.head));
        let (mut at, mut fence) = (self.head, self.fence);
        let mut built: Vec<Request> = Vec::new();
        let mut plans = Vec::new();
        for _ in 0..count {
            let kind = Kind::random::<T>(&mut self.random, 200);
            let (flags, id, way) = (self.flags(), self.id(), self.random.below(8));
            let (request, fits) = self.expect(&kind, flags, id, (at, fence), &built);
            if fits {
                at = at.wrapping_add(request.blocks);
                fence = request.fences;
                built.push(request);
            }
            plans.push((kind, flags, id, way, fits));
        }
        let common = self.sq.queue.common(PostFlags::from_bits_truncate);
        let mut steps = Steps::NEW;
        let mut straight = 0;
        for (kind, flags, wr_id, way, fits) in &plans {
            let send = (Opcode::SEND, None);
            let write = (Opcode::RDMA_WRITE, Some(kind.remote));
            let one = [Sge::new(0x1234, kind.number, 9)];
            let (header, inline, sges) = match (is_ud, kind.which) {
                (true, 1) | (false, 1) => (Some(send), true, &[][..]),
                (false, 2) => (Some(write), true, &[][..]),
                (true, 2) | (false, 3) => (Some(send), false, kind.sges.as_slice()),
                (false, 4) => (Some(write), false, kind.sges.as_slice()),
                (true, 3) => (Some(send), false, &one[..]),
                (false, 10) => (Some(write), false, &one[..]),
                _ => (None, false, &[][..]),
            };
            let queue = &mut self.sq.queue;
            let (data, length) = (kind.data.as_ptr(), kind.data.len());
            let mut done = false;
            // SAFETY: no device reads the data; the queue is used as the steps say.
            unsafe {
                if let Some((opcode, remote)) = header {
                    let named = Named { opcode, remote, wr_id: *wr_id, flags: *flags };
                    if *way == 0 && !is_ud {
                        done = match (inline, sges) {
                            (true, _) => queue.build_inline(&common, named, length, || data),
                            (_, [sge]) => queue.build_sge(&common, named, sge.length(), || {
                                (sge.address(), sge.lkey())
                            }),
                            _ => false,
                        };
                    } else if queue.name(&mut steps, &common, named) {
                        let before = is_ud && way % 2 == 0;
                        if before {
                            assert!(queue.add_destination(&steps, Datagram(&kind.av)));
                        }
                        done = match (inline, sges) {
                            (true, _) => {
                                queue.add_short(&common, data, length)
                                    || queue.add_longer(&common, data, length)
                                    || queue.add_inline(&common, data, length)
                            }
                            (_, [sge]) => queue.add(sge.address(), sge.length(), sge.lkey()),
                            (_, list) => queue.add_list(&common, list.len(), |i| list[i]),
                        };
                        if done && is_ud && !before {
                            assert!(queue.add_destination(&steps, Datagram(&kind.av)));
                        }
                        if !done {
                            steps.detour();
                            let back = queue.take_back().expect("named");
                            assert_eq!(back.wr_id, *wr_id);
                            queue.close_steps(&mut steps);
                        }
                    }
                }
                if done {
                    straight += 1;
                    assert!(fits, "{:#?}", self.log);
                    continue;
                }
                steps.detour();
                if way % 3 == 0 {
                    queue.close_steps(&mut steps);
                }
                let mut batch = queue.batch_from(&mut steps).expect("ready");
                match T::visit(kind, Build(&mut batch, *wr_id, *flags, *way)) {
                    Posted::Ok => assert!(fits, "{:#?}", self.log),
                    Posted::Err(error) => {
                        assert_eq!((error, *fits), (PostError::Full, false), "{:#?}", self.log);
                        self.full += 1;
                    }
                    _ => panic!(),
                }
                batch.pause(&mut steps);
            }
        }
        self.straight += straight;
        // SAFETY: the queue is used as the steps say.
        unsafe {
            let queue = &mut self.sq.queue;
            if aborts {
                steps.detour();
                queue.batch_from(&mut steps).expect("ready").abort();
                return self.check();
            }
            let published = steps.is_straight()
                && match queue.publish_short() {
                    Ok(()) => true,
                    Err((start, head)) => {
                        queue.publish_longer(start, head)
                            || queue.publish_long()
                            || queue.publish_steps()
                    }
                };
            if !published {
                steps.detour();
                queue.batch_from(&mut steps).expect("ready").publish();
            }
        }
        let some = !built.is_empty() || was_unpublished;
        built.into_iter().for_each(|request| self.take(request));
        self.publish();
        if some {
            self.check_register(false);
        }
        self.check();
    }
}

fn run<T: Kinds>(
    ring: u32,
    most: u32,
    half: u32,
    head: u32,
    seed: u64,
    rounds: usize,
    resets: bool,
) {
    let mut world = World::<T>::new(ring, most, half, head, seed);
    for _ in 0..rounds {
        match world.random.below(16) {
            0..=5 => world.single(),
            6 if T::kinds() != 7 => world.steps(),
            6..=8 => world.batch(),
            9 => world.list(),
            10 if T::kinds() != 7 => world.steps(),
            11 if world.random.below(3) == 0 => world.publish_all(),
            11 if resets && world.random.below(40) == 0 => world.reset(),
            11 => {
                world.note("recheck".into());
                world.sq.queue.recheck_state();
            }
            _ => world.complete(),
        }
    }
    println!(
        "ring {ring}/{most} half {half} head {head:#x}: {} posted, {} full, {} panics, {} steps, end {:#x}",
        world.posted, world.full, world.panicked, world.straight, world.head
    );
}

fn rounds() -> usize {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60)
}

fn everywhere<T: Kinds>() {
    let first: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut seed = first;
    for ring in [1, 2, 4, 8, 16, 64] {
        for most in [ring, ring / 2, 3, 1] {
            if most == 0 || most > ring {
                continue;
            }
            for half in [256, 0, 64, 128] {
                for head in [0, 0xfff0, 0xffff_fff0, 0x7fff_fff0] {
                    seed += 1;
                    run::<T>(ring, most, half, head, seed, rounds(), seed % 3 == 0);
                }
            }
        }
    }
}

#[test]
fn differential_rc() {
    everywhere::<Rc>();
}

#[test]
fn differential_ud() {
    everywhere::<Ud>();
}

#[test]
fn differential_ethernet() {
    everywhere::<RawEthernet>();
}

#[test]
fn differential_long() {
    for (ring, half) in [(4, 256), (16, 256), (32, 0)] {
        run::<Rc>(ring, ring, half, 0, 77 + u64::from(ring), rounds() * 250, false);
    }
}
