use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::*;
use crate::core::{AsyncKind, CoreConfig, EventObject};
use crate::memory::BufferMemory;
use crate::wire::{Carrier, Link, Network, NoWire};

/// Time limit of a wait for the device, which is reached only if there is a defect.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<Event>>,
    ticks: AtomicU64,
}

impl Host for Recorder {
    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn tick(&self, _now: u64) -> Option<u64> {
        self.ticks.fetch_add(1, Ordering::SeqCst);
        None
    }
}

impl Recorder {
    /// Waits for `count` more looks of the device. The time limit only ends a failed test.
    fn looks(&self, count: u64) {
        self.reaches(self.ticks.load(Ordering::SeqCst) + count);
    }

    /// Waits for `count` looks of the device in all.
    fn reaches(&self, count: u64) {
        let limit = Instant::now() + PATIENCE;
        while self.ticks.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < limit, "the device thread does not look");
            std::thread::yield_now();
        }
    }
}

fn core() -> Core {
    Core::new(CoreConfig::default(), Arc::new(BufferMemory::new(0, 4096)))
}

fn start() -> (Runtime, Arc<Recorder>) {
    let host = Arc::new(Recorder::default());
    let waker = Arc::new(Waker::new().unwrap());
    let runtime = Runtime::new(core(), Box::new(NoWire), waker, host.clone());
    (runtime.start("test").unwrap(), host)
}

/// A device that only the looks of programs drive.
fn without_thread(host: Arc<dyn Host>) -> Runtime {
    Runtime::new(core(), Box::new(NoWire), Arc::new(Waker::new().unwrap()), host)
}

/// A queue pair's doorbell page; ringing it has no effect.
fn attach(runtime: &Runtime) -> UarPage {
    let page = UarPage::new(Arc::new(UarRegion::new(1).unwrap()), 0).unwrap();
    runtime.control(|m| m.uars.attach(&page, Doorbell::Send(crate::core::Qpn(0x40)))).unwrap();
    page
}

/// Threads of devices named `leak`.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.filter(|name| name.starts_with("soft leak")).count()
}

#[test]
fn commands_run_and_their_events_come_first() {
    let (runtime, host) = start();
    let object = EventObject::Port(1);
    let raised = |machine: &mut Machine| machine.core.inject_event(AsyncKind::PortActive, object);
    runtime.control(raised).unwrap().unwrap();
    let expected = [Event::Async { kind: AsyncKind::PortActive, object }];
    assert_eq!(*host.events.lock().unwrap(), expected);
}

#[test]
fn a_device_without_queues_looks_when_woken_and_then_sleeps() {
    let (runtime, host) = start();
    for _ in 0..10 {
        runtime.control(|_| ()).unwrap();
    }
    host.looks(0);
    assert!(host.ticks.load(Ordering::SeqCst) < 1000, "it does not look without a reason");
}

#[test]
fn commands_are_not_starved_by_a_busy_device() {
    let (runtime, host) = start();
    let page = attach(&runtime);
    host.looks(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| runtime.control(|_| ()).unwrap()));
        }
    });
    runtime.control(|m| m.uars.detach(&page, Doorbell::Send(crate::core::Qpn(0x40)))).unwrap();
}

#[test]
fn no_thread_and_no_station_is_left() {
    let host = Arc::new(Recorder::default());
    for _ in 0..3 {
        let waker = Arc::new(Waker::new().unwrap());
        let network =
            Network::join_any(Link::Ethernet, Some(waker.clone()), Carrier::Memory).unwrap();
        let station = network.station();
        let runtime = Runtime::new(core(), Box::new(network), waker.clone(), host.clone());
        let runtime = runtime.start("leak").unwrap();
        runtime.control(|_| ()).unwrap();
        drop(runtime);
        assert_eq!(threads(), 0);
        assert!(Network::join_as(station, Link::Ethernet, Some(waker), Carrier::Memory).is_ok());
    }
}

/// Records the order in which the wire and the clock are read.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Host for Order {
    fn event(&self, _: Event) {}

    fn tick(&self, _now: u64) -> Option<u64> {
        self.0.lock().unwrap().push("clock");
        None
    }
}

impl Wire for Order {
    fn send(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) {}

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        self.0.lock().unwrap().push("wire");
        0
    }
}

/// A wire whose receivers have no space. It holds this number of packets; while `takes` is set,
/// each look delivers one.
#[derive(Clone, Default)]
struct Full {
    waiting: Arc<AtomicUsize>,
    takes: Arc<AtomicBool>,
}

impl Wire for Full {
    fn send(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) {}

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        let passed = usize::from(self.takes.load(Ordering::Relaxed)).min(self.waiting());
        self.waiting.fetch_sub(passed, Ordering::Relaxed);
        0
    }
}

#[test]
fn what_waits_for_receivers_is_handed_over_unless_they_take_nothing() {
    let (wire, host) = (Full::default(), Arc::new(Recorder::default()));
    let waker = Arc::new(Waker::new().unwrap());
    let runtime = Runtime::new(core(), Box::new(wire.clone()), waker, host);
    wire.waiting.store(3, Ordering::Relaxed);
    assert!(!runtime.progress());
    // It returns, although nothing changes.
    at_exit::hand_over(&runtime.shared, Instant::now(), || _ = runtime.progress());
    assert_eq!(wire.waiting(), 3);
    let machine = runtime.shared.machine.lock().unwrap();
    wire.takes.store(true, Ordering::Relaxed);
    assert_eq!(at_exit::left_in(&runtime.shared), 4, "a look has packets");
    drop(machine);
    drop(runtime);
    assert_eq!(wire.waiting(), 0, "a device that is dropped hands over, too");
}

#[test]
fn arrived_packets_are_handled_before_timeouts() {
    let (order, waker) = (Order::default(), Arc::new(Waker::new().unwrap()));
    let (wire, host) = (Box::new(order.clone()), Arc::new(order.clone()));
    let runtime = Runtime::new(core(), wire, waker, host).start("order").unwrap();
    let limit = Instant::now() + PATIENCE;
    while order.0.lock().unwrap().len() < 2 {
        assert!(Instant::now() < limit, "the device thread does not look");
        std::thread::yield_now();
    }
    drop(runtime);
    assert_eq!(order.0.lock().unwrap()[..2], ["wire", "clock"]);
}

#[test]
#[allow(unsafe_code, reason = "forks")]
fn a_forked_child_is_refused_and_can_exit() {
    let (runtime, _) = start();
    // SAFETY: the child waits for no lock that another thread held at the fork: it compares process
    // ids, forgets a handle and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let looked = runtime.progress() || runtime.shared.standby.last().is_some();
        let refused = runtime.control(|_| ()) == Err(Orphaned(runtime.home.process())) && !looked;
        drop(runtime);
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; status is a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    runtime.control(|_| ()).unwrap();
}

/// A thread that waits for a file yields the device to a polling thread, but not to the device's
/// own thread.
#[test]
fn a_device_thread_that_finds_the_lock_held_does_not_count_as_a_poller() {
    let (runtime, _) = start();
    let (shared, from) = (&runtime.shared, clock::now());
    let taken = loop {
        // The thread may sleep with the lock.
        shared.waker.wake();
        if let Ok(worker) = shared.worker.try_lock() {
            break worker;
        }
        std::thread::yield_now();
    };
    while shared.standby.waits_until() < from {
        std::thread::yield_now();
    }
    assert!(!shared.standby.is_polled(from));
    drop(taken);
}

#[test]
fn a_look_of_a_program_yields_to_commands_and_other_looks() {
    let host = Arc::new(Recorder::default());
    let runtime = without_thread(host.clone());
    let ticks = || host.ticks.load(Ordering::SeqCst);
    runtime.progress();
    assert_eq!(ticks(), 1);
    let busy = runtime.shared.worker.lock().unwrap();
    runtime.progress();
    drop(busy);
    runtime.shared.waiting.fetch_add(1, Ordering::SeqCst);
    runtime.progress();
    assert_eq!(ticks(), 1);
    runtime.shared.waiting.fetch_sub(1, Ordering::SeqCst);
    runtime.progress();
    assert_eq!(ticks(), 2);
}

#[test]
fn a_sleeping_thread_leaves_looks_to_programs_and_returns_after() {
    let (runtime, host) = start();
    // Without queues it sleeps until it is woken.
    runtime.control(|_| ()).unwrap();
    let limit = Instant::now() + PATIENCE;
    while host.ticks.load(Ordering::SeqCst) < 100 {
        assert!(Instant::now() < limit, "it does not leave the looks to programs");
        runtime.progress();
    }
    attach(&runtime);
    for _ in 0..100 {
        runtime.progress();
    }
    // A doorbell wakes no thread; only a look sees it.
    host.looks(1);
}

#[test]
fn a_napping_thread_ends_at_once() {
    let (runtime, host) = start();
    attach(&runtime);
    host.looks(1);
    runtime.shared.standby.note(u64::MAX);
    drop(runtime);
}

/// Panics when the device reads the clock.
#[derive(Default)]
struct Breaks(Recorder);

impl Host for Breaks {
    fn event(&self, event: Event) {
        self.0.event(event);
    }

    fn tick(&self, _: u64) -> Option<u64> {
        panic!("on purpose")
    }
}

#[test]
fn a_panic_in_a_look_of_a_program_is_a_fatal_error_of_the_device() {
    let host = Arc::new(Breaks::default());
    let runtime = without_thread(host.clone());
    assert!(!runtime.progress());
    assert!(!runtime.progress());
    let object = EventObject::Device;
    let fatal = Event::Async { kind: AsyncKind::DeviceFatal, object };
    assert_eq!(*host.0.events.lock().unwrap(), [fatal]);
    // The device's thread cannot continue either.
    drop(runtime.start("breaks").unwrap());
    assert_eq!(host.0.events.lock().unwrap().len(), 1);
}

/// A runtime that always considers the machine oversubscribed.
fn oversubscribed(host: Arc<dyn Host>) -> Runtime {
    let runtime = without_thread(host);
    runtime.shared.scheduler.assume_oversubscribed();
    runtime
}

#[test]
fn on_an_oversubscribed_machine_an_idle_thread_waits_and_another_one_runs_the_device() {
    let host = Arc::new(Recorder::default());
    let runtime = oversubscribed(host.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    runtime.idle();
                }
            });
        }
        host.looks(100);
        // Waiting threads do not delay a command.
        (0..100).for_each(|_| runtime.control(|_| ()).unwrap());
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn an_idle_thread_polls_once_more_after_another_thread_ran_the_device() {
    let host = Arc::new(Recorder::default());
    let runtime = oversubscribed(host.clone());
    let ticks = || host.ticks.load(Ordering::SeqCst);
    runtime.idle();
    assert_eq!(ticks(), 1, "its first call on this device does not wait");
    runtime.idle();
    assert_eq!(ticks(), 3, "a look, and one before the wait");
    runtime.shared.work.note();
    runtime.idle();
    assert_eq!(ticks(), 4, "there may be a completion");
}

#[test]
fn a_wait_for_a_file_ends_with_the_file() {
    let host = Arc::new(Recorder::default());
    let runtime = without_thread(host.clone());
    let (read, write) = std::os::unix::net::UnixStream::pair().unwrap();
    let files = [read.as_fd()];
    assert_eq!(runtime.wait_readable(&files, Some(Duration::from_millis(1))), Ok(None));
    let looks = host.ticks.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| runtime.wait_readable(&files, None));
        // The waiting thread looks like the device's thread, and yields to commands.
        host.reaches(looks + 1);
        runtime.control(|_| ()).unwrap();
        io::Write::write_all(&mut &write, b"x").unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(Some(0)));
    });
    // The same while another thread holds the device.
    let busy = runtime.shared.worker.lock().unwrap();
    assert_eq!(runtime.wait_readable(&files, None), Ok(Some(0)));
    assert_eq!(runtime.wait_readable(&files, Some(Duration::MAX)), Ok(Some(0)));
    drop(busy);
    // The same while another thread polls.
    runtime.shared.standby.note(u64::MAX / 2);
    assert_eq!(runtime.wait_readable(&files, None), Ok(Some(0)));
}

#[test]
fn a_wait_may_have_any_time_limit() {
    let host = Arc::new(Recorder::default());
    let runtime = without_thread(host.clone());
    let (read, write) = std::os::unix::net::UnixStream::pair().unwrap();
    let files = [read.as_fd()];
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_nanos(u64::MAX)] {
        let looks = host.ticks.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| runtime.wait_readable(&files, Some(limit)));
            host.reaches(looks + 1);
            io::Write::write_all(&mut &write, b"x").unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(Some(0)), "{limit:?}");
        });
        io::Read::read_exact(&mut &read, &mut [0]).unwrap();
    }
    runtime.control(|_| ()).expect("the device works");
    assert!(!runtime.shared.worker.is_poisoned());
}
