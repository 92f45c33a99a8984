//! Memory keys: regions, windows and the null key, and every access through them.

use std::collections::BTreeMap;
use std::ops::Range;

use bitflags::bitflags;
use uverbs_mlx5_format::MkeyContextSegment;

use super::{CoreError, Mkey, ObjectKind, Pdn, table::RandomTable};
use crate::memory::{HostMemory, Margins, PageMap};
use crate::prng::Chance;

bitflags! {
    /// What a key allows, as the mkey context names it.
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
    /// Nowhere: reads give zeros, writes are dropped (`ibv_alloc_null_mr(3)`).
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
    /// Created, but to be bound by a WQE before it can be used.
    pub free: bool,
    /// What it allows.
    pub access: Access,
    /// Whether SEND with invalidate may free it.
    pub remote_invalidate: bool,
    /// First address of its space; 0 for a zero-based key.
    pub start: u64,
    /// Length in bytes. With `whole_space` it does not count.
    pub length: u64,
    /// All addresses are inside (`length64`), as for a key over all of memory.
    pub whole_space: bool,
    /// On-demand paging: the memory may be unmapped or never have been touched, and each access
    /// finds out.
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

/// Why an access through a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessError {
    /// No such key, an old variant, or a free one.
    Key,
    /// Another protection domain or another QP.
    Owner,
    /// Outside the key's range.
    Bounds,
    /// The key does not allow it.
    Rights,
    /// The host's memory is not there.
    Memory,
}

/// The QP on whose behalf memory is accessed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accessor {
    pub(super) pd: Pdn,
    pub(super) qpn: u32,
    /// The reserved lkey (physical addresses) may be used.
    pub(super) reserved_lkey: bool,
}

/// What one part of an access reaches: a bus address and the extent of its region, or the null key.
#[derive(Clone, Copy, Debug)]
enum Target {
    Memory(u64, Margins),
    OnDemand(u64, Margins),
    Null,
}

/// Where an atomic operation finds its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub(super) address: u64,
    /// Whether the region holds all of the aligned eight bytes around it.
    pub(super) in_word: bool,
}

/// Whether the program may read the memory at the same time, as it may while peers access it.
/// The buffers of its own requests belong to the device until they complete.
fn is_shared(need: Access) -> bool {
    need.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// How deep indirect keys may point at indirect keys. The limit of mlx5 is not public; this one is
/// our choice.
const MAX_DEPTH: u32 = 4;

/// All keys of the device.
#[derive(Debug)]
pub(super) struct Mkeys {
    table: RandomTable<MkeyParams>,
    variants: Chance,
    /// How many bound windows point at a key, by its index.
    windows: BTreeMap<u32, u32>,
}

/// Adds `change` to the window counts of the keys that a bound window points at. Other keys are not
/// counted.
fn count_window(windows: &mut BTreeMap<u32, u32>, key: &MkeyParams, change: i32) {
    let Translation::Klm(entries) = &key.translation else { return };
    for entry in entries.iter().filter(|_| !key.free) {
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

    pub(super) fn new(limit: usize, mut chance: Chance) -> Self {
        let table = RandomTable::new(Self::INDICES, limit, chance.split());
        Self { table, variants: chance, windows: BTreeMap::new() }
    }

    /// A random variant.
    pub(super) fn variant(&mut self) -> u8 {
        self.variants.next() as u8
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

    /// Commands find a key by its index alone, because its variant may have changed since creation.
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

    /// Makes a key useless until it is bound or registered again.
    pub(super) fn invalidate(&mut self, mkey: Mkey) {
        if let Some(key) = self.table.get_mut(mkey.0 >> 8) {
            count_window(&mut self.windows, key, -1);
            key.free = true;
        }
    }

    /// How many bound windows point at a key.
    pub(super) fn windows(&self, mkey: Mkey) -> u32 {
        self.windows.get(&(mkey.0 >> 8)).copied().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Checks that `who` may do `need` with `len` bytes from `address` of `key`.
    pub(super) fn check(
        &self,
        who: Accessor,
        key: Mkey,
        address: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.walk(who, need, &mut |_, _| Ok(())).key(key, address, len)
    }

    /// Copies from a key's memory.
    pub(super) fn read(
        &self,
        memory: &dyn HostMemory,
        who: Accessor,
        key: Mkey,
        address: u64,
        into: &mut [u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let mut rest = into;
        let all = rest.len() as u64;
        let mut visit = |target, len: u64| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len as usize);
            rest = later;
            match target {
                Target::Memory(at, room) if is_shared(need) => {
                    memory.read_words(at, now, room).map_err(|_| AccessError::Memory)
                }
                Target::Memory(at, _) => memory.read(at, now).map_err(|_| AccessError::Memory),
                Target::OnDemand(at, _) => {
                    memory.read_on_demand(at, now).map_err(|_| AccessError::Memory)
                }
                Target::Null => {
                    now.fill(0);
                    Ok(())
                }
            }
        };
        self.walk(who, need, &mut visit).key(key, address, all)
    }

    /// Copies to a key's memory.
    pub(super) fn write(
        &self,
        memory: &dyn HostMemory,
        who: Accessor,
        key: Mkey,
        address: u64,
        from: &[u8],
        need: Access,
    ) -> Result<(), AccessError> {
        let mut rest = from;
        let all = rest.len() as u64;
        let mut visit = |target, len: u64| {
            let (now, later) = rest.split_at(len as usize);
            rest = later;
            match target {
                Target::Memory(at, room) if is_shared(need) => {
                    memory.write_words(at, now, room).map_err(|_| AccessError::Memory)
                }
                Target::Memory(at, _) => memory.write(at, now).map_err(|_| AccessError::Memory),
                Target::OnDemand(at, _) => {
                    memory.write_on_demand(at, now).map_err(|_| AccessError::Memory)
                }
                Target::Null => Ok(()),
            }
        };
        self.walk(who, need, &mut visit).key(key, address, all)
    }

    /// The place of an aligned operand of `len` bytes, for atomics. `None` in the null key.
    pub(super) fn word(
        &self,
        memory: &dyn HostMemory,
        who: Accessor,
        key: Mkey,
        address: u64,
        len: u64,
        need: Access,
    ) -> Result<Option<Operand>, AccessError> {
        let mut found = None;
        let mut visit = |target, part: u64| {
            found = Some(target);
            if part == len { Ok(()) } else { Err(AccessError::Memory) }
        };
        self.walk(who, need, &mut visit).key(key, address, len)?;
        let operand = |address, room: Margins| Operand {
            address,
            in_word: room.word(address, len as usize, address).is_some(),
        };
        Ok(match found {
            Some(Target::Memory(at, room)) => Some(operand(at, room)),
            Some(Target::OnDemand(at, room)) => {
                memory.page_in(at, len).map_err(|_| AccessError::Memory)?;
                Some(operand(at, room))
            }
            _ => None,
        })
    }

    fn walk<'a>(&'a self, who: Accessor, need: Access, visit: &'a mut Visit<'a>) -> Walk<'a> {
        Walk { keys: self, who, need, depth: 0, visit }
    }
}

type Visit<'a> = dyn FnMut(Target, u64) -> Result<(), AccessError> + 'a;

/// An access on its way from a key to memory, through the keys that indirect keys point at.
struct Walk<'a> {
    keys: &'a Mkeys,
    who: Accessor,
    /// What the access needs of the keys at this depth.
    need: Access,
    depth: u32,
    visit: &'a mut Visit<'a>,
}

impl Walk<'_> {
    /// Visits, in order, what `len` bytes from `address` of a key reach.
    fn key(&mut self, key: Mkey, address: u64, len: u64) -> Result<(), AccessError> {
        if key == RESERVED_LKEY && self.who.reserved_lkey && self.depth == 0 {
            return (self.visit)(Target::Memory(address, Margins::EVERYWHERE), len);
        }
        let params = self.keys.table.get(key.0 >> 8).ok_or(AccessError::Key)?;
        let offset = params.check_access(self.who, key, address, len, self.need)?;
        match &params.translation {
            Translation::Memory(map) => {
                let kind = if params.on_demand { Target::OnDemand } else { Target::Memory };
                let end = if params.whole_space { u64::MAX } else { params.length };
                walk_memory(map, offset, len, end, kind, self.visit)
            }
            Translation::Null => (self.visit)(Target::Null, len),
            _ if self.depth >= MAX_DEPTH => Err(AccessError::Key),
            indirect => self.indirect(indirect, offset, len),
        }
    }

    fn indirect(
        &mut self,
        translation: &Translation,
        offset: u64,
        mut len: u64,
    ) -> Result<(), AccessError> {
        let outer = self.need;
        self.need = locally(outer);
        self.depth += 1;
        let (mut index, mut offset) = translation.first_entry(offset);
        while len > 0 {
            let entry = translation.entry(index).ok_or(AccessError::Bounds)?;
            let now = len.min(entry.len.saturating_sub(offset));
            if now > 0 {
                self.key(entry.mkey, entry.address.wrapping_add(offset), now)?;
            }
            len -= now;
            offset = offset.saturating_sub(entry.len);
            index += 1;
        }
        self.depth -= 1;
        self.need = outer;
        Ok(())
    }
}

impl Translation {
    /// The entry at which the search for an offset of an indirect key starts, and the offset from
    /// there. Entries of a KLM key differ in length, so the search starts at the first one.
    fn first_entry(&self, offset: u64) -> (usize, u64) {
        match self {
            Self::Ksm { shift, .. } => {
                let size = 1u64 << (*shift).min(63);
                (usize::try_from(offset / size).unwrap_or(usize::MAX), offset % size)
            }
            _ => (0, offset),
        }
    }

    fn entry(&self, index: usize) -> Option<KlmEntry> {
        match self {
            Self::Klm(entries) => entries.get(index).copied(),
            Self::Ksm { shift, entries } => {
                let &(mkey, address) = entries.get(index)?;
                Some(KlmEntry { len: 1 << (*shift).min(63), mkey, address })
            }
            Self::Memory(_) | Self::Null => None,
        }
    }
}

impl MkeyParams {
    /// Checks one access against this key and returns the offset in its space.
    fn check_access(
        &self,
        who: Accessor,
        key: Mkey,
        address: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, AccessError> {
        if self.free || self.variant != key.0 as u8 {
            return Err(AccessError::Key);
        }
        // One null key serves every domain: there is nothing to protect in it (`dump_fill_mkey`).
        let any_domain = matches!(self.translation, Translation::Null);
        let stranger = self.pd != who.pd && !any_domain;
        if stranger || (self.qpn != ANY_QP && self.qpn != who.qpn) {
            return Err(AccessError::Owner);
        }
        if !self.access.contains(need) {
            return Err(AccessError::Rights);
        }
        let offset = address.wrapping_sub(self.start);
        if self.whole_space {
            return address.checked_add(len).map(|_| offset).ok_or(AccessError::Bounds);
        }
        let inside = address >= self.start && offset <= self.length && len <= self.length - offset;
        if inside { Ok(offset) } else { Err(AccessError::Bounds) }
    }
}

/// The rights that an indirect key needs in the keys it points at: a window grants remotely what
/// its region only has to allow locally (`ibv_bind_mw(3)`: remote write needs a region with local
/// write).
fn locally(need: Access) -> Access {
    let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if need.intersects(writes) { Access::LOCAL_WRITE } else { Access::LOCAL_READ }
}

fn walk_memory(
    map: &PageMap,
    mut offset: u64,
    mut len: u64,
    end: u64,
    kind: fn(u64, Margins) -> Target,
    visit: &mut Visit<'_>,
) -> Result<(), AccessError> {
    while len > 0 {
        let (address, now) = map.locate(offset, len).ok_or(AccessError::Memory)?;
        let room =
            Margins { before: offset, after: end.saturating_sub(offset).saturating_sub(now) };
        visit(kind(address, room), now)?;
        offset += now;
        len -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::recorder::Recorder;

    const BASE: u64 = 0x7000_0000;
    const WHO: Accessor = Accessor { pd: Pdn(1), qpn: 1, reserved_lkey: false };

    /// A region of bytes 4..60 that peers may use, a window of its bytes 9..30, and their memory.
    fn keys() -> (Mkeys, [Mkey; 2], Recorder) {
        let all = Access::all();
        let mut keys = Mkeys::new(16, Chance::new(Some(1)));
        let memory = PageMap::linear(BASE + 4);
        let region = MkeyParams::region(Pdn(1), BASE + 4, 56, all, memory);
        let region = keys.create(region).unwrap();
        let entry = KlmEntry { len: 21, mkey: region, address: BASE + 9 };
        let window = MkeyParams {
            translation: Translation::Klm(vec![entry]),
            ..MkeyParams::region(Pdn(1), BASE + 9, 21, all, PageMap::linear(0))
        };
        let window = keys.create(window).unwrap();
        (keys, [region, window], Recorder::new(BASE, 64))
    }

    #[test]
    fn what_peers_access_is_accessed_by_whole_words_of_the_region() {
        let (keys, [region, window], memory) = keys();
        for key in [region, window] {
            keys.write(&memory, WHO, key, BASE + 11, &[1; 15], Access::REMOTE_WRITE).unwrap();
            let mut back = [0; 15];
            keys.read(&memory, WHO, key, BASE + 11, &mut back, Access::REMOTE_READ).unwrap();
            assert_eq!(back, [1; 15]);
            let accesses = memory.take();
            assert!(accesses.iter().all(|(at, size, _)| (at % 8, *size) == (0, 8)), "{accesses:?}");
        }
        // The region holds only half of the first and of the last word.
        keys.write(&memory, WHO, region, BASE + 4, &[2; 56], Access::REMOTE_WRITE).unwrap();
        let bytes = memory.take().into_iter().filter(|(_, size, _)| *size == 1);
        let bytes: Vec<u64> = bytes.map(|(at, ..)| at - BASE).collect();
        assert_eq!(bytes, [4, 5, 6, 7, 56, 57, 58, 59]);
    }

    #[test]
    fn buffers_of_own_requests_are_accessed_alone() {
        let (keys, [region, _], memory) = keys();
        keys.write(&memory, WHO, region, BASE + 11, &[1; 15], Access::LOCAL_WRITE).unwrap();
        let accesses = memory.take();
        let inside = |&(at, size, _): &(u64, u64, bool)| at >= BASE + 11 && at + size <= BASE + 26;
        assert!(accesses.iter().all(inside), "{accesses:?}");
    }

    #[test]
    fn operands_say_whether_their_word_is_in_the_region() {
        let (keys, [region, window], memory) = keys();
        let operand = |key, at, size| {
            let found = keys.word(&memory, WHO, key, BASE + at, size, Access::REMOTE_ATOMIC);
            found.unwrap().unwrap().in_word
        };
        assert!(!operand(region, 4, 4) && !operand(region, 56, 4));
        assert!(operand(region, 8, 4) && operand(region, 12, 4) && operand(region, 8, 8));
        assert!(operand(window, 12, 4), "the window's edges are not the region's");
    }
}
