//! Requests that change the rights of a memory key and the list of what it leads to.

use zerocopy::IntoBytes;

use super::window::WindowAccess;
use crate::format::{
    ControlFlags, ControlSegment, Klm, MAX_DS, MkeyContextSegment as Mkey, OCTOWORD, Opcode,
    RepeatBlock, RepeatEntry, U16, U32, U64, UmrControlSegment as Umr,
};
use crate::request::PostFlags;

/// Octowords before the list.
const HEAD: usize = (size_of::<ControlSegment>() + size_of::<Umr>() + size_of::<Mkey>()) / OCTOWORD;
/// Lists are whole groups of so many octowords.
const GROUP: usize = 4;

/// A change of an indirect key, encoded part by part for
/// [`Batch::build_key_change`](super::Batch::build_key_change). The parts that were not set stay as
/// they are in the key.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyChange {
    key: u32,
    flags: PostFlags,
    access: Option<WindowAccess>,
    list: Option<List>,
}

/// Octowords of the list in the request, and bytes that the key leads to.
#[derive(Clone, Copy, Debug, Default)]
struct List {
    octowords: usize,
    length: u64,
}

impl KeyChange {
    /// Octowords of the longest list: what the control segment can count.
    pub const MAX_OCTOWORDS: usize = (MAX_DS as usize - HEAD) / GROUP * GROUP;
    /// Bytes of the longest request.
    pub const MAX_BYTES: usize = (HEAD + Self::MAX_OCTOWORDS) * OCTOWORD;

    /// A change of nothing. The key's low byte is 0.
    pub fn new(key: u32, flags: PostFlags) -> Self {
        Self { key, flags, ..Self::default() }
    }

    /// Whether the rights were set.
    pub fn has_access(&self) -> bool {
        self.access.is_some()
    }

    /// Whether a list was set.
    pub fn has_list(&self) -> bool {
        self.list.is_some()
    }

    /// Sets what the local and the remote side may do, besides local reads.
    pub fn set_access(&mut self, access: WindowAccess) {
        self.access = Some(access);
    }

    /// Encodes a list of parts that follow each other, in a request of
    /// [`KeyChange::MAX_BYTES`] bytes. Entries beyond that are left out.
    pub fn set_list(&mut self, wqe: &mut [u8], entries: impl ExactSizeIterator<Item = Klm>) {
        let octowords = entries.len();
        let mut length = 0;
        let entries = entries.inspect(|entry| length += u64::from(entry.byte_count.get()));
        let octowords = store_list(wqe, octowords, entries);
        self.list = Some(List { octowords, length });
    }

    /// Encodes elements that alternate, `cycles` times; else as [`KeyChange::set_list`].
    pub fn set_interleaved(
        &mut self,
        wqe: &mut [u8],
        cycles: u32,
        elements: impl ExactSizeIterator<Item = RepeatEntry> + Clone,
    ) {
        let sizes = elements.clone().map(|element| u32::from(element.byte_count.get()));
        let cycle = sizes.fold(0, u32::wrapping_add);
        let head = RepeatBlock {
            byte_count: U32::new(cycle),
            operation: U32::new(RepeatBlock::OPERATION),
            repeat_count: U32::new(cycles),
            entries: U16::new(elements.len() as u16),
            ..RepeatBlock::default()
        };
        let octowords = store_list(wqe, elements.len() + 1, [head]);
        store(wqe, HEAD + 1, elements);
        self.list = Some(List { octowords, length: u64::from(cycle) * u64::from(cycles) });
    }

    /// Encodes what is before the list. Returns the length of the request in bytes.
    pub fn finish(&self, wqe: &mut [u8]) -> usize {
        let List { octowords, length } = self.list.unwrap_or_default();
        let ds = HEAD + octowords;
        let flags = ControlFlags(self.flags.bits());
        let key = U32::new(self.key);
        store(wqe, 0, [ControlSegment::new(Opcode::UMR, 0, 0, ds as u8, flags, key)]);
        let umr = Umr {
            flags: Umr::FLAG_INLINE,
            klm_octowords: U16::new(octowords as u16),
            mkey_mask: U64::new(self.mask()),
            ..Umr::default()
        };
        store(wqe, 1, [umr]);
        let mkey = Mkey {
            access_flags: self.access.unwrap_or_default().bits(),
            qpn_mkey: U32::new(Mkey::ANY_QPN << 8),
            length: U64::new(length),
            ..Mkey::default()
        };
        store(wqe, HEAD - size_of::<Mkey>() / OCTOWORD, [mkey]);
        ds * OCTOWORD
    }

    /// The fields of the key that the request changes.
    fn mask(&self) -> u64 {
        let rights = Umr::MASK_LOCAL_WRITE
            | Umr::MASK_REMOTE_READ
            | Umr::MASK_REMOTE_WRITE
            | Umr::MASK_ATOMIC;
        Umr::MASK_FREE
            | Umr::MASK_KEY
            | if self.has_access() { rights } else { 0 }
            | if self.has_list() { Umr::MASK_LENGTH } else { 0 }
    }
}

/// Stores the entries of a list of `octowords` octowords, and zeros behind its last one up to the
/// end of the group. Returns how many octowords that makes.
fn store_list<S: IntoBytes + zerocopy::Immutable>(
    wqe: &mut [u8],
    octowords: usize,
    entries: impl IntoIterator<Item = S>,
) -> usize {
    let octowords = octowords.next_multiple_of(GROUP);
    let list = wqe.get_mut(HEAD * OCTOWORD..(HEAD + octowords) * OCTOWORD);
    list.unwrap_or_default().fill(0);
    store(wqe, HEAD, entries);
    octowords
}

/// Stores segments from octoword `at` on, as far as there is space.
fn store<S: IntoBytes + zerocopy::Immutable>(
    wqe: &mut [u8],
    at: usize,
    segments: impl IntoIterator<Item = S>,
) {
    let places = wqe.get_mut(at * OCTOWORD..).unwrap_or_default();
    for (place, segment) in places.chunks_exact_mut(size_of::<S>()).zip(segments) {
        place.copy_from_slice(segment.as_bytes());
    }
}
