//! Accesses through memory keys: what a key allows, and the memory that it leads to.

use super::{ANY_QP, Access, KlmEntry, MkeyParams, Mkeys, RESERVED_LKEY, Translation};
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
    /// The host's memory is not there.
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
    /// The reserved lkey (physical addresses) may be used.
    pub(in crate::core) reserved_lkey: bool,
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
pub(in crate::core) struct Operand {
    pub(in crate::core) address: u64,
    /// Whether the region holds all of the aligned eight bytes around it.
    pub(in crate::core) in_word: bool,
}

/// Whether the program may read the memory at the same time, as it may while peers access it.
/// The buffers of its own requests belong to the device until they complete.
fn is_shared(need: Access) -> bool {
    need.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// The bytes around an access that it may touch as parts of their words.
fn margins_for(need: Access, region: Margins) -> Margins {
    if is_shared(need) { region } else { Margins::NONE }
}

/// How deep indirect keys may point at indirect keys. The limit of mlx5 is not public; this one is
/// our choice.
const MAX_DEPTH: u32 = 4;

impl Mkeys {
    /// Checks that `who` may do `need` with `len` bytes from `address` of `key`.
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

    /// The place of an aligned operand of `len` bytes, for atomics. `None` in the null key.
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
        let after = end.saturating_sub(offset).saturating_sub(now);
        visit(kind(address, Margins { before: offset, after }), now)?;
        offset += now;
        len -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::recorder::Recorder;
    use crate::prng::Chance;

    const BASE: u64 = 0x7000_0000;
    const WHO: Accessor = Accessor { pd: Pdn(1), qpn: 1, reserved_lkey: false };

    /// A region of bytes 4..60 that peers may use, a window of its bytes 9..30, and their memory.
    fn keys() -> (Mkeys, [Mkey; 2], Recorder) {
        keys_of(false)
    }

    fn keys_of(on_demand: bool) -> (Mkeys, [Mkey; 2], Recorder) {
        let all = Access::all();
        let mut keys = Mkeys::new(16, Chance::new(Some(1)));
        let memory = PageMap::linear(BASE + 4);
        let region = MkeyParams::region(Pdn(1), BASE + 4, 56, all, memory);
        let region = keys.create(MkeyParams { on_demand, ..region }).unwrap();
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
        for on_demand in [false, true] {
            accesses_whole_words(keys_of(on_demand));
        }
    }

    fn accesses_whole_words((keys, [region, window], memory): (Mkeys, [Mkey; 2], Recorder)) {
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
        for on_demand in [false, true] {
            let (keys, [region, _], memory) = keys_of(on_demand);
            keys.write(&memory, WHO, region, BASE + 11, &[1; 15], Access::LOCAL_WRITE).unwrap();
            let accesses = memory.take();
            let inside =
                |&(at, size, _): &(u64, u64, bool)| at >= BASE + 11 && at + size <= BASE + 26;
            assert!(accesses.iter().all(inside), "{accesses:?}");
        }
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
