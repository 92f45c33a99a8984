//! Message headers and bodies of vfio-user. All fields are little-endian (the host's byte order by
//! specification; only little-endian hosts are served).

use std::os::fd::OwnedFd;

/// Bytes of a message header.
pub(super) const HEADER: usize = 16;

/// Commands, as numbered by the specification.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
}

/// Header flag: this message is a reply.
pub(super) const REPLY: u32 = 1;
/// Header flag: the sender wants no reply.
pub(super) const NO_REPLY: u32 = 1 << 4;
/// Header flag: the reply carries an errno.
pub(super) const ERROR: u32 = 1 << 5;

/// A received message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) flags: u32,
    pub(super) body: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    pub(super) fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.body.get(offset..offset + 4)?.try_into().ok()?))
    }

    pub(super) fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.body.get(offset..offset + 8)?.try_into().ok()?))
    }
}

/// A message header with `size` body bytes to follow.
pub(super) fn header(id: u16, command: u16, flags: u32, error: u32, size: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..2].copy_from_slice(&id.to_le_bytes());
    bytes[2..4].copy_from_slice(&command.to_le_bytes());
    bytes[4..8].copy_from_slice(&((HEADER + size) as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&flags.to_le_bytes());
    bytes[12..16].copy_from_slice(&error.to_le_bytes());
    bytes
}

/// A body made of 32-bit words.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
