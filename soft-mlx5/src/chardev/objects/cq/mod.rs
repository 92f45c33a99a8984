//! Completion queues: resize, moderation, destruction.
//! Kernel: uverbs_std_types_cq.c, `ib_uverbs_resize_cq`, `ib_uverbs_ex_modify_cq`, hw/mlx5/cq.c.
#![forbid(unsafe_code)]

pub(crate) mod create;

use nix::errno::Errno;
use uverbs_uapi::flags::CqAttrMask;
use uverbs_uapi::mlx5;
use uverbs_uapi::objects::cq::destroy;
use uverbs_uapi::write::cq::{DestroyCq, DestroyCqResp, ExModifyCq, ResizeCq, ResizeCqResp};

use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::events::Reporter;
use crate::chardev::device::options::Options;
use crate::chardev::device::{DeviceShared, errno};
use crate::chardev::objects::object::Kind;
use crate::core::{CqModify, CqRing, CqeSize, Cqn, EventObject, Moderation};
use crate::locking::lock;
use crate::memory::PageMap;
use crate::runtime::{self, Doorbell, UarPage};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: Cqn,
    pub(crate) uar: UarPage,
    /// Usable entries: one less than the ring has.
    pub(crate) entries: u32,
    pub(crate) cqe_size: CqeSize,
    pub(crate) completions: Reporter,
    pub(crate) events: Reporter,
}

impl Cq {
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        device.control(|machine| {
            machine.core.destroy_cq(self.cqn).map_err(errno)?;
            // A command may have given it a ring in registered memory.
            lock(&device.firmware).release(self.cqn.object());
            machine.uars.detach(&self.uar, Doorbell::Arm(self.cqn));
            let mut routes = device.routes();
            routes.remove_completions(self.cqn.0);
            routes.remove(EventObject::Cq(self.cqn), &self.events);
            Ok(())
        })
    }

    pub(crate) fn forget_events(&self) {
        self.completions.forget();
        self.events.forget();
    }

    fn reported(&self) -> DestroyCqResp {
        DestroyCqResp {
            comp_events_reported: self.completions.reported(),
            async_events_reported: self.events.reported(),
        }
    }
}

pub(crate) const DESTROY: &[Attribute] = &[
    Attribute::destroy(destroy::HANDLE, Kind::Cq),
    Attribute::output(destroy::RESP, size_of::<DestroyCqResp>()),
];

/// `UVERBS_METHOD_CQ_DESTROY`.
pub(crate) fn destroyed(call: &mut Call<'_>) -> Result<(), Errno> {
    let response = call.destroyed()?.cq()?.reported();
    call.output(destroy::RESP, &response)
}

/// `IB_USER_VERBS_CMD_DESTROY_CQ`.
pub(crate) fn destroy_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: DestroyCq = call.request()?;
    call.destroy(Kind::Cq, request.cq_handle)?;
    let response = call.destroyed()?.cq()?.reported();
    call.response(&response)
}

/// The CQE size of this many bytes; EINVAL unless it is 64 or 128.
pub(crate) fn cqe_size(bytes: u32) -> Result<CqeSize, Errno> {
    match bytes {
        64 => Ok(CqeSize::B64),
        128 => Ok(CqeSize::B128),
        _ => Err(Errno::EINVAL),
    }
}

/// A ring in the program's memory, which the device may write.
pub(crate) fn ring(
    call: &mut Call<'_>,
    address: u64,
    entries: u32,
    cqe_size: CqeSize,
) -> Result<CqRing, Errno> {
    call.charge_ring(address, u64::from(entries) * cqe_size.bytes())?;
    call.user.pin(address, u64::from(entries) * cqe_size.bytes(), true)?;
    Ok(CqRing {
        buffer: PageMap::linear(address),
        log_entries: entries.trailing_zeros() as u8,
        cqe_size,
    })
}

/// `IB_USER_VERBS_CMD_RESIZE_CQ`.
pub(crate) fn resize(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ResizeCq = call.request()?;
    let cqn = call.cqn(request.cq_handle)?;
    let max = 1 << Options::LOG_MAX_CQ_SIZE;
    // 2^22 itself is refused, because its ring would have 2^23 entries.
    if !(1..max).contains(&request.cqe) {
        return Err(Errno::EINVAL);
    }
    let entries = (request.cqe + 1).next_power_of_two();
    if entries != call.any_object(request.cq_handle)?.cq()?.entries + 1 {
        let driver: mlx5::ResizeCq = call.driver().read()?;
        if driver.reserved0 != 0 || driver.reserved1 != 0 {
            return Err(Errno::EINVAL);
        }
        let cqe_size = cqe_size(driver.cqe_size.into())?;
        let ring = ring(call, driver.buf_addr, entries, cqe_size)?;
        let change = CqModify { ring: Some(ring), ..CqModify::default() };
        call.file.device.control(|machine| {
            // Completions of earlier requests must be in the old ring.
            machine.catch_up_cq(runtime::now(), cqn);
            machine.core.modify_cq(cqn, change).map_err(errno)?;
            // A command may have given it a ring in registered memory.
            lock(&call.file.device.firmware).release(cqn.object());
            Ok(())
        })?;
        let pinned = call.take_charged();
        let entry = call.state.handles.get_mut(request.cq_handle)?;
        entry.object.cq_mut()?.entries = entries - 1;
        let before = std::mem::replace(&mut entry.pinned, pinned);
        call.state.uncharge(before);
    }
    let cqe = call.any_object(request.cq_handle)?.cq()?.entries;
    call.response(&ResizeCqResp { cqe, ..ResizeCqResp::default() })
}

/// Longest moderation period in microseconds (`MLX5_MAX_CQ_PERIOD`).
pub(crate) const MAX_PERIOD: u16 = 0xfff;
/// Largest moderation count (`MLX5_MAX_CQ_COUNT`).
pub(crate) const MAX_COUNT: u16 = 0xffff;

/// `IB_USER_VERBS_EX_CMD_MODIFY_CQ`.
pub(crate) fn modify(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: ExModifyCq = call.request()?;
    if request.attr_mask.is_empty() || request.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    // The moderation is the only attribute that can change.
    if request.attr_mask != CqAttrMask::MODERATE {
        return Err(Errno::EOPNOTSUPP);
    }
    let cqn = call.cqn(request.cq_handle)?;
    let moderation = Moderation { count: request.attr.cq_count, period: request.attr.cq_period };
    if moderation.period > MAX_PERIOD {
        return Err(Errno::EINVAL);
    }
    let change = CqModify { moderation: Some(moderation), ..CqModify::default() };
    call.file.device.core(|core| core.modify_cq(cqn, change))
}
