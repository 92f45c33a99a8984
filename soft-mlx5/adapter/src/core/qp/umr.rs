//! UMR WQEs: binding memory windows, local invalidation, changing keys; and remote invalidation.

use uverbs_mlx5_format::{
    DataSegment, INLINE_FLAG, Klm, MkeyContextSegment, RepeatBlock, RepeatEntry, UmrControlSegment,
};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::super::env::Env;
use super::super::mkey::Accessor;
use super::super::{
    ANY_QP, Access, CoreError, KlmEntry, Mkey, MkeyParams, Pdn, StridedEntry, Translation,
};
use super::syndrome::Failure;
use super::wqe::SendWqe;
use super::{Qp, QpType};
use crate::memory::PageMap;

/// The segments of a UMR WQE after its control segment.
struct Umr<'a> {
    control: UmrControlSegment,
    context: MkeyContextSegment,
    rest: &'a [u8],
}

impl<'a> Umr<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Failure> {
        let (control, rest) = take::<UmrControlSegment>(bytes)?;
        let (context, rest) = take::<MkeyContextSegment>(rest)?;
        Ok(Self { control, context, rest })
    }

    fn has(&self, mask: u64) -> bool {
        self.control.mkey_mask.get() & mask != 0
    }

    fn flag(&self, flag: u8) -> bool {
        self.control.flags & flag != 0
    }
}

fn take<T>(bytes: &[u8]) -> Result<(T, &[u8]), Failure>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::read_from_prefix(bytes).map_err(|_| Failure::SEGMENT)
}

impl Qp {
    /// Executes a UMR WQE. The key is found by its index, whatever its current variant.
    pub(super) fn execute_umr(&self, env: &mut Env, wqe: &SendWqe) -> Result<(), Failure> {
        let umr = Umr::parse(&wqe.umr)?;
        let mkey = Mkey(u32::from_be_bytes(wqe.immediate));
        let before = env.mkeys.get(mkey).map_err(|_| Failure::BIND)?;
        self.check_umr(&umr, before)?;
        let mut after = before.clone();
        self.change_context(&umr, &mut after)?;
        if umr.control.klm_octowords.get() > 0 {
            after.translation = self.new_translation(env, &umr, &after)?;
        }
        if !after.free {
            self.check_entries(env, &after)?;
        }
        env.replace_key(mkey, after).map_err(|_| Failure::BIND)
    }

    /// Linux's mlx5_ib names the flags by what fails: CHECK_FREE fails if the key is free,
    /// CHECK_NOT_FREE if it is not.
    fn check_umr(&self, umr: &Umr<'_>, key: &MkeyParams) -> Result<(), Failure> {
        // The kernel's own QP has no protection domain and may change all keys. A key of any QP
        // passes the check: libmlx5 sets the flag on every invalidation, and rdma-core's tests
        // invalidate keys of no QP.
        let is_anothers = key.qpn != ANY_QP && key.qpn != self.number.0;
        let wrong_owner = key.pd != self.params.pd && !self.params.reserved_lkey
            || umr.flag(UmrControlSegment::FLAG_CHECK_QPN) && is_anothers;
        let wrong_state = match umr.control.flags & FREE_CHECKS {
            UmrControlSegment::FLAG_CHECK_FREE => key.free,
            UmrControlSegment::FLAG_CHECK_NOT_FREE => !key.free,
            _ => false,
        };
        // The kernel's registration determines a region's range and rights, so a program's WQE may
        // only invalidate the region.
        let region = matches!(key.translation, Translation::Memory(_));
        let widens = region && !self.params.reserved_lkey && umr.has(!REGION_CHANGES);
        let refused = wrong_owner || wrong_state || widens || !key.access.contains(Access::UMR);
        if refused { Err(Failure::BIND) } else { Ok(()) }
    }

    fn change_context(&self, umr: &Umr<'_>, key: &mut MkeyParams) -> Result<(), Failure> {
        use UmrControlSegment as U;
        let context = &umr.context;
        let rights = [
            (U::MASK_LOCAL_READ, Access::LOCAL_READ),
            (U::MASK_LOCAL_WRITE, Access::LOCAL_WRITE),
            (U::MASK_REMOTE_READ, Access::REMOTE_READ),
            (U::MASK_REMOTE_WRITE, Access::REMOTE_WRITE),
            (U::MASK_ATOMIC, Access::REMOTE_ATOMIC),
        ];
        for (mask, right) in rights {
            if umr.has(mask) {
                key.access.set(right, context.access_flags & right.bits() != 0);
            }
        }
        if umr.has(U::MASK_FREE) {
            key.free = context.free & MkeyContextSegment::FREE != 0;
        }
        if umr.has(U::MASK_KEY) {
            key.variant = context.qpn_mkey.get() as u8;
        }
        if umr.has(U::MASK_QPN) {
            key.qpn = self.allowed_qpn(context.qpn_mkey.get() >> 8)?;
        }
        if umr.has(U::MASK_LENGTH) {
            key.length = context.length.get();
            key.whole_space = context.flags_pd.get() & WHOLE_SPACE != 0;
        }
        if umr.has(U::MASK_START_ADDRESS) {
            key.start = context.start_address.get();
        }
        if umr.has(U::MASK_PD) {
            key.pd = self.allowed_pd(Pdn(context.flags_pd.get() & 0xff_ffff))?;
        }
        if umr.has(U::MASK_REMOTE_INVALIDATE) {
            key.remote_invalidate = context.flags_pd.get() & REMOTE_INVALIDATE != 0;
        }
        Ok(())
    }

    /// Checks the QP to which a key is given: any QP, or the WQE's own. Only privileged QPs may
    /// name another one.
    fn allowed_qpn(&self, qpn: u32) -> Result<u32, Failure> {
        let allowed = qpn == ANY_QP || qpn == self.number.0 || self.params.reserved_lkey;
        if allowed { Ok(qpn) } else { Err(Failure::BIND) }
    }

    /// Only privileged QPs move keys between protection domains.
    fn allowed_pd(&self, pd: Pdn) -> Result<Pdn, Failure> {
        let allowed = pd == self.params.pd || self.params.reserved_lkey;
        if allowed { Ok(pd) } else { Err(Failure::BIND) }
    }

    fn new_translation(
        &self,
        env: &Env,
        umr: &Umr<'_>,
        key: &MkeyParams,
    ) -> Result<Translation, Failure> {
        let entries = self.translation_entries(env, umr)?;
        match &key.translation {
            Translation::Klm(_) | Translation::Strided { .. } => listed(&entries, key),
            // Only privileged QPs may map physical pages, because these reach all of host memory.
            Translation::Memory(_) if self.params.reserved_lkey => self.pages(umr, key, &entries),
            _ => Err(Failure::BIND),
        }
    }

    /// Reads the entries out of the WQE, or out of memory that it points at.
    fn translation_entries(&self, env: &Env, umr: &Umr<'_>) -> Result<Vec<u8>, Failure> {
        let len = usize::from(umr.control.klm_octowords.get()) * 16;
        if umr.flag(UmrControlSegment::FLAG_INLINE) {
            // libmlx5 writes 64 bytes for the one entry of a window; the rest is padding.
            return Ok(umr.rest[..len.min(umr.rest.len())].to_vec());
        }
        let (segment, _) = take::<DataSegment>(umr.rest)?;
        let available = segment.byte_count.get() & !INLINE_FLAG;
        let mut entries = vec![0; len.min(available as usize)];
        let (key, at) = (Mkey(segment.lkey.get()), segment.address.get());
        let who = self.list_accessor(env, key);
        let read = env.mkeys.read(&*env.memory, who, key, at, &mut entries, Access::LOCAL_READ);
        read.map(|()| entries).map_err(|_| Failure::BIND)
    }

    /// The accessor for reading a list. The driver's own QP for registration has no protection
    /// domain, and reads its lists through a key of another one (`_create_kernel_qp` and
    /// `mlx5r_umr_create_xlt` of mlx5_ib).
    fn list_accessor(&self, env: &Env, key: Mkey) -> Accessor {
        let who = self.accessor();
        match env.mkeys.get(key) {
            Ok(params) if self.params.qp_type == QpType::RegUmr && who.reserved_lkey => {
                Accessor { pd: params.pd, ..who }
            }
            _ => who,
        }
    }

    /// Page addresses, 8 bytes each, for a whole key.
    fn pages(
        &self,
        umr: &Umr<'_>,
        key: &MkeyParams,
        entries: &[u8],
    ) -> Result<Translation, Failure> {
        let Translation::Memory(map) = &key.translation else { return Err(Failure::BIND) };
        let old_shift = match map {
            PageMap::Pages { shift, .. } => *shift,
            PageMap::Linear { .. } => 12,
        };
        let shift = match umr.has(UmrControlSegment::MASK_PAGE_SIZE) {
            true => umr.context.log_page_size & 0x3f,
            false => old_shift,
        };
        let mut frames = match map {
            PageMap::Pages { frames, .. } => frames.to_vec(),
            PageMap::Linear { .. } => Vec::new(),
        };
        let first = usize::from(umr.control.translation_offset.get())
            | (umr.control.translation_offset_high.get() as usize) << 16;
        let first =
            if umr.flag(UmrControlSegment::FLAG_TRANSLATION_OFFSET) { first * 2 } else { 0 };
        let most = key.translation_octowords as usize * 2;
        for (n, entry) in entries.chunks_exact(8).enumerate() {
            let at = first + n;
            if at >= most {
                break;
            }
            if frames.len() <= at {
                frames.resize(at + 1, 0);
            }
            // The low bits hold the rights (MLX5_MTT_READ and _WRITE), not the address.
            let address = u64::from_be_bytes(entry.try_into().unwrap_or_default());
            frames[at] = address & !7;
        }
        let inside = key.start & ((1u64 << shift) - 1);
        Ok(Translation::Memory(PageMap::pages(shift, frames, inside)))
    }

    /// A window must be inside its region and in the same protection domain. For each remote right
    /// of the window the region must have the local right. The same holds for keys of other lists.
    /// Whether an adapter checks a list before the key is used is unconfirmed.
    fn check_entries(&self, env: &Env, key: &MkeyParams) -> Result<(), Failure> {
        let (entries, covered) = match &key.translation {
            Translation::Klm(entries) => (entries.clone(), total(entries.iter())),
            Translation::Strided { cycles, entries } => {
                let cycle = total(entries.iter().map(|entry| &entry.first));
                (
                    entries.iter().map(|entry| entry.span(*cycles)).collect(),
                    cycle * u64::from(*cycles),
                )
            }
            _ => return Ok(()),
        };
        let writes = key.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let need = if writes { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        if covered < key.length || entries.is_empty() {
            return Err(Failure::BIND);
        }
        let who = Accessor { pd: key.pd, ..self.accessor() };
        for entry in &entries {
            let checked = env.mkeys.check(who, entry.mkey, entry.address, entry.len, need);
            checked.map_err(|_| Failure::BIND)?;
        }
        Ok(())
    }
}

impl Env {
    /// Replaces a key's state. Refuses a protection domain that does not exist.
    pub(in crate::core) fn replace_key(
        &mut self,
        mkey: Mkey,
        params: MkeyParams,
    ) -> Result<(), CoreError> {
        let pd = params.pd;
        self.hold(&[pd.object()])?;
        let replaced = self.mkeys.replace(mkey, params);
        self.release(&[replaced.as_ref().unwrap_or(&pd).object()]);
        replaced.map(|_| ())
    }

    /// SEND with invalidate: frees a key that allows it.
    pub(super) fn invalidate_key(&mut self, who: Accessor, mkey: Mkey) -> Result<(), ()> {
        let key = self.mkeys.get(mkey).map_err(|_| ())?;
        let allowed = key.remote_invalidate
            && !key.free
            && key.variant == mkey.0 as u8
            && key.pd == who.pd
            && (key.qpn == ANY_QP || key.qpn == who.qpn);
        if !allowed {
            return Err(());
        }
        self.mkeys.invalidate(mkey);
        Ok(())
    }
}

/// What an unprivileged WQE may change in a memory region.
const REGION_CHANGES: u64 = UmrControlSegment::MASK_FREE
    | UmrControlSegment::MASK_KEY
    | UmrControlSegment::MASK_QPN
    | UmrControlSegment::MASK_REMOTE_INVALIDATE;

const FREE_CHECKS: u8 = UmrControlSegment::FLAG_CHECK_FREE | UmrControlSegment::FLAG_CHECK_NOT_FREE;

/// Bits of the mkey context's `flags_pd` (`MLX5_MKEY_REMOTE_INVAL`; `length64` of `mkc`).
const REMOTE_INVALIDATE: u32 = 1 << 24;
const WHOLE_SPACE: u32 = 1 << 31;

fn total<'a>(entries: impl Iterator<Item = &'a KlmEntry>) -> u64 {
    entries.map(|entry| entry.len).sum()
}

impl StridedEntry {
    /// From its first element to its last one.
    fn span(&self, cycles: u32) -> KlmEntry {
        let between = u64::from(cycles.saturating_sub(1)) * self.stride;
        KlmEntry { len: self.first.len + between, ..self.first }
    }
}

/// The translation of an indirect key: an interleaved list, or the list of a window or another key.
/// An interleaved list begins with a head. Its operation field is where other lists have the key of
/// their first entry, and its value is not a valid key.
fn listed(bytes: &[u8], key: &MkeyParams) -> Result<Translation, Failure> {
    let (head, rest) = take::<RepeatBlock>(bytes)?;
    let (translation, count) = if head.operation.get() == RepeatBlock::OPERATION {
        let entries = strided_entries(rest, usize::from(head.entries.get()))?;
        let count = entries.len();
        (Translation::Strided { cycles: head.repeat_count.get(), entries }, count)
    } else {
        let entries = klm_entries(bytes, key.length)?;
        let count = entries.len();
        (Translation::Klm(entries), count)
    };
    if count > key.translation_octowords as usize { Err(Failure::BIND) } else { Ok(translation) }
}

fn strided_entries(bytes: &[u8], count: usize) -> Result<Vec<StridedEntry>, Failure> {
    let entry = |bytes| {
        let entry = RepeatEntry::read_from_bytes(bytes).map_err(|_| Failure::SEGMENT)?;
        let (len, mkey) = (u64::from(entry.byte_count.get()), Mkey(entry.mkey.get()));
        let first = KlmEntry { len, mkey, address: entry.address.get() };
        Ok(StridedEntry { first, stride: u64::from(entry.stride.get()) })
    };
    let listed = bytes.get(..count * size_of::<RepeatEntry>()).ok_or(Failure::SEGMENT)?;
    let entries = listed.chunks_exact(size_of::<RepeatEntry>()).map(entry);
    let entries = entries.collect::<Result<Vec<StridedEntry>, _>>()?;
    // With cycles of no bytes, the search for a byte would not end.
    if total(entries.iter().map(|entry| &entry.first)) == 0 {
        return Err(Failure::BIND);
    }
    Ok(entries)
}

/// Reads KLM entries that cover `length` bytes. The rest is padding.
fn klm_entries(entries: &[u8], length: u64) -> Result<Vec<KlmEntry>, Failure> {
    let mut klms = Vec::new();
    let mut covered = 0;
    for entry in entries.chunks_exact(size_of::<Klm>()) {
        if covered >= length {
            break;
        }
        let klm = Klm::read_from_bytes(entry).map_err(|_| Failure::SEGMENT)?;
        let len = match klm.byte_count.get() {
            0 => 1 << 31,
            len => u64::from(len),
        };
        klms.push(KlmEntry { len, mkey: Mkey(klm.mkey.get()), address: klm.address.get() });
        covered += len;
    }
    Ok(klms)
}
