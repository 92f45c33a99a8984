//! Page lists in commands: the pages of a queue or memory key.

use super::command::Command;
use super::refusal::Refusal;
use crate::firmware::bits::field;
use crate::firmware::layout::context::wq;
use crate::memory::PageMap;

/// Offset of the page list in the creation commands of queues and keys, in bits.
pub const PAGES: usize = 0x880;

/// A queue's pages as its context describes them.
#[derive(Clone, Copy, Debug)]
pub struct QueuePages {
    /// log2 of the page size, minus 12.
    pub log_page_size: u32,
    /// Offset of the queue in its first page, in 64ths of a page.
    pub page_offset: u64,
    /// Bytes of the queue.
    pub length: u64,
}

impl QueuePages {
    /// The pages of a work queue of `length` bytes.
    pub fn of_work_queue(queue: &[u8], length: u64) -> Self {
        let log_page_size = wq::LOG_WQ_PG_SZ.get32(queue);
        Self { log_page_size, page_offset: wq::PAGE_OFFSET.get(queue), length }
    }

    /// Reads the page list at `bit` bits into the input.
    ///
    /// # Errors
    /// A refusal of impossible values.
    pub fn read(self, command: &Command<'_>, bit: usize) -> Result<PageMap, Refusal> {
        let shift = self.log_page_size + 12;
        page_list(command, bit, shift, self.page_offset << (shift - 6), self.length)
    }
}

/// The page list at `bit` bits into the input. The pages have `1 << shift` bytes; the object starts
/// `first` bytes into the first page and has `length` bytes.
///
/// # Errors
/// A refusal of impossible values.
pub fn page_list(
    command: &Command<'_>,
    bit: usize,
    shift: u32,
    first: u64,
    length: u64,
) -> Result<PageMap, Refusal> {
    if !(12..=40).contains(&shift) {
        return Err(Refusal::parameter("page size (log2)", u64::from(shift)));
    }
    if first >= 1 << shift {
        return Err(Refusal::parameter("page offset", first));
    }
    let end = first.checked_add(length).ok_or_else(|| Refusal::parameter("length", length))?;
    let count = end.div_ceil(1 << shift) as usize;
    let end = count.saturating_mul(8).saturating_add(bit / 8);
    if command.input.len() < end {
        return Err(Refusal::parameter("number of pages", count as u64));
    }
    let frames = (0..count).map(|index| frame(command, bit, index, shift));
    Ok(PageMap::pages(shift as u8, frames.collect::<Result<Vec<u64>, _>>()?, first))
}

/// Entry `index`: an address, whose low bits below 4096 are flags or reserved (memory keys have
/// read and write enable there).
fn frame(command: &Command<'_>, bit: usize, index: usize, shift: u32) -> Result<u64, Refusal> {
    let address = command.get(field(bit, 64).element(index, 64)) & !0xfff;
    if address & ((1 << shift) - 1) != 0 {
        return Err(Refusal::parameter("page address", address));
    }
    Ok(address)
}
