//! Doorbell records in memory, and doorbell registers in the UAR page.

/// Size in bytes of one user access region (UAR), the page of doorbell registers that a program
/// maps.
pub const UAR_SIZE: usize = 4096;

/// Offset in the UAR of the first BlueFlame register (`MLX5_BF_OFFSET`), which the next one
/// follows. The kernel reports the size of a register, which is 512 bytes on all known devices.
pub const BLUEFLAME_OFFSET: usize = 0x800;

/// Size in bytes of one BlueFlame register: two halves, used alternately.
pub const BLUEFLAME_REGISTER_SIZE: usize = 512;

/// Size in bytes of one half, which is also the largest WQE for BlueFlame.
pub const BLUEFLAME_HALF_SIZE: usize = BLUEFLAME_REGISTER_SIZE / 2;

/// BlueFlame registers per UAR that user programs may use (`MLX5_NON_FP_BFREGS_PER_UAR`); two more
/// are for the kernel's fast path.
pub const BLUEFLAME_REGISTERS_PER_UAR: usize = 2;

/// BlueFlame registers per UAR in the kernel's numbering of registers (`MLX5_BFREGS_PER_UAR`).
pub const ALL_BLUEFLAME_REGISTERS_PER_UAR: usize = 4;

/// Offset in the UAR of the 8-byte register that arms a CQ (`MLX5_CQ_DOORBELL`).
pub const CQ_ARM_OFFSET: usize = 0x20;

/// Offset in the UAR of the word that updates an EQ's consumer index and arms it
/// (`MLX5_EQ_DOORBELL_OFFSET`).
pub const EQ_ARM_OFFSET: usize = 0x40;

/// Offset in the UAR of the word that updates an EQ's consumer index without arming it.
pub const EQ_UPDATE_OFFSET: usize = EQ_ARM_OFFSET + 8;

/// The arm word of a CQ, which is in its doorbell record and is the upper half of the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqArm {
    /// Sequence number modulo 4, which increases with each event received.
    pub sequence: u8,
    /// Whether only a solicited completion, or an error, raises the event.
    pub solicited_only: bool,
    /// CQEs consumed, modulo 2^24.
    pub consumer_index: u32,
}

impl CqArm {
    /// Bit of the arm word: solicited completions only (`MLX5_CQ_DB_REQ_NOT_SOL`).
    pub const SOLICITED_ONLY: u32 = 1 << 24;

    /// The word, in the processor's byte order.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        ((self.sequence & 3) as u32) << 28
            | (self.solicited_only as u32) << 24
            | self.consumer_index & 0xff_ffff
    }

    /// The value to store in the register at [`CQ_ARM_OFFSET`], as one big-endian number of 8
    /// bytes: arm word, CQ number.
    #[inline(always)]
    pub const fn doorbell(self, cqn: u32) -> u64 {
        (self.word() as u64) << 32 | (cqn & 0xff_ffff) as u64
    }

    /// Reads an arm word.
    pub const fn from_word(word: u32) -> Self {
        Self {
            sequence: (word >> 28 & 3) as u8,
            solicited_only: word & Self::SOLICITED_ONLY != 0,
            consumer_index: word & 0xff_ffff,
        }
    }
}
