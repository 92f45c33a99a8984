//! Receive queues of frames: borrowing, returning and keeping buffers, counting, waiting.
//!
//! The tests need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod common;

#[path = "common/frames.rs"]
mod frames;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::PATIENCE;
use frames::{Wire, setup, udp_frame};
use uverbs::cq::CqeChecksum;
use uverbs::ethernet::{
    Clock, Frame, FrameError, RealTime, RxBuilder, RxQueue, StrideBytes, StridesPerWqe, Striding,
    Timestamp, UtcClock,
};
use uverbs::flow::{Ethernet, FiveTuple, FiveTupleV6, Port, Protocol, Sharing, UdpMulticast};
use uverbs::memory::{QueueMemory, QueueUse};
use uverbs::qp::{
    EthChecksum, EthernetOffload, PostFlags, RunTimeDestination, RunTimeOperation, SendRequest,
};
use uverbs::{Buffer, ErrorKind, PageSize};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const PORT: u16 = 14310;
const SUMS: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::IP_CSUM, vlan: None, metadata: 0 };

fn line() -> UdpMulticast {
    UdpMulticast::new(GROUP, PORT)
}

/// A frame of the multicast group.
fn quote(number: u32, length: usize) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(length.max(4), number as u8);
    let mut frame = udp_frame(line().mac(), PORT, &payload);
    frame[30..34].copy_from_slice(&GROUP.octets());
    frame
}

/// An IPv6 frame with ten bytes of UDP payload, from [::1]:1 to [::2]:2.
fn ipv6_frame(to: [u8; 6]) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 2, 0x86, 0xdd]].concat();
    frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 18, 17, 64]);
    frame.extend_from_slice(&Ipv6Addr::LOCALHOST.octets());
    frame.extend_from_slice(&Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 2).octets());
    frame.extend_from_slice(&[0, 1, 0, 2, 0, 18, 0xbb, 0xbb]);
    frame.extend_from_slice(&[7; 10]);
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

/// A sender, and a queue with the multicast group's steering rule.
struct Line<C: Clock> {
    rx: RxQueue<C>,
    _rule: uverbs::Flow,
    wire: Wire,
}

fn listen<C: Clock>(depth: u32, change: impl FnOnce(RxBuilder) -> RxBuilder<C>) -> Option<Line<C>> {
    let wire = Wire::new(|builder| builder)?;
    let rx = change(wire.setup.pd.create_rx_queue(depth)).build().unwrap();
    Some(Line::new(wire, rx))
}

impl<C: Clock> Line<C> {
    /// Steers frames to the port's own address too: a kernel's device may not receive its own
    /// multicast frames.
    fn new(wire: Wire, mut rx: RxQueue<C>) -> Self {
        let to_port = Port { protocol: Protocol::Udp, port: PORT, tag: Some(7) };
        let rule =
            if common::is_soft() { rx.steer(&line().tag(7)) } else { rx.steer(&to_port) }.unwrap();
        Self { rx, _rule: rule, wire }
    }

    /// The frame that [`send`](Self::send) sends.
    fn quote(&self, number: u32, length: usize) -> Vec<u8> {
        let mut frame = quote(number, length);
        if !common::is_soft() {
            frame[..6].copy_from_slice(&self.wire.mac);
        }
        frame
    }

    fn send(&mut self, number: u32, length: usize) {
        let frame = self.quote(number, length);
        self.send_frame(SUMS, &frame);
    }

    /// Sends a frame and waits for its completion.
    fn send_frame(&mut self, offload: EthernetOffload, frame: &[u8]) {
        let Wire { memory, from, setup, .. } = &mut self.wire;
        memory.view().write(0, frame).unwrap();
        let request = SendRequest {
            wr_id: 1,
            operation: RunTimeOperation::Packet(offload),
            destination: RunTimeDestination::Connected,
            data: &[memory.sge(0, frame.len()).unwrap()],
            inline: false,
            flags: PostFlags::SIGNALED,
        };
        // SAFETY: the region outlives the request, and its start is written again only afterwards.
        unsafe { from.post_list([request]).unwrap() };
        common::success(&mut setup.cq);
    }

    /// Sends frames of consecutive numbers with one doorbell, and waits for their completion.
    fn send_burst(&mut self, first: u32, lengths: &[usize]) {
        let numbers = (first..).zip(lengths);
        let frames: Vec<_> = numbers.map(|(number, length)| self.quote(number, *length)).collect();
        let Wire { memory, from, setup, .. } = &mut self.wire;
        let sges = frames.iter().enumerate().map(|(i, frame)| {
            memory.view().write(1024 * i, frame).unwrap();
            [memory.sge(1024 * i, frame.len()).unwrap()]
        });
        let sges: Vec<_> = sges.collect();
        let requests = sges.iter().map(|data| SendRequest {
            wr_id: 1,
            operation: RunTimeOperation::Packet(SUMS),
            destination: RunTimeDestination::Connected,
            data,
            inline: false,
            flags: PostFlags::SIGNALED,
        });
        // SAFETY: the region outlives the requests, and is written again only afterwards.
        unsafe { from.post_list(requests).unwrap() };
        for _ in lengths {
            common::success(&mut setup.cq);
        }
    }

    fn wait_for_frame(&mut self) -> Frame<'_, C> {
        let start = Instant::now();
        while self.rx.backlog() == 0 {
            assert!(start.elapsed() < PATIENCE, "no frame came");
            std::thread::yield_now();
        }
        self.rx.poll().unwrap()
    }

    /// Sends a frame to another queue pair and waits for it. All earlier frames have then been
    /// handled.
    fn catch_up(&mut self) {
        let address = self.wire.mac;
        self.wire.receive();
        let to = Ethernet { destination: address.into(), ..Ethernet::default() };
        let rule = self.wire.to.create_flow().ethernet(to).build().unwrap();
        self.send_frame(SUMS, &udp_frame(address, 1, &[0; 40]));
        self.wire.arrived();
        rule.destroy().unwrap();
    }

    /// Waits for the next frame and returns its number.
    fn next(&mut self) -> u32 {
        let start = Instant::now();
        loop {
            match self.rx.poll() {
                Ok(frame) => return number(frame.bytes()),
                Err(FrameError::Empty) => assert!(start.elapsed() < PATIENCE, "no frame came"),
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_frame_has_the_checks_of_the_device() {
    let Some(mut line) = listen(64, |rx| rx) else { return };
    let sent = line.quote(5, 100);
    line.send_frame(SUMS, &sent);
    assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
    let frame = line.rx.poll().unwrap();
    assert_eq!((frame.bytes().len(), &frame.bytes()[42..]), (sent.len(), &sent[42..]));
    assert_eq!(frame.flow_tag(), 7);
    assert!(frame.checksums_ok() && frame.is_ipv4() && frame.vlan().is_none());
    assert_ne!(frame.timestamp().raw(), 0);
    assert_eq!(frame.hash(), (0, 0));
    drop(frame);
    assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
    let counters = line.rx.counters();
    assert_eq!((counters.frames, counters.bytes), (1, sent.len() as u64));
    assert_eq!((counters.depth, counters.exhausted, counters.refused), (64, 0, 0));
}

#[test]
fn wrong_checksums_are_reported_and_rejected_frames_counted() {
    let Some(mut line) = listen(64, |rx| rx) else { return };
    let wrong = line.quote(1, 100);
    line.send_frame(EthernetOffload::default(), &wrong);
    assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
    let frame = line.rx.poll().unwrap();
    assert!(!frame.checksums_ok());
    frame.reject();
    assert_eq!((line.rx.counters().rejected, line.rx.counters().frames), (1, 1));
}

#[test]
fn buffers_return_to_the_queue_for_many_laps() {
    let Some(mut line) = listen(8, |rx| rx) else { return };
    for i in 0..100 {
        line.send(i, 50);
        assert_eq!(line.next(), i);
    }
    // A leaked frame does not return its buffer, and the next call returns the same frame again.
    line.send(100, 50);
    assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
    std::mem::forget(line.rx.poll().unwrap());
    assert_eq!(line.next(), 100);
    assert_eq!((line.rx.counters().frames, line.rx.counters().exhausted), (101, 0));
}

#[test]
fn a_batch_returns_its_buffers_together() {
    let Some(mut line) = listen(16, |rx| rx) else { return };
    for round in 0..20 {
        for i in 0..8 {
            line.send(round * 8 + i, 50);
        }
        let start = Instant::now();
        while line.rx.backlog() < 8 {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        let mut batch = line.rx.batch();
        let polled: Vec<u32> =
            std::iter::from_fn(|| Some(number(batch.poll().ok()?.bytes()))).collect();
        assert_eq!(polled, (round * 8..round * 8 + 8).collect::<Vec<_>>());
    }
    assert_eq!(line.rx.counters().frames, 160);
}

#[test]
fn a_kept_frame_stays_valid_while_the_queue_receives_more() {
    let Some(mut line) = listen(8, |rx| rx) else { return };
    let mut kept = Vec::new();
    for i in 0..40 {
        line.send(i, 50 + i as usize);
        assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
        let spare = line.rx.slab().take();
        let frame = line.rx.poll().unwrap();
        match spare {
            Some(spare) if i % 3 == 0 => kept.push(frame.take(spare).unwrap()),
            _ => assert_eq!(number(frame.bytes()), i),
        }
    }
    assert_eq!(kept.len(), 14);
    for (i, slot) in (0..40).step_by(3).zip(&kept) {
        assert_eq!((number(slot), slot.len()), (i, 42 + 50 + i as usize));
    }
    // Too small a slot is returned, and so is the frame's buffer.
    let small = line.wire.setup.pd.create_slab(1, 64).unwrap();
    let foreign = line.wire.setup.context.alloc_pd().unwrap().create_slab(1, 2048).unwrap();
    for slab in [small, foreign] {
        line.send(99, 50);
        assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
        let refused = line.rx.poll().unwrap().take(slab.take().unwrap()).unwrap_err();
        drop(refused);
        assert_eq!(slab.free(), 1);
    }
    drop(line.rx);
    drop(kept);
}

#[test]
fn a_frame_that_is_too_long_is_counted_and_skipped() {
    let Some(mut line) = listen(8, |rx| rx.frame_bytes(200)) else { return };
    for round in 0..20 {
        line.send(1000, 300);
        line.send(round, 100);
        assert_eq!(line.next(), round);
    }
    let counters = line.rx.counters();
    assert_eq!((counters.too_long, counters.frames, counters.refused), (20, 20, 0));
}

#[test]
fn the_shortest_queues_work_for_many_laps() {
    for depth in 1..=5 {
        let Some(mut line) = listen(depth, |rx| rx) else { return };
        assert_eq!(line.rx.counters().depth, if depth < 5 { 4 } else { 8 });
        for number in 0..100 {
            line.send(number, 50);
            assert_eq!(line.next(), number);
        }
        assert_eq!(line.rx.counters().exhausted, 0);
    }
}

#[test]
fn an_exhausted_queue_reports_the_number_of_lost_frames() {
    let Some(mut line) = listen(16, RxBuilder::count_matches) else { return };
    for i in 0..40 {
        line.send(i, 50);
    }
    line.catch_up();
    assert_eq!(line.rx.backlog(), 16);
    assert_eq!((line.rx.matched().unwrap(), line.rx.lost().unwrap()), (40, 24));
    let polled: Vec<u32> =
        std::iter::from_fn(|| Some(number(line.rx.poll().ok()?.bytes()))).collect();
    assert_eq!(polled, (0..16).collect::<Vec<_>>());
    let counters = line.rx.counters();
    assert_eq!((counters.frames, counters.lowest), (16, 0));
    assert_ne!(counters.exhausted, 0);
    assert_eq!(line.rx.lost().unwrap(), 24);
    // The queue still receives.
    line.send(7, 50);
    assert_eq!(line.next(), 7);
}

#[test]
fn the_lowest_number_of_receives_is_a_bound() {
    let Some(mut line) = listen(64, |rx| rx) else { return };
    for burst in [1u32, 5, 20, 40] {
        (0..burst).for_each(|i| line.send(i, 50));
        line.catch_up();
        while line.rx.poll().is_ok() {}
        let counters = line.rx.counters();
        assert!(counters.lowest <= 64 - burst, "{counters:?} after {burst}");
        assert!(counters.lowest + 64 / 4 >= 64 - burst, "{counters:?} after {burst}");
        assert_eq!(counters.exhausted, 0);
    }
}

#[test]
fn waiting_spins_then_sleeps_and_loses_no_frame() {
    let Some(mut line) = listen(64, |rx| rx) else { return };
    assert!(!line.rx.wait(10, Some(Duration::from_millis(1))).unwrap());
    for i in 0..200 {
        line.send(i, 50);
        assert!(line.rx.wait(i % 3 * 100, Some(PATIENCE)).unwrap());
        assert_eq!(number(line.rx.poll().unwrap().bytes()), i);
    }
    assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
    let mut deaf = line.wire.setup.pd.create_rx_queue(8).without_events().build().unwrap();
    assert_eq!(deaf.wait(10, None).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn several_queues_get_copies_of_one_multicast_group() {
    let Some(mut line) = listen(64, |rx| rx) else { return };
    let mut other = line.wire.setup.pd.create_rx_queue(64).build().unwrap();
    let clash = other.steer(&self::line().tag(8)).unwrap_err();
    assert_eq!(clash.errno(), libc::EEXIST);
    assert!(clash.to_string().contains("another flow tag"), "{clash}");
    let _rule = other.steer(&self::line().tag(7)).unwrap();
    line.send(3, 50);
    assert_eq!(line.next(), 3);
    assert!(other.wait(0, Some(PATIENCE)).unwrap());
    assert_eq!(number(other.poll().unwrap().bytes()), 3);
}

#[test]
fn steering_rules_match_their_frames_and_harmful_rules_are_refused() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let mut rx = wire.setup.pd.create_rx_queue(8).build().unwrap();
    let refused = |rx: &mut RxQueue, line: UdpMulticast, word: &str| {
        let error = rx.steer(&line).unwrap_err();
        assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::InvalidInput, false));
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(&mut rx, UdpMulticast::new(Ipv4Addr::new(10, 0, 0, 1), 1), "224.0.0.0");
    refused(&mut rx, UdpMulticast::new(Ipv4Addr::new(224, 0, 1, 129), 319), "PTP");
    refused(&mut rx, line().vlan(4095), "VLAN 4095");
    refused(&mut rx, UdpMulticast::new(line().group, 0), "port 0");
    refused(&mut rx, line().tag(1 << 24), "24 bits");
    assert_eq!(line().sharing(), Sharing::Shared);
    let tuple = FiveTuple {
        protocol: Protocol::Udp,
        source: "10.0.0.1:1234".parse().unwrap(),
        destination: "10.0.0.2:99".parse().unwrap(),
        tag: Some(3),
    };
    for wrong in [
        FiveTuple { source: "0.0.0.0:1".parse().unwrap(), ..tuple },
        FiveTuple { source: "239.1.2.3:1".parse().unwrap(), ..tuple },
        FiveTuple { destination: "0.0.0.0:1".parse().unwrap(), ..tuple },
        FiveTuple { destination: "10.0.0.2:0".parse().unwrap(), ..tuple },
        FiveTuple { protocol: Protocol::Tcp, destination: "10.0.0.2:0".parse().unwrap(), ..tuple },
    ] {
        assert_eq!(rx.steer(&wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong:?}");
    }
    let mut line = Line { _rule: rx.steer(&tuple).unwrap(), rx, wire };
    let port = Port { protocol: Protocol::Tcp, port: 80, tag: Some(4) };
    let _port = line.rx.steer(&port).unwrap();
    let mac = line.wire.mac;
    for port in [98, 99] {
        line.send_frame(SUMS, &udp_frame(mac, port, &77u32.to_be_bytes()));
    }
    let mut tcp = frames::tcp_header(mac, 1);
    tcp.resize(80, 0);
    line.send_frame(SUMS, &tcp);
    let mut tags = Vec::new();
    while tags.len() < 2 {
        assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
        tags.push(line.rx.poll().unwrap().flow_tag());
    }
    assert_eq!(tags, [3, 4]);
    line.catch_up();
    assert_eq!(line.rx.poll().map(drop), Err(FrameError::Empty));
}

#[test]
fn free_running_timestamps_become_utc_that_never_goes_back() {
    let Some(mut line) = listen(8, |rx| rx) else { return };
    let mut utc = UtcClock::new(line.rx.context()).unwrap();
    let (mut first, mut last) = (None, 0);
    for i in 0..10 {
        line.send(i, 50);
        assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
        let time = line.rx.poll().unwrap().timestamp();
        first.get_or_insert(time);
        let now = utc.nanoseconds(time);
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(now >= last && wall.as_nanos().abs_diff(now.into()) < PATIENCE.as_nanos());
        last = now;
        utc.refresh().unwrap();
    }
    // An older timestamp gives the same time as the last one.
    assert_eq!(utc.nanoseconds(first.unwrap()), last);
}

#[test]
fn free_running_timestamps_wrap_at_41_bits() {
    if !common::is_soft() {
        return;
    }
    const WRAP: u64 = 1 << 41;
    let builder = uverbs::soft::SoftDevice::builder("soft0").without_wire().counter_now(WRAP);
    let device = builder.build().unwrap();
    let context = uverbs::Device::from_soft(device.clone()).open().unwrap();
    let mut rx = context.alloc_pd().unwrap().create_rx_queue(8).build().unwrap();
    let _rule = rx.steer(&line()).unwrap();
    let mut utc = UtcClock::new(&context).unwrap();
    let mut stamp = |at: u64| {
        device.receive_frames([(at, &quote(1, 50)[..])]).unwrap();
        rx.poll().unwrap().timestamp()
    };
    // The counter at the device's time 0, then two timestamps around the wrap.
    let start = stamp(0).raw();
    let [before, after] = [WRAP - 1000, WRAP + 1000].map(|raw| stamp(raw.wrapping_sub(start)));
    assert_eq!((before.raw(), after.raw()), (WRAP - 1000, WRAP + 1000));
    for _ in 0..2 {
        let [before, after] = [before, after].map(|time| utc.nanoseconds(time));
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(wall.as_nanos().abs_diff(before.into()) < PATIENCE.as_nanos());
        assert!((0..=2000).contains(&(after - before)), "{before} {after}");
        utc.refresh().unwrap();
    }
    // A copy of the clock that has converted nothing yet gives the two times' true distance.
    let copy = utc.device().conversion().unwrap();
    assert_eq!(copy.nanoseconds(after.raw()) - copy.nanoseconds(before.raw()), 2000);
    // Bits above the 41st are ignored.
    assert_eq!(copy.nanoseconds(after.raw() % WRAP), copy.nanoseconds(after.raw()));
}

#[test]
fn real_time_timestamps_need_a_device_that_has_them() {
    if !common::is_soft() {
        return;
    }
    let Some(setup) = setup() else { return };
    let error = setup.pd.create_rx_queue(8).real_time().build().unwrap_err();
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Unsupported, false), "{error}");
    assert!(error.to_string().contains("REAL_TIME_CLOCK_ENABLE"), "{error}");
    let error = setup.pd.create_tx_queue(8).real_time().build().unwrap_err();
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Unsupported, false), "{error}");
    let device = common::soft_device(uverbs::soft::DeviceBuilder::real_time_clock);
    let wire = Wire::on(common::Setup::on(device.open().unwrap()), |builder| builder);
    let rx = wire.setup.pd.create_rx_queue(8).real_time().build().unwrap();
    let mut line: Line<RealTime> = Line::new(wire, rx);
    line.send(1, 50);
    assert!(line.rx.wait(0, Some(PATIENCE)).unwrap());
    let time = line.rx.poll().unwrap().timestamp();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(wall.as_nanos().abs_diff(time.nanoseconds().into()) < PATIENCE.as_nanos());
}

#[test]
fn queues_use_the_programs_slots() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let slab = wire.setup.pd.create_slab_with(Buffer::new(1 << 16).unwrap(), 2048).unwrap();
    let too_many = wire.setup.pd.create_rx_queue(64).buffers(&slab).build().unwrap_err();
    assert!(too_many.to_string().contains("32 free slots"), "{too_many}");
    assert_eq!(slab.free(), 32);
    let rx = wire.setup.pd.create_rx_queue(16).buffers(&slab).build().unwrap();
    assert_eq!(slab.free(), 16);
    rx.destroy().unwrap();
    assert_eq!(slab.free(), 32);
    for depth in [0, 1 << 16] {
        let error = wire.setup.pd.create_rx_queue(depth).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

/// The error says that the program's own choice of memory failed, not the device.
#[test]
fn an_allocator_without_memory_is_named() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let none = |_, _| Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
    let queue = wire.setup.pd.create_rx_queue(16).memory(&QueueMemory::new(none)).build();
    let error = queue.expect_err("no memory");
    assert_eq!(error.errno(), libc::ENOMEM);
    assert!(error.cure().contains("vm.nr_hugepages"), "{error}");
}

#[test]
fn an_allocator_of_the_program_provides_all_memory_of_a_queue() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let note = asked.clone();
    let memory = QueueMemory::new(move |length, purpose| {
        note.lock().unwrap().push(purpose);
        Buffer::new(length)
    });
    let Some(mut line) = listen(16, |rx| rx.memory(&memory)) else { return };
    let times =
        |purpose: QueueUse| asked.lock().unwrap().iter().filter(|asked| **asked == purpose).count();
    use QueueUse::{Completions, DoorbellRecord, Frames, WorkRequests};
    let all = || [Completions, WorkRequests, DoorbellRecord, Frames].map(times);
    assert_eq!(all(), [1, 1, 2, 1]);
    line.send(1, 50);
    assert_eq!(line.next(), 1);
    let pd = &line.wire.setup.pd;
    let _tx = pd.create_tx_queue(16).memory(&memory).build().unwrap();
    assert_eq!(all(), [2, 2, 4, 1]);
    let strides = Striding::new(StrideBytes::B64, StridesPerWqe::N512);
    let _rx = pd.create_rx_queue(4).memory(&memory).striding(strides).build().unwrap();
    assert_eq!(all(), [3, 3, 6, 2]);
    // With the program's own slots, no buffers are allocated.
    let slab = pd.create_slab(16, 2048).unwrap();
    let _rx = pd.create_rx_queue(16).memory(&memory).buffers(&slab).build().unwrap();
    assert_eq!(all(), [4, 4, 8, 2]);
}

/// Frames arrive in memory of NUMA node 0. If the kernel has no NUMA, or a container forbids it,
/// the queue is refused with the reason.
#[test]
fn queues_are_allocated_on_the_requested_numa_node() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let near = QueueMemory::on_node(PageSize::Normal, 0);
    match wire.setup.pd.create_rx_queue(16).memory(&near).build() {
        Ok(rx) => {
            let mut line = Line::new(wire, rx);
            line.send(1, 50);
            assert_eq!(line.next(), 1);
        }
        Err(error) => {
            let refused = [libc::ENOSYS, libc::EPERM].contains(&error.errno());
            assert!(refused, "{error}");
        }
    }
}

#[test]
fn memory_that_the_machine_lacks_is_an_error() {
    let Some(wire) = Wire::new(|builder| builder) else { return };
    let missing_node = QueueMemory::on_node(PageSize::Normal, 1023);
    for made in [
        wire.setup.pd.create_rx_queue(16).memory(&missing_node).build().map(drop),
        wire.setup.pd.create_tx_queue(16).memory(&missing_node).build().map(drop),
    ] {
        assert!(made.unwrap_err().errno() != 0);
    }
    // More huge pages than any machine has.
    let huge = QueueMemory::pages(PageSize::Huge1G);
    let made = wire.setup.pd.create_rx_queue(16).frame_bytes(1 << 30).memory(&huge).build();
    assert!(made.is_err());
}

/// libmlx5 returns 429,496,729,605 ns for a time of 100 s and 5 ns
/// (`ibv_wc_read_completion_wallclock_ns` of a real-time queue).
#[test]
fn unlike_libmlx5_real_time_stamps_are_nanoseconds() {
    let time = Timestamp::<RealTime>::from_raw(100 << 32 | 5);
    assert_eq!((time.nanoseconds(), time.seconds()), (100_000_000_005, 100));
}

/// libmlx5 has one bit for both layers, which only IPv4 sets.
#[test]
fn unlike_libmlx5_checksums_of_ipv6_and_of_each_layer_are_reported() {
    let Some(mut line) = listen(8, |rx| rx) else { return };
    let [source, destination] = ["[::1]:1", "[::2]:2"].map(|end| end.parse().unwrap());
    let connection = FiveTupleV6 { protocol: Protocol::Udp, source, destination, tag: None };
    let _rule = line.rx.steer(&connection).unwrap();
    let frame = ipv6_frame(line.wire.mac);
    line.send_frame(EthernetOffload { checksum: EthChecksum::L4, ..SUMS }, &frame);
    let found = line.wait_for_frame();
    assert!(found.checksums_ok() && !found.is_ipv4(), "{:?}", found.checks());
    drop(found);
    // The IPv4 header's checksum is good, the datagram's is not.
    let frame = line.quote(1, 60);
    line.send_frame(EthernetOffload { checksum: EthChecksum::L3, ..SUMS }, &frame);
    let found = line.wait_for_frame().checks().0;
    assert_eq!(found & (CqeChecksum::L3_OK | CqeChecksum::L4_OK), CqeChecksum::L3_OK);
}

#[test]
fn the_ports_counter_counts_frames_without_a_receive() {
    let Some(mut line) = listen(4, |rx| rx) else { return };
    let context = line.rx.context().clone();
    let Ok(before) = context.hw_counter(1, "out_of_buffer") else { return };
    (0..7).for_each(|number| line.send(number, 60));
    line.catch_up();
    // The driver repeats a value for 10 ms.
    let (start, mut lost) = (Instant::now(), 0);
    while lost < 3 && start.elapsed() < PATIENCE {
        lost = context.hw_counter(1, "out_of_buffer").unwrap() - before;
    }
    assert!(lost == 3 || !common::is_soft() && lost > 3, "{lost}");
    let error = |port, name| context.hw_counter(port, name).unwrap_err().kind();
    assert_eq!(error(9, "out_of_buffer"), ErrorKind::InvalidInput);
    assert_eq!(error(1, "../../node_guid"), ErrorKind::InvalidInput);
    assert_eq!(error(1, "of_no_driver"), ErrorKind::NotFound);
}

/// The device may compress the CQEs of frames that arrive close together. The program gets the same
/// frames as without compression.
#[test]
fn compressed_completions_are_the_same_frames() {
    let Some(mut line) = listen(256, |rx| rx.compressed()) else { return };
    let (mut polled, mut sent) = (0, 0);
    for burst in 0..60 {
        let count = 1 + burst * 5 % 16;
        let lengths: Vec<_> =
            (0..count).map(|i| 60 + (burst * 31 + i * 7) as usize % 400).collect();
        line.send_burst(sent, &lengths);
        sent += count;
        for length in lengths {
            let frame = line.wait_for_frame();
            assert_eq!((number(frame.bytes()), frame.bytes().len()), (polled, 42 + length));
            assert_eq!((frame.flow_tag(), frame.is_ipv4(), frame.checksums_ok()), (7, true, true));
            polled += 1;
        }
    }
    let counters = line.rx.counters();
    assert_eq!((counters.frames, counters.exhausted), (polled.into(), 0));
}
