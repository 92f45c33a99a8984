//! What the safe layer costs over the raw one, in instructions: one phase per run, counted by callgrind.
//!
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*post_raw*' BINARY` and so on for
//! `post_safe`, `poll_raw`, `poll_safe`: instructions divided by the `OPERATIONS` that it prints.

use std::hint::black_box;
use std::time::Duration;

use uverbs::qp::{PostFlags, Rc, Write};
use uverbs::safe::SafeCompletion;
use uverbs::soft::SoftDevice;
use uverbs::{
    AccessFlags, Buffer, CompletionQueue, Device, MemoryRegion, QueuePair, Remote,
    SafeCompletionQueue, SafeQueuePair, Sge, Slot,
};

const BATCH: usize = 32;
const ROUNDS: usize = 4;

#[inline(never)]
fn post_raw(qp: &mut QueuePair<Rc>, remote: Remote, pieces: &[Sge]) {
    for (wr_id, piece) in (1..).zip(pieces) {
        // SAFETY: the region outlives the queue pair, and nobody looks at it.
        let _ =
            black_box(unsafe { qp.post_send(wr_id, Write(remote), *piece, PostFlags::SIGNALED) });
    }
}

#[inline(never)]
fn post_safe(qp: &mut SafeQueuePair<Rc>, remote: Remote, slots: &mut Vec<Slot>) {
    while let Some(slot) = slots.pop() {
        let _ = black_box(qp.post(Write(remote), slot, PostFlags::SIGNALED));
    }
}

#[inline(never)]
fn poll_raw(cq: &mut CompletionQueue) -> usize {
    let mut count = 0;
    while let Ok(completion) = cq.poll() {
        black_box(completion.to_work_completion());
        count += 1;
    }
    count
}

#[inline(never)]
fn poll_safe(cq: &mut SafeCompletionQueue, slots: &mut Vec<Slot>) -> usize {
    let mut count = 0;
    while let Ok(SafeCompletion { slot, completion }) = cq.poll() {
        black_box(completion);
        slots.extend(slot);
        count += 1;
    }
    count
}

/// Long enough for the device, also under valgrind: a completion that is late shows in the assertion.
fn let_the_device_work() {
    std::thread::sleep(Duration::from_millis(300));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let soft = SoftDevice::builder("soft0").without_wire().build()?;
    let context = Device::from_soft(soft).open()?;
    let pd = context.alloc_pd()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region: MemoryRegion = pd.register(Buffer::new(4096)?, access)?;
    let remote = region.remote(0)?;

    let mut cq = context.create_cq(256).build()?;
    let mut qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).access(access).build()?;
    let own = qp.endpoint();
    qp.connect(&own)?;
    let pieces = vec![region.sge(0, 64)?; BATCH];
    for _ in 0..ROUNDS {
        post_raw(&mut qp, remote, &pieces);
        let_the_device_work();
        assert_eq!(poll_raw(&mut cq), BATCH);
    }

    let mut cq = context.create_cq(256).build_safe()?;
    let mut qp = pd.create_safe_qp::<Rc>(cq.handle(), cq.handle());
    qp = qp.with(|builder| builder.access(access));
    let mut qp = qp.build()?;
    let own = qp.endpoint();
    qp.connect(&own)?;
    let slab = pd.create_slab(BATCH as u32, 64)?;
    let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
    slots.iter_mut().for_each(|slot| slot.set_len(64));
    for _ in 0..ROUNDS {
        post_safe(&mut qp, remote, &mut slots);
        let_the_device_work();
        assert_eq!(poll_safe(&mut cq, &mut slots), BATCH);
    }
    println!("{} OPERATIONS in each phase", BATCH * ROUNDS);
    Ok(())
}
