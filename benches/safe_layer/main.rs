//! What the safe layer costs over the raw one, in instructions: one phase per run, counted by
//! callgrind.
//!
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*raw_post*' BINARY`, and so on
//! for the other functions whose name begins with `raw_` or `safe_`: instructions divided by the
//! `OPERATIONS` that it prints. Both layers do the same work: 32 signaled RDMA WRITEs of 64 bytes,
//! or receives, whose memory comes out of a `Vec` of what is free when it is posted, and goes back
//! there when its completion was polled and is a success. The raw program keeps a table of its
//! SGEs for that, and finds them by their numbers.

use std::time::Duration;

use uverbs::cq::PollError;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{
    AccessFlags, Buffer, CompletionQueue, Context, Device, ProtectionDomain, QueuePair, Remote,
    Sge, Slot, op, raw,
};

const BATCH: usize = 32;
const ROUNDS: usize = 4;
const BYTES: u32 = 64;

/// What the raw layer's program keeps by itself: which of its SGEs are free.
struct FreeSges {
    free: Vec<u64>,
    table: Vec<Sge>,
}

impl FreeSges {
    #[inline(always)]
    fn pop(&mut self) -> Option<(u64, Sge)> {
        let number = self.free.pop()?;
        self.table.get(number as usize).map(|piece| (number, *piece))
    }
}

#[inline(never)]
fn raw_post(qp: &mut raw::QueuePair<Rc>, remote: Remote, sges: &mut FreeSges) {
    while let Some((number, sge)) = sges.pop() {
        // SAFETY: the region outlives the queue pair, and no other code accesses it.
        let posted = unsafe { qp.post_send(number, op::Write(remote), sge, PostFlags::SIGNALED) };
        assert!(posted.is_ok());
    }
}

#[inline(never)]
fn safe_post(qp: &mut QueuePair<Rc>, remote: Remote, slots: &mut Vec<Slot>) {
    while let Some(slot) = slots.pop() {
        assert!(qp.post_send(op::Write(remote), slot, PostFlags::SIGNALED).is_ok());
    }
}

#[inline(never)]
fn raw_batch_post(qp: &mut raw::QueuePair<Rc>, remote: Remote, sges: &mut FreeSges) {
    let Ok(mut batch) = qp.batch() else { return };
    while let Some((number, sge)) = sges.pop() {
        // SAFETY: the region outlives the queue pair, and no other code accesses it.
        let posted = unsafe { batch.build(number, op::Write(remote), sge, PostFlags::SIGNALED) };
        assert!(posted.is_ok());
    }
    batch.publish();
}

#[inline(never)]
fn safe_batch_post(qp: &mut QueuePair<Rc>, remote: Remote, slots: &mut Vec<Slot>) {
    let Ok(mut batch) = qp.batch() else { return };
    while let Some(slot) = slots.pop() {
        assert!(batch.build(op::Write(remote), slot, PostFlags::SIGNALED).is_ok());
    }
    batch.publish();
}

#[inline(never)]
fn raw_receive(qp: &mut raw::QueuePair<Rc>, sges: &mut FreeSges) {
    while let Some((number, sge)) = sges.pop() {
        // SAFETY: the region outlives the queue pair, and no other code accesses it.
        assert!(unsafe { qp.post_receive(number, &[sge]) }.is_ok());
    }
}

#[inline(never)]
fn safe_receive(qp: &mut QueuePair<Rc>, slots: &mut Vec<Slot>) {
    while let Some(slot) = slots.pop() {
        assert!(qp.post_receive(slot).is_ok());
    }
}

#[inline(never)]
fn raw_poll(cq: &mut raw::CompletionQueue, sges: &mut FreeSges) {
    while let Ok(completion) = cq.poll() {
        assert!(completion.is_success());
        sges.free.push(completion.wr_id());
    }
}

#[inline(never)]
fn safe_poll(cq: &mut CompletionQueue, slots: &mut Vec<Slot>) {
    while let Ok(done) = cq.poll() {
        assert!(done.completion.is_success());
        if let Some(slot) = done.slot {
            slots.push(slot);
        }
    }
}

#[inline(never)]
fn raw_batch_poll(cq: &mut raw::CompletionQueue, sges: &mut FreeSges) {
    let mut batch = cq.batch();
    for _ in 0..BATCH {
        let Ok(completion) = batch.next() else { break };
        assert!(completion.is_success());
        sges.free.push(completion.wr_id());
    }
}

#[inline(never)]
fn safe_batch_poll(cq: &mut CompletionQueue, slots: &mut Vec<Slot>) -> Result<(), PollError> {
    cq.poll_up_to(BATCH, |done| {
        assert!(done.completion.is_success());
        if let Some(slot) = done.slot {
            slots.push(slot);
        }
    })?;
    Ok(())
}

/// Long enough for the device, also under valgrind: a completion that is late shows in the
/// assertion.
fn let_the_device_work() {
    std::thread::sleep(Duration::from_millis(300));
}

fn raw(
    context: &Context,
    pd: &ProtectionDomain,
    remote: Remote,
) -> Result<(), Box<dyn std::error::Error>> {
    let region = pd.register(Buffer::new(4096)?, AccessFlags::LOCAL_WRITE)?;
    let mut cq = context.create_raw_cq(256).build()?;
    let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).max_recv_wr(256);
    let mut qp = builder.access(AccessFlags::REMOTE_WRITE).build()?;
    let own = qp.endpoint();
    qp.connect(&own)?;
    let piece = |i: usize| region.sge(i * BYTES as usize, BYTES as usize);
    let table = (0..BATCH).map(piece).collect::<uverbs::Result<_>>()?;
    let mut sges = FreeSges { free: (0..BATCH as u64).collect(), table };
    for _ in 0..ROUNDS {
        raw_post(&mut qp, remote, &mut sges);
        let_the_device_work();
        raw_poll(&mut cq, &mut sges);
        assert_eq!(sges.free.len(), BATCH);
        raw_batch_post(&mut qp, remote, &mut sges);
        let_the_device_work();
        raw_batch_poll(&mut cq, &mut sges);
        assert_eq!(sges.free.len(), BATCH);
        let kept = sges.free.clone();
        raw_receive(&mut qp, &mut sges);
        sges.free = kept;
    }
    Ok(())
}

fn safe(
    context: &Context,
    pd: &ProtectionDomain,
    remote: Remote,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut cq = context.create_cq(256).build()?;
    let builder = pd.create_qp::<Rc>(cq.handle(), cq.handle());
    let builder = builder.max_recv_wr(256).access(AccessFlags::REMOTE_WRITE);
    let mut qp = builder.build()?;
    let own = qp.endpoint();
    qp.connect(&own)?;
    let slab = pd.create_slab(BATCH as u32, BYTES)?;
    let for_receives = pd.create_slab((BATCH * ROUNDS) as u32, BYTES)?;
    let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
    slots.iter_mut().for_each(|slot| slot.set_len(BYTES as usize));
    for _ in 0..ROUNDS {
        safe_post(&mut qp, remote, &mut slots);
        let_the_device_work();
        safe_poll(&mut cq, &mut slots);
        assert_eq!(slots.len(), BATCH);
        safe_batch_post(&mut qp, remote, &mut slots);
        let_the_device_work();
        assert_eq!(safe_batch_poll(&mut cq, &mut slots), Ok(()));
        assert_eq!(slots.len(), BATCH);
        let mut receives = std::iter::from_fn(|| for_receives.take()).take(BATCH).collect();
        safe_receive(&mut qp, &mut receives);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let soft = SoftDevice::builder("soft0").without_wire().build()?;
    let context = Device::from_soft(soft).open()?;
    let pd = context.alloc_pd()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = pd.register(Buffer::new(4096)?, access)?;
    let remote = region.remote(0)?;
    raw(&context, &pd, remote)?;
    safe(&context, &pd, remote)?;
    println!("{} OPERATIONS in each phase", BATCH * ROUNDS);
    Ok(())
}
