//! Typical requests of programs, and field values that are likely to be valid.

use arbitrary::{Result, Unstructured};
use uverbs_uapi::enums::{Mtu, MwType, QpState, QpType, SrqType};
use uverbs_uapi::flags::{AccessFlags, QpAttrMask};
use uverbs_uapi::mlx5::{self, CqFlags, QpFlags, UarAllocType};
use uverbs_uapi::objects::{async_event, cq, dm, mr, pd, qp, srq};
use uverbs_uapi::write::{WriteCmd, ah, mr as mr_write, mw, qp as qp_write, xrcd};
use zerocopy::IntoBytes;

use crate::arena::{ARENA, Arena};
use crate::ioctl::Call;

const COMMANDS: [WriteCmd; 36] = [
    WriteCmd::GET_CONTEXT,
    WriteCmd::QUERY_DEVICE,
    WriteCmd::QUERY_PORT,
    WriteCmd::ALLOC_PD,
    WriteCmd::DEALLOC_PD,
    WriteCmd::CREATE_AH,
    WriteCmd::DESTROY_AH,
    WriteCmd::REG_MR,
    WriteCmd::REREG_MR,
    WriteCmd::DEREG_MR,
    WriteCmd::ALLOC_MW,
    WriteCmd::DEALLOC_MW,
    WriteCmd::CREATE_COMP_CHANNEL,
    WriteCmd::CREATE_CQ,
    WriteCmd::RESIZE_CQ,
    WriteCmd::DESTROY_CQ,
    WriteCmd::POLL_CQ,
    WriteCmd::REQ_NOTIFY_CQ,
    WriteCmd::CREATE_QP,
    WriteCmd::QUERY_QP,
    WriteCmd::MODIFY_QP,
    WriteCmd::DESTROY_QP,
    WriteCmd::ATTACH_MCAST,
    WriteCmd::DETACH_MCAST,
    WriteCmd::CREATE_SRQ,
    WriteCmd::MODIFY_SRQ,
    WriteCmd::QUERY_SRQ,
    WriteCmd::DESTROY_SRQ,
    WriteCmd::OPEN_XRCD,
    WriteCmd::CLOSE_XRCD,
    WriteCmd::CREATE_XSRQ,
    WriteCmd::OPEN_QP,
    WriteCmd::EX_QUERY_DEVICE,
    WriteCmd::EX_CREATE_CQ,
    WriteCmd::EX_CREATE_QP,
    WriteCmd::EX_MODIFY_QP,
];

/// Zero, a small number (a handle, a count, a state), a power of two, or any number.
pub(crate) fn number(u: &mut Unstructured<'_>) -> Result<u32> {
    match u.int_in_range(0..=7)? {
        0..=2 => Ok(0),
        3..=5 => u.int_in_range(0..=16),
        6 => Ok(1 << u.int_in_range(0..=31)?),
        _ => u.arbitrary(),
    }
}

/// An address for a queue or a region.
fn place(u: &mut Unstructured<'_>) -> Result<u64> {
    let page: u64 = u.int_in_range(0..=15)?;
    let offset = if u.ratio(1, 8)? { u.int_in_range(0..=4095)? } else { 0 };
    Ok(ARENA as u64 + page * 4096 + offset)
}

/// Fields of four and eight bytes, some of them addresses.
pub(crate) fn bytes(u: &mut Unstructured<'_>, length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        if bytes.len() % 8 == 0 && u.ratio(1, 6)? {
            bytes.extend(place(u)?.to_ne_bytes());
        } else {
            bytes.extend(number(u)?.to_ne_bytes());
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// A command with a core and a driver part.
pub(crate) fn any_write(u: &mut Unstructured<'_>) -> Result<(WriteCmd, Vec<u8>, Vec<u8>)> {
    let command = *u.choose(&COMMANDS)?;
    let command = if u.ratio(1, 16)? { WriteCmd(u.arbitrary()?) } else { command };
    let (length, driver) =
        (*u.choose(&[24, 32, 40, 48, 56, 64, 112, 120, 8])?, *u.choose(&[0, 8, 32, 56])?);
    Ok((command, bytes(u, length)?, bytes(u, driver)?))
}

/// One of the few requests on which all others depend. It succeeds if its handles exist.
pub(crate) fn sensible(
    u: &mut Unstructured<'_>,
    arena: &'static Arena,
    channel: Option<i32>,
) -> Result<Call> {
    Ok(match u.int_in_range(0..=15)? {
        0 => Call::write(WriteCmd::ALLOC_PD, &[0; 8], &[], 4, arena),
        1 => register(u, arena)?,
        2 => uar(u, arena)?,
        3 | 4 => create_cq(u, arena, channel)?,
        5 | 6 => create_qp(u, arena)?,
        7 => create_srq(u, arena)?,
        8 | 9 => modify_qp(u, arena)?,
        10 => destroy(u, arena)?,
        11 => Call::write(WriteCmd::CREATE_COMP_CHANNEL, &[0; 8], &[], 4, arena),
        12 => {
            let mut call = Call::new(async_event::OBJECT, async_event::alloc::METHOD, arena);
            call.attribute(async_event::alloc::HANDLE.id(), 0, 0);
            call
        }
        13 => small_objects(u, arena)?,
        14 => allocate_dm(u, arena)?,
        _ => query(u, arena)?,
    })
}

fn handle(u: &mut Unstructured<'_>) -> Result<u64> {
    u.int_in_range(0..=10)
}

fn register(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let start = place(u)?;
    let request = mr_write::RegMr {
        start,
        hca_va: if u.ratio(1, 8)? { u.arbitrary()? } else { start },
        length: u.int_in_range(0..=20_000)?,
        pd_handle: handle(u)? as u32,
        access_flags: AccessFlags::from_bits_retain(u.int_in_range(0..=63)?),
        ..mr_write::RegMr::default()
    };
    Ok(Call::write(WriteCmd::REG_MR, request.as_bytes(), &[], 12, arena))
}

fn uar(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    use mlx5::object::uar::{self, alloc};
    let mut call = Call::new(uar::OBJECT, alloc::METHOD, arena);
    call.attribute(alloc::HANDLE.id(), 0, 0);
    let kind = if u.arbitrary()? { UarAllocType::BF } else { UarAllocType::NC };
    call.input(alloc::TYPE.id(), u64::from(kind.0).as_bytes());
    call.output(alloc::MMAP_OFFSET.id(), 8);
    call.output(alloc::MMAP_LENGTH.id(), 4);
    call.output(alloc::PAGE_ID.id(), 4);
    Ok(call)
}

fn create_cq(
    u: &mut Unstructured<'_>,
    arena: &'static Arena,
    channel: Option<i32>,
) -> Result<Call> {
    let driver = mlx5::CreateCq {
        buf_addr: place(u)?,
        db_addr: place(u)? & !7,
        cqe_size: *u.choose(&[64, 64, 128, 0])?,
        flags: if u.arbitrary()? { CqFlags::UAR_PAGE_INDEX } else { CqFlags::empty() },
        uar_page_index: u.int_in_range(0..=3)?,
        ..mlx5::CreateCq::default()
    };
    use cq::create as c;
    let mut call = Call::new(cq::OBJECT, c::METHOD, arena);
    call.attribute(c::HANDLE.id(), 0, 0);
    call.input(c::CQE.id(), u.int_in_range(0..=63u32)?.as_bytes());
    call.input(c::USER_HANDLE.id(), 7u64.as_bytes());
    call.input(c::COMP_VECTOR.id(), 0u32.as_bytes());
    if let Some(fd) = channel.filter(|_| driver.cqe_size == 64) {
        call.attribute(c::COMP_CHANNEL.id(), 0, fd as u64);
    }
    call.output(c::RESP_CQE.id(), 4);
    call.input(c::UHW_IN.id(), driver.as_bytes());
    call.output(c::UHW_OUT.id(), 8);
    Ok(call)
}

fn create_qp(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let driver = mlx5::CreateQp {
        buf_addr: place(u)?,
        db_addr: place(u)? & !7,
        sq_wqe_count: 1 << u.int_in_range(0..=6)?,
        rq_wqe_count: 1 << u.int_in_range(0..=5)?,
        rq_wqe_shift: u.int_in_range(4..=7)?,
        flags: if u.arbitrary()? {
            QpFlags::UAR_PAGE_INDEX
        } else {
            QpFlags::from_bits_retain(number(u)?)
        },
        uidx: u.int_in_range(0..=9)?,
        bfreg_index: u.int_in_range(0..=3)?,
        ..mlx5::CreateQp::default()
    };
    let cap = qp_write::QpCap {
        max_send_wr: u.int_in_range(0..=16)?,
        max_recv_wr: u.int_in_range(0..=16)?,
        max_send_sge: u.int_in_range(0..=4)?,
        max_recv_sge: u.int_in_range(0..=4)?,
        max_inline_data: u.int_in_range(0..=128)?,
    };
    let types = [QpType::RC, QpType::UC, QpType::UD, QpType::XRC_INI, QpType::XRC_TGT, QpType::RC];
    let qp_type = *u.choose(&types)?;
    use qp::create as c;
    let mut call = Call::new(qp::OBJECT, c::METHOD, arena);
    call.attribute(c::HANDLE.id(), 0, 0);
    if qp_type == QpType::XRC_TGT {
        call.attribute(c::XRCD_HANDLE.id(), 0, handle(u)?);
    } else {
        let (pd, cq) = (handle(u)?, handle(u)?);
        call.attribute(c::PD_HANDLE.id(), 0, pd);
        call.attribute(c::SEND_CQ_HANDLE.id(), 0, cq);
        call.attribute(c::RECV_CQ_HANDLE.id(), 0, if u.ratio(1, 4)? { handle(u)? } else { cq });
        if u.ratio(1, 4)? {
            call.attribute(c::SRQ_HANDLE.id(), 0, handle(u)?);
        }
    }
    call.input(c::USER_HANDLE.id(), 9u64.as_bytes());
    call.input(c::CAP.id(), cap.as_bytes());
    call.input(c::TYPE.id(), u64::from(qp_type.0).as_bytes());
    call.output(c::RESP_CAP.id(), 20);
    call.output(c::RESP_QP_NUM.id(), 4);
    call.input(c::UHW_IN.id(), driver.as_bytes());
    call.output(c::UHW_OUT.id(), 40);
    Ok(call)
}

fn create_srq(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let driver = mlx5::CreateSrq {
        buf_addr: place(u)?,
        db_addr: place(u)? & !7,
        uidx: u.int_in_range(0..=9)?,
        ..mlx5::CreateSrq::default()
    };
    let xrc = u.ratio(1, 3)?;
    use srq::create as c;
    let mut call = Call::new(srq::OBJECT, c::METHOD, arena);
    call.attribute(c::HANDLE.id(), 0, 0);
    call.attribute(c::PD_HANDLE.id(), 0, handle(u)?);
    let kind = if xrc { SrqType::XRC } else { SrqType::BASIC };
    call.input(c::TYPE.id(), u64::from(kind.0).as_bytes());
    call.input(c::USER_HANDLE.id(), 5u64.as_bytes());
    call.input(c::MAX_WR.id(), u.int_in_range(0..=15u32)?.as_bytes());
    call.input(c::MAX_SGE.id(), u.int_in_range(0..=3u32)?.as_bytes());
    call.input(c::LIMIT.id(), 0u32.as_bytes());
    if xrc {
        call.attribute(c::XRCD_HANDLE.id(), 0, handle(u)?);
        call.attribute(c::CQ_HANDLE.id(), 0, handle(u)?);
    }
    call.output(c::RESP_MAX_WR.id(), 4);
    call.output(c::RESP_MAX_SGE.id(), 4);
    call.input(c::UHW_IN.id(), driver.as_bytes());
    call.output(c::UHW_OUT.id(), 8);
    Ok(call)
}

fn modify_qp(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let state = QpState(u.int_in_range(0..=6)?);
    // The attributes that an RC QP needs for the change to this state.
    let mask = match state.0 {
        1 => 0x0001 | 0x0008 | 0x0010 | 0x0020,
        2 => 0x0001 | 0x0080 | 0x0100 | 0x1000 | 0x2_0000 | 0x8000 | 0x10_0000,
        3 => 0x0001 | 0x0200 | 0x0400 | 0x0800 | 0x2000 | 0x1_0000,
        _ => 0x0001,
    };
    let mask = if u.ratio(1, 3)? { mask ^ number(u)? } else { mask };
    let mut dest =
        qp_write::QpDest { is_global: 1, port_num: 1, hop_limit: 64, ..Default::default() };
    u.fill_buffer(&mut dest.dgid)?;
    let request = qp_write::ModifyQp {
        dest,
        qp_handle: handle(u)? as u32,
        attr_mask: QpAttrMask::from_bits_retain(mask),
        qp_state: state,
        cur_qp_state: QpState(u.int_in_range(0..=6)?),
        path_mtu: Mtu(3),
        port_num: 1,
        dest_qp_num: number(u)?,
        timeout: 1,
        retry_cnt: 1,
        rnr_retry: 1,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..qp_write::ModifyQp::default()
    };
    Ok(Call::write(WriteCmd::MODIFY_QP, request.as_bytes(), &[], 0, arena))
}

fn destroy(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let methods = [
        (pd::OBJECT, pd::destroy::METHOD, pd::destroy::HANDLE.id(), None),
        (mr::OBJECT, mr::destroy::METHOD, mr::destroy::HANDLE.id(), None),
        (cq::OBJECT, cq::destroy::METHOD, cq::destroy::HANDLE.id(), Some(cq::destroy::RESP.id())),
        (qp::OBJECT, qp::destroy::METHOD, qp::destroy::HANDLE.id(), Some(qp::destroy::RESP.id())),
        (
            srq::OBJECT,
            srq::destroy::METHOD,
            srq::destroy::HANDLE.id(),
            Some(srq::destroy::RESP.id()),
        ),
        (dm::OBJECT, dm::free::METHOD, dm::free::HANDLE.id(), None),
    ];
    let (object, method, attribute, answer) = *u.choose(&methods)?;
    let mut call = Call::new(object, method, arena);
    call.attribute(attribute, 0, handle(u)?);
    if let Some(answer) = answer {
        call.output(answer, 8);
    }
    Ok(call)
}

/// Windows, address handles, XRC domains, multicast.
fn small_objects(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    Ok(match u.int_in_range(0..=3)? {
        0 => {
            let kind = MwType(u.int_in_range(0..=3)?);
            let request =
                mw::AllocMw { pd_handle: handle(u)? as u32, mw_type: kind, ..Default::default() };
            Call::write(WriteCmd::ALLOC_MW, request.as_bytes(), &[], 12, arena)
        }
        1 => {
            let request =
                xrcd::OpenXrcd { fd: u32::MAX, oflags: libc::O_CREAT as u32, ..Default::default() };
            Call::write(WriteCmd::OPEN_XRCD, request.as_bytes(), &[], 4, arena)
        }
        2 => {
            let mut request = ah::CreateAh { pd_handle: handle(u)? as u32, ..Default::default() };
            request.attr.port_num = u.int_in_range(0..=2)?;
            request.attr.is_global = 1;
            u.fill_buffer(request.attr.grh.dgid.as_mut_bytes())?;
            Call::write(WriteCmd::CREATE_AH, request.as_bytes(), &[], 4, arena)
        }
        _ => {
            let mut request =
                qp_write::AttachMcast { qp_handle: handle(u)? as u32, ..Default::default() };
            request.gid[..2].copy_from_slice(&[0xff, u.arbitrary()?]);
            let command =
                if u.arbitrary()? { WriteCmd::ATTACH_MCAST } else { WriteCmd::DETACH_MCAST };
            Call::write(command, request.as_bytes(), &[], 0, arena)
        }
    })
}

fn allocate_dm(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    use dm::alloc as a;
    let mut call = Call::new(dm::OBJECT, a::METHOD, arena);
    call.attribute(a::HANDLE.id(), 0, 0);
    call.input(a::LENGTH.id(), u.int_in_range(0..=9000u64)?.as_bytes());
    call.input(a::ALIGNMENT.id(), u.int_in_range(0..=13u32)?.as_bytes());
    call.output(AttrIds::START_OFFSET, 8);
    call.output(AttrIds::PAGE_INDEX, 2);
    Ok(call)
}

/// Attributes that the driver adds to the allocation of on-device memory
/// (`enum mlx5_ib_alloc_dm_attrs`).
struct AttrIds;

impl AttrIds {
    const START_OFFSET: uverbs_uapi::objects::AttrId = uverbs_uapi::objects::AttrId(0x1000);
    const PAGE_INDEX: uverbs_uapi::objects::AttrId = uverbs_uapi::objects::AttrId(0x1001);
}

fn query(u: &mut Unstructured<'_>, arena: &'static Arena) -> Result<Call> {
    let (command, length) = *u.choose(&[
        (WriteCmd::QUERY_QP, 16),
        (WriteCmd::QUERY_SRQ, 16),
        (WriteCmd::QUERY_DEVICE, 8),
        (WriteCmd::QUERY_PORT, 16),
        (WriteCmd::EX_QUERY_DEVICE, 8),
    ])?;
    let mut request = bytes(u, length)?;
    if length == 16 {
        request[..8].fill(0);
    }
    Ok(Call::write(command, &request, &[], 256, arena))
}
