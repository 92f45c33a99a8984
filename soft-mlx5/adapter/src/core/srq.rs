//! Shared receive queues: linked lists or rings of receive WQEs. A tag matching SRQ also has a tag
//! list.

use uverbs_mlx5_format::{DataSegment, SrqNextSegment};
use zerocopy::{FromZeros, IntoBytes};

use super::ids::ObjectId;
use super::tags::{TagCounts, TagList, TagParams};
use super::{CoreError, Cqn, ObjectKind, Pdn, Srqn, Xrcdn};
use crate::memory::{HostMemory, PageMap};

/// The additional properties of an XRC shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrqParams {
    /// The XRC domain.
    pub xrcd: Xrcdn,
    /// The CQ to which all receives of the SRQ complete.
    pub cq: Cqn,
    /// User index for its CQEs, 24 bits.
    pub user_index: u32,
}

/// The order in which the WQEs of an SRQ are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SrqOrder {
    /// Each WQE begins with a link to the next one.
    #[default]
    Linked,
    /// As they are in the ring. Each WQE begins with a link, which is ignored.
    Cyclic,
    /// As they are in the ring. WQEs have no link (`basic_cyclic_rcv_wqe`).
    BasicCyclic,
}

impl SrqOrder {
    /// The bytes of a WQE before its scatter list.
    fn link_bytes(self) -> usize {
        match self {
            Self::Linked | Self::Cyclic => size_of::<SrqNextSegment>(),
            Self::BasicCyclic => 0,
        }
    }
}

/// An SRQ to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrqParams {
    /// Protection domain of the buffers.
    pub pd: Pdn,
    /// The ring of WQEs.
    pub buffer: PageMap,
    /// The order in which they are taken.
    pub order: SrqOrder,
    /// log2 of the number of WQEs, at most 16.
    pub log_wqes: u8,
    /// log2 of a WQE's bytes: at most 11, and enough for a link and a segment.
    pub log_stride: u8,
    /// Bus address of the doorbell record, a multiple of 8.
    pub doorbell_record: u64,
    /// Present for an XRC SRQ.
    pub xrc: Option<XrcSrqParams>,
    /// Present for a tag matching SRQ.
    pub tags: Option<TagParams>,
    /// The first limit, 0 for none.
    pub limit: u16,
}

/// The state of an SRQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// As created.
    pub params: SrqParams,
    /// The armed limit; 0 if none is.
    pub limit: u16,
    /// WQEs posted and not yet taken.
    pub outstanding: u16,
    /// Whether the SRQ is in error.
    pub in_error: bool,
    /// Number of QPs that receive from it.
    pub users: u32,
    /// Present for a tag matching SRQ.
    pub tags: Option<TagCounts>,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) number: Srqn,
    pub(super) params: SrqParams,
    /// Present for a tag matching SRQ.
    pub(super) tags: Option<TagList>,
    /// The WQE that is taken next, if each is linked to the next.
    linked: u16,
    taken: u16,
    posted: u16,
    limit: u16,
    pub(super) in_error: bool,
    pub(super) users: u32,
}

/// Why there is no receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoReceive {
    /// None is posted.
    Empty,
    /// The peer names an XRC SRQ that does not exist, or that is not of the QP's XRC domain.
    Foreign,
    /// The queue cannot be read, or its links are broken: the QP cannot go on.
    Broken,
}

impl Srq {
    pub(super) fn new(number: u32, params: SrqParams) -> Self {
        let limit = params.limit;
        Self {
            number: Srqn(number),
            tags: params.tags.map(|tags| TagList::new(tags.log_entries)),
            params,
            linked: 0,
            taken: 0,
            posted: 0,
            limit,
            in_error: false,
            users: 0,
        }
    }

    pub(super) fn info(&mut self, memory: &dyn HostMemory) -> Result<SrqInfo, CoreError> {
        let outstanding = self.outstanding(memory)?;
        Ok(SrqInfo {
            params: self.params.clone(),
            limit: self.limit,
            outstanding,
            in_error: self.in_error,
            users: self.users,
            tags: self.tags.as_ref().map(TagList::counts),
        })
    }

    fn outstanding(&mut self, memory: &dyn HostMemory) -> Result<u16, CoreError> {
        self.refresh(memory)?;
        Ok(self.posted.wrapping_sub(self.taken))
    }

    fn refresh(&mut self, memory: &dyn HostMemory) -> Result<(), CoreError> {
        self.posted = memory.load_be32(self.params.doorbell_record)? as u16;
        Ok(())
    }

    /// Takes the next WQE and reads its scatter list (the bytes after the link) into `into`.
    /// Returns its index for the CQE: the place in the ring of a linked queue, or a 16-bit counter
    /// of a cyclic queue of any size (`uct_rc_mlx5_iface_release_srq_seg` of UCX).
    pub(super) fn take(
        &mut self,
        memory: &dyn HostMemory,
        into: &mut Vec<u8>,
    ) -> Result<u16, NoReceive> {
        if self.in_error {
            return Err(NoReceive::Broken);
        }
        if self.posted == self.taken && self.refresh(memory).is_err() {
            return self.broken();
        }
        // If the counter is ahead by more than the ring holds, the host's program is broken.
        let outstanding = u32::from(self.posted.wrapping_sub(self.taken));
        if outstanding == 0 {
            return Err(NoReceive::Empty);
        }
        if outstanding > 1 << self.params.log_wqes || self.read(memory, into).is_err() {
            return self.broken();
        }
        let link = self.params.order.link_bytes();
        let index = match self.params.order {
            SrqOrder::Linked => self.follow(&into[..link])?,
            SrqOrder::Cyclic | SrqOrder::BasicCyclic => self.taken,
        };
        into.drain(..link);
        self.taken = self.taken.wrapping_add(1);
        Ok(index)
    }

    fn read(&self, memory: &dyn HostMemory, into: &mut Vec<u8>) -> Result<(), CoreError> {
        into.clear();
        into.resize(1 << self.params.log_stride, 0);
        let at = u64::from(self.place()) << self.params.log_stride;
        Ok(self.params.buffer.read(memory, at, into)?)
    }

    /// The place of the next WQE in the ring.
    fn place(&self) -> u16 {
        match self.params.order {
            SrqOrder::Linked => self.linked,
            SrqOrder::Cyclic | SrqOrder::BasicCyclic => {
                (u32::from(self.taken) % (1 << self.params.log_wqes)) as u16
            }
        }
    }

    /// Advances to the WQE that a link names. Returns the place of the WQE with that link.
    fn follow(&mut self, link: &[u8]) -> Result<u16, NoReceive> {
        let mut segment = SrqNextSegment::new_zeroed();
        segment.as_mut_bytes().copy_from_slice(link);
        let next = segment.next_wqe_index.get();
        if u32::from(next) >> self.params.log_wqes != 0 {
            return self.broken();
        }
        Ok(std::mem::replace(&mut self.linked, next))
    }

    fn broken(&mut self) -> Result<u16, NoReceive> {
        self.in_error = true;
        Err(NoReceive::Broken)
    }

    /// Arms the limit (0 disarms). Returns `true` if fewer WQEs are left already, so that the event
    /// is due at once.
    pub(super) fn arm(&mut self, memory: &dyn HostMemory, limit: u16) -> Result<bool, CoreError> {
        if self.in_error {
            return Err(CoreError::InError { kind: ObjectKind::Srq, number: self.number.0 });
        }
        if u32::from(limit) > 1 << self.params.log_wqes {
            return Err(CoreError::bad("SRQ limit", u64::from(limit)));
        }
        self.refresh(memory)?;
        self.limit = limit;
        Ok(self.reaches_limit(memory))
    }

    /// Whether fewer WQEs than the limit are left. Disarms the limit when it returns `true`.
    pub(super) fn reaches_limit(&mut self, memory: &dyn HostMemory) -> bool {
        if self.limit == 0 || self.posted.wrapping_sub(self.taken) >= self.limit {
            return false;
        }
        // More may have been posted since the record was read last.
        let is_below_limit = self.outstanding(memory).is_ok_and(|left| left < self.limit);
        if is_below_limit {
            self.limit = 0;
        }
        is_below_limit
    }
}

impl SrqParams {
    /// The objects that the SRQ uses.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        let xrc = self.xrc.map(|xrc| [xrc.xrcd.object(), xrc.cq.object()]);
        let tags = self.tags.map(|tags| tags.object());
        [self.pd.object()].into_iter().chain(xrc.into_iter().flatten()).chain(tags).collect()
    }

    /// The CQ of an SRQ that has its own, and the user index in its CQEs.
    pub(super) fn own_cq(&self) -> Option<(Cqn, u32)> {
        let tags = self.tags.map(|tags| (tags.cq, tags.user_index));
        tags.or(self.xrc.map(|xrc| (xrc.cq, xrc.user_index)))
    }

    pub(super) fn check(&self) -> Result<(), CoreError> {
        if self.log_wqes > 16 {
            return Err(CoreError::bad("log2 of SRQ size", u64::from(self.log_wqes)));
        }
        let needed = self.order.link_bytes() + size_of::<DataSegment>();
        if self.log_stride > 11 || 1 << self.log_stride < needed {
            return Err(CoreError::bad("log2 of SRQ stride", u64::from(self.log_stride)));
        }
        if self.doorbell_record % 8 != 0 {
            return Err(CoreError::bad("doorbell record address", self.doorbell_record));
        }
        self.tags.map_or(Ok(()), |tags| tags.check())
    }
}
