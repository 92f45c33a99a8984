//! Each command of each verb fails in turn. The verb must have its whole effect or none, and a
//! failed verb must not leak a kernel object, mapping or descriptor.

mod common;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{ALL_ACCESS, REMOTE, success};
use uverbs::counters::CounterPoint;
use uverbs::mw::WindowType;
use uverbs::qp::{Inline, PostFlags, QpAttributes, State};
use uverbs::qp_type::{RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::soft::{Errno, Fault, Kernel, Moment, SoftDevice, WriteCmd, objects};
use uverbs::srq::SrqAttrMask;
use uverbs::{
    Buffer, CompletionChannel, Context, DestroyError, Device, ErrorKind, Flow, Gid, MemoryRegion,
    ProtectionDomain, Result, XrcDomain, op, raw,
};

const SIGNALED: PostFlags = PostFlags::SIGNALED;

/// Errors that a kernel may return for a valid command: no memory, no space, no rights, a signal, a
/// failing device.
const ERRNOS: [Errno; 9] = [
    Errno::ENOMEM,
    Errno::EAGAIN,
    Errno::EINVAL,
    Errno::ENOSPC,
    Errno::EPERM,
    Errno::EFAULT,
    Errno::EBUSY,
    Errno::EIO,
    Errno::EOPNOTSUPP,
];

/// The library sends other commands to older kernels.
const KERNELS: [Kernel; 3] = [Kernel::CURRENT, Kernel::STATIC_UAR, Kernel::WRITE_COMMANDS];

/// More interruptions than the library retries.
const TOO_MANY_INTERRUPTS: usize = 101;

type AtNth = fn(u64) -> Moment;

/// Where a command or a mapping can fail.
const MOMENTS: [AtNth; 3] = [Moment::Call, Moment::Completed, Moment::Mapping];

/// Descriptors and mappings belong to the process, so these tests run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of everything that can leak, except memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inventory {
    device: String,
    handles: usize,
    descriptors: usize,
}

/// Pages mapped by this process. Allocators sometimes map a few, so only growth in every repetition
/// is a leak.
struct Mapped(u64);

impl Mapped {
    fn now() -> Self {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        Self(statm.split(' ').next().unwrap().parse().unwrap())
    }

    /// A leak would be at least a page per repetition.
    fn assert_no_leak(self, repetitions: usize, what: &str) {
        let growth = Self::now().0.saturating_sub(self.0);
        assert!(growth < repetitions as u64, "{what}: {growth} pages in {repetitions} repetitions");
    }
}

struct Bench {
    soft: Arc<SoftDevice>,
    device: Device,
}

impl Bench {
    fn new() -> Self {
        Self::on(Kernel::CURRENT)
    }

    fn on(kernel: Kernel) -> Self {
        let builder = SoftDevice::builder("soft0").without_wire().kernel(kernel);
        let soft = Arc::new(builder.build().unwrap());
        Self { device: Device::from_shared_soft(soft.clone()), soft }
    }

    fn inventory(&self) -> Inventory {
        Inventory {
            device: self.soft.inspect(|core| format!("{:?}", core.counts())).unwrap(),
            handles: self.soft.handle_count(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        }
    }

    /// Runs `verb` with the fault injected; `None` if the verb ended before the fault occurred.
    fn with_fault<T>(&self, moment: Moment, errno: Errno, verb: impl FnOnce() -> T) -> Option<T> {
        let times = if errno == Errno::EINTR { TOO_MANY_INTERRUPTS } else { 1 };
        (0..times).for_each(|_| self.soft.inject(Fault { moment, errno }));
        let result = verb();
        (self.soft.clear_faults() == 0).then_some(result)
    }
}

/// One object of each type, with which the tests create others.
struct World {
    context: Context,
    pd: ProtectionDomain,
    cq: raw::CompletionQueue,
    channel: CompletionChannel,
    xrcd: XrcDomain,
    srq: raw::SharedReceiveQueue,
    datagrams: raw::QueuePair<Ud>,
}

impl World {
    fn new(bench: &Bench) -> Self {
        let context = bench.device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_raw_cq(64).build().unwrap();
        let channel = context.create_completion_channel().unwrap();
        let xrcd = context.open_xrcd().unwrap();
        let srq = pd.create_raw_srq(16).build().unwrap();
        let datagrams = pd.create_raw_qp::<Ud>(cq.handle(), cq.handle()).build().unwrap();
        Self { context, pd, cq, channel, xrcd, srq, datagrams }
    }

    fn region(&self) -> Result<MemoryRegion> {
        self.pd.register(Buffer::new(8192).unwrap(), ALL_ACCESS)
    }

    fn pair(&self) -> Result<(raw::QueuePair<Rc>, raw::QueuePair<Rc>)> {
        let build = || {
            self.pd.create_raw_qp::<Rc>(self.cq.handle(), self.cq.handle()).access(REMOTE).build()
        };
        let (mut a, mut b) = (build()?, build()?);
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b)?;
        b.connect(&end_a)?;
        Ok((a, b))
    }

    /// Opens and closes a channel. The device drops its half of a closed channel when the next one
    /// is opened, so from here on exactly one such half is left.
    fn run_to_idle(&self) {
        drop(self.context.create_completion_channel().unwrap());
    }
}

type Made = Result<Box<dyn Any>>;
type Verb = (&'static str, fn(&World) -> Made);

fn boxed<T: 'static>(made: Result<T>) -> Made {
    made.map(|made| Box::new(made) as Box<dyn Any>)
}

fn any_qp<T: uverbs::qp_type::QueuePairType>(world: &World) -> uverbs::raw::QpBuilder<T> {
    world.pd.create_raw_qp::<T>(world.cq.handle(), world.cq.handle())
}

fn address(world: &World) -> Result<uverbs::AddressHandle> {
    world.pd.create_ah(&world.datagrams.address_of(&world.datagrams.endpoint())?)
}

fn receiver(world: &World) -> Result<uverbs::qp::XrcReceiver> {
    world.xrcd.create_receiver(uverbs::qp::PathOptions::default())
}

type Steered = (Flow, raw::QueuePair<RawPacket>);

/// A steering rule with a counter.
fn steered(world: &World) -> Result<Steered> {
    let mut qp = any_qp::<RawPacket>(world).build()?;
    let counters = world.context.create_counters()?;
    counters.attach(CounterPoint::Packets, 0)?;
    let flow = qp.create_flow().count(&counters).build()?;
    Ok((flow, qp))
}

/// Destroys only the rule.
fn end_rule((flow, qp): Steered) -> std::result::Result<(), DestroyError<Steered>> {
    match flow.destroy() {
        Ok(()) => Ok(()),
        Err(DestroyError { object, error }) => {
            Err(DestroyError { object: Box::new((*object, qp)), error })
        }
    }
}

const CREATIONS: &[Verb] = &[
    ("alloc_pd", |w| boxed(w.context.alloc_pd())),
    ("reg_mr", |w| boxed(w.region())),
    ("create_cq", |w| boxed(w.context.create_raw_cq(10).build())),
    ("create_cq on a channel", |w| boxed(w.context.create_raw_cq(10).channel(&w.channel).build())),
    ("create_cq with wide entries", |w| boxed(w.context.create_raw_cq(10).wide_entries().build())),
    ("create_comp_channel", |w| boxed(w.context.create_completion_channel())),
    ("create_qp RC", |w| boxed(any_qp::<Rc>(w).build())),
    ("create_qp UC", |w| boxed(any_qp::<Uc>(w).build())),
    ("create_qp UD", |w| boxed(any_qp::<Ud>(w).build())),
    ("create_qp XRC", |w| boxed(any_qp::<Xrc>(w).build())),
    ("create_qp raw packet", |w| boxed(any_qp::<RawPacket>(w).build())),
    ("create_counters", |w| boxed(w.context.create_counters())),
    ("create_flow", |w| boxed(steered(w))),
    ("create_flow, which ends with its queue pair", |w| {
        boxed(steered(w).map(|(rule, qp)| (qp, rule)))
    }),
    ("create_qp on a shared receive queue", |w| {
        boxed(any_qp::<Rc>(w).shared_receive_queue(w.srq.handle()).build())
    }),
    ("create_qp and connect", |w| boxed(w.pair())),
    ("create_qp XRC, the receiver", |w| boxed(receiver(w))),
    ("create_qp", |w| {
        let cq = w.context.create_cq(10).build()?;
        let qp = w.pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
        Ok(Box::new((qp, cq)))
    }),
    ("create_srq", |w| boxed(w.pd.create_raw_srq(10).build())),
    ("create_srq XRC", |w| boxed(w.pd.create_raw_srq(10).xrc(&w.xrcd, w.cq.handle()).build())),
    ("open_xrcd", |w| boxed(w.context.open_xrcd())),
    ("alloc_mw 1", |w| boxed(w.pd.alloc_mw(WindowType::Type1))),
    ("alloc_mw 2", |w| boxed(w.pd.alloc_mw(WindowType::Type2))),
    ("create_ah", |w| boxed(address(w))),
    ("alloc_td and create_qp in it", |w| {
        let domain = w.context.alloc_thread_domain()?;
        boxed(any_qp::<Rc>(w).build_in(&domain))
    }),
    ("create_slab", |w| boxed(w.pd.create_slab(4, 100))),
    ("query_port", |w| boxed(w.context.query_port(1).map(drop))),
    ("query_gid_table", |w| boxed(w.context.gid_table(1))),
    ("query_srq", |w| boxed(w.srq.query())),
];

/// Makes the n-th moment fail for n = 0, 1, … until the verb succeeds without the fault.
fn fail_each_step(bench: &Bench, world: &World, (name, verb): Verb, moment: AtNth, errno: Errno) {
    for nth in 0.. {
        world.run_to_idle();
        let before = bench.inventory();
        let Some(result) = bench.with_fault(moment(nth), errno, || verb(world)) else { return };
        let told = result.as_ref().err().map(ToString::to_string);
        if let Err(error) = &result {
            assert_eq!(error.errno(), errno as i32, "{name}, step {nth}: {error}");
        }
        drop(result);
        world.run_to_idle();
        let what = format!("{name}, {:?} with {errno:?}: {told:?}", moment(nth));
        assert_eq!(bench.inventory(), before, "{what}");
    }
}

#[test]
fn a_failed_creation_leaks_nothing() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    for verb in CREATIONS {
        // After this, the context has the doorbell pages and record pages that it caches.
        drop([(verb.1)(&world).unwrap(), (verb.1)(&world).unwrap()]);
        let mapped = Mapped::now();
        for moment in MOMENTS {
            for errno in ERRNOS {
                fail_each_step(&bench, &world, *verb, moment, errno);
            }
        }
        mapped.assert_no_leak(ERRNOS.len(), verb.0);
        drop((verb.1)(&world).unwrap_or_else(|error| panic!("{} afterwards: {error}", verb.0)));
    }
}

#[test]
fn an_interrupted_command_is_retried_a_bounded_number_of_times() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    for (name, verb) in CREATIONS {
        drop(verb(&world).unwrap());
        for nth in 0.. {
            bench.soft.inject(Fault { moment: Moment::Call(nth), errno: Errno::EINTR });
            let result = verb(&world);
            assert!(result.is_ok(), "{name}, interrupted once at step {nth}");
            if bench.soft.clear_faults() > 0 {
                break;
            }
        }
        let error = bench.with_fault(Moment::Call(0), Errno::EINTR, || verb(&world));
        let error = error.unwrap().err().unwrap_or_else(|| panic!("{name} got through"));
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{name}: {error}");
        fail_each_step(&bench, &world, (name, *verb), Moment::Call, Errno::EINTR);
    }
}

#[test]
fn a_failed_destruction_returns_the_object_unharmed() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    fails_then_destroys(&bench, &world, "dealloc_pd", |w| w.context.alloc_pd(), |x| x.destroy());
    fails_then_destroys(&bench, &world, "dereg_mr", World::region, |x| x.deregister().map(drop));
    fails_then_destroys(
        &bench,
        &world,
        "destroy_cq",
        |w| w.context.create_raw_cq(9).build(),
        |x| x.destroy(),
    );
    let on_channel = |w: &World| w.context.create_raw_cq(9).channel(&w.channel).build();
    fails_then_destroys(&bench, &world, "destroy_cq on a channel", on_channel, |x| x.destroy());
    fails_then_destroys(&bench, &world, "destroy_qp", |w| any_qp::<Rc>(w).build(), |x| x.destroy());
    fails_then_destroys(&bench, &world, "destroy_qp, an XRC receiver", receiver, |x| x.destroy());
    fails_then_destroys(
        &bench,
        &world,
        "destroy_srq",
        |w| w.pd.create_raw_srq(9).build(),
        |x| x.destroy(),
    );
    let window = |w: &World| w.pd.alloc_mw(WindowType::Type2);
    fails_then_destroys(&bench, &world, "dealloc_mw", window, |x| x.dealloc());
    fails_then_destroys(&bench, &world, "close_xrcd", |w| w.context.open_xrcd(), |x| x.close());
    fails_then_destroys(&bench, &world, "destroy_ah", address, |x| x.destroy());
    fails_then_destroys(
        &bench,
        &world,
        "destroy_counters",
        |w| w.context.create_counters(),
        |x| x.destroy(),
    );
    fails_then_destroys(&bench, &world, "destroy_flow", steered, end_rule);
}

fn fails_then_destroys<T>(
    bench: &Bench,
    world: &World,
    name: &str,
    make: impl Fn(&World) -> Result<T>,
    destroy: impl Fn(T) -> std::result::Result<(), DestroyError<T>>,
) {
    drop(make(world).unwrap());
    // EIO from a device that was not removed is a failure like any other: the object still exists.
    let errnos = ERRNOS.into_iter().chain([Errno::EINTR]);
    let mapped = Mapped::now();
    for errno in errnos {
        world.run_to_idle();
        let before = bench.inventory();
        let object = make(world).unwrap();
        let with_object = bench.inventory();
        let failed = bench.with_fault(Moment::Call(0), errno, || destroy(object));
        let failed = failed.expect("a destruction is a command").unwrap_err();
        assert_eq!(failed.error.errno(), errno as i32, "{name}: {failed}");
        assert_eq!(bench.inventory(), with_object, "{name} with {errno:?}: it is still there");
        destroy(*failed.object).unwrap_or_else(|error| panic!("{name} again: {error}"));
        assert_eq!(bench.inventory(), before, "{name}: and now it is gone");
    }
    mapped.assert_no_leak(ERRNOS.len(), name);
}

#[test]
fn a_failed_modify_changes_nothing_and_can_be_repeated() {
    let _alone = alone();
    let bench = Bench::new();
    let mut world = World::new(&bench);
    let mut qp = any_qp::<Rc>(&world).build().unwrap();
    let peer = qp.endpoint();
    for errno in ERRNOS {
        let resized = bench.with_fault(Moment::Call(0), errno, || world.cq.resize(200)).unwrap();
        assert_eq!(resized.unwrap_err().errno(), errno as i32);
        assert_eq!(world.cq.capacity(), 127, "as created");
        assert!(world.cq.poll().is_err());

        let limit = uverbs::srq::SrqAttributes { limit: 0, ..Default::default() };
        let modify = || world.srq.modify(SrqAttrMask::LIMIT, limit);
        assert!(bench.with_fault(Moment::Call(0), errno, modify).unwrap().is_err());
        modify().unwrap();
        let moderate = || world.cq.moderate(1, std::time::Duration::ZERO);
        assert!(bench.with_fault(Moment::Call(0), errno, moderate).unwrap().is_err());
        moderate().unwrap();

        let failed = bench.with_fault(Moment::Call(0), errno, || qp.connect(&peer)).unwrap();
        assert_eq!(failed.unwrap_err().errno(), errno as i32);
        assert_eq!((qp.state(), qp.query().unwrap().state), (State::Init, State::Init));
        let failed = bench.with_fault(Moment::Call(1), errno, || qp.connect(&peer)).unwrap();
        failed.unwrap_err();
        assert_eq!((qp.state(), qp.query().unwrap().state), (State::Rtr, State::Rtr));
        let mut modify = |state| qp.modify(&QpAttributes::to(state));
        assert!(
            bench.with_fault(Moment::Call(0), errno, || modify(State::Reset)).unwrap().is_err()
        );
        modify(State::Reset).unwrap();
        let to_init = QpAttributes::to(State::Init).port(1).pkey_index(0).access(REMOTE);
        let failed = bench.with_fault(Moment::Call(0), errno, || qp.modify(&to_init)).unwrap();
        assert!(failed.is_err());
        assert_eq!((qp.state(), qp.query().unwrap().state), (State::Reset, State::Reset));
        qp.modify(&to_init).unwrap();
    }
    world.cq.resize(200).unwrap();
    qp.connect(&peer).unwrap();
    // SAFETY: no memory is named.
    unsafe { qp.post_send(7, uverbs::op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut world.cq).wr_id, 7);
}

#[test]
fn a_failed_reregistration_leaves_the_region_as_it_was() {
    let _alone = alone();
    let bench = Bench::new();
    let mut world = World::new(&bench);
    let mut region = world.region().unwrap();
    let other = world.context.alloc_pd().unwrap();
    let (mut a, _b) = world.pair().unwrap();
    for (round, errno) in (0u8..).zip(ERRNOS) {
        let call = Moment::Call(0);
        let keys = (region.lkey(), region.rkey());
        let narrowed = uverbs::AccessFlags::LOCAL_WRITE;
        let failed = bench.with_fault(call, errno, || region.change_access(narrowed)).unwrap();
        assert_eq!(failed.unwrap_err().errno(), errno as i32);
        assert!(bench.with_fault(call, errno, || region.change_pd(&other)).unwrap().is_err());
        let before = bench.inventory();
        let buffer = Buffer::new(1 << 16).unwrap();
        assert!(bench.with_fault(call, errno, || region.change_buffer(buffer)).unwrap().is_err());
        assert_eq!(bench.inventory(), before);
        assert_eq!((region.lkey(), region.rkey(), region.len()), (keys.0, keys.1, 8192));
        assert_eq!(region.access(), ALL_ACCESS);
        let target = region.remote(100).unwrap();
        // SAFETY: inline data; the region outlives the request.
        unsafe { a.post_send(1, op::Write(target), Inline(&[round]), SIGNALED).unwrap() };
        success(&mut world.cq);
        assert_eq!(region.view().to_vec()[100], round);
    }
}

/// Each verb fails by the moment that `docs/faults.md` names for it, and no verb before it does.
#[test]
fn a_test_can_choose_the_verb_that_fails() {
    let _alone = alone();
    let soft = SoftDevice::builder("soft0").without_wire().build().unwrap();
    let context = Device::from_soft(soft.clone()).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_raw_cq(16).build().unwrap();
    let qp = || pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
    let region = |bytes| pd.register(Buffer::new(bytes).unwrap(), ALL_ACCESS);
    let destroyed = Moment::Method(objects::cq::OBJECT, objects::cq::destroy::METHOD, 0);
    type Verb<'a> = &'a dyn Fn() -> Result<()>;
    let cases: [(&str, Moment, Verb<'_>); 9] = [
        ("alloc_pd", Moment::Command(WriteCmd::ALLOC_PD, 0), &|| context.alloc_pd().map(drop)),
        ("reg_mr", Moment::Command(WriteCmd::REG_MR, 1), &|| {
            region(4096).unwrap();
            region(8192).map(drop)
        }),
        ("rereg_mr", Moment::Command(WriteCmd::REREG_MR, 0), &|| {
            region(4096).unwrap().change_access(ALL_ACCESS)
        }),
        ("create_cq", Moment::Command(WriteCmd::EX_CREATE_CQ, 0), &|| {
            context.create_cq(16).build().map(drop)
        }),
        ("resize_cq", Moment::Command(WriteCmd::RESIZE_CQ, 0), &|| {
            context.create_cq(16).build().unwrap().resize(64)
        }),
        ("create_qp", Moment::Command(WriteCmd::EX_CREATE_QP, 0), &|| qp().build().map(drop)),
        ("modify_qp", Moment::Command(WriteCmd::MODIFY_QP, 0), &|| qp().build().map(drop)),
        ("create_srq", Moment::Command(WriteCmd::CREATE_XSRQ, 0), &|| {
            pd.create_srq(16).build().map(drop)
        }),
        ("destroy_cq", destroyed, &|| Ok(context.create_cq(16).build().unwrap().destroy()?)),
    ];
    for (verb, moment, call) in cases {
        soft.inject(Fault { moment, errno: Errno::ENOSPC });
        let error = call().expect_err(verb);
        assert_eq!((error.verb(), error.errno()), (verb, Errno::ENOSPC as i32));
        assert_eq!(soft.clear_faults(), 0, "{verb}");
        if verb != "destroy_cq" {
            call().unwrap_or_else(|error| panic!("{verb} again: {error}"));
        }
    }
}

#[test]
fn several_changes_of_a_region_are_one_command() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    let mut region = world.region().unwrap();
    let (other, access) = (world.context.alloc_pd().unwrap(), uverbs::AccessFlags::LOCAL_WRITE);
    let buffer = || Some(Buffer::new(1 << 16).unwrap());
    let second = Moment::Call(1);
    let outcome = bench.with_fault(second, Errno::ENOMEM, || {
        region.change(Some(&other), Some(access), buffer()).unwrap();
    });
    assert!(outcome.is_none(), "no second command");
    assert_eq!((region.access(), region.len()), (access, 1 << 16));
    assert_eq!(region.pd().kernel_handle(), other.kernel_handle());
    let failed = bench.with_fault(Moment::Call(0), Errno::ENOMEM, || {
        region.change(Some(&world.pd), Some(ALL_ACCESS), buffer())
    });
    assert!(failed.unwrap().is_err());
    assert_eq!((region.access(), region.len()), (access, 1 << 16));
    assert_eq!(region.pd().kernel_handle(), other.kernel_handle());
}

#[test]
fn a_failed_attach_or_detach_leaves_the_multicast_group_as_it_was() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    let mut qp = any_qp::<Ud>(&world).build().unwrap();
    qp.activate().unwrap();
    let group: Gid = "ff0e::1:2:3".parse().unwrap();
    for errno in ERRNOS {
        let call = Moment::Call(0);
        let failed = bench.with_fault(call, errno, || qp.attach_multicast(group, 0)).unwrap();
        assert_eq!(failed.unwrap_err().errno(), errno as i32);
        assert!(qp.detach_multicast(group, 0).is_err(), "not joined");
        qp.attach_multicast(group, 0).unwrap();
        assert!(bench.with_fault(call, errno, || qp.detach_multicast(group, 0)).unwrap().is_err());
        qp.detach_multicast(group, 0).unwrap();
    }
}

#[test]
fn a_doorbell_page_that_cannot_be_mapped_is_freed() {
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    let mut domains = Vec::new();
    let mut failures = 0;
    while failures < 4 {
        let before = bench.inventory();
        let alloc = || world.context.alloc_thread_domain();
        match bench.with_fault(Moment::Mapping(0), Errno::ENOMEM, alloc) {
            // A register was free on a page that was already mapped.
            None => domains.push(alloc().unwrap()),
            Some(failed) => {
                let error = failed.unwrap_err();
                assert_eq!(error.errno(), Errno::ENOMEM as i32);
                assert!(error.cure().contains("alloc_thread_domain"), "{error}");
                assert_eq!(bench.inventory(), before);
                failures += 1;
                domains.push(alloc().unwrap());
            }
        }
    }
}

#[test]
fn a_failed_open_leaks_nothing() {
    let _alone = alone();
    for kernel in KERNELS {
        each_failing_open_leaks_nothing(&Bench::on(kernel));
    }
}

#[test]
fn a_failed_open_on_a_too_old_kernel_leaks_nothing() {
    let _alone = alone();
    let bench = Bench::on(Kernel::SHORT_CONTEXT);
    let before = bench.inventory();
    assert_eq!(bench.device.open().unwrap_err().kind(), ErrorKind::KernelTooOld);
    assert_eq!(bench.inventory(), before);
}

fn each_failing_open_leaks_nothing(bench: &Bench) {
    let whole = bench.device.open().unwrap();
    let limits = format!("{:?}", whole.driver_limits());
    drop(whole);
    for errno in [Errno::ENOMEM, Errno::EAGAIN, Errno::EFAULT, Errno::EIO, Errno::EINTR] {
        for nth in 0.. {
            let before = bench.inventory();
            let open = || bench.device.open();
            let Some(opened) = bench.with_fault(Moment::Call(nth), errno, open) else { break };
            match opened {
                Err(error) => assert_eq!(error.errno(), errno as i32, "{error}"),
                Ok(context) => {
                    let what = format!("command {nth} failed with {errno:?}, and it shows");
                    assert_eq!(format!("{:?}", context.driver_limits()), limits, "{what}");
                    context.alloc_pd().unwrap_or_else(|error| panic!("{what}: {error}"));
                }
            }
            assert_eq!(bench.inventory(), before, "command {nth} with {errno:?}");
        }
    }
}

#[test]
fn running_out_of_descriptors_is_named_and_passes() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let _alone = alone();
    let bench = Bench::new();
    let world = World::new(&bench);
    world.run_to_idle();
    let before = bench.inventory();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let errors = [world.context.create_completion_channel().err(), bench.device.open().err()];
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    for error in errors {
        let error = error.expect("no descriptor is left");
        assert_eq!(error.errno(), Errno::EMFILE as i32, "{error}");
        assert!(error.cure().contains("ulimit -n"), "{error}");
    }
    assert_eq!(bench.inventory(), before);
    world.context.create_completion_channel().unwrap();
    bench.device.open().unwrap();
}

/// Opens the device, creates one object of each type, and returns all of them.
fn whole_program(device: &Device) -> Result<Vec<Box<dyn Any>>> {
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_completion_channel()?;
    let mut cq = context.create_raw_cq(32).channel(&channel).build()?;
    let region = pd.register(Buffer::new(4096).unwrap(), ALL_ACCESS)?;
    let srq = pd.create_raw_srq(8).build()?;
    let xrcd = context.open_xrcd()?;
    let xrc = pd.create_raw_srq(8).xrc(&xrcd, cq.handle()).build()?;
    let build = || pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).access(REMOTE).build();
    let (mut a, mut b) = (build()?, build()?);
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b)?;
    b.connect(&end_a)?;
    let mut ud = pd.create_raw_qp::<Ud>(cq.handle(), cq.handle()).build()?;
    ud.activate()?;
    let ah = pd.create_ah(&ud.address_of(&ud.endpoint())?)?;
    let window = pd.alloc_mw(WindowType::Type2)?;
    // SAFETY: inline data; the region outlives the request.
    unsafe { a.post_send(1, op::Write(region.remote(0)?), Inline(b"!"), SIGNALED)? };
    success(&mut cq);
    cq.resize(100)?;
    Ok(vec![
        Box::new((a, b, ud, ah, window)),
        Box::new((srq, xrc, xrcd, region)),
        Box::new((cq, channel, pd, context)),
    ])
}

#[test]
fn a_whole_program_fails_cleanly_at_every_command() {
    let _alone = alone();
    for kernel in KERNELS {
        fails_cleanly_at_every_command(&Bench::on(kernel));
    }
}

fn fails_cleanly_at_every_command(bench: &Bench) {
    for _ in 0..2 {
        drop(whole_program(&bench.device).unwrap());
    }
    for moment in MOMENTS {
        let mapped = Mapped::now();
        for errno in [Errno::ENOMEM, Errno::EIO, Errno::EINTR] {
            for nth in 0.. {
                let before = bench.inventory();
                let program = || whole_program(&bench.device);
                let Some(result) = bench.with_fault(moment(nth), errno, program) else { break };
                let told = result.as_ref().err().map(ToString::to_string);
                drop(result);
                let what = format!("{:?} with {errno:?}: {told:?}", moment(nth));
                assert_eq!(bench.inventory(), before, "{what}");
            }
        }
        mapped.assert_no_leak(16, "a whole program");
    }
}

#[test]
fn a_change_reported_as_failed_but_made_accesses_no_freed_memory() {
    let _alone = alone();
    let bench = Bench::new();
    let mut world = World::new(&bench);
    let mut region = world.region().unwrap();
    let (mut a, _b) = world.pair().unwrap();
    let target = region.remote(100).unwrap();
    for (round, errno) in (0u8..).zip(ERRNOS) {
        let made = Moment::Completed(0);
        // The device uses the new ring although the command failed, and so does the queue.
        let entries = 200 + 200 * u32::from(round % 2);
        bench.with_fault(made, errno, || world.cq.resize(entries)).unwrap().unwrap();
        assert_eq!(world.cq.capacity(), if round % 2 == 0 { 255 } else { 511 });
        // SAFETY: no memory is named.
        unsafe { a.post_send(1, uverbs::op::Nop, (), SIGNALED).unwrap() };
        assert_eq!(success(&mut world.cq).wr_id, 1);
        assert!(world.cq.poll().is_err());

        let buffer = Buffer::new(1 << 16).unwrap();
        let changed = bench.with_fault(made, errno, || region.change_buffer(buffer)).unwrap();
        assert_eq!(changed.unwrap_err().errno(), errno as i32);
    }
    // After two failed resizes, only a completion shows which was executed.
    let mut resize = |moment, entries| {
        bench.with_fault(moment, Errno::EIO, || world.cq.resize(entries)).unwrap().unwrap_err();
    };
    resize(Moment::Call(0), 1000);
    resize(Moment::Completed(0), 2000);
    assert_eq!(world.cq.capacity(), 1023);
    // SAFETY: no memory is named.
    unsafe { a.post_send(1, uverbs::op::Nop, (), SIGNALED).unwrap() };
    assert_eq!(success(&mut world.cq).wr_id, 1);
    assert_eq!(world.cq.capacity(), 2047);
    world.cq.resize(200).unwrap();
    assert_eq!(world.cq.capacity(), 255);

    // Whichever buffer the old key refers to still exists. SAFETY: inline data; the region outlives
    // the request.
    unsafe { a.post_send(2, op::Write(target), Inline(&[1]), SIGNALED).unwrap() };
    assert_eq!(common::completion(&mut world.cq).wr_id, 2);
    region.deregister().unwrap();
}
