//! An Ethernet cable between processes of one machine: each frame is one UDP datagram on the
//! loopback interface.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::{FrameWire, MAX_FRAME};
use uverbs_soft::wire::{Station, enlarge};

/// The UDP port of the tunnel. RoCE v2's port 4791 must not carry other frames.
const PORT: u16 = 4792;

/// A socket at a station's address.
#[derive(Debug)]
pub(super) struct Tunnel {
    socket: UdpSocket,
    peers: Vec<SocketAddr>,
    buffer: Box<[u8]>,
}

impl Tunnel {
    /// Binds the station's address. Frames are sent to all `peers`.
    pub(super) fn bind(station: Station, peers: &[Station]) -> io::Result<Self> {
        let socket = UdpSocket::bind((station.address(), PORT))?;
        socket.set_nonblocking(true)?;
        enlarge(&socket);
        let peers = peers.iter().map(|peer| (peer.address(), PORT).into()).collect();
        Ok(Self { socket, peers, buffer: vec![0; MAX_FRAME].into() })
    }
}

impl FrameWire for Tunnel {
    fn send(&mut self, frame: &[u8]) {
        // A frame is lost if the socket's buffer is full or the peer does not exist yet, as on a
        // network.
        self.peers.iter().for_each(|peer| drop(self.socket.send_to(frame, peer)));
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> bool {
        loop {
            let (length, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(arrived) => arrived,
                // The error of an earlier datagram to a peer that did not exist.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return false,
            };
            if self.peers.contains(&from) {
                frame.clear();
                frame.extend_from_slice(&self.buffer[..length]);
                return true;
            }
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_other_stations_are_ignored() {
        let station =
            |last| Station::new([127, 19, std::process::id() as u8, last].into()).unwrap();
        let (a, b, stranger) = (station(1), station(2), station(3));
        let mut ends = [
            Tunnel::bind(a, &[b]).unwrap(),
            Tunnel::bind(b, &[a]).unwrap(),
            Tunnel::bind(stranger, &[b]).unwrap(),
        ];
        ends[2].send(b"from a stranger");
        ends[0].send(b"hello");
        let mut frame = Vec::new();
        // Loopback delivers within the send call.
        assert!(ends[1].receive(&mut frame));
        assert_eq!(frame, b"hello");
        assert!(!ends[1].receive(&mut frame));
    }
}
