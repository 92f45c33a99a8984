//! A market data feed in raw Ethernet frames that bypass the kernel's network stack. A publisher on
//! one device sends the quotes of two feeds. A steering rule delivers one of the feeds to a
//! subscriber on another device.
//!
//! `cargo run --features soft --example market_data [PUBLISHER SUBSCRIBER]`. Without arguments it
//! uses two software devices; real devices need Ethernet ports and CAP_NET_RAW.

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use uverbs::flow::{Ethernet, Ipv4, Ports};
use uverbs::qp::{EthChecksum, EthernetOffload, PostFlags};
use uverbs::qp_type::RawPacket;
use uverbs::soft::SoftDevice;
use uverbs::{CompletionQueue, Context, Device, Flow, PollError, QueuePair, Slab, op};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// The UDP ports of the two feeds. The subscriber receives the first.
const FEEDS: [u16; 2] = [14310, 14311];
const SUBSCRIPTION: u32 = 7;
const BURSTS: u64 = 50;
const BURST: u64 = 4;
/// The bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
const FRAME: u32 = 256;
/// How long a burst may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let [sender, receiver] = devices()?;
    let mut publisher = Station::new(&sender.open()?)?;
    let mut subscriber = Station::new(&receiver.open()?)?;
    let _subscription = subscriber.subscribe(FEEDS[0])?;

    let mut book = Vec::new();
    for burst in 0..BURSTS {
        let quotes = burst * BURST..(burst + 1) * BURST;
        for number in quotes.clone() {
            for feed in FEEDS {
                publisher.publish(feed, &format!("{number} quote of feed {feed}"))?;
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while book.len() < quotes.end as usize && Instant::now() < deadline {
            publisher.poll(|_| ())?;
            let before = book.len();
            subscriber.poll(|quote| book.push(quote.to_owned()))?;
            if book.len() == before {
                // A software device makes progress in this call.
                publisher.cq.context().poll_idle();
                subscriber.cq.context().poll_idle();
            }
        }
    }
    let mine = format!("quote of feed {}", FEEDS[0]);
    let lost = (BURSTS * BURST).saturating_sub(book.len() as u64);
    let wrong = book.iter().enumerate().filter(|(i, quote)| **quote != format!("{i} {mine}"));
    let (wrong, from, to) = (wrong.count(), sender.name(), receiver.name());
    println!("{} quotes from {from} to {to}, {wrong} not in order, {lost} lost", book.len());
    Ok(())
}

/// The publisher's device and the subscriber's.
fn devices() -> Result<[Device; 2], Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    match names.as_slice() {
        [] => Ok([uverbs::device("soft")?, Device::from_soft(SoftDevice::named("soft1")?)]),
        [both] => Ok([uverbs::device(both)?, uverbs::device(both)?]),
        [publisher, subscriber, ..] => {
            Ok([uverbs::device(publisher)?, uverbs::device(subscriber)?])
        }
    }
}

/// A device's port, and memory for frames.
struct Station {
    qp: QueuePair<RawPacket>,
    cq: CompletionQueue,
    slab: Slab,
}

impl Station {
    fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(256).build()?;
        let mut qp = pd.create_qp::<RawPacket>(cq.handle(), cq.handle()).build()?;
        qp.activate()?;
        Ok(Self { qp, cq, slab: pd.create_slab(64, FRAME)? })
    }

    /// Posts the receives before the rule exists, because a frame that finds no receive is lost.
    fn subscribe(&mut self, feed: u16) -> Result<Flow, Box<dyn Error>> {
        while let Some(slot) = self.slab.take() {
            self.qp.post_receive(slot)?;
        }
        let flow = self.qp.create_flow();
        Ok(flow
            .ethernet(Ethernet { destination: group_mac().into(), ..Ethernet::default() })
            .ipv4(Ipv4 { destination: GROUP.into(), ..Ipv4::default() })
            .udp(Ports { destination: feed.into(), ..Ports::default() })
            .tag(SUBSCRIPTION)
            .build()?)
    }

    /// Sends a quote; the device fills in the checksums.
    fn publish(&mut self, feed: u16, quote: &str) -> Result<(), Box<dyn Error>> {
        let offload =
            EthernetOffload { checksum: EthChecksum::IP_CSUM, ..EthernetOffload::default() };
        let frame = frame(feed, quote.as_bytes());
        let (head, rest) = frame.split_first_chunk().ok_or("a frame has headers")?;
        let mut slot = self.slab.take().ok_or("more quotes are in flight than there are slots")?;
        slot.write(rest)?;
        self.qp.post_send(op::EthernetSendHeader(offload, head), slot, PostFlags::SIGNALED)?;
        Ok(())
    }

    /// Passes each frame that has arrived to `take` and posts its slot again. The slots of sent
    /// frames go back to the slab.
    fn poll(&mut self, mut take: impl FnMut(&str)) -> Result<(), Box<dyn Error>> {
        loop {
            let done = match self.cq.poll() {
                Ok(done) => done,
                Err(PollError::Empty) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if !done.completion.is_success() {
                return Err(format!("{:?}", done.completion).into());
            }
            let Some(slot) = done.slot.filter(|_| !done.completion.is_send()) else { continue };
            let good = done.completion.ip_checksum_ok();
            if good && done.completion.flow_tag() == SUBSCRIPTION {
                take(&text(&slot));
            }
            self.qp.post_receive(slot)?;
        }
    }
}

/// The MAC address of the group (RFC 1112, section 6.4).
fn group_mac() -> [u8; 6] {
    let [_, b, c, d] = GROUP.octets();
    [1, 0, 0x5e, b & 0x7f, c, d]
}

/// A UDP packet to the group, without checksums.
fn frame(port: u16, data: &[u8]) -> Vec<u8> {
    let udp = (8 + data.len()) as u16;
    let mut frame = Vec::with_capacity(HEADERS + data.len());
    frame.extend_from_slice(&group_mac());
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&(20 + udp).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1]);
    frame.extend_from_slice(&GROUP.octets());
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&udp.to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(data);
    frame
}

/// The data of a frame. Its length is in the UDP header, because short frames are padded.
fn text(frame: &[u8]) -> String {
    let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    let data = frame.get(HEADERS..34 + length).unwrap_or_default();
    String::from_utf8_lossy(data).into_owned()
}
