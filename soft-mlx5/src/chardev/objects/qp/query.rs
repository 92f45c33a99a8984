//! QUERY_QP.
//! Kernel: `ib_uverbs_query_qp`, `mlx5_ib_query_qp`, `query_qp_attr`.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::enums::{MigState, Mtu as UserMtu, QpState as UserQpState};
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::write::qp::{QpDest, QueryQp, QueryQpResp};

use super::target;
use super::transitions::state;
use crate::chardev::abi::call::Call;
use crate::chardev::objects::object::Kind;
use crate::chardev::objects::qp::{Qp, Remembered};
use crate::core::{AddressPath, MigrationState, QpInfo, QpState, QpType, RemoteRights};

/// `IB_USER_VERBS_CMD_QUERY_QP`. The mask is ignored: the response has all attributes.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let request: QueryQp = call.request()?;
    let qp = call.object(Kind::Qp, request.qp_handle)?.qp()?;
    if qp.spreads {
        // `mlx5_ib_query_qp`.
        return Err(Errno::ENOSYS);
    }
    if qp.qp_type == QpType::DcTarget {
        let response = target::query(call, qp, request.attr_mask)?;
        return call.response(&response);
    }
    let info = call.file.device.core(|core| core.query_qp(qp.qpn))?;
    let number = state_number(info.state);
    // A query updates the state that the driver remembers.
    qp.driver.set(Remembered { state: number, ..qp.driver.get() });
    let global = call.file.device.options().is_roce();
    let response = response(qp, &info, number, global);
    call.response(&response)
}

/// If only the port is set, the path has no destination, but is `global` on RoCE.
fn response(qp: &Qp, info: &QpInfo, number: u8, global: bool) -> QueryQpResp {
    let attributes = &info.attributes;
    let nowhere = AddressPath { port: qp.driver.get().port, global, ..AddressPath::default() };
    let path = attributes.path.filter(|path| path.port != 0).unwrap_or(nowhere);
    let alternate = attributes.alternate_path.unwrap_or_default();
    let connected = !matches!(qp.qp_type, QpType::Ud | QpType::RawPacket | QpType::DcInitiator);
    let dest = |path: &AddressPath| if connected { destination(path) } else { QpDest::default() };
    QueryQpResp {
        dest: dest(&path),
        alt_dest: dest(&alternate),
        max_recv_wr: qp.receives.0,
        max_recv_sge: qp.receives.1,
        qkey: attributes.qkey.unwrap_or(0),
        rq_psn: attributes.receive_psn.unwrap_or(0),
        sq_psn: attributes.send_psn.unwrap_or(0),
        dest_qp_num: attributes.destination_qpn.unwrap_or(0),
        qp_access_flags: access(attributes.remote_rights.unwrap_or_default()),
        pkey_index: attributes.pkey_index.unwrap_or(0),
        alt_pkey_index: if connected { alternate.pkey_index } else { 0 },
        qp_state: UserQpState(number),
        cur_qp_state: UserQpState(number),
        path_mtu: UserMtu(attributes.mtu.map_or(0, |mtu| mtu.code())),
        path_mig_state: migration(attributes.migration.unwrap_or_default()),
        sq_draining: info.draining.into(),
        // The device stores both depths as logarithms, so the smallest is 1.
        max_rd_atomic: attributes.max_read_atomic.unwrap_or(0).max(1),
        max_dest_rd_atomic: attributes.max_destination_read_atomic.unwrap_or(0).max(1),
        min_rnr_timer: attributes.min_rnr_timer.unwrap_or(0),
        port_num: qp.driver.get().port,
        timeout: attributes.ack_timeout.unwrap_or(0),
        retry_cnt: attributes.retry_count.unwrap_or(0),
        rnr_retry: attributes.rnr_retry.unwrap_or(0),
        alt_port_num: if connected { alternate.port } else { 0 },
        alt_timeout: alternate.ack_timeout,
        sq_sig_all: qp.signal_all.into(),
        ..QueryQpResp::default()
    }
}

/// `to_rdma_ah_attr`: all zero until a port is set.
fn destination(path: &AddressPath) -> QpDest {
    if path.port == 0 {
        return QpDest::default();
    }
    let mut dest = QpDest {
        dlid: path.destination_lid,
        sl: path.service_level,
        src_path_bits: path.source_path_bits,
        static_rate: path.static_rate,
        is_global: path.global.into(),
        port_num: path.port,
        ..QpDest::default()
    };
    if path.global {
        dest.dgid = path.destination_gid.0;
        dest.flow_label = path.flow_label;
        dest.sgid_index = path.source_gid_index;
        dest.hop_limit = path.hop_limit;
        dest.traffic_class = path.traffic_class;
    }
    dest
}

pub(super) fn access(rights: RemoteRights) -> AccessFlags {
    let mut access = AccessFlags::empty();
    access.set(AccessFlags::REMOTE_READ, rights.contains(RemoteRights::READ));
    access.set(AccessFlags::REMOTE_WRITE, rights.contains(RemoteRights::WRITE));
    access.set(AccessFlags::REMOTE_ATOMIC, rights.contains(RemoteRights::ATOMIC));
    access
}

/// `enum ib_mig_state`.
fn migration(state: MigrationState) -> MigState {
    MigState(match state {
        MigrationState::Migrated => 0,
        MigrationState::Rearm => 1,
        MigrationState::Armed => 2,
    })
}

/// `enum ib_qp_state`.
pub(crate) fn state_number(core: QpState) -> u8 {
    match core {
        QpState::Reset => state::RESET,
        QpState::Init => state::INIT,
        QpState::ReadyToReceive => state::RTR,
        QpState::ReadyToSend => state::RTS,
        QpState::SendQueueDrain => state::SQD,
        QpState::SendQueueError => state::SQE,
        QpState::Error => state::ERR,
    }
}
