//! The user's calls to connect, accept, refuse and disconnect.

use uverbs_uapi::cm::connect::{ConnParam, Ece};
use uverbs_uapi::enums::{EventType as QpEvent, QpType};

use super::id::Id;
use super::{Addresses, Cma, CmaError, CmaId, CmaState, Device};
use crate::ib_cm::{self, CmId, MraTiming, Path, RepParam, ReqParam, SidrRepParam, SidrReqParam};
use crate::mad::{CmaHdr, RejReason, SidrStatus, TransportService};
use zerocopy::IntoBytes;

/// The time that each side may take to answer, as a code (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;
/// Retries of a message (`CMA_MAX_CM_RETRIES`).
const MAX_RETRIES: u8 = 15;
/// Service timeout of MRA as a code (`CMA_CM_MRA_SETTING`).
const MRA_TIMEOUT: u8 = 24;
/// Period of resolution requests in nanoseconds: `1 << (CMA_CM_RESPONSE_TIMEOUT - 8)` ms.
const SIDR_PERIOD: u64 = 4096 * 1_000_000;
/// Q_Key of UD over IP (`RDMA_UDP_QKEY`).
pub(super) const UDP_QKEY: u32 = 0x0123_4567;

/// The user's private data, cut to its given length.
fn private_data(param: &ConnParam) -> &[u8] {
    &param.private_data[..usize::from(param.private_data_len)]
}

fn options(ece: Ece) -> ib_cm::Ece {
    ib_cm::Ece { vendor_id: ece.vendor_id, attr_mod: ece.attr_mod }
}

impl Cma {
    /// Requests a connection, or the peer's UD queue pair. The result is an event:
    /// CONNECT_RESPONSE, ESTABLISHED, REJECTED or UNREACHABLE.
    ///
    /// # Errors
    /// EINVAL unless the route is resolved, and for more private data than the message holds; the
    /// id is then unchanged. For a wildcard address, errors of [`Addresses::route`]: the route is
    /// looked up again, since the listener may have moved to another device.
    pub fn connect(
        &mut self,
        now: u64,
        id: CmaId,
        param: &ConnParam,
        ece: Ece,
        addresses: &dyn Addresses,
    ) -> Result<(), CmaError> {
        self.advance(id, CmaState::RouteResolved, CmaState::Connect)?;
        let sent =
            self.route_anew(id, addresses).and_then(|()| self.send_request(now, id, param, ece));
        sent.inspect_err(|_| {
            let _ = self.advance(id, CmaState::Connect, CmaState::RouteResolved);
        })
    }

    fn send_request(
        &mut self,
        now: u64,
        id: CmaId,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<(), CmaError> {
        let entry = self.id(id)?;
        let (at, path) = entry.at.zip(entry.path).ok_or(CmaError::INVALID)?;
        let destination = entry.destination.ok_or(CmaError::INVALID)?;
        let (service_id, data) = (destination.service_id(entry.space), entry.request_data(param)?);
        let (transport, psn, is_ud) = (transport_of(entry.qp_type), entry.psn, entry.is_ud());
        let engine = &mut self.devices[at.device].engine;
        let cm = engine.create();
        let sent = if is_ud {
            let request = SidrReqParam {
                service_id,
                path,
                timeout: SIDR_PERIOD,
                max_cm_retries: MAX_RETRIES,
                private_data: &data,
            };
            engine.send_sidr_req(now, cm, &request)
        } else {
            let request = ReqParam {
                starting_psn: psn,
                ..request(param, service_id, path, transport, options(ece), &data)
            };
            engine.send_req(now, cm, &request)
        };
        if let Err(error) = sent {
            let _ = engine.forget(cm);
            return Err(error.into());
        }
        self.id_mut(id)?.cm = Some(cm);
        self.of_engine.insert((at.device, cm), id);
        Ok(())
    }

    /// Accepts a connection. On the passive side `param` is given, and ESTABLISHED follows when the
    /// peer confirms. On the active side there is no `param`, and the connection is established at
    /// once.
    ///
    /// # Errors
    /// EINVAL unless a request or a reply has arrived, or for more private data than the message
    /// holds. Then the peer is refused, and the id cannot be used any more.
    pub fn accept(
        &mut self,
        now: u64,
        id: CmaId,
        param: Option<&ConnParam>,
        ece: Ece,
    ) -> Result<(), CmaError> {
        if self.id(id)?.state != CmaState::Connect {
            return Err(CmaError::INVALID);
        }
        let accepted = match (self.id(id)?.is_ud(), param) {
            (true, param) => self.send_sidr_answer(id, param, ece),
            (false, Some(param)) => self.send_reply(now, id, param, ece),
            (false, None) => self.with_engine(id, |device, cm| device.engine.send_rtu(cm, &[])),
        };
        accepted.inspect_err(|_| {
            let _ = self.reject(now, id, RejReason::CONSUMER_DEFINED.0 as u8, &[]);
        })
    }

    fn send_reply(
        &mut self,
        now: u64,
        id: CmaId,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<(), CmaError> {
        let reply = RepParam {
            qpn: param.qp_num,
            starting_psn: self.id(id)?.psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            failover_accepted: 0,
            flow_control: param.flow_control != 0,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq != 0,
            ece: options(ece),
            private_data: private_data(param),
        };
        self.with_engine(id, |device, cm| device.engine.send_rep(now, cm, &reply))
    }

    fn send_sidr_answer(
        &mut self,
        id: CmaId,
        param: Option<&ConnParam>,
        ece: Ece,
    ) -> Result<(), CmaError> {
        let entry = self.id_mut(id)?;
        let own = match (entry.source, param) {
            (Some(super::Address::Ib(_)), Some(param)) => param.qkey,
            _ => 0,
        };
        entry.choose_qkey(own)?;
        let qkey = entry.qkey;
        let reply = SidrRepParam {
            status: SidrStatus::default(),
            qpn: param.map_or(0, |param| param.qp_num),
            qkey,
            ece: options(ece),
            private_data: param.map_or(&[], private_data),
            ..SidrRepParam::default()
        };
        self.with_engine(id, |device, cm| device.engine.send_sidr_rep(cm, &reply))
    }

    /// Refuses a request or a reply.
    ///
    /// # Errors
    /// EINVAL if no message waits for an answer, or for too much private data.
    pub fn reject(&mut self, now: u64, id: CmaId, reason: u8, data: &[u8]) -> Result<(), CmaError> {
        if self.id(id)?.is_ud() {
            let reply = SidrRepParam {
                status: SidrStatus::REJECT,
                private_data: data,
                ..SidrRepParam::default()
            };
            return self.with_engine(id, |device, cm| device.engine.send_sidr_rep(cm, &reply));
        }
        let reason = RejReason(reason.into());
        self.with_engine(id, |device, cm| device.engine.send_rej(now, cm, reason, &[], data))
    }

    /// Disconnects, or answers the peer's disconnect. Without a connection this has no effect.
    ///
    /// # Errors
    /// EINVAL if the id never sent or received a request and does not listen on one device.
    pub fn disconnect(&mut self, now: u64, id: CmaId) -> Result<(), CmaError> {
        if self.id(id)?.is_device_listener() {
            return Ok(());
        }
        self.with_engine(id, |device, cm| {
            let engine = &mut device.engine;
            let _ = engine.send_dreq(now, cm, &[]).or_else(|_| engine.send_drep(now, cm, &[]));
            Ok(())
        })
    }

    /// Reports a queue pair's event. COMM_EST establishes a connection whose RTU has not arrived.
    /// PATH_MIG has no effect, because there is no alternate path.
    ///
    /// # Errors
    /// EISCONN if it is established already, EINVAL for other states and events.
    pub fn notify(&mut self, now: u64, id: CmaId, event: QpEvent) -> Result<(), CmaError> {
        self.with_engine(id, |device, cm| match event {
            QpEvent::COMM_EST => device.engine.establish(cm),
            QpEvent::PATH_MIG => match device.engine.state(cm) {
                Some(ib_cm::State::Established) => Ok(()),
                state => Err(ib_cm::CmError::State(state.unwrap_or_default())),
            },
            _ => Err(ib_cm::CmError::Transport),
        })?;
        self.take_engine_events(now);
        Ok(())
    }

    /// Makes the engine answer retries of the peer's message with an MRA (`ib_send_cm_mra`).
    pub(super) fn send_mra(&mut self, id: CmaId) {
        // Fails in states in which no message of the peer waits for an answer.
        let _ = self.with_engine(id, |device, cm| {
            device.engine.send_mra(cm, MRA_TIMEOUT, MraTiming::OnDuplicate, &[])
        });
    }

    fn with_engine(
        &mut self,
        id: CmaId,
        act: impl FnOnce(&mut Device, CmId) -> Result<(), ib_cm::CmError>,
    ) -> Result<(), CmaError> {
        let (device, cm) = self.id(id)?.engine_id().ok_or(CmaError::INVALID)?;
        Ok(act(&mut self.devices[device], cm)?)
    }
}

fn transport_of(qp_type: QpType) -> TransportService {
    match qp_type {
        QpType::RC => TransportService::Rc,
        QpType::UC => TransportService::Uc,
        QpType::XRC_INI | QpType::XRC_TGT => TransportService::Xrc,
        _ => TransportService::Other,
    }
}

fn request<'a>(
    param: &ConnParam,
    service_id: u64,
    path: Path,
    transport: TransportService,
    ece: ib_cm::Ece,
    data: &'a [u8],
) -> ReqParam<'a> {
    ReqParam {
        service_id,
        path,
        transport,
        qpn: param.qp_num,
        starting_psn: 0,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        max_cm_retries: MAX_RETRIES,
        srq: param.srq != 0,
        ece,
        private_data: data,
    }
}

impl Id {
    /// rdma_cm's header with the addresses, followed by the user's private data.
    fn request_data(&self, param: &ConnParam) -> Result<Vec<u8>, CmaError> {
        let mut data = Vec::new();
        if let (Some(source), Some(destination)) = (
            self.source.and_then(|source| source.ip()),
            self.destination.and_then(|destination| destination.ip()),
        ) {
            let header = CmaHdr::new(source.ip(), source.port(), destination.ip());
            data.extend_from_slice(header.ok_or(CmaError::INVALID)?.as_bytes());
        }
        data.extend_from_slice(private_data(param));
        Ok(data)
    }

    /// Sets the Q_Key to `qkey`, or for 0 to the port space's default (`cma_set_qkey`).
    ///
    /// # Errors
    /// EINVAL if a different Q_Key was set before.
    pub(super) fn choose_qkey(&mut self, qkey: u32) -> Result<(), CmaError> {
        let wanted = match (qkey, self.qkey) {
            (0, 0) => UDP_QKEY,
            (0, known) => known,
            (qkey, 0) => qkey,
            (qkey, known) if qkey == known => qkey,
            _ => return Err(CmaError::INVALID),
        };
        self.qkey = wanted;
        Ok(())
    }
}
