//! The cases: each runs 256 operations and returns the nanoseconds of the measured part.

use std::hint::black_box;

use uverbs_mlx5::completion_queue::Completion;
use uverbs_mlx5::request::{PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    Carries, Datagram, Inline, Payload, Rc, RunTimeDestination, RunTimeOperation, Send, SendQueue,
    SendRequest, Takes, Template, To, Write,
};

use super::fixture::{Bench, leak};
use super::{OPERATIONS, frames, measured, polls};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Bench) -> u64,
}

pub(crate) const CASES: &[Case] = &[
    Case { name: "floor", run: floor },
    Case { name: "write_inline_16", run: write_inline_16 },
    Case { name: "write_inline_16_fixed", run: write_inline_16_fixed },
    Case { name: "write_inline_64", run: write_inline_64 },
    Case { name: "write_inline_64_fixed", run: write_inline_64_fixed },
    Case { name: "write_sge", run: write_sge },
    Case { name: "write_sge_made", run: write_sge_made },
    Case { name: "write_sge_shared_register", run: write_sge_shared_register },
    Case { name: "send_sge", run: send_sge },
    Case { name: "write_sge_32", run: write_sge_32 },
    Case { name: "write_sge_made_32", run: write_sge_made_32 },
    Case { name: "write_inline_16_32", run: write_inline_16_32 },
    Case { name: "write_inline_16_fixed_32", run: write_inline_16_fixed_32 },
    Case { name: "run_time_write_sge", run: run_time_write_sge },
    Case { name: "run_time_write_sge_32", run: run_time_write_sge_32 },
    Case { name: "ud_send_inline_16", run: ud_send_inline_16 },
    Case { name: "template_payload", run: template_payload },
    Case { name: "template_payload_fixed", run: template_payload_fixed },
    Case { name: "template_address", run: template_address },
    Case { name: "recv", run: recv },
    Case { name: "recv_32", run: recv_32 },
    Case { name: "srq_recv", run: srq_recv },
    Case { name: "poll_send_1", run: poll_send_1 },
    Case { name: "poll_send_16", run: poll_send_16 },
    Case { name: "poll_recv_16", run: poll_recv_16 },
    Case { name: "poll_mixed_16", run: poll_mixed_16 },
    Case { name: "poll_empty", run: poll_empty },
    Case { name: "poll_64_sends_16", run: polls::sends_16 },
    Case { name: "poll_64_receives_16", run: polls::receives_16 },
    Case { name: "poll_64_both_16", run: polls::both_16 },
    Case { name: "poll_64_both_1", run: polls::both_1 },
    Case { name: "poll_64_immediate_16", run: polls::immediate_16 },
    Case { name: "poll_64_timestamp_16", run: polls::timestamp_16 },
    Case { name: "poll_64_inline_32_16", run: polls::inline_16 },
    Case { name: "poll_64_error_16", run: polls::error_16 },
    Case { name: "poll_64_srq_16", run: polls::shared_16 },
    Case { name: "poll_1000_sends_16", run: polls::thousand_sends_16 },
    Case { name: "poll_1000_both_16", run: polls::thousand_both_16 },
    Case { name: "poll_1000_immediate_16", run: polls::thousand_immediate_16 },
    Case { name: "poll_compressed_16", run: polls::compressed_16 },
    Case { name: "post_poll_1", run: polls::post_poll_1 },
    Case { name: "frame", run: frames::one },
    Case { name: "frame_16", run: frames::batch_16 },
    Case { name: "frame_empty", run: frames::empty },
    Case { name: "tick_to_trade_64", run: |bench| bench.trade_64.run() },
    Case { name: "tick_to_trade_128", run: |bench| bench.trade_128.run() },
    Case { name: "tick_to_trade_floor_64", run: frames::floor::<2> },
    Case { name: "tick_to_trade_floor_128", run: frames::floor::<3> },
];

const NONE: PostFlags = PostFlags::empty();

fn remote(i: usize) -> Remote {
    Remote::new(0x1000 + 64 * i as u64, 0x1234)
}

/// What any post has to do: one block, the record, two fences, the copy.
fn floor(_: &mut Bench) -> u64 {
    // A thread has its own, as it has its own queues.
    thread_local!(static MEMORY: *mut u8 = leak(64 * 512 + 8192).as_ptr());
    let base = MEMORY.with(|memory| *memory);
    #[cfg(not(target_arch = "x86_64"))]
    return base as u64 & 0;
    #[cfg(target_arch = "x86_64")]
    measured(|| {
        use std::arch::x86_64::*;
        for i in 0..OPERATIONS {
            // SAFETY: all within the leaked memory.
            unsafe {
                let block = base.add(64 * i).cast::<__m128i>();
                let value = _mm_set1_epi32(i as i32);
                (0..4).for_each(|k| block.add(k).write_volatile(value));
                let record = base.add(64 * 512).cast::<u32>();
                record.write_volatile((i as u32).to_be());
                _mm_sfence();
                let register = base.add(64 * 512 + 4096 + ((i & 1) << 8)).cast::<__m128i>();
                (0..4).for_each(|k| register.add(k).write_volatile(block.add(k).read_volatile()));
                _mm_sfence();
            }
        }
    })
}

/// Posts a request for each item to the RC queue, one at a time.
#[inline(always)]
fn alone<I: Copy, O, P>(bench: &mut Bench, items: &[I], request: impl Fn(usize, I) -> (O, P)) -> u64
where
    Rc: Carries<O>,
    O: Takes<P>,
    P: Payload,
{
    let start = bench.rc.head();
    let time = measured(|| {
        for (i, item) in items.iter().enumerate() {
            let (operation, data) = request(i, *item);
            // SAFETY: no device reads the data.
            unsafe { bench.rc.post(i as u64, operation, data, NONE) }.expect("space");
        }
    });
    bench.retire_rc(start);
    time
}

/// As [`alone`], with 32 requests for each doorbell.
#[inline(always)]
fn lists<I: Copy, O, P>(bench: &mut Bench, items: &[I], request: impl Fn(usize, I) -> (O, P)) -> u64
where
    Rc: Carries<O>,
    O: Takes<P>,
    P: Payload,
{
    let start = bench.rc.head();
    let time = measured(|| {
        for (list, items) in items.chunks(32).enumerate() {
            let mut batch = bench.rc.batch().expect("the state allows it");
            for (i, item) in items.iter().enumerate() {
                let i = list * 32 + i;
                let (operation, data) = request(i, *item);
                // SAFETY: no device reads the data.
                unsafe { batch.build(i as u64, operation, data, NONE) }.expect("space");
            }
            batch.publish();
        }
    });
    bench.retire_rc(start);
    time
}

/// An SGE that is made for each request.
#[inline(always)]
fn made((address, length, lkey): (u64, u32, u32)) -> Sge {
    Sge::new(address, length, lkey)
}

fn write_inline_16(bench: &mut Bench) -> u64 {
    alone(bench, bench.short, |i, data| (Write(remote(i)), Inline(data)))
}

/// The length is a constant to the compiler, as it is for a message that is a struct.
fn write_inline_16_fixed(bench: &mut Bench) -> u64 {
    alone(bench, bench.fixed, |i, data| (Write(remote(i)), Inline(data)))
}

fn write_inline_64(bench: &mut Bench) -> u64 {
    alone(bench, bench.long, |i, data| (Write(remote(i)), Inline(data)))
}

fn write_inline_64_fixed(bench: &mut Bench) -> u64 {
    alone(bench, bench.fixed_long, |i, data| (Write(remote(i)), Inline(data)))
}

fn write_sge(bench: &mut Bench) -> u64 {
    alone(bench, bench.sges, |i, [sge]| (Write(remote(i)), sge))
}

fn write_sge_made(bench: &mut Bench) -> u64 {
    alone(bench, bench.fields, |i, fields| (Write(remote(i)), made(fields)))
}

/// What it costs that other queues may ring the same register, although none does here.
fn write_sge_shared_register(bench: &mut Bench) -> u64 {
    let time = measured(|| {
        for (i, [sge]) in bench.sges.iter().enumerate() {
            // SAFETY: no device reads it.
            let posted = unsafe { bench.shared.post(i as u64, Write(remote(i)), *sge, NONE) };
            posted.expect("space");
        }
    });
    bench.retire_shared();
    time
}

fn send_sge(bench: &mut Bench) -> u64 {
    alone(bench, bench.sges, |_, [sge]| (Send, sge))
}

fn write_sge_32(bench: &mut Bench) -> u64 {
    lists(bench, bench.sges, |i, [sge]| (Write(remote(i)), sge))
}

fn write_sge_made_32(bench: &mut Bench) -> u64 {
    lists(bench, bench.fields, |i, fields| (Write(remote(i)), made(fields)))
}

fn write_inline_16_32(bench: &mut Bench) -> u64 {
    lists(bench, bench.short, |i, data| (Write(remote(i)), Inline(data)))
}

fn write_inline_16_fixed_32(bench: &mut Bench) -> u64 {
    lists(bench, bench.fixed, |i, data| (Write(remote(i)), Inline(data)))
}

/// A request whose operation is only known at run time.
fn requests(bench: &Bench) -> Vec<SendRequest<'static>> {
    let request = |(i, sges): (usize, &'static [Sge; 1])| SendRequest {
        wr_id: i as u64,
        operation: black_box(RunTimeOperation::Write(remote(i))),
        destination: black_box(RunTimeDestination::Connected),
        flags: black_box(NONE),
        inline: black_box(false),
        data: sges,
    };
    bench.sges.iter().enumerate().map(request).collect()
}

fn post_lists(bench: &mut Bench, length: usize) -> u64 {
    let (start, requests) = (bench.rc.head(), requests(bench));
    let time = measured(|| {
        for list in requests.chunks(length) {
            // SAFETY: no device reads the data.
            unsafe { bench.rc.post_list(list) }.expect("space");
        }
    });
    bench.retire_rc(start);
    time
}

fn run_time_write_sge(bench: &mut Bench) -> u64 {
    post_lists(bench, 1)
}

fn run_time_write_sge_32(bench: &mut Bench) -> u64 {
    post_lists(bench, 32)
}

fn ud_send_inline_16(bench: &mut Bench) -> u64 {
    let time = measured(|| {
        for (i, data) in bench.short.iter().enumerate() {
            let to = To(Datagram(&bench.address), Send);
            // SAFETY: inline data is copied, so no memory is shared.
            unsafe { bench.ud.post(i as u64, to, Inline(data), NONE) }.expect("space");
        }
    });
    bench.retire_ud(2);
    time
}

pub(crate) fn template(queue: &mut SendQueue<Rc>) -> Template<Write> {
    queue.template(Write(remote(0)), Inline(&[0; 16]), NONE).expect("a template")
}

/// Sets each item in the template, and posts it.
#[inline(always)]
fn set<I: Copy>(
    bench: &mut Bench,
    items: &[I],
    change: impl Fn(&mut Template<Write>, usize, I),
) -> u64 {
    let (start, mut template) = (bench.rc.head(), bench.template);
    let time = measured(|| {
        for (i, item) in items.iter().enumerate() {
            change(&mut template, i, *item);
            // SAFETY: inline data is copied, so no memory is shared.
            unsafe { bench.rc.post_template(i as u64, &template) }.expect("space");
        }
    });
    bench.retire_rc(start);
    time
}

fn template_payload(bench: &mut Bench) -> u64 {
    set(bench, bench.short, |template, _, data| assert!(template.set_inline(data)))
}

fn template_payload_fixed(bench: &mut Bench) -> u64 {
    set(bench, bench.fixed, |template, _, data| assert!(template.set_inline(data)))
}

fn template_address(bench: &mut Bench) -> u64 {
    set(bench, &[(); OPERATIONS], |template, i, ()| template.set_remote(remote(i)))
}

fn recv(bench: &mut Bench) -> u64 {
    let time = measured(|| {
        for (i, sges) in bench.sges.iter().enumerate() {
            // SAFETY: no device writes to it.
            unsafe { bench.rq.build(i as u64, sges) }.expect("space");
            bench.rq.publish();
        }
    });
    bench.retire_recv();
    time
}

fn recv_32(bench: &mut Bench) -> u64 {
    let time = measured(|| {
        for list in bench.sges.chunks(32) {
            let mut batch = bench.rq.batch().expect("the state allows it");
            for (i, sges) in list.iter().enumerate() {
                // SAFETY: no device writes to it.
                unsafe { batch.build(i as u64, sges) }.expect("space");
            }
            batch.publish();
        }
    });
    bench.retire_recv();
    time
}

fn srq_recv(bench: &mut Bench) -> u64 {
    let time = measured(|| {
        for (i, sges) in bench.sges.iter().enumerate() {
            // SAFETY: no device writes to it.
            unsafe { bench.srq.post(i as u64, sges) }.expect("space");
        }
    });
    bench.retire_srq();
    time
}

fn complete_writes(bench: &mut Bench) {
    let start = bench.rc.head();
    let mut batch = bench.rc.batch().expect("the state allows it");
    for (i, [sge]) in bench.sges.iter().enumerate() {
        // SAFETY: no device reads it.
        unsafe { batch.build(i as u64, Write(remote(i)), *sge, PostFlags::SIGNALED) }
            .expect("space");
    }
    batch.publish();
    (0..OPERATIONS as u32).for_each(|i| bench.complete_write(start.wrapping_add(i)));
}

fn poll_send_1(bench: &mut Bench) -> u64 {
    complete_writes(bench);
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS {
            let completion = bench.cq.poll().expect("a completion");
            assert!(completion.is_success());
            sum += completion.wr_id();
        }
    });
    black_box(sum);
    time
}

/// Polls all completions, 16 in a batch, and reads a number of each.
#[inline(always)]
fn poll_16(bench: &mut Bench, read: impl Fn(&Completion<'_>) -> u64) -> u64 {
    let mut sum = 0;
    let time = measured(|| {
        for _ in 0..OPERATIONS / 16 {
            let mut batch = bench.cq.batch();
            for _ in 0..16 {
                let completion = batch.next().expect("a completion");
                assert!(completion.is_success());
                sum += read(&completion);
            }
        }
    });
    black_box(sum);
    time
}

fn poll_send_16(bench: &mut Bench) -> u64 {
    complete_writes(bench);
    poll_16(bench, |completion| completion.wr_id())
}

fn poll_recv_16(bench: &mut Bench) -> u64 {
    let start = bench.rq.head();
    for (i, sges) in bench.sges.iter().enumerate() {
        // SAFETY: no device writes to it.
        unsafe { bench.rq.build(i as u64, sges) }.expect("space");
    }
    bench.rq.publish();
    (0..OPERATIONS as u32).for_each(|i| bench.complete_recv(start.wrapping_add(i)));
    poll_16(bench, |completion| completion.wr_id() + u64::from(completion.byte_len()))
}

/// Sends and receives alternating: no two completions in a row are of one kind.
fn poll_mixed_16(bench: &mut Bench) -> u64 {
    let (sends, receives) = (bench.rc.head(), bench.rq.head());
    for (i, sges) in bench.sges.iter().take(OPERATIONS / 2).enumerate() {
        // SAFETY: no device reads or writes it.
        unsafe {
            bench.rc.post(i as u64, Send, sges[0], PostFlags::SIGNALED).expect("space");
            bench.rq.build(i as u64, sges).expect("space");
        }
    }
    bench.rq.publish();
    for i in 0..OPERATIONS as u32 / 2 {
        bench.complete_write(sends.wrapping_add(i));
        bench.complete_recv(receives.wrapping_add(i));
    }
    poll_16(bench, |completion| completion.wr_id())
}

fn poll_empty(bench: &mut Bench) -> u64 {
    measured(|| {
        for _ in 0..OPERATIONS {
            assert!(bench.cq.poll().is_err());
        }
    })
}
