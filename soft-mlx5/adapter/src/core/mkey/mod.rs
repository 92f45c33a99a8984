//! Memory keys: regions, windows and the null key.

mod access;

pub(super) use access::{AccessError, Accessor, Operand};

use std::collections::BTreeMap;
use std::ops::Range;

use bitflags::bitflags;
use uverbs_mlx5_format::MkeyContextSegment;

use super::{CoreError, Mkey, ObjectKind, Pdn, table::RandomTable};
use crate::memory::PageMap;
use crate::prng::RandomSource;

bitflags! {
    /// The rights of a key, with the bits of the mkey context.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// The device may read on behalf of local WQEs.
        const LOCAL_READ = MkeyContextSegment::ACCESS_LOCAL_READ;
        /// The device may write on behalf of local WQEs.
        const LOCAL_WRITE = MkeyContextSegment::ACCESS_LOCAL_WRITE;
        /// Peers may read.
        const REMOTE_READ = MkeyContextSegment::ACCESS_REMOTE_READ;
        /// Peers may write.
        const REMOTE_WRITE = MkeyContextSegment::ACCESS_REMOTE_WRITE;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = MkeyContextSegment::ACCESS_ATOMIC;
        /// WQEs may change the key (UMR).
        const UMR = 1 << 7;
    }
}

/// A range of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KlmEntry {
    /// Bytes.
    pub len: u64,
    /// The other key.
    pub mkey: Mkey,
    /// Address in the other key's space.
    pub address: u64,
}

/// One of the elements that make up a cycle of an interleaved key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedEntry {
    /// Where the element is in the first cycle.
    pub first: KlmEntry,
    /// Bytes from the element of one cycle to that of the next.
    pub stride: u64,
}

/// Where a key's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Host memory; offset 0 is the key's start address.
    Memory(PageMap),
    /// Ranges of other keys, one after the other (KLM).
    Klm(Vec<KlmEntry>),
    /// Ranges of other keys, all of `1 << shift` bytes (KSM).
    Ksm {
        /// log2 of a range's bytes.
        shift: u8,
        /// Key and address of each.
        entries: Vec<(Mkey, u64)>,
    },
    /// Elements of other keys that alternate, for a number of cycles (repeat block).
    Strided {
        /// Number of cycles.
        cycles: u32,
        /// The elements of a cycle.
        entries: Vec<StridedEntry>,
    },
    /// No memory: reads give zeros, writes are dropped (`ibv_alloc_null_mr(3)`).
    Null,
}

/// Any QP may use the key.
pub const ANY_QP: u32 = MkeyContextSegment::ANY_QPN;

/// A key to be created, and what a query returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkeyParams {
    /// The key's low byte, the driver's choice; [`Core::mkey_variant`](super::Core::mkey_variant)
    /// gives a random one.
    pub variant: u8,
    /// Protection domain.
    pub pd: Pdn,
    /// The only QP that may use the key, or [`ANY_QP`].
    pub qpn: u32,
    /// Whether the key was created free: a WQE must bind it before it can be used.
    pub free: bool,
    /// Its rights.
    pub access: Access,
    /// Whether SEND with invalidate may free it.
    pub remote_invalidate: bool,
    /// First address of its space; 0 for a zero-based key.
    pub start: u64,
    /// Length in bytes; ignored with `whole_space`.
    pub length: u64,
    /// Whether all addresses are inside (`length64`), as for a key over all of memory.
    pub whole_space: bool,
    /// On-demand paging: pages may be unmapped or never touched, so each access checks that.
    pub on_demand: bool,
    /// Where the bytes are.
    pub translation: Translation,
    /// How many translation entries a WQE may write (UMR), in units of 16 bytes.
    pub translation_octowords: u32,
}

impl MkeyParams {
    /// A memory region of `length` bytes whose first byte has the address `start`.
    pub fn region(pd: Pdn, start: u64, length: u64, access: Access, memory: PageMap) -> Self {
        Self {
            variant: 0,
            pd,
            qpn: ANY_QP,
            free: false,
            access: access | Access::LOCAL_READ,
            remote_invalidate: false,
            start,
            length,
            whole_space: false,
            on_demand: false,
            translation: Translation::Memory(memory),
            translation_octowords: 0,
        }
    }

    /// A memory window, unbound. Type 2 windows belong to the QP that binds them, and the peer can
    /// invalidate them.
    pub fn window(pd: Pdn, type_2: bool) -> Self {
        Self {
            free: true,
            remote_invalidate: type_2,
            translation: Translation::Klm(Vec::new()),
            translation_octowords: 4,
            access: Access::UMR | Access::LOCAL_READ,
            ..Self::region(pd, 0, 0, Access::empty(), PageMap::linear(0))
        }
    }

    /// A null key.
    pub fn null(pd: Pdn) -> Self {
        Self {
            whole_space: true,
            translation: Translation::Null,
            ..Self::region(pd, 0, 0, Access::LOCAL_WRITE, PageMap::linear(0))
        }
    }

    fn check(&self) -> Result<(), CoreError> {
        if self.length > 0 && self.start.checked_add(self.length - 1).is_none() {
            return Err(CoreError::bad("length of a memory key", self.length));
        }
        if self.qpn > ANY_QP {
            return Err(CoreError::bad("QP number of a memory key", u64::from(self.qpn)));
        }
        Ok(())
    }
}

/// All keys of the device.
#[derive(Debug)]
pub(super) struct Mkeys {
    table: RandomTable<MkeyParams>,
    variants: RandomSource,
    /// How many bound windows and configured keys point at a key, by its index.
    windows: BTreeMap<u32, u32>,
}

/// Adds `change` to the counts of the keys that `key` points at, if `key` is a bound window or was
/// configured by a WQE.
fn count_window(windows: &mut BTreeMap<u32, u32>, key: &MkeyParams, change: i32) {
    for entry in key.translation.listed().filter(|_| !key.free) {
        let index = entry.mkey.0 >> 8;
        let count = windows.entry(index).or_default();
        *count = count.saturating_add_signed(change);
        if *count == 0 {
            windows.remove(&index);
        }
    }
}

/// The lkey over all of memory that only privileged QPs may use (`resd_lkey` of
/// QUERY_SPECIAL_CONTEXTS).
pub(super) const RESERVED_LKEY: Mkey = Mkey(0x0000_0500);

impl Mkeys {
    /// Above the reserved lkeys (0x100 ends a scatter list), and below the lkey of all ones.
    const INDICES: Range<u32> = 0x10..0xff_ffff;

    pub(super) fn new(limit: usize, mut random: RandomSource) -> Self {
        let table = RandomTable::new(Self::INDICES, limit, random.split());
        Self { table, variants: random, windows: BTreeMap::new() }
    }

    /// A random variant.
    pub(super) fn variant(&mut self) -> u8 {
        self.variants.draw() as u8
    }

    pub(super) fn create(&mut self, params: MkeyParams) -> Result<Mkey, CoreError> {
        params.check()?;
        let variant = u32::from(params.variant);
        let index = self.table.insert_with(|_| params);
        let index = index.ok_or(CoreError::LimitReached { kind: ObjectKind::Mkey })?;
        if let Some(key) = self.table.get(index) {
            count_window(&mut self.windows, key, 1);
        }
        Ok(Mkey(index << 8 | variant))
    }

    /// Commands find a key only by its index, because its variant may have changed since creation.
    pub(super) fn get(&self, mkey: Mkey) -> Result<&MkeyParams, CoreError> {
        self.table.get(mkey.0 >> 8).ok_or(CoreError::missing(mkey.object()))
    }

    pub(super) fn replace(&mut self, mkey: Mkey, params: MkeyParams) -> Result<Pdn, CoreError> {
        params.check()?;
        let slot = self.table.get_mut(mkey.0 >> 8).ok_or(CoreError::missing(mkey.object()))?;
        let before = slot.pd;
        count_window(&mut self.windows, slot, -1);
        count_window(&mut self.windows, &params, 1);
        *slot = params;
        Ok(before)
    }

    pub(super) fn destroy(&mut self, mkey: Mkey) -> Result<MkeyParams, CoreError> {
        let key = self.table.remove(mkey.0 >> 8).ok_or(CoreError::missing(mkey.object()))?;
        count_window(&mut self.windows, &key, -1);
        Ok(key)
    }

    /// Makes a key unusable until it is bound or registered again.
    pub(super) fn invalidate(&mut self, mkey: Mkey) {
        if let Some(key) = self.table.get_mut(mkey.0 >> 8) {
            count_window(&mut self.windows, key, -1);
            key.free = true;
        }
    }

    /// How many bound windows and configured keys point at a key.
    pub(super) fn windows(&self, mkey: Mkey) -> u32 {
        self.windows.get(&(mkey.0 >> 8)).copied().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}
