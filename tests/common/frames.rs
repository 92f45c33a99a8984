//! Frames, and two raw packet queue pairs of one port that exchange them.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::common::{self, Setup};
use uverbs::cq::WorkCompletion;
use uverbs::qp::{EthernetOffload, PostFlags, RunTimeDestination, RunTimeOperation, SendRequest};
use uverbs::qp_type::RawPacket;
use uverbs::{Context, Error, ErrorKind, MemoryRegion, raw};

/// Space for a frame.
const SPACE: usize = 2048;
/// Frames that may be in flight or wait to be received.
const RECEIVES: usize = 16;
/// The wr_id of the first receive; the others count up from it.
const FIRST_RECEIVE: u64 = 1 << 32;

/// A device for raw packet queue pairs. Returns `None` and prints the reason if there is none: on
/// InfiniBand, and without CAP_NET_RAW.
pub(crate) fn setup() -> Option<Setup> {
    let setup = Setup::new();
    let refused =
        |error: &Error| error.kind() == ErrorKind::Unsupported || error.errno() == libc::EPERM;
    match setup.builder::<RawPacket>().build() {
        Ok(_) => Some(setup),
        Err(error) if refused(&error) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Two queue pairs of one port, which delivers to itself.
pub(crate) struct Wire {
    /// The port's address, at which it receives what it sends.
    pub(crate) mac: [u8; 6],
    /// Linux enables loopback on a port once two contexts are open (`mlx5_ib_enable_lb`).
    _second: Context,
    pub(crate) from: raw::QueuePair<RawPacket>,
    pub(crate) to: raw::QueuePair<RawPacket>,
    /// The first half has the frames to send, the second receives frames.
    pub(crate) memory: MemoryRegion,
    pub(crate) setup: Setup,
    posted: usize,
    sent: usize,
}

impl Wire {
    /// `change` sets options of the receiving queue pair.
    pub(crate) fn new(
        change: impl FnOnce(raw::QpBuilder<RawPacket>) -> raw::QpBuilder<RawPacket>,
    ) -> Option<Self> {
        Some(Self::on(setup()?, change))
    }

    pub(crate) fn on(
        setup: Setup,
        change: impl FnOnce(raw::QpBuilder<RawPacket>) -> raw::QpBuilder<RawPacket>,
    ) -> Self {
        let from = setup.builder::<RawPacket>();
        let to = change(setup.builder::<RawPacket>());
        let [mut from, mut to] = [from, to].map(|builder| builder.build().unwrap());
        from.activate().unwrap();
        to.activate().unwrap();
        let memory = setup.region(2 * SPACE * RECEIVES);
        let (mac, second) = (mac(&setup.context), setup.context.device().open().unwrap());
        Self { mac, _second: second, from, to, memory, setup, posted: 0, sent: 0 }
    }

    /// Another receiver.
    pub(crate) fn another(&self) -> raw::QueuePair<RawPacket> {
        let mut qp = self.setup.builder::<RawPacket>().build().unwrap();
        qp.activate().unwrap();
        qp
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self) {
        let place = self.next_place();
        // SAFETY: the region outlives the queue pair.
        unsafe { self.to.post_receive(place.0, &[place.1]).unwrap() };
    }

    /// Posts a receive to another receiver's queue.
    pub(crate) fn receive_by(&mut self, qp: &mut raw::QueuePair<RawPacket>) {
        let place = self.next_place();
        // SAFETY: the region is accessed only through its view, and outlives the queue pair's test.
        unsafe { qp.post_receive(place.0, &[place.1]).unwrap() };
    }

    fn next_place(&mut self) -> (u64, uverbs::Sge) {
        let place = self.posted % RECEIVES;
        self.posted += 1;
        (FIRST_RECEIVE + place as u64, self.memory.sge((RECEIVES + place) * SPACE, SPACE).unwrap())
    }

    /// Sends a frame, with its headers inline if the device requires it.
    pub(crate) fn send(&mut self, offload: EthernetOffload, frame: &[u8]) {
        let place = self.sent % RECEIVES * SPACE;
        self.sent += 1;
        self.memory.view().write(place, frame).unwrap();
        let request = SendRequest {
            wr_id: 1,
            operation: RunTimeOperation::Packet(offload),
            destination: RunTimeDestination::Connected,
            data: &[self.memory.sge(place, frame.len()).unwrap()],
            inline: false,
            flags: PostFlags::empty(),
        };
        // SAFETY: the region outlives the request. The place is reused only after `RECEIVES` more
        // frames; a test that sends more does not check their bytes.
        unsafe { self.from.post_list([request]).unwrap() };
    }

    /// The next frame that arrives at any receiver.
    pub(crate) fn arrived(&mut self) -> (WorkCompletion, Vec<u8>) {
        let done = common::success(&mut self.setup.cq);
        let place = (done.wr_id - FIRST_RECEIVE) as usize;
        let mut bytes = vec![0; done.byte_len() as usize];
        self.memory.view().read((RECEIVES + place) * SPACE, &mut bytes).unwrap();
        (done, bytes)
    }
}

/// The address of the port's network device; an arbitrary one if there is none.
fn mac(context: &Context) -> [u8; 6] {
    let directory = format!("/sys/class/infiniband/{}/device/net", context.device().name());
    let networks = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let text =
        networks.filter_map(|entry| std::fs::read_to_string(entry.path().join("address")).ok());
    let read = |text: String| -> Option<[u8; 6]> {
        let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
        bytes.collect::<Option<Vec<_>>>()?.try_into().ok()
    };
    text.filter_map(read).next().unwrap_or([2, 0, 0, 0, 0, 1])
}

/// Ethernet and IPv4 headers with a wrong checksum, for `length` bytes of `protocol`.
fn ip_header(to: [u8; 6], protocol: u8, length: usize) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 2], &[8, 0]].concat();
    let total = (20 + length) as u16;
    frame.extend_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8, 0, 7, 0x40, 0, 64]);
    frame.extend_from_slice(&[protocol, 0xaa, 0xaa, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame
}

/// A frame with a UDP packet to `port` and with wrong checksums.
pub(crate) fn udp_frame(to: [u8; 6], port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len();
    let mut frame = ip_header(to, 17, length);
    frame.extend_from_slice(&1234u16.to_be_bytes());
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&(length as u16).to_be_bytes());
    frame.extend_from_slice(&[0xbb, 0xbb]);
    frame.extend_from_slice(payload);
    frame
}

/// The headers of a TCP packet that starts at sequence number `first`, 54 bytes.
pub(crate) fn tcp_header(to: [u8; 6], first: u32) -> Vec<u8> {
    let mut frame = ip_header(to, 6, 20);
    frame.extend_from_slice(&[0x12, 0x34, 0, 80]);
    frame.extend_from_slice(&first.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 1, 0, 0xbb, 0xbb, 0, 0]);
    frame
}

/// The ones' complement sum of a frame's IPv4 header.
pub(crate) fn ip_sum(frame: &[u8]) -> u32 {
    let words = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}
