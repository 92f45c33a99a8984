//! The firmware command queue: descriptors in one guest page, longer input and output in chains of
//! mailboxes.
//!
//! Layout: `struct mlx5_cmd_layout` and `struct mlx5_cmd_prot_block` in the kernel's
//! `include/linux/mlx5/driver.h`. Signatures are not used: the driver switches them off
//! (`cmdif_checksum`).

use std::sync::atomic::{Ordering, fence};

use super::guest_memory::GuestMemory;
use uverbs_soft::memory::{BusError, HostMemory};

/// log2 of the number of descriptors.
pub(super) const LOG_SIZE: u32 = 5;
/// log2 of the distance between descriptors.
pub(super) const LOG_STRIDE: u32 = 6;

const DESCRIPTOR: usize = 64;
/// Descriptor type: commands over PCI.
const TYPE_PCI: u8 = 7;
const OWNED_BY_HARDWARE: u8 = 1;

/// Bytes of input and output inside the descriptor.
const INLINE: usize = 16;
/// Data bytes of one mailbox.
const BLOCK: usize = 512;
/// Offset and size of the mailbox's fields after its data.
const BLOCK_NEXT: u64 = 560;
const BLOCK_TAIL: usize = 16;
/// Longest input or output, twice the driver's limit.
const MAX_LENGTH: usize = 16 << 20;

/// Why a descriptor could not be executed (`MLX5_CMD_DELIVERY_STAT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Ok = 0,
    BadToken = 2,
    BadBlockNumber = 3,
    BadOutputPointer = 4,
    BadInputPointer = 5,
    BadInputLength = 7,
    BadOutputLength = 8,
    BadDescriptor = 0x10,
}

/// A command from the driver.
#[derive(Debug)]
pub(super) struct Request {
    descriptor: u64,
    token: u8,
    output_pointer: u64,
    /// Bytes that the driver expects back.
    pub(super) output_length: usize,
    /// The whole input.
    pub(super) input: Vec<u8>,
}

fn be32(bytes: &[u8], at: usize) -> usize {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    (be32(bytes, at) as u64) << 32 | be32(bytes, at + 4) as u64
}

/// Reads the command in descriptor `index` of the queue at `base`. `None` if the hardware does not
/// own it.
pub(super) fn fetch(
    memory: &GuestMemory,
    base: u64,
    index: u32,
) -> Result<Option<Request>, Delivery> {
    let address = base + (u64::from(index) << LOG_STRIDE);
    let mut descriptor = [0; DESCRIPTOR];
    memory.read(address, &mut descriptor).map_err(|_| Delivery::BadDescriptor)?;
    if descriptor[63] & OWNED_BY_HARDWARE == 0 {
        return Ok(None);
    }
    if descriptor[0] != TYPE_PCI {
        return Err(Delivery::BadDescriptor);
    }
    let request = Request {
        descriptor: address,
        token: descriptor[60],
        output_pointer: be64(&descriptor, 48),
        output_length: be32(&descriptor, 56),
        input: input(memory, &descriptor)?,
    };
    if !(8..=MAX_LENGTH).contains(&request.output_length) {
        return Err(Delivery::BadOutputLength);
    }
    Ok(Some(request))
}

fn input(memory: &GuestMemory, descriptor: &[u8; DESCRIPTOR]) -> Result<Vec<u8>, Delivery> {
    let length = be32(descriptor, 4);
    if !(8..=MAX_LENGTH).contains(&length) {
        return Err(Delivery::BadInputLength);
    }
    let mut input = descriptor[16..16 + INLINE.min(length)].to_vec();
    let mut next = be64(descriptor, 8);
    for number in 0..blocks(length) {
        let tail = mailbox(memory, next, descriptor[60], number, Delivery::BadInputPointer)?;
        let at = input.len();
        input.resize(length.min(at + BLOCK), 0);
        memory.read(next, &mut input[at..]).map_err(|_| Delivery::BadInputPointer)?;
        next = tail;
    }
    Ok(input)
}

/// Stores `output` in the driver's mailboxes and returns the descriptor to the driver.
pub(super) fn complete(memory: &GuestMemory, request: &Request, output: &[u8]) {
    let delivery = match store_output(memory, request, output) {
        Ok(()) => Delivery::Ok,
        Err(delivery) => delivery,
    };
    hand_back(memory, request.descriptor, delivery);
}

/// Returns a descriptor that could not be executed to the driver.
pub(super) fn reject(memory: &GuestMemory, base: u64, index: u32, delivery: Delivery) {
    hand_back(memory, base + (u64::from(index) << LOG_STRIDE), delivery);
}

fn store_output(memory: &GuestMemory, request: &Request, output: &[u8]) -> Result<(), Delivery> {
    let (head, rest) = output.split_at(INLINE.min(output.len()));
    memory.write(request.descriptor + 32, head).map_err(|_| Delivery::BadDescriptor)?;
    let mut next = request.output_pointer;
    for (number, data) in rest.chunks(BLOCK).enumerate() {
        let tail = mailbox(memory, next, request.token, number, Delivery::BadOutputPointer)?;
        memory.write(next, data).map_err(|_| Delivery::BadOutputPointer)?;
        next = tail;
    }
    Ok(())
}

/// Checks mailbox `number` of a chain and returns the address of the next one.
fn mailbox(
    memory: &GuestMemory,
    at: u64,
    token: u8,
    number: usize,
    bad_pointer: Delivery,
) -> Result<u64, Delivery> {
    let mut tail = [0; BLOCK_TAIL];
    let address = at.checked_add(BLOCK_NEXT).ok_or(bad_pointer)?;
    memory.read(address, &mut tail).map_err(|_: BusError| bad_pointer)?;
    if tail[13] != token {
        return Err(Delivery::BadToken);
    }
    if be32(&tail, 8) != number {
        return Err(Delivery::BadBlockNumber);
    }
    Ok(be64(&tail, 0))
}

/// Returns a descriptor's ownership to the driver, which polls this byte. The output must be
/// visible before it.
fn hand_back(memory: &GuestMemory, descriptor: u64, delivery: Delivery) {
    fence(Ordering::Release);
    if let Err(error) = memory.write(descriptor + 63, &[(delivery as u8) << 1]) {
        tracing::error!(%error, "the command descriptor is not in guest memory");
    }
}

fn blocks(length: usize) -> usize {
    length.saturating_sub(INLINE).div_ceil(BLOCK)
}
