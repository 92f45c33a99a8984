//! The driver's part of a creation request: ring, doorbell register and user index.
//! Kernel: `process_udata_size`, `process_vendor_flags`, `set_rq_size` and `set_user_buf_size` of
//! hw/mlx5/qp.c.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::mlx5::{self, QpFlags};

use super::create::Request;
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::query_device::MAX_QP_WR;
use crate::chardev::device::context::Register;
use crate::chardev::device::options::Options;
use crate::core::{QpType, ReceiveRing, SendRing};
use crate::memory::PageMap;

/// User index of QPs whose CQEs carry none (`MLX5_IB_DEFAULT_UIDX`).
const NO_USER_INDEX: u32 = 0xff_ffff;

/// `process_udata_size` and `check_ucmd_data`.
pub(super) fn read_driver_request(driver: &Buffers) -> Result<mlx5::CreateQp, Errno> {
    let required = std::mem::offset_of!(mlx5::CreateQp, ece_options);
    let request: mlx5::CreateQp = driver.read_known(required, Errno::EINVAL)?;
    if request.reserved != 0 { Err(Errno::EINVAL) } else { Ok(request) }
}

/// `process_vendor_flags`, for a device without streams of DC initiators and without packet-based
/// credits.
pub(super) fn check_vendor_flags(request: &Request, flags: QpFlags) -> Result<(), Errno> {
    let own = match request.qp_type {
        QpType::DcInitiator => QpFlags::TYPE_DCI,
        _ => QpFlags::empty(),
    };
    let known = own
        | QpFlags::SIGNATURE
        | QpFlags::SCATTER_CQE
        | QpFlags::ALLOW_SCATTER_CQE
        | QpFlags::BFREG_INDEX
        | QpFlags::UAR_PAGE_INDEX;
    if known.contains(flags) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `verify_assign_uidx`: CQEs of version 1 carry the program's index, those of version 0 the QP
/// number.
pub(crate) fn user_index(cqe_version: u8, requested: u32) -> Result<u32, Errno> {
    match cqe_version {
        0 if requested == NO_USER_INDEX => Ok(NO_USER_INDEX),
        1.. if requested < NO_USER_INDEX => Ok(requested),
        _ => Err(Errno::EINVAL),
    }
}

/// `set_rq_size`: WQEs in the ring, and entries in each. Without a receive queue both must be 0.
pub(super) fn check_receive_ring(
    request: &mut Request,
    ucmd: &mlx5::CreateQp,
) -> Result<(u32, u32), Errno> {
    let max = 1 << Options::LOG_MAX_QP_SIZE;
    // mlx5_ib accepts receive queues of up to `max`, which is more than the `max_qp_wr` that it
    // reports. This device accepts no more than it reports.
    if request.cap.max_recv_wr > MAX_QP_WR || ucmd.sq_wqe_count > max {
        return Err(Errno::EINVAL);
    }
    let has_ring = !matches!(request.qp_type, QpType::XrcInitiator | QpType::DcInitiator)
        && request.handles.srq.is_none()
        && request.cap.max_recv_wr != 0;
    if !has_ring {
        (request.cap.max_recv_wr, request.cap.max_recv_sge) = (0, 0);
        let none = ucmd.rq_wqe_count == 0 && ucmd.rq_wqe_shift == 0;
        return if none { Ok((0, 0)) } else { Err(Errno::EINVAL) };
    }
    let size = 1i32.checked_shl(ucmd.rq_wqe_shift).filter(|size| *size > 0).ok_or(Errno::EINVAL)?;
    let signature = u32::from(ucmd.flags.contains(QpFlags::SIGNATURE));
    let entries = (size as u32 / 16).checked_sub(signature).ok_or(Errno::EINVAL)?;
    Ok((ucmd.rq_wqe_count, entries))
}

/// The UAR page of the send queue's doorbells, and the register if the driver chooses one.
pub(super) fn doorbell(
    call: &mut Call<'_>,
    ucmd: &mlx5::CreateQp,
) -> Result<(u32, Option<Register>), Errno> {
    let (by_page, by_register) =
        (ucmd.flags.contains(QpFlags::UAR_PAGE_INDEX), ucmd.flags.contains(QpFlags::BFREG_INDEX));
    match (by_page, by_register) {
        (true, true) => Err(Errno::EINVAL),
        (true, false) => Ok((ucmd.bfreg_index, None)),
        (false, true) => {
            Ok((call.context_mut()?.static_uars()?.dynamic_uar_of(ucmd.bfreg_index)?, None))
        }
        (false, false) => {
            let uars = call.context_mut()?.static_uars()?;
            let register = uars.take_register();
            Ok((uars.uar_of(register.index())?, Some(register)))
        }
    }
}

/// Both rings are in one buffer, the receive ring first. A raw packet QP's send ring has its own
/// buffer (`set_user_buf_size`).
pub(super) fn rings(
    call: &mut Call<'_>,
    request: &Request,
    ucmd: &mlx5::CreateQp,
) -> Result<(Option<SendRing>, Option<ReceiveRing>), Errno> {
    if ucmd.sq_wqe_count != 0 && !ucmd.sq_wqe_count.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    let receive_size = u64::from(ucmd.rq_wqe_count) << ucmd.rq_wqe_shift;
    let send_size = u64::from(ucmd.sq_wqe_count) * 64;
    if receive_size + send_size > i32::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let raw = request.qp_type == QpType::RawPacket;
    if raw && receive_size + send_size == 0 {
        return Err(Errno::EINVAL);
    }
    let send_at = if raw {
        pin_ring(call, ucmd.buf_addr, receive_size)?;
        pin_ring(call, ucmd.sq_buf_addr, send_size)?;
        check_offset(ucmd.buf_addr)?;
        check_offset(ucmd.sq_buf_addr)?;
        ucmd.sq_buf_addr
    } else {
        pin_ring(call, ucmd.buf_addr, receive_size + send_size)?;
        ucmd.buf_addr.wrapping_add(receive_size)
    };
    let send = (ucmd.sq_wqe_count != 0).then(|| SendRing {
        buffer: PageMap::linear(send_at),
        log_blocks: ucmd.sq_wqe_count.trailing_zeros() as u8,
    });
    let receive = (request.cap.max_recv_wr != 0 && ucmd.rq_wqe_count != 0).then(|| ReceiveRing {
        buffer: PageMap::linear(ucmd.buf_addr),
        log_wqes: ucmd.rq_wqe_count.ilog2() as u8,
        log_stride: ucmd.rq_wqe_shift as u8,
    });
    Ok((send, receive))
}

/// Charges and pins a ring, if there is one.
pub(crate) fn pin_ring(call: &mut Call<'_>, address: u64, size: u64) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    // Address 0 means that the program has passed no ring.
    if address == 0 {
        return Err(Errno::EINVAL);
    }
    call.charge_ring(address, size)?;
    call.user.pin(address, size, false)?;
    if address % 64 != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// A ring in its own buffer starts in the first half of a page: `page_offset` of `mlx5_ifc_wq_bits`
/// has five bits, in units of 64 bytes (`mlx5_umem_find_best_quantized_pgoff`, which accepts more
/// if pages are contiguous).
pub(crate) fn check_offset(address: u64) -> Result<(), Errno> {
    if address % 4096 < 2048 { Ok(()) } else { Err(Errno::EINVAL) }
}
