use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use nix::sys::eventfd::EventFd;
use uverbs_mlx5_format::BLUEFLAME_OFFSET;

use super::*;
use crate::core::{Core, CoreConfig, Event, Qpn};
use crate::memory::BufferMemory;
use crate::packet::{Addressing, Gid};
use crate::runtime::thread::Slept;
use crate::runtime::{Doorbell, Host, Runtime, UarPage, UarRegion};
use crate::wire::{NoWire, Waker};

struct Deaf;

impl Host for Deaf {
    fn event(&self, _: Event) {}
}

fn packet(opcode: u8) -> Packet {
    let mut packet = Packet::new();
    let route = Addressing::roce(Gid::default(), Gid::default());
    packet.fill(route, &[opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet
}

/// A thread rings and then waits, while the worker is locked by a thread in the middle of a sweep.
#[test]
fn a_sweep_begins_anew_for_a_thread_that_begins_to_wait() {
    const PAGES: usize = 600;
    let runtime = runtime(NoWire);
    let region = Arc::new(UarRegion::new(PAGES).unwrap());
    runtime.control(|machine| attach(machine, &region)).unwrap();
    let shared = &*runtime.shared;
    let mut worker = shared.worker.lock().unwrap();
    // Returns whether pages remain to be read, in which case `look_and_sleep` does not sleep.
    let mut look = || {
        shared.waker.prepare_sleep();
        let more = worker.look(shared, clock::now(), Whose::Waiting).more;
        shared.waker.end_sleep(false);
        more
    };
    assert!(look(), "a portion");
    let doorbell = region.word(0, BLUEFLAME_OFFSET);
    doorbell.store(1, Ordering::Release);
    std::thread::scope(|scope| {
        let wait = || runtime.wait_readable(&[], Some(std::time::Duration::from_micros(1)));
        assert_eq!(scope.spawn(wait).join().unwrap(), Ok(None));
    });
    while look() {}
    assert_eq!(doorbell.load(Ordering::Relaxed), 0, "it sleeps and does not see the doorbell");
}

/// Otherwise two threads that wake each other without work would keep a device from long sleeps.
#[test]
fn a_thread_that_begins_to_wait_does_not_count_as_work_by_itself() {
    let runtime = runtime(NoWire);
    let region = Arc::new(UarRegion::new(1).unwrap());
    runtime.control(|machine| attach(machine, &region)).unwrap();
    let shared = &*runtime.shared;
    let mut worker = shared.worker.lock().unwrap();
    worker.pace_commands(shared, 0);
    let later = clock::now() + 10_000_000_000;
    assert!(!worker.look(shared, later, Whose::Waiting).did_work);
    let quiet = worker.pacing.timeout(later, None);
    let mut sleep = |wake: &dyn Fn()| {
        let timeout = |_: &Pacing, _, _| {
            wake();
            Some(0)
        };
        let slept = worker.look_and_sleep(shared, later, Whose::Waiting, &[], timeout).unwrap();
        assert!(matches!(slept, Slept::Until(ready) if ready.waker), "{slept:?}");
        worker.pacing.timeout(later, None)
    };
    assert_eq!(sleep(&|| shared.sweep_anew()), quiet);
    assert!(sleep(&|| runtime.control(|_| ()).unwrap()) < quiet, "a command");
}

/// A command may be followed by a doorbell, which wakes no thread.
#[test]
fn a_command_counts_as_work_whenever_it_came() {
    let runtime = runtime(NoWire);
    let region = Arc::new(UarRegion::new(1).unwrap());
    runtime.control(|machine| attach(machine, &region)).unwrap();
    let shared = &*runtime.shared;
    let mut worker = shared.worker.lock().unwrap();
    let command = || runtime.control(|_| ()).unwrap();
    let own = Whose::Own(Pause::Sleep);
    let mut sleep = |now, during: &dyn Fn()| {
        worker.pacing = Pacing::new(0);
        let mut planned = None;
        let timeout = |pacing: &Pacing, now, deadline| {
            planned = pacing.timeout(now, deadline);
            during();
            Some(0)
        };
        worker.look_and_sleep(shared, now, own, &[], timeout).unwrap();
        (planned, worker.pacing.timeout(clock::now(), None))
    };
    let quiet = 20_000_000_000;
    let (longest, shortest) = (Some(8_000_000), Some(25_000));
    sleep(quiet, &|| ());
    assert_eq!(sleep(quiet, &|| ()).0, longest);
    command();
    assert_eq!(sleep(quiet, &|| ()).0, shortest, "before the look");
    assert_eq!(sleep(quiet, &|| ()).0, longest, "once");
    let (planned, next) = sleep(quiet, &command);
    assert_eq!(planned, longest);
    assert!(next < longest, "during the sleep, which began long ago");
}

fn attach(machine: &mut Machine, region: &Arc<UarRegion>) {
    for number in 0..region.pages() {
        let page = UarPage::new(region.clone(), number).unwrap();
        machine.uars.attach(&page, Doorbell::Send(Qpn(number as u32)));
    }
}

#[test]
fn acknowledgements_wait_for_the_answer_of_a_program_that_was_woken() {
    let runtime = runtime(NoWire);
    let shared = &*runtime.shared;
    let waits = |whose, passed_events| may_wait(shared, 5, whose, passed_events);
    shared.standby.note_wait(5 + SOON);
    // BTH opcodes: ACKNOWLEDGE and SEND Only of a reliable connection.
    lock(&shared.outbox).push(packet(0x11));
    assert!(waits(Whose::Waiting, true));
    assert!(!waits(Whose::Waiting, false), "it goes on sleeping");
    assert!(waits(Whose::Polling, false), "the program looks again, or the device's thread does");
    lock(&shared.outbox).push(packet(0x04));
    assert!(!waits(Whose::Waiting, true), "a message does not wait");
    lock(&shared.outbox).pop();
    let mut nak = packet(0x11);
    nak.bytes_mut()[12] = 0x60;
    lock(&shared.outbox).push(nak);
    assert!(!waits(Whose::Waiting, true), "a NAK for a sequence error does not wait");
    lock(&shared.outbox).pop();
    shared.standby.note_wait(6 + SOON);
    assert!(!waits(Whose::Waiting, true), "the device's thread would be late");
}

/// A device on this wire, with no objects.
fn runtime(wire: impl Wire + 'static) -> Runtime {
    let core = Core::new(CoreConfig::default(), Arc::new(BufferMemory::new(0, 4096)));
    Runtime::new(core, Box::new(wire), Arc::new(Waker::new().unwrap()), Arc::new(Deaf))
}

/// Records which of its methods are called.
#[derive(Default)]
struct Calls(Vec<&'static str>);

impl Wire for Calls {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
        self.0.push("send");
    }

    fn send_quietly(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
        self.0.push("send quietly");
    }

    fn wake_receivers(&mut self) {
        self.0.push("wake");
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        0
    }
}

/// A wire that reports the start of a send, which lasts until the test ends it.
struct Slow {
    begun: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
    sent: Arc<AtomicBool>,
}

impl Wire for Slow {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
        self.begun.send(()).unwrap();
        self.go.recv().unwrap();
        self.sent.store(true, Ordering::SeqCst);
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        0
    }
}

/// Otherwise the program could end before the packet is on the wire.
#[test]
fn a_command_waits_for_a_look_that_sends() {
    let (begun, begins) = mpsc::channel();
    let (tell, go) = mpsc::channel();
    let sent = Arc::new(AtomicBool::new(false));
    let wire = Slow { begun, go, sent: sent.clone() };
    let runtime = runtime(wire);
    lock(&runtime.shared.outbox).push(packet(0x04));
    std::thread::scope(|scope| {
        scope.spawn(|| runtime.progress());
        begins.recv().unwrap();
        let command = scope.spawn(|| {
            runtime.shared.send_before_return();
            sent.load(Ordering::SeqCst)
        });
        while runtime.shared.waiting.load(Ordering::SeqCst) == 0 && !command.is_finished() {
            std::thread::yield_now();
        }
        tell.send(()).unwrap();
        assert!(command.join().unwrap(), "it returned before the packet was on the wire");
    });
}

#[test]
fn the_look_after_a_quiet_one_wakes_the_receivers() {
    let runtime = runtime(NoWire);
    let (shared, mut worker, mut wire) = (&*runtime.shared, Worker::new(), Calls::default());
    for (sends, may_wait, call) in [
        (false, true, None),
        (true, true, Some("send quietly")),
        (false, true, Some("wake")),
        (true, true, Some("send quietly")),
        (true, true, Some("send")),
        (true, true, Some("send quietly")),
        (false, false, Some("wake")),
        (true, false, Some("send")),
        (false, false, None),
    ] {
        lock(&shared.outbox).extend(sends.then(|| packet(0x11)));
        worker.send(shared, 0, &mut wire, may_wait);
        assert_eq!(wire.0.pop(), call);
    }
}

/// A wire for which one send with more packets is cheaper than two sends. It reports the number of
/// packets of each send.
struct Joining(mpsc::Sender<usize>);

impl Wire for Joining {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        self.0.send(packets.drain(..).count()).unwrap();
    }

    fn joins_packets(&self) -> bool {
        true
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        0
    }
}

fn joining() -> (Runtime, mpsc::Receiver<usize>) {
    let (tell, sent) = mpsc::channel();
    (runtime(Joining(tell)), sent)
}

impl Worker {
    /// The end of a look after which an acknowledgement may wait.
    fn acknowledge(&mut self, shared: &Shared) {
        lock(&shared.outbox).push(packet(0x11));
        self.send(shared, 0, &mut **lock(&shared.wire), true);
    }
}

#[test]
fn an_acknowledgement_leaves_with_the_answer_or_with_the_next_one() {
    let (runtime, sent) = joining();
    let (shared, mut worker) = (&*runtime.shared, Worker::new());
    worker.acknowledge(shared);
    assert_eq!((worker.left_asleep, sent.try_recv().ok()), (true, None));
    lock(&shared.outbox).push(packet(0x04));
    worker.send(shared, 0, &mut **lock(&shared.wire), false);
    assert_eq!((worker.left_asleep, sent.try_recv().ok()), (false, Some(2)));
    worker.acknowledge(shared);
    worker.acknowledge(shared);
    assert_eq!((worker.left_asleep, sent.try_recv().ok()), (false, Some(2)), "not a third time");
}

/// A wire of this kind on which this number of packets arrive, and which sends nothing.
struct Arriving(usize);

impl Wire for Arriving {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
    }

    fn joins_packets(&self) -> bool {
        true
    }

    fn receive(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        packets.extend((0..self.0).map(|_| packet(0x04)));
        mem::take(&mut self.0)
    }
}

#[test]
fn an_acknowledgement_of_packets_in_a_row_does_not_wait() {
    for (arrived, waits) in [(0, false), (1, true), (FEW, true), (FEW + 1, false)] {
        let runtime = runtime(Arriving(arrived));
        let shared = &*runtime.shared;
        shared.standby.note_wait(5 + SOON);
        lock(&shared.outbox).push(packet(0x11));
        let mut worker = Worker::new();
        worker.look(shared, 5, Whose::Polling);
        assert_eq!(worker.left_asleep, waits, "{arrived} packets");
    }
}

#[test]
fn an_acknowledgement_leaves_before_a_command_returns() {
    let (runtime, sent) = joining();
    Worker::new().acknowledge(&runtime.shared);
    runtime.control(|_| ()).unwrap();
    assert_eq!(sent.try_recv(), Ok(1));
}

#[test]
fn the_devices_thread_sends_an_acknowledgement_that_no_answer_follows() {
    let (runtime, sent) = joining();
    let runtime = runtime.start("test").unwrap();
    let mut worker = loop {
        // A program's thread looked, so the device's thread stands by.
        runtime.progress();
        if let Ok(worker) = runtime.shared.worker.try_lock() {
            break worker;
        }
    };
    worker.acknowledge(&runtime.shared);
    assert_eq!((worker.left_asleep, sent.try_recv().ok()), (true, None));
    drop(worker);
    // This would block forever if only the program's next look sent the packet.
    assert_eq!(sent.recv(), Ok(1));
}

/// A wire with a file, which records the looks that do not read the file.
struct WithFile {
    file: Arc<EventFd>,
    skips: bool,
    looks: mpsc::Sender<bool>,
}

impl Wire for WithFile {
    fn send(&mut self, _: u64, packets: &mut Vec<Packet>, _: &mut PacketPool) {
        packets.clear();
    }

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        self.looks.send(!mem::take(&mut self.skips)).unwrap();
        0
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.file.as_fd());
    }

    fn skip_files(&mut self) {
        self.skips = true;
    }
}

#[test]
fn a_look_after_a_sleep_reads_the_files_only_if_they_were_readable() {
    let file = Arc::new(EventFd::new().unwrap());
    let (looks, looked) = mpsc::channel();
    let wire = WithFile { file: file.clone(), skips: false, looks };
    let runtime = runtime(wire);
    let (shared, mut worker) = (&*runtime.shared, Worker::new());
    let read = |worker: &mut Worker| {
        worker.look(shared, 0, Whose::Own(Pause::Yield));
        looked.recv().unwrap()
    };
    let sleep = |worker: &mut Worker| {
        let whose = Whose::Own(Pause::Sleep);
        worker.look_and_sleep(shared, 0, whose, &[], |_, _, _| Some(0)).unwrap();
        looked.recv().unwrap()
    };
    assert!(sleep(&mut worker), "the first look");
    assert!(!read(&mut worker), "the file had nothing at the end of the sleep");
    assert!(read(&mut worker), "a while after it");
    file.write(1).unwrap();
    assert!(!sleep(&mut worker), "the sleep polls the file");
    assert!(read(&mut worker));
    file.read().unwrap();
    sleep(&mut worker);
    shared.waker.prepare_sleep();
    shared.waker.wake();
    worker.sleep(shared, &[], None).unwrap();
    assert!(!read(&mut worker), "the waker ended the sleep");
}
