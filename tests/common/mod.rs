//! Shared by the end-to-end tests: a device, and two connected queue pairs on it.
//!
//! `UVERBS_TEST_DEVICE` names the device. Without it each test runs on its own software device,
//! whose only peer is itself.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::{Duration, Instant};

use uverbs::cq::{Status, WorkCompletion};
use uverbs::qp_type::{Connected, QueuePairType, Rc};
use uverbs::{
    AccessFlags, Buffer, Context, Device, MemoryRegion, PollError, ProtectionDomain, raw,
};

/// Time limit of a wait for an event, far longer than any event takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// All access rights.
pub(crate) const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The access rights of remote operations through a queue pair.
pub(crate) const REMOTE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// The device under test.
pub(crate) fn device() -> Device {
    match std::env::var("UVERBS_TEST_DEVICE") {
        Ok(name) => uverbs::device(&name).expect("UVERBS_TEST_DEVICE names a device"),
        Err(_) if on_infiniband() => soft_device(uverbs::soft::DeviceBuilder::infiniband),
        Err(_) => soft_device(|builder| builder),
    }
}

/// Whether this is the test program that runs everything on an InfiniBand port.
pub(crate) fn on_infiniband() -> bool {
    env!("CARGO_CRATE_NAME") == "infiniband"
}

/// A software device for one test.
pub(crate) fn soft_device(
    change: impl FnOnce(uverbs::soft::DeviceBuilder) -> uverbs::soft::DeviceBuilder,
) -> Device {
    let builder = uverbs::soft::SoftDevice::builder("soft0").without_wire();
    Device::from_soft(change(builder).build().expect("a software device starts"))
}

/// Whether the tests run on the built-in device, whose faults and options they may use.
pub(crate) fn is_soft() -> bool {
    std::env::var_os("UVERBS_TEST_DEVICE").is_none()
}

pub(crate) fn open() -> Context {
    device().open().expect("the device opens")
}

/// Context, domain and one completion queue.
pub(crate) struct Setup {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: raw::CompletionQueue,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::on(open())
    }

    pub(crate) fn on(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_raw_cq(1024).build().unwrap();
        Self { context, pd, cq }
    }

    pub(crate) fn builder<T: QueuePairType>(&self) -> raw::QpBuilder<T> {
        self.pd.create_raw_qp::<T>(self.cq.handle(), self.cq.handle()).access(REMOTE)
    }

    pub(crate) fn region(&self, length: usize) -> MemoryRegion {
        self.pd.register(Buffer::new(length).unwrap(), ALL_ACCESS).unwrap()
    }

    /// Two queue pairs connected to each other.
    pub(crate) fn pair<T: Connected>(
        &self,
        change: impl Fn(raw::QpBuilder<T>) -> raw::QpBuilder<T>,
    ) -> (raw::QueuePair<T>, raw::QueuePair<T>) {
        let mut a = change(self.builder()).build().unwrap();
        let mut b = change(self.builder()).build().unwrap();
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b).unwrap();
        b.connect(&end_a).unwrap();
        (a, b)
    }

    pub(crate) fn rc_pair(&self) -> (raw::QueuePair<Rc>, raw::QueuePair<Rc>) {
        self.pair(|builder| builder)
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&mut self) -> WorkCompletion {
        completion(&mut self.cq)
    }

    /// Waits for the next `count` completions, and sorts them by wr_id.
    pub(crate) fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        let mut all: Vec<_> = (0..count).map(|_| self.completion()).collect();
        all.sort_by_key(|completion| completion.wr_id);
        all
    }
}

/// Waits for the next completion of `cq`.
pub(crate) fn completion(cq: &mut raw::CompletionQueue) -> WorkCompletion {
    let start = Instant::now();
    loop {
        match cq.poll() {
            Ok(completion) => return completion.to_work_completion(),
            Err(PollError::Empty) => assert!(start.elapsed() < PATIENCE, "no completion came"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}

/// Waits for the next completion, which must be successful.
pub(crate) fn success(cq: &mut raw::CompletionQueue) -> WorkCompletion {
    let completion = completion(cq);
    assert_eq!(completion.status, Status::Success, "{completion:?}");
    completion
}

/// Bytes that depend on their position, so that a misplaced one is noticed.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
