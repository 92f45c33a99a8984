//! Receive WQEs as values.

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::{Finding, TooShort, show::data_segment};
use uverbs_mlx5::format::{DataSegment, INLINE_FLAG, OCTOWORD, SrqNextSegment};

/// A WQE of a receive queue or shared receive queue: a scatter list as long as the queue's stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveWqe {
    /// The link at the start of a WQE of a shared receive queue, or of a linked striding queue.
    pub next: Option<SrqNextSegment>,
    /// The scatter entries, including the terminator and what follows it.
    pub entries: Vec<DataSegment>,
}

impl ReceiveWqe {
    /// A receive queue's WQE of `stride` bytes: the entries, followed by a terminator and zeros if
    /// there is space. Entries that do not fit are left out.
    pub fn new(entries: &[DataSegment], stride: usize) -> Self {
        Self { next: None, entries: filled(entries, stride / OCTOWORD) }
    }

    /// A shared receive queue's WQE of `stride` bytes, linked to WQE `next`.
    pub fn shared(next: u16, entries: &[DataSegment], stride: usize) -> Self {
        let places = (stride / OCTOWORD).saturating_sub(1);
        Self { next: Some(SrqNextSegment::new(next)), entries: filled(entries, places) }
    }

    /// Reads one WQE from `bytes`, in whole units of 16 bytes.
    ///
    /// # Errors
    /// There is less than one unit, or less than two for a shared queue.
    pub fn decode(bytes: &[u8], shared: bool) -> Result<Self, TooShort> {
        let needed = if shared { 2 * OCTOWORD } else { OCTOWORD };
        let short = TooShort { needed, got: bytes.len() };
        if bytes.len() < needed {
            return Err(short);
        }
        let (next, list) = if shared {
            let (next, list) = SrqNextSegment::read_from_prefix(bytes).map_err(|_| short)?;
            (Some(next), list)
        } else {
            (None, bytes)
        };
        let units = list.chunks_exact(OCTOWORD);
        let entries = units.filter_map(|unit| DataSegment::read_from_bytes(unit).ok()).collect();
        Ok(Self { next, entries })
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(next) = &self.next {
            bytes.extend(next.as_bytes());
        }
        bytes.extend(self.entries.as_bytes());
        bytes
    }

    /// The scatter entries before the terminator.
    pub fn list(&self) -> &[DataSegment] {
        let end = self.entries.iter().position(DataSegment::is_terminator);
        &self.entries[..end.unwrap_or(self.entries.len())]
    }

    /// Describes in sentences what a NIC would do with the WQE. The text assumes that the WQE is
    /// legal; [`ReceiveWqe::findings`] checks this.
    pub fn explain(&self) -> String {
        let list = self.list();
        // For the device a count of 0 means 2 GiB.
        let bytes = |data: &DataSegment| match data.byte_count.get() {
            0 => 1 << 31,
            count => u64::from(count),
        };
        let total: u64 = list.iter().map(bytes).sum();
        let takes = match list.len() {
            0 => "Takes a message without data; a longer one is a length error.".into(),
            1 => format!("Takes a message of up to {total} bytes into one memory area."),
            count => {
                format!(
                    "Takes a message of up to {total} bytes into {count} memory areas, in order."
                )
            }
        };
        match &self.next {
            Some(next) => format!("{takes} Entry {} comes after it.", next.next_wqe_index),
            None => takes,
        }
    }

    /// What is illegal or suspicious.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let start = if self.next.is_some() { OCTOWORD } else { 0 };
        for (index, data) in self.list().iter().enumerate() {
            entry(start + index * OCTOWORD, data, &mut found);
        }
        if let Some(next) = &self.next {
            if next.reserved0 != [0; 2] || next.reserved5 != [0; 11] {
                found.push(Finding::suspicious(0, "reserved bytes of the link are not zero"));
            }
        }
        found
    }
}

fn entry(offset: usize, data: &DataSegment, found: &mut Vec<Finding>) {
    let length = data.byte_count.get();
    if length == 0 {
        let text = format!(
            "byte count 0 stands for 2 GiB: under lkey {:#010x} the device may write anywhere behind \
             the address. An empty entry must be left out, or be a terminator (lkey 0x100)",
            data.lkey.get()
        );
        found.push(Finding::illegal(offset, text));
    } else if length & INLINE_FLAG != 0 {
        let text =
            format!("{length} bytes: bit 31 is the inline flag, an entry has less than 2 GiB");
        found.push(Finding::illegal(offset, text));
    } else if data.address.get().checked_add(u64::from(length)).is_none() {
        found.push(Finding::illegal(offset + 8, "address and length wrap around"));
    }
}

fn filled(entries: &[DataSegment], places: usize) -> Vec<DataSegment> {
    let mut list: Vec<_> = entries.iter().take(places).copied().collect();
    if list.len() < places {
        list.push(DataSegment::TERMINATOR);
    }
    list.resize(places, DataSegment::default());
    list
}

impl fmt::Display for ReceiveWqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut offset = 0;
        if let Some(next) = &self.next {
            write!(f, "0x0000 next: wqe_index={}", next.next_wqe_index)?;
            offset = OCTOWORD;
        }
        let terminator = self.list().len() < self.entries.len();
        for data in &self.entries[..self.list().len() + usize::from(terminator)] {
            let line = if offset == 0 { "" } else { "\n" };
            write!(f, "{line}{offset:#06x} ")?;
            data_segment(f, data)?;
            offset += OCTOWORD;
        }
        Ok(())
    }
}
