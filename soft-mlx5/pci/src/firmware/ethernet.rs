//! The Ethernet side of the function: counts of frames, and BlueFlame copies for the kernel's own
//! queues.

use super::Firmware;
use super::steering::Traffic;
use uverbs_soft::core::Qpn;

/// log2 of a send queue's basic block.
const LOG_BLOCK: u32 = 6;

/// The Ethernet objects.
#[derive(Debug, Default)]
pub(super) struct Ethernet {
    pub(super) traffic: Traffic,
}

impl Firmware {
    /// Whether a queue belongs to the kernel and not to a program. The device uses BlueFlame copies
    /// only of such queues.
    pub(crate) fn is_kernels_queue(&self, number: u32) -> bool {
        self.objects.is_send_queue(number) || self.objects.is_kernels(number)
    }

    /// Stores a block from a BlueFlame register in the ring, if the ring has the same WQE at that
    /// position.
    pub(crate) fn store_blue_flame(&mut self, number: u32, block: &[u8; 64]) {
        let info = self.core.query_qp(Qpn(number)).ok();
        let Some(ring) = info.and_then(|info| info.params.send_ring) else { return };
        let index = u64::from(u16::from_be_bytes([block[1], block[2]]));
        let offset = (index & ((1 << ring.log_blocks) - 1)) << LOG_BLOCK;
        let mut head = [0; 8];
        let read = ring.buffer.read(&self.memory, offset, &mut head);
        if read.is_ok() && head == block[..8] {
            // If the ring cannot be written, the guest is at fault, and the doorbell then reads the
            // old block.
            let _ = ring.buffer.write(&self.memory, offset, block);
        }
    }
}
