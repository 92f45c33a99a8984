//! Queue pairs as objects: the driver's state of each, shared XRC targets, destruction.
//! Kernel: uverbs_std_types_qp.c, `ib_uverbs_open_qp`, `ib_open_qp` and `ib_destroy_qp_user`
//! (core/verbs.c).
#![forbid(unsafe_code)]

mod build;
pub(crate) mod create;
pub(crate) mod driver_request;
pub(crate) mod modify;
pub(crate) mod multicast;
pub(crate) mod query;
pub(crate) mod rss;
mod target;
pub(crate) mod transitions;

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::QpType as UserQpType;
use uverbs_uapi::objects::qp::destroy;
use uverbs_uapi::write::qp::{CreateQpResp, DestroyQp, DestroyQpResp, OpenQp};

use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::context::Register;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::{DeviceShared, errno};
use crate::chardev::objects::object::{Kind, Object};
use crate::chardev::objects::xrcd::Domain;
use crate::core::{EventObject, QpType, Qpn};
use crate::locking::lock;
use crate::packet::Gid;
use crate::runtime::{self, Doorbell, UarPage};
use transitions::state;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// The UAR page of its send doorbells, if it has any.
    pub(crate) uar: Option<UarPage>,
    pub(crate) parents: Vec<u32>,
    pub(crate) qp_type: QpType,
    pub(crate) events: Reporter,
    /// Receive WQEs in the ring, and scatter entries in each.
    pub(crate) receives: (u32, u32),
    pub(crate) signal_all: bool,
    /// Its doorbell register, if the context has a fixed set of them.
    #[expect(dead_code, reason = "dropping the QP gives the register back")]
    pub(crate) register: Option<Register>,
    pub(crate) groups: Vec<(Gid, u16)>,
    pub(crate) driver: Arc<DriverState>,
    /// The domain of an XRC target, which exists as long as a context has it open.
    pub(crate) domain: Option<Arc<Domain>>,
    /// Whether it only spreads frames over work queues; then it cannot be modified or queried.
    pub(crate) spreads: bool,
}

/// The driver's state of a QP. All contexts that have an XRC target open share it.
#[derive(Debug, Default)]
pub(crate) struct DriverState {
    memory: std::sync::Mutex<Remembered>,
}

/// The last requested state, and attributes that later changes need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) state: u8,
    pub(crate) port: u8,
    pub(crate) access: u32,
    pub(crate) responder_depth: u8,
}

impl DriverState {
    pub(crate) fn get(&self) -> Remembered {
        *lock(&self.memory)
    }

    pub(crate) fn set(&self, remembered: Remembered) {
        *lock(&self.memory) = remembered;
    }
}

impl Qp {
    /// A queue pair without queues of its own, in RESET.
    pub(crate) fn new(qpn: Qpn, qp_type: QpType, parents: Vec<u32>, events: Reporter) -> Self {
        let driver = DriverState::default();
        driver.set(Remembered { state: state::RESET, ..Remembered::default() });
        Self {
            qpn,
            uar: None,
            parents,
            qp_type,
            events,
            receives: (0, 0),
            signal_all: false,
            register: None,
            groups: Vec::new(),
            driver: Arc::new(driver),
            domain: None,
            spreads: false,
        }
    }

    pub(crate) fn destroy(&self, device: &Arc<DeviceShared>) -> Result<(), Errno> {
        if !self.groups.is_empty() {
            return Err(Errno::EBUSY);
        }
        device.routes().remove(EventObject::Qp(self.qpn), &self.events);
        if self.domain.as_ref().is_some_and(|domain| !domain.close_target(self.qpn)) {
            return Ok(());
        }
        device.control(|machine| {
            machine.catch_up(runtime::now(), self.qpn);
            machine.core.destroy_qp(self.qpn).map_err(errno)?;
            if let Some(uar) = &self.uar {
                machine.uars.detach(uar, Doorbell::Send(self.qpn));
            }
            Ok(())
        })
    }

    /// Leaves all multicast groups, as the kernel does when a file is closed.
    pub(crate) fn leave_groups(&mut self, device: &DeviceShared) {
        for (group, _) in self.groups.drain(..) {
            device.leave(group);
            // This cannot fail: `groups` lists memberships.
            let _ = device.core(|core| core.detach_multicast(self.qpn, group));
        }
    }
}

pub(crate) const DESTROY: &[Attribute] = &[
    Attribute::destroy(destroy::HANDLE, Kind::Qp),
    Attribute::output(destroy::RESP, size_of::<DestroyQpResp>()),
];

/// `UVERBS_METHOD_QP_DESTROY`.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let events_reported = call.destroyed()?.qp()?.events.reported();
    call.output(destroy::RESP, &DestroyQpResp { events_reported })
}

/// `IB_USER_VERBS_CMD_DESTROY_QP`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DestroyQp = call.request()?;
    call.destroy(Kind::Qp, request.qp_handle)?;
    let events_reported = call.destroyed()?.qp()?.events.reported();
    call.response(&DestroyQpResp { events_reported })
}

/// `IB_USER_VERBS_CMD_OPEN_QP`: creates another handle of an XRC target, from any context that has
/// its domain open.
pub(crate) fn open(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: OpenQp = call.request()?;
    let qp_handle = call.reserve()?;
    let domain = call.object(Kind::Xrcd, request.pd_handle).map_err(|_| Errno::EINVAL)?;
    let domain = domain.xrcd()?.domain.clone();
    if request.qp_type != UserQpType::XRC_TGT {
        return Err(Errno::EINVAL);
    }
    let driver = domain.open_target(Qpn(request.qpn)).ok_or(Errno::EINVAL)?;
    let events = Reporter::new(call.state.default_async(), request.user_handle);
    call.file.device.routes().add(EventObject::Qp(Qpn(request.qpn)), &events);
    let parents = vec![request.pd_handle];
    let qp = Qp::new(Qpn(request.qpn), QpType::XrcTarget, parents, events);
    call.commit(Object::Qp(Qp { driver, domain: Some(domain), ..qp }))?;
    call.response(&CreateQpResp { qp_handle, qpn: request.qpn, ..CreateQpResp::default() })
}

/// The firmware's code of a service (`MLX5_QP_ST_*`). The firmware has no raw packet QPs: each is
/// an SQ and an RQ.
pub(crate) fn service_code(qp_type: QpType) -> Option<u64> {
    match qp_type {
        QpType::Rc => Some(0),
        QpType::Uc => Some(1),
        QpType::Ud => Some(2),
        QpType::XrcInitiator | QpType::XrcTarget => Some(3),
        QpType::DcInitiator => Some(5),
        // A target has commands of its own.
        QpType::RawPacket | QpType::RegUmr | QpType::DcTarget => None,
    }
}
