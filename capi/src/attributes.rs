//! Attributes of queue pairs and addresses, from C's structs to the library's and back.

use uverbs::qp::{
    AccessFlags, AckTimeout, AlternatePath, Capacities, MigrationState, QpAttrMask, QpAttributes,
    QpInfo, RnrTimer, State,
};
use uverbs::qp_type::QpType;
use uverbs::{AddressVector, Gid, GlobalRoute, Mtu};

use crate::abi::*;
use crate::fields::with_fields_of;
use crate::grown::grown;
use crate::query::{gid_bytes, words};

/// Bits of the mask for which the library has attributes.
const KNOWN: QpAttrMask = QpAttrMask::all().difference(QpAttrMask::CAP);

// Programs built before rate limits have a struct without that field. The mask is an argument of
// the verb.
grown! {
    ibv_qp_attr until rate_limit {
        QpAttrMask::RATE_LIMIT.bits() => rate_limit,
    }
}

const RAW: u32 = QpType::RawPacket as u32;
const XRC_SEND: u32 = QpType::XrcSend as u32;
const XRC_RECEIVE: u32 = QpType::XrcReceive as u32;

/// C's address as the library's struct.
pub(crate) fn address(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        port: attr.port_num,
        lid: attr.dlid,
        service_level: attr.sl,
        source_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        global: (attr.is_global != 0).then(|| GlobalRoute {
            destination: Gid(gid_bytes(attr.grh.dgid)),
            source_index: attr.grh.sgid_index,
            flow_label: attr.grh.flow_label,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        }),
    }
}

/// The library's address as C's struct.
pub(crate) fn c_address(address: &AddressVector) -> ibv_ah_attr {
    let route = address.global.unwrap_or_default();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: words(route.destination.0),
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        },
        dlid: address.lid,
        sl: address.service_level,
        src_path_bits: address.source_path_bits,
        static_rate: address.static_rate,
        is_global: address.global.is_some().into(),
        port_num: address.port,
    }
}

/// C's struct for capacities.
pub(crate) fn capacities(granted: Capacities) -> ibv_qp_cap {
    with_fields_of! {
        granted: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data;
        ibv_qp_cap {}
    }
}

fn state(code: u32) -> Option<State> {
    State::from_code(u8::try_from(code).ok()?)
}

/// The bits of `mask` that apply to a queue pair of type `kind`. For XRC, ib_uverbs drops the
/// others (`modify_qp_mask` of drivers/infiniband/core/uverbs_cmd.c), and programs rely on it.
pub(crate) fn of_type(kind: u32, mask: u32) -> u32 {
    let dropped = match kind {
        XRC_SEND => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        XRC_RECEIVE => QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY,
        _ => QpAttrMask::empty(),
    };
    mask & !dropped.bits()
}

/// Whether `mask` has bits that name no attribute.
pub(crate) fn are_unknown(mask: u32) -> bool {
    !KNOWN.union(QpAttrMask::CAP).contains(QpAttrMask::from_bits_retain(mask))
}

/// Whether `mask` names attributes that only InfiniBand ports have (alternate paths), or only
/// another type (rate limits). The kernel refuses them with EINVAL, not with EOPNOTSUPP.
pub(crate) fn fail_as_invalid(kind: u32, mask: u32) -> bool {
    let mask = QpAttrMask::from_bits_retain(mask);
    mask.contains(QpAttrMask::ALT_PATH) || mask.contains(QpAttrMask::RATE_LIMIT) && kind != RAW
}

/// The attributes that `mask` names; `None` for an unknown bit or an invalid value.
pub(crate) fn from_c(attr: &ibv_qp_attr, mask: u32) -> Option<QpAttributes> {
    let mask = QpAttrMask::from_bits_retain(mask);
    if !KNOWN.contains(mask) {
        return None;
    }
    let has = |bit| mask.contains(bit);
    let mut to = QpAttributes::default();
    if has(QpAttrMask::STATE) {
        to.state = Some(state(attr.qp_state)?);
    }
    if has(QpAttrMask::CUR_STATE) {
        to.current_state = Some(state(attr.cur_qp_state)?);
    }
    if has(QpAttrMask::PATH_MTU) {
        to.path_mtu = Some(Mtu::from_code(u8::try_from(attr.path_mtu).ok()?)?);
    }
    if has(QpAttrMask::PATH_MIG_STATE) {
        to.migration_state = Some(migration(attr.path_mig_state)?);
    }
    let given = |bit, value: u8| has(bit).then_some(value);
    to.drained_notify =
        given(QpAttrMask::EN_SQD_ASYNC_NOTIFY, attr.en_sqd_async_notify).map(|notify| notify != 0);
    to.access =
        has(QpAttrMask::ACCESS_FLAGS).then(|| AccessFlags::from_bits_retain(attr.qp_access_flags));
    to.pkey_index = has(QpAttrMask::PKEY_INDEX).then_some(attr.pkey_index);
    to.port = given(QpAttrMask::PORT, attr.port_num);
    to.qkey = has(QpAttrMask::QKEY).then_some(attr.qkey);
    to.address = has(QpAttrMask::AV).then(|| address(&attr.ah_attr));
    to.timeout = given(QpAttrMask::TIMEOUT, attr.timeout).map(AckTimeout::from_code);
    to.retry_count = given(QpAttrMask::RETRY_CNT, attr.retry_cnt);
    to.rnr_retry = given(QpAttrMask::RNR_RETRY, attr.rnr_retry);
    to.receive_psn = has(QpAttrMask::RQ_PSN).then_some(attr.rq_psn & 0xff_ffff);
    to.max_initiator_reads = given(QpAttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic);
    to.alternate_path = has(QpAttrMask::ALT_PATH).then(|| alternate(attr));
    to.min_rnr_timer =
        given(QpAttrMask::MIN_RNR_TIMER, attr.min_rnr_timer).map(RnrTimer::from_code);
    to.send_psn = has(QpAttrMask::SQ_PSN).then_some(attr.sq_psn & 0xff_ffff);
    to.max_responder_reads = given(QpAttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic);
    to.remote_qpn = has(QpAttrMask::DEST_QPN).then_some(attr.dest_qp_num);
    to.rate_limit = has(QpAttrMask::RATE_LIMIT).then_some(attr.rate_limit);
    Some(to)
}

fn migration(code: u32) -> Option<MigrationState> {
    Some(match code {
        0 => MigrationState::Migrated,
        1 => MigrationState::Rearm,
        2 => MigrationState::Armed,
        _ => return None,
    })
}

fn alternate(attr: &ibv_qp_attr) -> AlternatePath {
    AlternatePath {
        address: AddressVector { port: attr.alt_port_num, ..address(&attr.alt_ah_attr) },
        pkey_index: attr.alt_pkey_index,
        timeout: AckTimeout::from_code(attr.alt_timeout),
    }
}

/// C's struct for the result of a query.
pub(crate) fn to_c(info: &QpInfo, cap: ibv_qp_cap) -> ibv_qp_attr {
    let alternate = info.alternate_path;
    ibv_qp_attr {
        qp_state: info.state as u32,
        cur_qp_state: info.state as u32,
        path_mtu: info.path_mtu.map_or(0, |mtu| mtu as u32),
        path_mig_state: info.migration_state as u32,
        qkey: info.qkey,
        rq_psn: info.receive_psn,
        sq_psn: info.send_psn,
        dest_qp_num: info.remote_qpn,
        qp_access_flags: info.access.bits(),
        cap,
        ah_attr: c_address(&info.address),
        alt_ah_attr: c_address(&alternate.map_or(AddressVector::default(), |path| path.address)),
        pkey_index: info.pkey_index,
        alt_pkey_index: alternate.map_or(0, |path| path.pkey_index),
        en_sqd_async_notify: 0,
        sq_draining: info.draining.into(),
        max_rd_atomic: info.max_initiator_reads,
        max_dest_rd_atomic: info.max_responder_reads,
        min_rnr_timer: info.min_rnr_timer.code(),
        port_num: info.port,
        timeout: info.timeout.code(),
        retry_cnt: info.retry_count,
        rnr_retry: info.rnr_retry,
        alt_port_num: alternate.map_or(0, |path| path.address.port),
        alt_timeout: alternate.map_or(0, |path| path.timeout.code()),
        rate_limit: 0,
    }
}
