//! The device's part of a completion queue, played by the benchmark.

/// Writes CQEs into a ring of 64-byte entries, as the device does.
#[derive(Debug)]
pub(crate) struct Producer {
    ring: *mut u8,
    /// A power of two.
    entries: u32,
    produced: u32,
}

/// `op_own` of a send's CQE.
const REQUESTER: u8 = 0x00;
/// `op_own` of a receive's CQE: without and with immediate data, with 32 bytes of data inside, of
/// an error, and at the start of a compressed session.
const RESPONDER: u8 = 0x20;
const IMMEDIATE: u8 = 0x30;
const INLINE: u8 = 0x24;
const ERROR: u8 = 0xe0;
const SEND_ERROR: u8 = 0xd0;
const COMPRESSED: u8 = 0x2c;
/// The syndrome of flushed requests, because libmlx5 prints the CQEs of all other errors.
const FLUSHED: u8 = 5;

impl Producer {
    /// # Safety
    /// `ring` is the ring of a CQ that lives as long as this value, polled by the thread that uses
    /// it.
    pub(crate) unsafe fn new(ring: *mut u8, entries: u32) -> Self {
        Self { ring, entries, produced: 0 }
    }

    /// Completes a send; `word` is the QP's number with the opcode above it.
    pub(crate) fn send(&mut self, user_index: u32, word: u32, wqe_counter: u32) {
        self.write(REQUESTER, user_index, word, wqe_counter);
    }

    /// Completes a receive of 64 bytes.
    pub(crate) fn receive(&mut self, user_index: u32, qpn: u32, wqe_counter: u32) {
        self.write(RESPONDER, user_index, qpn, wqe_counter);
    }

    /// Completes a receive of 64 bytes with immediate data.
    pub(crate) fn immediate(&mut self, user_index: u32, qpn: u32, wqe_counter: u32) {
        self.write(IMMEDIATE, user_index, qpn, wqe_counter);
    }

    /// Completes a receive of 32 bytes, which are in the CQE.
    pub(crate) fn inline(&mut self, user_index: u32, qpn: u32, wqe_counter: u32) {
        self.write(INLINE, user_index, qpn, wqe_counter);
    }

    /// Flushes a receive.
    pub(crate) fn error(&mut self, user_index: u32, qpn: u32, wqe_counter: u32) {
        self.write(ERROR, user_index, qpn, wqe_counter);
    }

    /// Flushes a send.
    pub(crate) fn send_error(&mut self, user_index: u32, qpn: u32, wqe_counter: u32) {
        self.write(SEND_ERROR, user_index, qpn, wqe_counter);
    }

    /// A compressed session of `count` receives.
    pub(crate) fn session(&mut self, user_index: u32, qpn: u32, wqe_counter: u32, count: u32) {
        let start = self.produced;
        self.write(COMPRESSED, user_index, qpn, wqe_counter);
        // SAFETY: within the ring, whose entry this is.
        unsafe { self.entry(start).add(44).cast::<u32>().write_volatile(count.to_be()) };
        for array in 0..count.div_ceil(8) {
            let at = if array == 0 { 1 } else { 8 * array };
            let minis = [0, 64u32.to_be()].repeat(8);
            // SAFETY: as above.
            unsafe {
                let to = self.entry(start + at).cast::<u32>();
                (0..16).for_each(|i| to.add(i).write_volatile(minis[i]));
            }
        }
        self.produced = start + count;
    }

    pub(crate) fn entry(&self, index: u32) -> *mut u8 {
        self.ring.wrapping_add((index % self.entries) as usize * 64)
    }

    fn write(&mut self, op_own: u8, user_index: u32, word: u32, wqe_counter: u32) {
        let index = self.produced;
        self.produced += 1;
        let owner = (index / self.entries) as u8 & 1;
        let mut cqe = [0; 64];
        cqe[32..36].copy_from_slice(&user_index.to_be_bytes());
        let bytes: u32 = if op_own == INLINE { 32 } else { 64 };
        cqe[44..48].copy_from_slice(&bytes.to_be_bytes());
        if op_own == ERROR || op_own == SEND_ERROR {
            cqe[55] = FLUSHED;
        }
        cqe[56..60].copy_from_slice(&word.to_be_bytes());
        cqe[60..62].copy_from_slice(&(wqe_counter as u16).to_be_bytes());
        cqe[63] = op_own | owner;
        // SAFETY: within the ring; nothing polls it now.
        unsafe { self.entry(index).cast::<[u8; 64]>().write_volatile(cqe) };
    }
}
