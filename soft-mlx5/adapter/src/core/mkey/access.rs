//! Accesses through memory keys: the checks, and the memory that a key leads to.

use super::{
    ANY_QP, Access, KlmEntry, MkeyParams, Mkeys, RESERVED_LKEY, StridedEntry, Translation,
};
use crate::core::{Mkey, Pdn};
use crate::memory::{BusError, HostMemory, Margins, PageMap};

/// Why an access through a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum AccessError {
    /// No such key, an old variant, or a free one.
    Key,
    /// Another protection domain or another QP.
    Owner,
    /// Outside the key's range.
    Bounds,
    /// The key does not allow it.
    Rights,
    /// The host's memory is not accessible.
    Memory,
}

impl From<BusError> for AccessError {
    fn from(_: BusError) -> Self {
        Self::Memory
    }
}

/// The QP on whose behalf memory is accessed.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Accessor {
    pub(in crate::core) pd: Pdn,
    pub(in crate::core) qpn: u32,
    /// Whether the reserved lkey (physical addresses) may be used.
    pub(in crate::core) reserved_lkey: bool,
}

/// The memory that one part of an access reaches: a bus address and the extent of its region, or
/// the null key.
#[derive(Clone, Copy, Debug)]
enum Target {
    Memory(u64, Margins),
    OnDemand(u64, Margins),
    Null,
}

/// Where an atomic operation finds its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Operand {
    pub(in crate::core) address: u64,
    /// Whether the region holds all of the aligned eight bytes around it.
    pub(in crate::core) in_word: bool,
}

/// Whether the program may access the memory at the same time. That is allowed while peers access
/// the memory, but the buffers of the program's own requests belong to the device until they
/// complete.
fn is_shared(need: Access) -> bool {
    need.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// How many bytes before and after an access it may touch, because it accesses whole words.
fn margins_for(need: Access, region: Margins) -> Margins {
    if is_shared(need) { region } else { Margins::NONE }
}

/// Most levels of indirect keys that point at indirect keys. The limit of mlx5 is not public; this
/// one is a choice of this device.
const MAX_DEPTH: u32 = 4;

impl Mkeys {
    /// Checks that `who` may access `len` bytes from `address` of `key` with the rights `need`.
    pub(in crate::core) fn check(
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
    pub(in crate::core) fn read(
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
                Target::Memory(at, margins) if is_shared(need) => {
                    memory.read_words(at, now, margins)?;
                }
                Target::Memory(at, _) => memory.read(at, now)?,
                Target::OnDemand(at, margins) => {
                    memory.read_on_demand(at, now, margins_for(need, margins))?;
                }
                Target::Null => now.fill(0),
            }
            Ok(())
        };
        self.walk(who, need, &mut visit).key(key, address, all)
    }

    /// Copies to a key's memory.
    pub(in crate::core) fn write(
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
                Target::Memory(at, margins) if is_shared(need) => {
                    memory.write_words(at, now, margins)?;
                }
                Target::Memory(at, _) => memory.write(at, now)?,
                Target::OnDemand(at, margins) => {
                    memory.write_on_demand(at, now, margins_for(need, margins))?;
                }
                Target::Null => {}
            }
            Ok(())
        };
        self.walk(who, need, &mut visit).key(key, address, all)
    }

    /// The memory of an aligned operand of `len` bytes, for atomics. `None` in the null key.
    pub(in crate::core) fn word(
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
        let (at, margins) = match found {
            Some(Target::Memory(at, margins)) => (at, margins),
            Some(Target::OnDemand(at, margins)) => {
                memory.page_in(at, len)?;
                (at, margins)
            }
            Some(Target::Null) | None => return Ok(None),
        };
        let in_word = margins.word(at, len as usize, at).is_some();
        Ok(Some(Operand { address: at, in_word }))
    }

    fn walk<'a>(&'a self, who: Accessor, need: Access, visit: &'a mut Visit<'a>) -> Walk<'a> {
        Walk { keys: self, who, need, depth: 0, visit }
    }
}

type Visit<'a> = dyn FnMut(Target, u64) -> Result<(), AccessError> + 'a;

/// A walk from a key to memory, through the keys that indirect keys point at.
struct Walk<'a> {
    keys: &'a Mkeys,
    who: Accessor,
    /// What the access needs of the keys at this depth.
    need: Access,
    depth: u32,
    visit: &'a mut Visit<'a>,
}

impl Walk<'_> {
    /// Visits, in order, the memory behind `len` bytes from `address` of a key.
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
    /// The entries that WQEs list: of an interleaved key those of its first cycle.
    pub(super) fn listed(&self) -> impl Iterator<Item = KlmEntry> + '_ {
        let (plain, strided) = match self {
            Self::Klm(entries) => (&entries[..], &[][..]),
            Self::Strided { entries, .. } => (&[][..], &entries[..]),
            _ => (&[][..], &[][..]),
        };
        plain.iter().copied().chain(strided.iter().map(|entry| entry.first))
    }

    /// The entry at which the search for an offset of an indirect key starts, and the offset from
    /// there. Entries of a KLM key differ in length, so the search starts at the first one.
    fn first_entry(&self, offset: u64) -> (usize, u64) {
        match self {
            Self::Ksm { shift, .. } => {
                let size = 1u64 << (*shift).min(63);
                (usize::try_from(offset / size).unwrap_or(usize::MAX), offset % size)
            }
            Self::Strided { entries, .. } => {
                let cycle: u64 = entries.iter().map(|entry| entry.first.len).sum();
                let number = offset.checked_div(cycle).unwrap_or(0);
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                (index.saturating_mul(entries.len()), offset - number * cycle)
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
            Self::Strided { cycles, entries } => {
                let cycle = index.checked_div(entries.len())?;
                let StridedEntry { first, stride } = entries[index % entries.len()];
                let address = first.address.wrapping_add(cycle as u64 * stride);
                (cycle < *cycles as usize).then_some(KlmEntry { address, ..first })
            }
            Self::Memory(_) | Self::Null => None,
        }
    }
}

impl MkeyParams {
    /// Checks one access against this key and returns the offset in its address space.
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

/// The rights that an indirect key needs in the keys it points at. A remote right of a window
/// requires only the local right in its region (`ibv_bind_mw(3)`: remote write needs a region with
/// local write).
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
        let after = end.saturating_sub(offset).saturating_sub(now);
        visit(kind(address, Margins { before: offset, after }), now)?;
        offset += now;
        len -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
