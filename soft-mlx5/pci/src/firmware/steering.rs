//! Ethernet frames: from send queues to the cable, and from the cable through the flow tables to
//! receive queues.

use super::Firmware;
use super::record::LIST;
use crate::bits::{Field, field};
use crate::layout::ethernet::{rqtc, tirc};
use crate::layout::port::nic_vport_context;
use uverbs_soft::core::{Qpn, RSS_KEY, RssHash, Steered};

/// How a TIR chooses its receive queue, `MLX5_TIRC_DISP_TYPE_*`.
const INDIRECT: u64 = 1;
/// Hash functions, `MLX5_RX_HASH_FN_*`.
const TOEPLITZ: u64 = 2;

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

/// The hash of a TIR; `None` if it does not hash.
fn rss_hash(tir: &[u8]) -> Option<RssHash> {
    if tirc::RX_HASH_FN.get(tir) != TOEPLITZ {
        return None;
    }
    let mut key = [0; RSS_KEY];
    for (index, word) in key.chunks_mut(4).enumerate() {
        let field: Field = tirc::RX_HASH_TOEPLITZ_KEY.element(index, 32);
        word.copy_from_slice(&field.get32(tir).to_be_bytes());
    }
    Some(RssHash { key, select: tirc::RX_HASH_FIELD_SELECTOR_OUTER.get32(tir) })
}

impl Firmware {
    /// Sends the frames of send queues. Frames to the port's own address are looped back. Multicast
    /// frames are not, because a network device would mistake its own address requests for another
    /// device's.
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
        let tirs = self.ethernet.flows.route(frame);
        if !tirs.is_empty() {
            Traffic::count(&mut self.ethernet.traffic.received, frame);
        }
        for (tir, flow_tag) in tirs {
            let Some((queue, hash)) = self.choose_queue(tir, frame) else { continue };
            self.core.deliver_frame(self.now, Qpn(queue), frame, Steered { flow_tag, hash });
        }
    }

    /// The receive queue of a TIR for a frame. Frames that are not hashed go to the first queue.
    fn choose_queue(&self, tir: u32, frame: &[u8]) -> Option<(u32, Option<(u32, u8)>)> {
        let tir = self.objects.tir.get("TIR", tir).ok()?;
        if tirc::DISP_TYPE.get(tir) != INDIRECT {
            return Some((tirc::INLINE_RQN.get32(tir), None));
        }
        let table = self.objects.rqt.get("RQT", tirc::INDIRECT_TABLE.get32(tir)).ok()?;
        let size = rqtc::RQT_ACTUAL_SIZE.get32(table).max(1);
        let hash = rss_hash(tir).and_then(|hash| hash.of(frame));
        let index = hash.map_or(0, |(hash, _)| hash) % size;
        let queue = field(LIST + 8, 24).element(index as usize, 32).get32(table);
        Some((queue, hash))
    }
}
