//! Ethernet frames: from send queues to the cable, and from the cable through the flow tables to
//! receive queues.

use super::Firmware;
use crate::bits::{Field, field};
use crate::layout::port::nic_vport_context;

/// Frames of one direction by destination: broadcast, unicast, multicast; packets and octets of
/// each.
type Counts = [[u64; 2]; 3];

/// Counts of the frames of the virtual port.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    received: Counts,
    sent: Counts,
}

/// Offsets in QUERY_VPORT_COUNTER of the received counts of each class, in bits; the sent counts
/// follow.
const COUNTERS: [usize; 3] = [0x380, 0x480, 0x580];

impl Traffic {
    fn count(counts: &mut Counts, frame: &[u8]) {
        let class = match frame.first() {
            Some(0xff) if frame.starts_with(&[0xff; 6]) => 0,
            Some(first) if first & 1 == 1 => 2,
            _ => 1,
        };
        counts[class][0] += 1;
        counts[class][1] += frame.len() as u64;
    }

    /// Each counter with its field in QUERY_VPORT_COUNTER's output.
    pub(super) fn fields(&self) -> impl Iterator<Item = (Field, u64)> {
        let classes = self.received.iter().zip(&self.sent).zip(COUNTERS);
        classes.flat_map(|((received, sent), at)| {
            let values = [received[0], received[1], sent[0], sent[1]];
            values
                .into_iter()
                .enumerate()
                .map(move |(index, value)| (field(at + 64 * index, 64), value))
        })
    }
}

impl Firmware {
    /// Sends the frames of send queues. Frames to the port's own address are looped back. Multicast
    /// frames are not: a network device would take its own ARP and neighbour discovery requests for
    /// another device's.
    pub(super) fn send_frames(&mut self) {
        let mac = self.nic_vport.mac();
        while let Some(frame) = self.core.take_frame() {
            Traffic::count(&mut self.ethernet.traffic.sent, &frame);
            if !frame.starts_with(&mac) {
                self.cable.send_frame(&frame);
            } else if !self.nic_vport.has(nic_vport_context::DISABLE_UC_LOCAL_LB) {
                self.receive_frame(&frame);
            }
        }
    }

    /// Delivers a frame to the receive queues that the flow tables choose.
    pub(super) fn receive_frame(&mut self, frame: &[u8]) {
        let tirs = self.objects.flows.route(frame, &mut self.objects.flow_counters);
        if !tirs.is_empty() {
            Traffic::count(&mut self.ethernet.traffic.received, frame);
        }
        for reached in tirs {
            let Some((queue, steered)) = self.objects.receiver(&reached, frame) else { continue };
            self.core.deliver_frame(self.now, queue, frame, steered);
        }
    }
}
