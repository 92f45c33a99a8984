//! Raw packet QPs that only spread frames over work queues by hash.
//! Kernel: `UVERBS_METHOD_QP_CREATE`, `create_qp` (core/uverbs_cmd.c), `create_rss_raw_qp_tir`
//! (hw/mlx5/qp.c).
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::mlx5::flags::{QpFlags, RxHashFields, RxHashFunctions};
use uverbs_uapi::mlx5::qp::{CreateQpResp as DriverResponse, CreateQpRss};
use uverbs_uapi::objects::qp::create;
use uverbs_uapi::write::qp::{CreateQpResp, ExCreateQp, ExCreateQpResp, QpCap};
use zerocopy::IntoBytes;

use super::Qp;
use super::create::{NATIVE_FLAGS, SIGNAL_ALL};
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::query_device::HASHED_FIELDS;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::events::Reporter;
use crate::chardev::objects::object::{Kind, Object};
use crate::core::{QpParams, QpType, Qpn, RSS_KEY, ReceiveSource, RssHash, Spread};

const IPV4: RxHashFields = RxHashFields::SRC_IPV4.union(RxHashFields::DST_IPV4);
const IPV6: RxHashFields = RxHashFields::SRC_IPV6.union(RxHashFields::DST_IPV6);
const TCP: RxHashFields = RxHashFields::SRC_PORT_TCP.union(RxHashFields::DST_PORT_TCP);
const UDP: RxHashFields = RxHashFields::SRC_PORT_UDP.union(RxHashFields::DST_PORT_UDP);

/// The parameters that both forms have in common.
struct Request {
    pd: u32,
    table: u32,
    /// Whether the request sets a queue size, or another property of queue pairs with queues.
    has_queues: bool,
    user_handle: u64,
    events: Option<Arc<EventQueue>>,
}

/// `UVERBS_METHOD_QP_CREATE` with an indirection table.
pub(super) fn create(call: &mut Call<'_>, qp_type: QpType) -> Result<(), Errno> {
    let cap: QpCap = call.input(create::CAP)?;
    let other = [create::XRCD_HANDLE, create::SRQ_HANDLE, create::RECV_CQ_HANDLE];
    let flags = call.flags(create::FLAGS, NATIVE_FLAGS)? & !SIGNAL_ALL;
    let has_queues = other.into_iter().any(|attribute| call.has(attribute.id()))
        || cap.max_recv_wr != 0
        || cap.max_recv_sge != 0
        || cap.max_send_wr != 0
        || flags != 0;
    let request = Request {
        pd: call.handle(create::PD_HANDLE)?,
        table: call.handle(create::IND_TABLE_HANDLE)?,
        has_queues,
        user_handle: call.input(create::USER_HANDLE)?,
        events: call.async_queue(create::EVENT_FD)?,
    };
    build(call, &request, qp_type)?;
    call.output_struct(create::RESP_CAP, &cap)?;
    call.output(create::RESP_QP_NUM, &0u32)
}

/// `IB_USER_VERBS_EX_CMD_CREATE_QP` with an indirection table.
pub(super) fn create_by_write(
    call: &mut Call<'_>,
    cmd: &ExCreateQp,
    qp_type: QpType,
) -> Result<(), Errno> {
    let qp_handle = call.reserve()?;
    let table = cmd.rwq_ind_tbl_handle;
    call.object(Kind::RwqIndTbl, table).map_err(|_| Errno::EINVAL)?;
    call.pdn(cmd.pd_handle)?;
    let receives = cmd.max_recv_wr != 0 || cmd.max_recv_sge != 0 || cmd.is_srq != 0;
    let request = Request {
        pd: cmd.pd_handle,
        table,
        has_queues: receives || cmd.max_send_wr != 0 || cmd.create_flags.bits() != 0,
        user_handle: cmd.user_handle,
        events: call.state.default_async(),
    };
    build(call, &request, qp_type)?;
    let base = CreateQpResp { qp_handle, ..CreateQpResp::default() };
    let response_length = call.response_length::<ExCreateQpResp>();
    call.response(&ExCreateQpResp { base, comp_mask: 0, response_length })
}

/// Such a QP has no queues, so the request must name neither sizes nor completion queues (the
/// driver also refuses a send CQ), and the QP's number is 0.
fn build(call: &mut Call<'_>, request: &Request, qp_type: QpType) -> Result<(), Errno> {
    let device = call.file.device.clone();
    let fits = call.context()?.cqe_version != 0 && device.options().is_roce();
    if request.has_queues || qp_type != QpType::RawPacket || !fits {
        return Err(Errno::EINVAL);
    }
    let table = call.object(Kind::RwqIndTbl, request.table)?.indirection_table()?.queues.clone();
    let driver = call.driver();
    let hash = hash(&read_driver_request(&driver)?, table.len())?;
    let qpn = create_without_queues(&device, ReceiveSource::Spread(Spread { table, hash }))?;
    let events = Reporter::new(request.events.clone(), request.user_handle);
    let qp = Qp::new(qpn, qp_type, vec![request.pd, request.table], events);
    call.commit(Object::Qp(Qp { spreads: true, ..qp }))?;
    driver.write_fitting(DriverResponse::default().as_bytes())
}

/// A queue pair of the core without queues, which passes its frames on.
pub(crate) fn create_without_queues(
    device: &DeviceShared,
    receive: ReceiveSource,
) -> Result<Qpn, Errno> {
    let (pd, cq) = device.internal_objects();
    let params = QpParams { receive, ..QpParams::new(QpType::RawPacket, pd, cq, cq) };
    device.core(|core| core.create_qp(params))
}

/// `process_udata_size`.
fn read_driver_request(driver: &Buffers) -> Result<CreateQpRss, Errno> {
    let request: CreateQpRss = driver.read_known(size_of::<CreateQpRss>(), Errno::EINVAL)?;
    let self_loopback = QpFlags::TIR_ALLOW_SELF_LB_UC | QpFlags::TIR_ALLOW_SELF_LB_MC;
    // Tunnels are not parsed.
    if request.comp_mask != 0 || !self_loopback.contains(request.flags) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(request)
}

/// The hash that the request selects. IPv4 and IPv6 exclude each other, and so do TCP and UDP. A
/// table of one place may have no hash.
fn hash(request: &CreateQpRss, places: usize) -> Result<Option<RssHash>, Errno> {
    let fields = request.rx_hash_fields_mask;
    if !HASHED_FIELDS.contains(fields) || request.rx_hash_function != RxHashFunctions::TOEPLITZ {
        return Err(Errno::EOPNOTSUPP);
    }
    if usize::from(request.rx_key_len) != RSS_KEY {
        return Err(Errno::EINVAL);
    }
    if fields.is_empty() {
        return if places == 1 { Ok(None) } else { Err(Errno::EINVAL) };
    }
    let both = |a, b| fields.intersects(a) && fields.intersects(b);
    if both(IPV4, IPV6) || both(TCP, UDP) {
        return Err(Errno::EINVAL);
    }
    let mut key = [0; RSS_KEY];
    key.copy_from_slice(&request.rx_hash_key[..RSS_KEY]);
    Ok(Some(RssHash { key, select: selector(fields) }))
}

/// The fields in the firmware's encoding (`rx_hash_field_select`).
fn selector(fields: RxHashFields) -> u32 {
    let chosen = [
        RxHashFields::SRC_IPV4 | RxHashFields::SRC_IPV6,
        RxHashFields::DST_IPV4 | RxHashFields::DST_IPV6,
        RxHashFields::SRC_PORT_TCP | RxHashFields::SRC_PORT_UDP,
        RxHashFields::DST_PORT_TCP | RxHashFields::DST_PORT_UDP,
    ];
    let bits = (0..).zip(chosen).map(|(bit, any)| u32::from(fields.intersects(any)) << bit);
    let l3 = u32::from(fields.intersects(IPV6)) << 31;
    bits.sum::<u32>() | l3 | u32::from(fields.intersects(UDP)) << 30
}
