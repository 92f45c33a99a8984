//! Queue pair attributes for each state from the connection manager (`INIT_QP_ATTR`), and the
//! changes of state that use them.

use uverbs_mlx5::mmio::Register;
use uverbs_uapi::cm::connect::{ConnParam, InitQpAttr};
use uverbs_uapi::write::qp::QpAttr;

use super::address::address_vector;
use super::id::Id;
use super::params::{QpOptions, Reads};
use super::private_data::RejectData;
use super::refusal::perhaps_ended;
use crate::cq::CqHandle;
use crate::device::address::Mtu;
use crate::device::layer::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::pd::ProtectionDomain;
use crate::qp::builder::QpBuilder;
use crate::qp::qp_type::Ud;
use crate::qp::{
    AckTimeout, Connected, QpAttrMask, QpAttributes, QueuePair, QueuePairType, RnrTimer, State,
};

const VERB: &str = "init_qp_attr";

impl Id {
    /// The connection manager's attributes with which a queue pair of this id moves to `state`:
    /// INIT, RTR or RTS. [`Id::establish`] and
    /// [`ConnectionRequest::accept`](super::ConnectionRequest::accept) make these changes
    /// themselves.
    ///
    /// # Errors
    /// EINVAL if the id's own state does not allow `state` yet; `BadState` if the kernel answers
    /// with the attributes of INIT instead.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn qp_attributes(&self, state: State) -> Result<QpAttributes> {
        let qp_state = state as u32;
        let found = self.handle().ask(VERB, |id| InitQpAttr { response: 0, id, qp_state })?;
        let is_early = state == State::Rtr && !found.qp_attr_mask.contains(QpAttrMask::AV);
        if is_early && !self.key().is_datagram() {
            let cause = "the id is not connected yet";
            return Err(Error::new(VERB, ErrorKind::BadState, cause));
        }
        Ok(attributes(state, &found))
    }

    /// Starts building a queue pair for this id, on its port and with the connection manager's
    /// path. A queue pair of [`ProtectionDomain::create_qp`] works too, but makes two more system
    /// calls to query the port.
    ///
    /// # Errors
    /// As [`Id::device_port`].
    #[doc(alias = "rdma_create_qp")]
    pub fn create_qp<T: QueuePairType, L: Layer>(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CqHandle<L>,
        receive_cq: &CqHandle<L>,
    ) -> Result<QpBuilder<T, L>> {
        let port = self.device_port()?;
        Ok(QpBuilder::new(pd, send_cq, receive_cq).port(port).given_path())
    }

    /// Moves a queue pair of a connection to INIT, with the port and partition of the id.
    ///
    /// # Errors
    /// As [`Id::qp_attributes`] and [`QueuePair::modify`].
    pub fn to_init<T: Connected, L: Layer, R: Register>(
        &self,
        qp: &mut QueuePair<T, L, R>,
        options: &QpOptions,
    ) -> Result<()> {
        let init = self.qp_attributes(State::Init)?;
        qp.modify(&QpAttributes { access: Some(options.access), ..init })
    }

    /// Moves a queue pair from RESET or INIT to RTS with the negotiated attributes. `reads`
    /// replaces their limits of READs and atomics.
    pub(super) fn to_rts<T: Connected, L: Layer, R: Register>(
        &self,
        qp: &mut QueuePair<T, L, R>,
        options: &QpOptions,
        reads: Option<Reads>,
    ) -> Result<()> {
        self.to_init(qp, options)?;
        let mut rtr = self.qp_attributes(State::Rtr)?;
        rtr.min_rnr_timer = rtr.min_rnr_timer.map(|_| options.min_rnr_timer);
        let mut rts = self.qp_attributes(State::Rts)?;
        rts.timeout = rts.timeout.map(|theirs| options.timeout.unwrap_or(theirs));
        if let Some(Reads { responder, initiator }) = reads {
            rtr.max_responder_reads = rtr.max_responder_reads.map(|_| responder);
            rts.max_initiator_reads = rts.max_initiator_reads.map(|_| initiator);
        }
        qp.modify(&rtr)?;
        qp.modify(&rts)
    }

    /// Establishes the connection on the connecting side, after
    /// [`ConnectResponse`](super::EventKind::ConnectResponse): moves the queue pair to RTS and
    /// confirms to the peer. On failure it rejects the connection.
    ///
    /// # Errors
    /// As [`Id::qp_attributes`] and [`QueuePair::modify`]; EINVAL if there is no response;
    /// ETIMEDOUT if the peer has ended.
    #[doc(alias = "rdma_establish")]
    pub fn establish<T: Connected, L: Layer, R: Register>(
        &self,
        qp: &mut QueuePair<T, L, R>,
        options: &QpOptions,
    ) -> Result<()> {
        let established =
            self.to_rts(qp, options, None).and_then(|()| self.accept(ConnParam::default(), None));
        established.map_err(perhaps_ended).inspect_err(|_| {
            let told = self.reject(Default::default(), &RejectData::EMPTY);
            tracing::debug!(?told, "the peer is told that there is no connection");
        })
    }

    /// Moves a datagram queue pair from RESET or INIT to RTS, with the port, partition and Q_Key of
    /// the id.
    ///
    /// # Errors
    /// As [`Id::qp_attributes`] and [`QueuePair::modify`].
    pub fn activate<L: Layer, R: Register>(&self, qp: &mut QueuePair<Ud, L, R>) -> Result<()> {
        qp.modify(&self.qp_attributes(State::Init)?)?;
        qp.modify(&QpAttributes::to(State::Rtr))?;
        qp.modify(&QpAttributes::to(State::Rts).send_psn(0))
    }
}

/// Converts the attributes in the kernel's mask.
fn attributes(state: State, found: &QpAttr) -> QpAttributes {
    let has = |bit: QpAttrMask| found.qp_attr_mask.contains(bit);
    let mut to = QpAttributes::to(state);
    to.access = has(QpAttrMask::ACCESS_FLAGS).then_some(found.qp_access_flags);
    to.pkey_index = has(QpAttrMask::PKEY_INDEX).then_some(found.pkey_index);
    to.port = has(QpAttrMask::PORT).then_some(found.port_num);
    to.qkey = has(QpAttrMask::QKEY).then_some(found.qkey);
    to.address = has(QpAttrMask::AV).then(|| address_vector(&found.ah_attr));
    to.path_mtu = has(QpAttrMask::PATH_MTU).then(|| Mtu::from_code(found.path_mtu as u8)).flatten();
    to.timeout = has(QpAttrMask::TIMEOUT).then(|| AckTimeout::from_code(found.timeout));
    to.retry_count = has(QpAttrMask::RETRY_CNT).then_some(found.retry_cnt);
    to.rnr_retry = has(QpAttrMask::RNR_RETRY).then_some(found.rnr_retry);
    to.receive_psn = has(QpAttrMask::RQ_PSN).then_some(found.rq_psn);
    to.send_psn = has(QpAttrMask::SQ_PSN).then_some(found.sq_psn);
    to.max_initiator_reads = has(QpAttrMask::MAX_QP_RD_ATOMIC).then_some(found.max_rd_atomic);
    to.max_responder_reads =
        has(QpAttrMask::MAX_DEST_RD_ATOMIC).then_some(found.max_dest_rd_atomic);
    to.min_rnr_timer =
        has(QpAttrMask::MIN_RNR_TIMER).then(|| RnrTimer::from_code(found.min_rnr_timer));
    to.remote_qpn = has(QpAttrMask::DEST_QPN).then_some(found.dest_qp_num);
    to
}
