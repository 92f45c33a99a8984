//! Shared receive queues: linked lists of receive WQEs. A tag matching SRQ also has a tag list.

use uverbs_mlx5_format::SrqNextSegment;
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

/// An SRQ to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrqParams {
    /// Protection domain of the buffers.
    pub pd: Pdn,
    /// The ring of WQEs, each linked to the next.
    pub buffer: PageMap,
    /// log2 of the number of WQEs, at most 16.
    pub log_wqes: u8,
    /// log2 of a WQE's bytes, 5..=11.
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
    next: u16,
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
            next: 0,
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

    /// Takes the first WQE of the list and reads its scatter list (the bytes after the link) into
    /// `into`.
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
        // A counter that is ahead by more than the ring holds is a mistake of the host's program.
        let outstanding = u32::from(self.posted.wrapping_sub(self.taken));
        if outstanding == 0 {
            return Err(NoReceive::Empty);
        }
        if outstanding > 1 << self.params.log_wqes || self.read(memory, into).is_err() {
            return self.broken();
        }
        let mut link = SrqNextSegment::new_zeroed();
        link.as_mut_bytes().copy_from_slice(&into[..size_of::<SrqNextSegment>()]);
        into.drain(..size_of::<SrqNextSegment>());
        self.advance(link.next_wqe_index.get())
    }

    fn read(&self, memory: &dyn HostMemory, into: &mut Vec<u8>) -> Result<(), CoreError> {
        into.clear();
        into.resize(1 << self.params.log_stride, 0);
        let at = u64::from(self.next) << self.params.log_stride;
        Ok(self.params.buffer.read(memory, at, into)?)
    }

    fn advance(&mut self, link: u16) -> Result<u16, NoReceive> {
        let index = self.next;
        if u32::from(link) >> self.params.log_wqes != 0 {
            return self.broken();
        }
        self.next = link;
        self.taken = self.taken.wrapping_add(1);
        Ok(index)
    }

    fn broken(&mut self) -> Result<u16, NoReceive> {
        self.in_error = true;
        Err(NoReceive::Broken)
    }

    /// Arms the limit (0 disarms). Returns `true` if fewer WQEs are left already: then the event is
    /// due at once.
    pub(super) fn arm(&mut self, memory: &dyn HostMemory, limit: u16) -> Result<bool, CoreError> {
        if self.in_error {
            return Err(CoreError::InError { kind: ObjectKind::Srq, number: self.number.0 });
        }
        if u32::from(limit) > 1 << self.params.log_wqes {
            return Err(CoreError::bad("SRQ limit", u64::from(limit)));
        }
        self.refresh(memory)?;
        self.limit = limit;
        Ok(self.is_undercut(memory))
    }

    /// Whether fewer WQEs than the limit are left. Returns `true` once per arming.
    pub(super) fn is_undercut(&mut self, memory: &dyn HostMemory) -> bool {
        if self.limit == 0 || self.posted.wrapping_sub(self.taken) >= self.limit {
            return false;
        }
        // More may have been posted since the record was read last.
        let undercut = self.outstanding(memory).is_ok_and(|left| left < self.limit);
        if undercut {
            self.limit = 0;
        }
        undercut
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
        if !(5..=11).contains(&self.log_stride) {
            return Err(CoreError::bad("log2 of SRQ stride", u64::from(self.log_stride)));
        }
        if self.doorbell_record % 8 != 0 {
            return Err(CoreError::bad("doorbell record address", self.doorbell_record));
        }
        self.tags.map_or(Ok(()), |tags| tags.check())
    }
}
