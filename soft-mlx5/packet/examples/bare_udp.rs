//! Measures UDP and the invariant CRC without queue pairs: sends datagrams of the size of RoCE
//! packets, with the same system calls as a software device.
//!
//! ```text
//! bare_udp serve 10.0.0.2
//! bare_udp polled 10.0.0.3 10.0.0.2 300          # messages of 64 bytes, there and back
//! bare_udp awaited 10.0.0.3 10.0.0.2 300         # the same, and both ends sleep meanwhile
//! bare_udp bandwidth 10.0.0.3 10.0.0.2 500       # messages of 64 KiB, in packets of 4096 bytes
//! bare_udp rate 10.0.0.3 10.0.0.2 2000           # messages of 64 bytes
//! ```
//!
//! Prints the one-way time in microseconds, MiB per second, or millions of messages per second. The
//! server ends after its client. If a packet is lost, both end after a second.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use uverbs_soft_packet::rocev2::Framing;
use uverbs_soft_packet::rocev2::{ICRC_LEN, UDP_PORT, icrc_v4, split_icrc};

/// Bytes of headers: the base transport header, and the extension header of an acknowledgement.
const HEADERS: usize = 16;
/// Packets of a message of 64 KiB, or of a burst of small messages. The server acknowledges each
/// message or burst.
const PACKETS: usize = 16;
/// Most packets passed to the kernel in one call, as by a software device.
const RUN: usize = 15;
/// Most unacknowledged bursts: the window of a software device.
const WINDOW: usize = 4;
/// Bytes of a receive buffer. The packets that the kernel joins (GRO) always fit.
const BUFFER: usize = 1 << 16;

struct Station {
    socket: UdpSocket,
    own: Ipv4Addr,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// Packets that the kernel has joined into one message.
struct Burst {
    from: Ipv4Addr,
    packets: usize,
    /// Bytes of the first packet, without its CRC.
    len: usize,
}

impl Station {
    fn bind(own: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((own, UDP_PORT))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
        setsockopt(&socket, sockopt::RcvBuf, &(8 << 20))?;
        Ok(Self { socket, own, buffer: vec![0; BUFFER], control: nix::cmsg_space!(i32) })
    }

    fn crc(from: Ipv4Addr, to: Ipv4Addr, packet: &[u8], index: usize) -> u32 {
        icrc_v4(from, to, packet, Framing { identification: index as u16, ..Framing::default() })
    }

    /// Sends `count` copies of `packet` as one message, which the kernel splits (GSO).
    fn send(&self, to: Ipv4Addr, packet: &[u8], count: usize) -> io::Result<()> {
        let crcs: Vec<[u8; ICRC_LEN]> =
            (0..count).map(|index| Self::crc(self.own, to, packet, index).to_le_bytes()).collect();
        let parts: Vec<IoSlice<'_>> =
            crcs.iter().flat_map(|crc| [IoSlice::new(packet), IoSlice::new(crc)]).collect();
        let segment = (packet.len() + ICRC_LEN) as u16;
        let cut = [ControlMessage::UdpGsoSegments(&segment)];
        let control = if count > 1 { &cut[..] } else { &[] };
        let to = SockaddrIn::from(SocketAddrV4::new(to, UDP_PORT));
        sendmsg(self.socket.as_raw_fd(), &parts, control, MsgFlags::empty(), Some(&to))?;
        Ok(())
    }

    /// Receives what the kernel has joined and checks the CRCs; without waiting if `polls`.
    fn receive(&mut self, polls: bool) -> io::Result<Burst> {
        let flags = if polls { MsgFlags::MSG_DONTWAIT } else { MsgFlags::empty() };
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let control = Some(&mut self.control[..]);
        let got = recvmsg::<SockaddrIn>(self.socket.as_raw_fd(), &mut parts, control, flags)?;
        let segment = got.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
            _ => None,
        });
        let (bytes, from) = (got.bytes, got.address.map(|address| address.ip()));
        let from = from.ok_or(io::ErrorKind::InvalidData)?;
        let segment = segment.unwrap_or(bytes).max(1);
        let mut packets = 0;
        for (index, datagram) in self.buffer[..bytes].chunks(segment).enumerate() {
            let (packet, crc) = split_icrc(datagram).map_err(io::Error::other)?;
            if Self::crc(from, self.own, packet, index) != crc {
                return Err(io::Error::other("wrong CRC"));
            }
            packets += 1;
        }
        Ok(Burst { from, packets, len: segment - ICRC_LEN })
    }

    /// Sends a message of [`PACKETS`] packets.
    fn send_burst(&self, to: Ipv4Addr, packet: &[u8]) -> io::Result<()> {
        self.send(to, packet, RUN)?;
        self.send(to, packet, PACKETS - RUN)
    }

    /// Polls until a packet arrives, for a second at most.
    fn poll(&mut self) -> io::Result<Burst> {
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            match self.receive(true) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() > end {
                        return Err(error);
                    }
                    std::thread::yield_now();
                }
                result => return result,
            }
        }
    }

    /// Answers until the client has been silent for a second. The first byte of the first packet
    /// selects: answer each packet, polling or sleeping, or acknowledge bursts.
    fn serve(&mut self) -> io::Result<()> {
        self.socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let first = self.receive(false)?;
        self.socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let (polls, sleeps) = (self.buffer[0] == POLLED, self.buffer[0] == AWAITED);
        let echoes = polls || sleeps;
        let answer = vec![0; if echoes { first.len } else { HEADERS }];
        let (mut burst, mut arrived) = (first, 0);
        loop {
            arrived += burst.packets;
            while arrived >= if echoes { 1 } else { PACKETS } {
                arrived -= if echoes { 1 } else { PACKETS };
                self.send(burst.from, &answer, 1)?;
            }
            let next = if polls { self.poll() } else { self.receive(false) };
            burst = match next {
                Ok(burst) => burst,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    /// The median one-way time in microseconds. `kind` is the first byte of the packets.
    fn latency(&mut self, to: Ipv4Addr, count: usize, kind: u8) -> io::Result<f64> {
        let mut packet = vec![0; HEADERS + 64];
        packet[0] = kind;
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            self.send(to, &packet, 1)?;
            if kind == POLLED {
                self.poll()?
            } else {
                self.receive(false)?
            };
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[count / 2].as_secs_f64() * 1e6 / 2.0)
    }

    /// Seconds until the last of `bursts` bursts is acknowledged.
    fn stream(&mut self, to: Ipv4Addr, payload: usize, bursts: usize) -> io::Result<f64> {
        let packet = vec![0; HEADERS + payload];
        let start = Instant::now();
        let mut unacknowledged = 0;
        for _ in 0..bursts {
            self.send_burst(to, &packet)?;
            unacknowledged += 1;
            if unacknowledged == WINDOW {
                unacknowledged -= self.receive(false)?.packets;
            }
        }
        while unacknowledged > 0 {
            unacknowledged -= self.receive(false)?.packets;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// First bytes of packets that the server sends back. With [`POLLED`] it polls for the next packet,
/// with the other it sleeps.
const POLLED: u8 = 1;
const AWAITED: u8 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", own] => Station::bind(own.parse()?)?.serve()?,
        [what, own, to, count] => {
            let (mut station, to) = (Station::bind(own.parse()?)?, to.parse()?);
            let count = count.parse::<usize>()?.max(1);
            let figure = match what {
                "polled" => station.latency(to, count, POLLED)?,
                "awaited" => station.latency(to, count, AWAITED)?,
                "bandwidth" => count as f64 / 16.0 / station.stream(to, 4096, count)?,
                "rate" => {
                    let bursts = count.div_ceil(PACKETS);
                    (bursts * PACKETS) as f64 / 1e6 / station.stream(to, 64, bursts)?
                }
                _ => return Err(format!("{what}: polled, awaited, bandwidth or rate").into()),
            };
            println!("{figure:.6}");
        }
        _ => return Err("serve OWN, or polled|awaited|bandwidth|rate OWN TO COUNT".into()),
    }
    Ok(())
}
