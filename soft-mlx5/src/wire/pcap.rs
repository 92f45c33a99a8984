//! Records packets in a file that Wireshark opens.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::station::class_and_ttl;
use super::{Station, Wire, pass_calls_on};
use crate::packet::rocev2::{self, Framing};
use crate::packet::{Addressing, Gid, Packet, PacketPool};

/// The first header of each recorded frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header (LINKTYPE_ETHERNET, 1).
    #[default]
    Ethernet,
    /// An IPv4 or IPv6 header (LINKTYPE_RAW, 101).
    RawIp,
}

/// Writes every packet of the wire below, in both directions, as a RoCEv2 frame to a pcap file,
/// with times in nanoseconds. InfiniBand packets are recorded as they travel on the loopback
/// network: as RoCEv2 between their stations.
///
/// The first error of the file ends the recording; packets still pass.
#[derive(Debug)]
pub struct Pcap<W, F: Write = BufWriter<File>> {
    wire: W,
    file: Option<F>,
    link: LinkType,
    frame: Vec<u8>,
    /// Nanoseconds from 1970 to the beginning of the device's clock.
    epoch: u64,
}

impl<W: Wire> Pcap<W> {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(wire: W, path: &Path, link: LinkType) -> io::Result<Self> {
        Self::new(wire, BufWriter::new(File::create(path)?), link)
    }
}

impl<W: Wire, F: Write + Send> Pcap<W, F> {
    /// Records to any writer, which is flushed after every batch.
    ///
    /// # Errors
    /// Errors of writing the file header.
    pub fn new(wire: W, mut file: F, link: LinkType) -> io::Result<Self> {
        file.write_all(&file_header(link))?;
        // A recording without packets is still a valid file.
        file.flush()?;
        Ok(Self { wire, file: Some(file), link, frame: Vec::new(), epoch: 0 })
    }

    /// Records times since 1970: the device's clock began `epoch` nanoseconds after that. Without
    /// this call, times are those of the device's clock.
    pub fn since(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    fn record(&mut self, now: u64, packets: &[Packet]) {
        if packets.is_empty() {
            return;
        }
        let Some(mut file) = self.file.take() else { return };
        let mut written = Ok(());
        for packet in packets {
            written = written.and_then(|()| self.write(&mut file, now, packet));
        }
        match written.and_then(|()| file.flush()) {
            Ok(()) => self.file = Some(file),
            Err(error) => tracing::warn!(%error, "a recording ends early"),
        }
    }

    fn write(&mut self, file: &mut F, now: u64, packet: &Packet) -> io::Result<()> {
        self.frame.clear();
        let sent;
        let packet = match as_sent(packet.addressing) {
            Some(addressing) if addressing != packet.addressing => {
                sent = Packet::from_bytes(addressing, packet.bytes());
                &sent
            }
            _ => packet,
        };
        match self.link {
            LinkType::Ethernet => {
                let macs = [packet.addressing.source, packet.addressing.destination].map(mac);
                rocev2::write_ethernet(packet, macs, Framing::default(), &mut self.frame);
            }
            LinkType::RawIp => rocev2::write_ip(packet, Framing::default(), &mut self.frame),
        }
        file.write_all(&record_header(self.epoch + now, self.frame.len()))?;
        file.write_all(&self.frame)
    }
}

/// The addressing of the IPv4 packet that carries a packet between two stations; `None` if one end
/// is not a station.
fn as_sent(route: Addressing) -> Option<Addressing> {
    let source = Station::source(&route)?;
    let destination = match route.is_multicast() {
        true => Gid::from_ipv4(super::multicast::group_address(route.destination)),
        false => Station::destination(&route)?.gid(),
    };
    let (traffic_class, hop_limit) = class_and_ttl(&route);
    Some(Addressing { traffic_class, hop_limit, ..Addressing::roce(source.gid(), destination) })
}

fn mac(gid: Gid) -> [u8; 6] {
    if let Some(station) = Station::from_gid(gid) {
        return station.mac();
    }
    let [.., a, b, c, d] = gid.0;
    match (gid.is_multicast(), gid.to_ipv4()) {
        // RFC 1112 6.4 and RFC 2464 section 7.
        (true, Some(_)) => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
        (true, None) => [0x33, 0x33, a, b, c, d],
        (false, _) => [0x02, 0x00, a, b, c, d],
    }
}

/// Magic number of a pcap file with nanosecond times, version 2.4, no offset, 256 KiB at most per
/// frame.
fn file_header(link: LinkType) -> Vec<u8> {
    let network: u32 = match link {
        LinkType::Ethernet => 1,
        LinkType::RawIp => 101,
    };
    little_endian([0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 262_144, network])
}

fn record_header(now: u64, len: usize) -> Vec<u8> {
    let (seconds, nanoseconds) = (now / 1_000_000_000, now % 1_000_000_000);
    little_endian([seconds as u32, nanoseconds as u32, len as u32, len as u32])
}

fn little_endian<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

impl<W: Wire, F: Write + Send> Wire for Pcap<W, F> {
    pass_calls_on! { self => self.wire }

    fn send(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.record(now, packets);
        self.wire.send(now, packets, pool);
    }

    fn receive(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) -> usize {
        let before = packets.len();
        let read = self.wire.receive(now, packets, pool);
        self.record(now, &packets[before..]);
        read
    }

    fn next_wake(&self) -> Option<u64> {
        self.wire.next_wake()
    }

    fn send_quietly(&mut self, now: u64, packets: &mut Vec<Packet>, pool: &mut PacketPool) {
        self.record(now, packets);
        self.wire.send_quietly(now, packets, pool);
    }
}
