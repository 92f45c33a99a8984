//! The objects that handles and event descriptors name.
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::objects::ObjectId;

use super::{
    counters, cq, devx, dm, flow, indirection_table, matcher, memory_region, memory_window, pacing,
    protection_domain, qp, srq, uar, work_queue, xrcd,
};
use crate::chardev::device::DeviceShared;
use crate::chardev::device::event_queue::EventQueue;

macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident = $id:expr,)*) => {
        /// Kinds of objects, with their ids.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Kind {
            $($(#[$meta])* $kind,)*
        }

        impl Kind {
            /// The kind with this id, if there is such a kind.
            pub(crate) fn from_id(id: ObjectId) -> Option<Self> {
                $(if id == ObjectId($id) { return Some(Self::$kind); })*
                None
            }
        }
    };
}

kinds! {
    Pd = 1,
    CompChannel = 2,
    Cq = 3,
    Qp = 4,
    Srq = 5,
    Ah = 6,
    Mr = 7,
    Mw = 8,
    Flow = 9,
    Xrcd = 10,
    RwqIndTbl = 11,
    Wq = 12,
    Dm = 14,
    Counters = 15,
    AsyncEvent = 16,
    DevxObj = 0x1001,
    DevxUmem = 0x1002,
    FlowMatcher = 0x1003,
    DevxAnswers = 0x1004,
    DevxEvents = 0x1005,
    Pp = 0x1007,
    Uar = 0x1008,
}

/// An object of one open file.
#[derive(Debug)]
pub(crate) enum Object {
    Pd(protection_domain::Pd),
    Cq(cq::Cq),
    Qp(qp::Qp),
    Srq(srq::Srq),
    Ah(AddressHandle),
    Flow(flow::Flow),
    Mr(memory_region::Mr),
    Mw(memory_window::Mw),
    Xrcd(xrcd::Xrcd),
    Dm(dm::Dm),
    Counters(counters::Counters),
    Wq(work_queue::Wq),
    RwqIndTbl(indirection_table::RwqIndTbl),
    Uar(uar::Uar),
    Devx(devx::object::FirmwareObject),
    DevxUmem(devx::umem::Umem),
    Pp(pacing::PacingEntry),
    FlowMatcher(matcher::Matcher),
}

/// An address handle. It has no object in the device and only uses its protection domain.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: u32,
}

/// An object, and the number of other objects that use it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) object: Object,
    pub(crate) users: u32,
    /// Bytes pinned for its rings.
    pub(crate) pinned: u64,
    /// The object was destroyed when the device was removed; only the handle is left.
    pub(crate) gone: bool,
}

impl Entry {
    pub(crate) fn new(object: Object, pinned: u64) -> Self {
        Self { object, users: 0, pinned, gone: false }
    }

    /// Destroys the object in the device, even if other handles use it. Returns whether the device
    /// allowed it.
    pub(crate) fn take_down(&mut self, device: &Arc<DeviceShared>) -> bool {
        if self.gone {
            return true;
        }
        if let Object::Qp(qp) = &mut self.object {
            qp.leave_groups(device);
        }
        let is_destroyed = self.object.destroy(device).is_ok();
        if is_destroyed {
            self.give_up();
        }
        is_destroyed
    }

    /// Detaches the object from this file, whether it was destroyed or not.
    pub(crate) fn give_up(&mut self) {
        self.object.forget_events();
        self.gone = true;
    }
}

impl Object {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Pd(_) => Kind::Pd,
            Self::Cq(_) => Kind::Cq,
            Self::Qp(_) => Kind::Qp,
            Self::Srq(_) => Kind::Srq,
            Self::Ah(_) => Kind::Ah,
            Self::Flow(_) => Kind::Flow,
            Self::Mr(_) => Kind::Mr,
            Self::Mw(_) => Kind::Mw,
            Self::Xrcd(_) => Kind::Xrcd,
            Self::Dm(_) => Kind::Dm,
            Self::Counters(_) => Kind::Counters,
            Self::Wq(_) => Kind::Wq,
            Self::RwqIndTbl(_) => Kind::RwqIndTbl,
            Self::Uar(_) => Kind::Uar,
            Self::Devx(_) => Kind::DevxObj,
            Self::DevxUmem(_) => Kind::DevxUmem,
            Self::Pp(_) => Kind::Pp,
            Self::FlowMatcher(_) => Kind::FlowMatcher,
        }
    }

    /// Handles of the objects that this one uses; they cannot be destroyed before it.
    pub(crate) fn parents(&self) -> Vec<u32> {
        match self {
            Self::Qp(qp) => qp.parents.clone(),
            Self::Srq(srq) => srq.parents.clone(),
            Self::Mr(mr) => std::iter::once(mr.pd).chain(mr.dm).collect(),
            Self::Mw(mw) => vec![mw.pd],
            Self::Ah(ah) => vec![ah.pd],
            Self::Flow(flow) => flow.parents(),
            Self::Wq(wq) => wq.parents.to_vec(),
            Self::RwqIndTbl(table) => table.parents.clone(),
            Self::Pd(_)
            | Self::Cq(_)
            | Self::Xrcd(_)
            | Self::Dm(_)
            | Self::Counters(_)
            | Self::Uar(_)
            | Self::Devx(_)
            | Self::DevxUmem(_)
            | Self::Pp(_)
            | Self::FlowMatcher(_) => vec![],
        }
    }

    /// Order in which a closed file's objects are destroyed: users before the objects that they
    /// use.
    pub(crate) fn destruction_rank(&self) -> u8 {
        match self {
            Self::Flow(_) => 0,
            Self::Qp(_) | Self::Mw(_) => 1,
            Self::Mr(_) | Self::Srq(_) | Self::Ah(_) | Self::RwqIndTbl(_) => 2,
            Self::Wq(_) => 3,
            Self::Cq(_) | Self::Xrcd(_) | Self::Dm(_) | Self::Counters(_) => 4,
            Self::Pd(_) | Self::Uar(_) | Self::Pp(_) | Self::FlowMatcher(_) => 5,
            Self::Devx(object) => object.destruction_rank(),
            Self::DevxUmem(_) => 6,
        }
    }

    /// Destroys the object in the device.
    pub(crate) fn destroy(&mut self, device: &Arc<DeviceShared>) -> Result<(), Errno> {
        match self {
            Self::Pd(pd) => pd.destroy(device),
            Self::Cq(cq) => cq.destroy(device),
            Self::Flow(flow) => flow.destroy(device),
            Self::Qp(qp) => qp.destroy(device),
            Self::Srq(srq) => srq.destroy(device),
            Self::Mr(mr) => mr.destroy(device),
            Self::Mw(mw) => mw.destroy(device),
            Self::Xrcd(xrcd) => xrcd.destroy(device),
            Self::Dm(dm) => dm.destroy(device),
            Self::Uar(uar) => uar.destroy(device),
            Self::Devx(object) => object.destroy(device),
            Self::DevxUmem(umem) => umem.destroy(device),
            Self::Pp(entry) => {
                entry.destroy(device);
                Ok(())
            }
            Self::Wq(wq) => wq.destroy(device),
            Self::Ah(_) | Self::Counters(_) | Self::RwqIndTbl(_) | Self::FlowMatcher(_) => Ok(()),
        }
    }

    /// Removes the object's unread events and updates the number of read ones.
    pub(crate) fn forget_events(&self) {
        match self {
            Self::Cq(cq) => cq.forget_events(),
            Self::Qp(qp) => qp.events.forget(),
            Self::Srq(srq) => srq.events.forget(),
            Self::Wq(wq) => wq.events.forget(),
            _ => {}
        }
    }
}

macro_rules! views {
    ($($name:ident $name_mut:ident $variant:ident $ty:ty;)*) => {
        impl Object {
            $(
                #[allow(dead_code, reason = "the views are uniform, not every kind needs both")]
                pub(crate) fn $name(&self) -> Result<&$ty, Errno> {
                    match self {
                        Self::$variant(object) => Ok(object),
                        _ => Err(Errno::EINVAL),
                    }
                }

                #[allow(dead_code, reason = "as above")]
                pub(crate) fn $name_mut(&mut self) -> Result<&mut $ty, Errno> {
                    match self {
                        Self::$variant(object) => Ok(object),
                        _ => Err(Errno::EINVAL),
                    }
                }
            )*
        }
    };
}

views! {
    pd pd_mut Pd protection_domain::Pd;
    cq cq_mut Cq cq::Cq;
    qp qp_mut Qp qp::Qp;
    srq srq_mut Srq srq::Srq;
    mr mr_mut Mr memory_region::Mr;
    xrcd xrcd_mut Xrcd xrcd::Xrcd;
    dm dm_mut Dm dm::Dm;
    counters counters_mut Counters counters::Counters;
    wq wq_mut Wq work_queue::Wq;
    matcher matcher_mut FlowMatcher matcher::Matcher;
    indirection_table indirection_table_mut RwqIndTbl indirection_table::RwqIndTbl;
}

/// An event file of one open device file.
#[derive(Debug)]
pub(crate) struct EventFile {
    pub(crate) kind: Kind,
    pub(crate) queue: Arc<EventQueue>,
    /// Firmware events carry only their cookie.
    pub(crate) omits_data: bool,
}
