//! Instruction counts of each operation, with each payload and in each form: the points of a grid.
//!
//! Points are named `form operation payload`: `alone write const 64`, `batch16 send sge 3`. `const`
//! is inline data of a length known at compile time, `run` of one known at run time; `sge` is an
//! array of SGEs, `sges` a slice of them. A first word `shared` is a register that other queues
//! ring too, `none` one without BlueFlame. `batch16 poll both 64` polls sends and receives, one
//! after the other, of 64 queue pairs.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::{CompletionQueue, CompletionQueueConfig};
use uverbs_mlx5::format::{AddressVector, MiniCqeFormat};
use uverbs_mlx5::mmio::{ArmRegister, BlueFlame, Register, SharedBlueFlame};
use uverbs_mlx5::queue_state::{QpState, Shape};
use uverbs_mlx5::request::{Immediate, PostError, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, Batch, CompareSwap, Datagram, EthernetOffload, EthernetSend, EthernetSendHeader,
    FetchAdd, Inline, MaskedCompareSwap, MaskedFetchAdd, RawEthernet, Rc, Read, RunTimeDestination,
    RunTimeOperation, Send, SendImmediate, SendQueue, SendQueueConfig, SendRequest, To, Transport,
    Ud, Write, WriteImmediate, segmented,
};
use uverbs_mlx5::user_index::{QueueHandle, UserIndexTable};

use super::fixture::{dma, leak, record, register};
use super::producer::Producer;
use super::{OPERATIONS, edges, grid_more, measured, polls, shapes};

/// Blocks of the ring: space for the longest requests of one run, twice.
const BLOCKS: u32 = 8192;
const MAX_SGE: u32 = 16;
/// The most inline data of a request of four blocks with a remote address.
const MAX_INLINE: u32 = 220;
pub(super) const NONE: PostFlags = PostFlags::empty();

/// A point of the grid: its name, and a run of [`OPERATIONS`].
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) run: Box<dyn FnMut() -> u64>,
}

/// A queue, and what completes its requests.
pub(super) struct Rig<T: Transport, R: Register = BlueFlame> {
    pub(super) queue: SendQueue<T, R>,
    handle: QueueHandle,
    cq: CompletionQueue,
    device: Producer,
    data: &'static [u8],
    sges: [Sge; MAX_SGE as usize],
    address: AddressVector,
}

impl<T: Transport, R: Register> Rig<T, R> {
    pub(super) fn new(register: R) -> Self {
        Self::of(register, BLOCKS, BLOCKS / 8)
    }

    /// With a ring of `blocks` blocks.
    pub(super) fn of(register: R, blocks: u32, max_requests: u32) -> Self {
        let table = UserIndexTable::new();
        let (memory, ring) = dma(64 * 64);
        let cq = CompletionQueue::new(CompletionQueueConfig {
            memory,
            entries: 64,
            cqe_size: 64,
            doorbell: record(),
            // SAFETY: leaked memory plays the register.
            arm: unsafe { ArmRegister::new(leak(4096).cast()) },
            number: 5,
            table: &table,
            mini_format: Some(MiniCqeFormat::HASH),
            null_lkey: None,
        })
        .expect("a queue");
        let shape = Shape { send_wqebbs: blocks, recv_wqes: 0, shared_receive: false };
        let handle = table.register(shape, &[cq.monitor()], None, 7).expect("an index");
        handle.set_state(QpState::Rts);
        let queue = SendQueue::new(SendQueueConfig {
            memory: dma(blocks as usize * 64).0,
            doorbell: record().1,
            register,
            handle: handle.clone(),
            number: 0x100,
            max_requests,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            signal_all: false,
            min_inline_header: 0,
            scatter_to_cqe: false,
        });
        // SAFETY: the ring is leaked.
        let device = unsafe { Producer::new(ring, 64) };
        let data: &'static [u8] = Vec::from_iter((0..16384).map(|i| i as u8)).leak();
        let sge = |i| Sge::new(data.as_ptr() as u64 + 64 * i as u64, 64, 0x1234);
        let address = AddressVector::default().for_datagram(1, 2);
        let queue = queue.expect("a queue");
        Self { queue, handle, cq, device, data, sges: std::array::from_fn(sge), address }
    }

    /// Completes all requests since counter `start`, which have the same length.
    fn retire(&mut self, start: u32) {
        let head = self.queue.head();
        let blocks = head.wrapping_sub(start) / OPERATIONS as u32;
        self.complete(head.wrapping_sub(blocks));
    }

    /// Completes the request at this counter, and all before it.
    pub(super) fn complete(&mut self, counter: u32) {
        self.device.send(self.handle.user_index(), 8 << 24 | 0x100, counter);
        self.cq.poll().expect("a completion");
    }
}

/// One request at a time.
#[inline(always)]
pub(super) fn alone<T: Transport, R: Register>(
    rig: &mut Rig<T, R>,
    mut post: impl FnMut(&mut SendQueue<T, R>, usize) -> Result<(), PostError>,
) -> u64 {
    let start = rig.queue.head();
    let time = measured(|| {
        for i in 0..OPERATIONS {
            post(&mut rig.queue, i).expect("space");
        }
    });
    rig.retire(start);
    time
}

/// `N` requests at a time.
#[inline(always)]
pub(super) fn batch<const N: usize, T: Transport, R: Register>(
    rig: &mut Rig<T, R>,
    mut post: impl FnMut(&mut Batch<'_, T, R>, usize) -> Result<(), PostError>,
) -> u64 {
    let start = rig.queue.head();
    let time = measured(|| {
        for list in 0..OPERATIONS / N {
            let mut batch = rig.queue.batch().expect("the state allows it");
            for i in 0..N {
                post(&mut batch, list * N + i).expect("space");
            }
            batch.publish();
        }
    });
    rig.retire(start);
    time
}

#[inline(always)]
pub(super) fn remote(i: usize) -> Remote {
    Remote::new(0x1000 + 64 * i as u64, 0x1234)
}

/// Adds the points of an operation and its data: alone, and in batches of 16.
macro_rules! point {
    ($points:ident, $service:ty, $name:expr, |$rig:ident, $i:ident| $operation:expr, $payload:expr) => {
        point!($points, $service, register(), "", $name, |$rig, $i| $operation, $payload);
    };
    ($points:ident, $service:ty, $register:expr, $prefix:literal, $name:expr,
     |$rig:ident, $i:ident| $operation:expr, $payload:expr) => {{
        let name = $name;
        let mut rig = Rig::<$service, _>::new($register);
        $points.push(Point {
            name: format!(concat!($prefix, "alone {}"), name),
            run: Box::new(move || {
                let Rig { data, sges, address, .. } = rig;
                let $rig = (data, &sges, &address);
                let _ = $rig;
                // SAFETY: no device reads the data.
                alone(&mut rig, |queue, $i| unsafe {
                    queue.post($i as u64, $operation, $payload, NONE)
                })
            }),
        });
        let mut rig = Rig::<$service, _>::new($register);
        $points.push(Point {
            name: format!(concat!($prefix, "batch16 {}"), name),
            run: Box::new(move || {
                let Rig { data, sges, address, .. } = rig;
                let $rig = (data, &sges, &address);
                let _ = $rig;
                // SAFETY: no device reads the data.
                batch::<16, _, _>(&mut rig, |batch, $i| unsafe {
                    batch.build($i as u64, $operation, $payload, NONE)
                })
            }),
        });
    }};
}

/// Adds the points that each kind of register has.
macro_rules! registers {
    ($points:ident, $register:expr, $prefix:literal) => {
        registers!(@inline $points, $register, $prefix, "write const 16", 16);
        registers!(@inline $points, $register, $prefix, "write const 64", 64);
        point!($points, Rc, $register, $prefix, "send one", |rig, i| Send, rig.1[i % 16]);
    };
    (@inline $points:ident, $register:expr, $prefix:literal, $name:literal, $length:literal) => {
        point!(
            $points,
            Rc,
            $register,
            $prefix,
            $name,
            |rig, i| Write(remote(i)),
            fixed::<$length>(rig.0, i)
        );
    };
}

/// Inline data whose length is a constant.
#[inline(always)]
fn fixed<const N: usize>(data: &[u8], i: usize) -> Inline<'_> {
    assert!(data.len() >= 8 * OPERATIONS + N);
    // SAFETY: just compared.
    Inline(unsafe { &*data.as_ptr().add(8 * i).cast::<[u8; N]>() })
}

/// Inline data of a length that the compiler does not know.
fn run_time(length: usize) -> impl Fn(&'static [u8], usize) -> Inline<'static> + Copy {
    assert!(length <= MAX_INLINE as usize);
    let length = black_box(length);
    move |data, i| {
        assert!(data.len() >= 8 * OPERATIONS + MAX_INLINE as usize);
        // SAFETY: just compared.
        Inline(unsafe { data.get_unchecked(8 * i..8 * i + length) })
    }
}

fn constant<const N: usize>(points: &mut Vec<Point>) {
    point!(points, Rc, format!("write const {N}"), |rig, i| Write(remote(i)), fixed::<N>(rig.0, i));
    point!(
        points,
        RawEthernet,
        format!("ethernet const {N}"),
        |rig, i| EthernetSend::default(),
        fixed::<N>(rig.0, i)
    );
}

fn gathered<const N: usize>(points: &mut Vec<Point>) {
    point!(points, Rc, format!("send sge {N}"), |rig, i| Send, &rig.1[..N]);
    point!(
        points,
        RawEthernet,
        format!("ethernet sge {N}"),
        |rig, i| EthernetSend::default(),
        &rig.1[..N]
    );
}

macro_rules! sizes {
    ($points:ident, $function:ident: $($size:literal)*) => {
        $($function::<$size>(&mut $points);)*
    };
}

/// All points; similar ones follow each other.
pub(crate) fn points() -> Vec<Point> {
    let mut points = Vec::new();
    sizes!(points, constant: 1 4 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64 68 72 76 80 84 88 92 93
        96 100 104 108 112 116 120 124 128 132 136 140 144 148 152 156 160 164 168 172 176 180 184
        188 192 196 200 204 208 212 216 220);
    for length in std::iter::once(1).chain((4..=MAX_INLINE as usize).step_by(4)) {
        let run = run_time(length);
        point!(points, Rc, format!("write run {length}"), |rig, i| Write(remote(i)), run(rig.0, i));
        lists(&mut points, format!("write run {length}"), true, vec![length]);
    }
    sizes!(points, gathered: 1 2 3 4 5 6 7 8 10 12 16);
    for count in [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16] {
        let count = black_box(count);
        point!(points, Rc, format!("send sges {count}"), |rig, i| Send, &rig.1[..count]);
        lists(&mut points, format!("write sges {count}"), false, vec![64; count]);
    }
    operations(&mut points);
    batches(&mut points);
    grid_more::templates(&mut points);
    grid_more::receives(&mut points);
    other_registers(&mut points);
    edges::points(&mut points);
    polls::points(&mut points);
    shapes::points(&mut points);
    points
}

/// All operations, each with few payloads.
fn operations(points: &mut Vec<Point>) {
    let number = Immediate::from_u32(7);
    let result = AtomicResult { address: 0x1000, lkey: 7 };
    let add = |i| FetchAdd { remote: remote(i), add: 1 };
    let swap = |i| CompareSwap { remote: remote(i), compare: 1, swap: 2 };
    let masked_add = |i| MaskedFetchAdd { remote: remote(i), add: 1, field_boundary: 2 };
    let masked_swap = |i| MaskedCompareSwap {
        remote: remote(i),
        compare: 1,
        compare_mask: 2,
        swap: 3,
        swap_mask: 4,
    };
    point!(points, Rc, "send nothing", |rig, i| Send, ());
    point!(points, Rc, "send one", |rig, i| Send, rig.1[i % 16]);
    point!(points, Rc, "send_imm one", |rig, i| SendImmediate(number), rig.1[i % 16]);
    point!(points, Rc, "write one", |rig, i| Write(remote(i)), rig.1[i % 16]);
    point!(points, Rc, "write_imm one", |rig, i| WriteImmediate(remote(i), number), rig.1[i % 16]);
    let empty = black_box(Sge::new(0x1000, 0, 7));
    point!(points, Rc, "write empty", |rig, i| Write(remote(i)), empty);
    point!(points, Rc, "read one", |rig, i| Read(remote(i)), rig.1[i % 16]);
    point!(points, Rc, "fetch_add result", |rig, i| add(i), result);
    point!(points, Rc, "compare_swap result", |rig, i| swap(i), result);
    point!(points, Rc, "masked_fetch_add result", |rig, i| masked_add(i), result);
    point!(points, Rc, "masked_compare_swap result", |rig, i| masked_swap(i), result);
    point!(points, Ud, "ud one", |rig, i| To(Datagram(rig.2), Send), rig.1[i % 16]);
    point!(points, Ud, "ud const 16", |rig, i| To(Datagram(rig.2), Send), fixed::<16>(rig.0, i));
    point!(points, Ud, "ud const 64", |rig, i| To(Datagram(rig.2), Send), fixed::<64>(rig.0, i));
    point!(points, RawEthernet, "ethernet one", |rig, i| EthernetSend::default(), rig.1[i % 16]);
    let header: &[u8; 18] = &[7; 18];
    point!(
        points,
        RawEthernet,
        "header const 46",
        |rig, i| EthernetSendHeader(EthernetOffload::default(), header),
        fixed::<46>(rig.0, i)
    );
    point!(
        points,
        RawEthernet,
        "header one",
        |rig, i| EthernetSendHeader(EthernetOffload::default(), header),
        rig.1[i % 16]
    );
    tso(points);
    registers!(points, doorbells(), "none ");
    point!(points, Rc, doorbells(), "none ", "send sge 3", |rig, i| Send, &rig.1[..3]);
    let shared = || SharedBlueFlame::new(register());
    registers!(points, shared(), "shared ");
}

/// A register that takes doorbells only.
fn doorbells() -> BlueFlame {
    // SAFETY: leaked memory plays it.
    unsafe { BlueFlame::new(leak(4096), 0) }
}

/// More points of registers that are shared, or take doorbells only, or both.
fn other_registers(points: &mut Vec<Point>) {
    let shared = || SharedBlueFlame::new(register());
    let both = || SharedBlueFlame::new(doorbells());
    let run = run_time(64);
    point!(points, Rc, shared(), "shared ", "send sge 3", |rig, i| Send, &rig.1[..3]);
    registers!(points, both(), "shared none ");
    point!(points, Rc, both(), "shared none ", "send sge 3", |rig, i| Send, &rig.1[..3]);
    macro_rules! of_run_time {
        ($register:expr, $prefix:literal) => {
            point!(
                points,
                Rc,
                $register,
                $prefix,
                "write run 64",
                |rig, i| Write(remote(i)),
                run(rig.0, i)
            );
        };
    }
    of_run_time!(doorbells(), "none ");
    of_run_time!(shared(), "shared ");
    of_run_time!(both(), "shared none ");
}

/// Batches of 4 and of 32 requests: with one SGE, with inline data in one block, and in two.
fn batches(points: &mut Vec<Point>) {
    of_batch::<4>(points);
    of_batch::<32>(points);
}

fn of_batch<const N: usize>(points: &mut Vec<Point>) {
    macro_rules! batched {
        ($name:literal, |$rig:ident, $i:ident| $payload:expr) => {
            let mut rig = Rig::<Rc, _>::new(register());
            points.push(Point {
                name: format!("batch{N} {}", $name),
                run: Box::new(move || {
                    let $rig = (rig.data, rig.sges);
                    // SAFETY: no device reads the data.
                    batch::<N, _, _>(&mut rig, |batch, $i| unsafe {
                        batch.build($i as u64, Write(remote($i)), $payload, NONE)
                    })
                }),
            });
        };
    }
    batched!("write one", |rig, i| rig.1[i % 16]);
    batched!("write const 16", |rig, i| fixed::<16>(rig.0, i));
    batched!("write const 64", |rig, i| fixed::<64>(rig.0, i));
}

/// A packet to be segmented, with 54 bytes of header.
fn tso(points: &mut Vec<Point>) {
    let header: &'static [u8] = &[7; 54];
    let mut rig = Rig::<RawEthernet>::new(register());
    points.push(Point {
        name: "alone tso sge 2".to_owned(),
        run: Box::new(move || {
            let sges = rig.sges;
            alone(&mut rig, |queue, i| {
                let offload = EthernetOffload::default();
                let (operation, data) = segmented(offload, 1460, header, &sges[..2]);
                // SAFETY: no device reads the data.
                unsafe { queue.post(i as u64, operation, data, NONE) }
            })
        }),
    });
}

/// Lists of 1 and of 16 requests whose operation is known only at run time. Each request has one
/// SGE per length.
fn lists(points: &mut Vec<Point>, name: String, inline: bool, lengths: Vec<usize>) {
    for count in [1, 16] {
        let mut rig = Rig::<Rc>::new(register());
        let sge = |length: &usize| Sge::new(rig.data.as_ptr() as u64, *length as u32, 7);
        let sges: &'static [Sge] = lengths.iter().map(sge).collect::<Vec<_>>().leak();
        let request = |i| SendRequest {
            wr_id: i as u64,
            operation: black_box(RunTimeOperation::Write(remote(i))),
            destination: black_box(RunTimeDestination::Connected),
            flags: black_box(NONE),
            inline: black_box(inline),
            data: black_box(sges),
        };
        let requests: Vec<SendRequest<'static>> = (0..OPERATIONS).map(request).collect();
        points.push(Point {
            name: format!("list{count} {name}"),
            run: Box::new(move || {
                let start = rig.queue.head();
                let time = measured(|| {
                    for list in requests.chunks(count) {
                        // SAFETY: no device reads the data; what is inline is readable.
                        unsafe { rig.queue.post_list(list) }.expect("space");
                    }
                });
                rig.retire(start);
                time
            }),
        });
    }
}
