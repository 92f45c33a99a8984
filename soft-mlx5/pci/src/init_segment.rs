//! The initialization segment at the start of BAR 0: firmware version, command queue address and
//! doorbell, health, clock.
//!
//! Layout: `struct mlx5_init_seg` in the kernel's `include/linux/mlx5/device.h`. All words are
//! big-endian.

use super::command_queue::{LOG_SIZE, LOG_STRIDE};

const FIRMWARE_REVISION: u64 = 0x00;
const COMMAND_INTERFACE: u64 = 0x04;
const QUEUE_ADDRESS_HIGH: u64 = 0x10;
const QUEUE_ADDRESS_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
const INITIALIZING: u64 = 0x1fc;
const HEALTH: u64 = 0x200;
const HEALTH_FIRMWARE_VERSION: u64 = 0x230;
const TIMER_HIGH: u64 = 0x1000;
const TIMER_LOW: u64 = 0x1004;
const HEALTH_COUNTER: u64 = 0x1010;
const SEGMENT_END: u64 = 0x2000;

/// The firmware version that the driver reads: that of a ConnectX-5.
const VERSION: (u32, u32, u32) = (16, 35, 4030);
/// The command interface revision that every mlx5_core requires.
const INTERFACE: u32 = 5;

/// The effect of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// No effect besides the register's new value.
    Nothing,
    /// The command doorbell was rung: address of the queue and mask of descriptors.
    CommandDoorbell {
        /// Guest-physical address of descriptor 0.
        queue: u64,
        /// One bit per descriptor.
        mask: u32,
    },
    /// There is no such register.
    Unknown,
}

/// The registers.
#[derive(Debug, Default)]
pub(super) struct InitSegment {
    address_high: u32,
    address_low: u32,
}

impl InitSegment {
    /// Handles loads; `now` is the device's clock in its own ticks (nanoseconds).
    pub(super) fn read(&self, offset: u64, now: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            let at = offset + index as u64;
            let word = self.word(at & !3, now).to_be_bytes();
            *byte = word[(at & 3) as usize];
        }
    }

    fn word(&self, offset: u64, now: u64) -> u32 {
        let (major, minor, subminor) = VERSION;
        match offset {
            FIRMWARE_REVISION => minor << 16 | major,
            COMMAND_INTERFACE => INTERFACE << 16 | subminor,
            QUEUE_ADDRESS_HIGH => self.address_high,
            QUEUE_ADDRESS_LOW => self.address_low & !0xfff | LOG_SIZE << 4 | LOG_STRIDE,
            INITIALIZING => 0,
            HEALTH_FIRMWARE_VERSION => major << 24 | minor << 16 | subminor,
            TIMER_HIGH => (now >> 32) as u32,
            TIMER_LOW => now as u32,
            // The driver considers a device dead if this counter stops.
            HEALTH_COUNTER => (now / 10_000_000) as u32 & 0xff_ffff,
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Stored {
        let Ok(value) = <[u8; 4]>::try_from(data).map(u32::from_be_bytes) else {
            return Stored::Unknown;
        };
        match offset {
            QUEUE_ADDRESS_HIGH => self.address_high = value,
            QUEUE_ADDRESS_LOW => self.address_low = value,
            COMMAND_DOORBELL => {
                let queue =
                    u64::from(self.address_high) << 32 | u64::from(self.address_low & !0xfff);
                return Stored::CommandDoorbell { queue, mask: value };
            }
            // Stores to the health buffer and the timer have no effect.
            HEALTH..SEGMENT_END => {}
            _ => return Stored::Unknown,
        }
        Stored::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doorbell_names_the_queue() {
        let mut segment = InitSegment::default();
        assert_eq!(segment.write(0x10, &[0, 0, 0, 1]), Stored::Nothing);
        assert_eq!(segment.write(0x14, &[0x12, 0x34, 0x50, 0]), Stored::Nothing);
        let rung = segment.write(0x18, &[0, 0, 0, 5]);
        assert_eq!(rung, Stored::CommandDoorbell { queue: 0x1_1234_5000, mask: 5 });
        let mut low = [0; 4];
        segment.read(0x14, 0, &mut low);
        assert_eq!(u32::from_be_bytes(low), 0x1234_5056);
    }

    #[test]
    fn bytes_of_a_word_can_be_read_one_by_one() {
        let segment = InitSegment::default();
        let mut byte = [0; 1];
        segment.read(5, 0, &mut byte);
        assert_eq!(byte, [5]);
    }
}
