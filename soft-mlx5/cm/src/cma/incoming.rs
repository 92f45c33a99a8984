//! Handling of the engines' events.

use std::net::{IpAddr, SocketAddr};

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::address::{AF_IB, SockaddrIb};
use uverbs_uapi::cm::connect::{ConnParam, Ece};
use uverbs_uapi::cm::event::{EventType, UdParam};
use uverbs_uapi::enums::QpType;
use zerocopy::FromBytes;

use super::id::Id;
use super::{Address, Cma, CmaError, CmaEvent, CmaId, CmaState, DeviceNumber, Interface, Payload};
use crate::ib_cm::{CmId, Event, Origin, Path};
use crate::mad::{
    CmaHdr, Rej, RejReason, Rep, Req, SidrRep, SidrReq, SidrStatus, TransportService,
};
use uverbs_soft_packet::Gid;

/// The fields of a request of either kind that rdma_cm uses.
struct Request<'a> {
    origin: &'a Origin,
    service_id: u64,
    qp_type: QpType,
    path: Path,
    /// Private data, including rdma_cm's header.
    private_data: &'a [u8],
    conn: ConnParam,
    vendor_id: u32,
}

impl Cma {
    pub(super) fn on_engine_event(
        &mut self,
        now: u64,
        device: DeviceNumber,
        cm: CmId,
        event: Event,
    ) {
        match event {
            Event::ReqReceived(origin, req) => {
                let request = Request::of_req(&origin, &req);
                self.on_request(now, device, cm, request);
            }
            Event::SidrReqReceived(origin, req) => {
                let request = Request::of_sidr(&origin, &req);
                self.on_request(now, device, cm, request);
            }
            event => {
                if let Some(id) = self.of_engine.get(&(device, cm)).copied() {
                    self.on_id_event(id, event);
                }
            }
        }
    }

    /// Creates an id for a request if another id listens to the requested address
    /// (`cma_ib_req_handler`).
    fn on_request(&mut self, now: u64, device: DeviceNumber, cm: CmId, request: Request<'_>) {
        let found = self.find_listener(device, &request);
        let Some((listener, addresses)) = found else {
            // The engine then refuses with "consumer defined".
            let _ = self.devices[device].engine.destroy(now, cm);
            return;
        };
        let Ok(entry) = self.id(listener) else { return };
        let (space, qp_type, tos) = (entry.space, entry.qp_type, entry.settings.tos);
        let psn = self.next_psn();
        let mut path = request.path;
        let peer = path.addressing.destination;
        let mac_of = self.devices[device].info.mac_of;
        path.addressing.destination_mac = mac_of.map_or([0; 6], |mac_of| mac_of(peer));
        let mut new = Id::new(space, qp_type, psn);
        new.settings.tos = tos;
        new.state = CmaState::Connect;
        (new.source, new.destination) = (Some(addresses.0), Some(addresses.1));
        new.at = Some(Interface { device, gid: request.path.addressing.source });
        // The kernel keeps no path of a request for a UD queue pair.
        new.path = (request.qp_type != QpType::UD).then_some(path);
        new.cm = Some(cm);
        let offset = new.private_offset();
        let id = self.insert(new);
        self.of_engine.insert((device, cm), id);
        let mut event = CmaEvent::new(id, EventType::CONNECT_REQUEST);
        event.listener = Some(listener);
        event.ece = Ece { vendor_id: request.vendor_id, attr_mod: request.origin.modifier };
        event.payload = request.payload(offset);
        self.events.push_back(event);
        self.send_mra(id);
    }

    /// The id that accepts a request, and the new id's addresses (`cma_find_listener`,
    /// `cma_save_net_info`).
    fn find_listener(
        &self,
        device: DeviceNumber,
        request: &Request<'_>,
    ) -> Option<(CmaId, (Address, Address))> {
        let header = request.header();
        let listening = self.listening.get(&(device, request.service_id))?;
        listening.ids.iter().find_map(|number| {
            let entry = self.ids.get(number).filter(|id| id.qp_type == request.qp_type)?;
            Some((*number, entry.addresses_of(request, header.as_ref())?))
        })
    }

    fn on_id_event(&mut self, id: CmaId, event: Event) {
        let Ok(entry) = self.id(id) else { return };
        let expected = match event {
            Event::TimewaitExit => CmaState::Disconnect,
            _ => CmaState::Connect,
        };
        if entry.state != expected {
            return;
        }
        match event {
            Event::ReqError | Event::RepError | Event::SidrReqError => {
                self.push_event(id, EventType::UNREACHABLE, -libc::ETIMEDOUT, Payload::None);
            }
            Event::RepReceived(modifier, rep) => self.on_reply(id, modifier, &rep),
            Event::RtuReceived(_) | Event::UserEstablished => {
                self.push_event(id, EventType::ESTABLISHED, 0, Payload::None);
            }
            Event::DreqReceived(_) | Event::DrepReceived(_) => self.on_disconnect(id, 0),
            Event::DreqError => self.on_disconnect(id, -libc::ETIMEDOUT),
            Event::TimewaitExit => self.push_event(id, EventType::TIMEWAIT_EXIT, 0, Payload::None),
            Event::RejReceived(rej) => self.on_reject(id, &rej),
            Event::SidrRepReceived(_, rep) => self.on_sidr_reply(id, &rep),
            Event::MraReceived(_) | Event::ReqReceived(..) | Event::SidrReqReceived(..) => {}
        }
    }

    fn push_event(&mut self, id: CmaId, event: EventType, status: i32, payload: Payload) {
        self.events.push_back(CmaEvent { status, payload, ..CmaEvent::new(id, event) });
    }

    fn on_disconnect(&mut self, id: CmaId, status: i32) {
        if self.advance(id, CmaState::Connect, CmaState::Disconnect).is_ok() {
            self.push_event(id, EventType::DISCONNECTED, status, Payload::None);
        }
    }

    fn on_reply(&mut self, id: CmaId, modifier: u32, rep: &Rep) {
        let mut conn = ConnParam {
            qp_num: rep.qpn(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control(),
            rnr_retry_count: rep.rnr_retry_count(),
            srq: rep.srq(),
            ..ConnParam::default()
        };
        fill(&mut conn.private_data, &mut conn.private_data_len, &rep.private_data);
        let ece = Ece { vendor_id: rep.vendor_id(), attr_mod: modifier };
        let payload = Payload::Conn(Box::new(conn));
        let event = CmaEvent::new(id, EventType::CONNECT_RESPONSE);
        self.events.push_back(CmaEvent { payload, ece, ..event });
        self.send_mra(id);
    }

    fn on_reject(&mut self, id: CmaId, rej: &Rej) {
        let mut conn = ConnParam::default();
        fill(&mut conn.private_data, &mut conn.private_data_len, &rej.private_data);
        let RejReason(reason) = rej.reason();
        self.push_event(id, EventType::REJECTED, reason.into(), Payload::Conn(Box::new(conn)));
    }

    /// `cma_sidr_rep_handler`.
    fn on_sidr_reply(&mut self, id: CmaId, rep: &SidrRep) {
        let mut ud = UdParam::default();
        fill(&mut ud.private_data, &mut ud.private_data_len, &rep.private_data);
        let status = rep.status();
        if status != SidrStatus::default() {
            let payload = Payload::Ud(Box::new(ud));
            return self.push_event(id, EventType::UNREACHABLE, i32::from(status.0), payload);
        }
        let Ok(CmaError(errno)) = self.take_qkey(id, rep.qkey.get()).map_or_else(Ok, Err) else {
            (ud.qp_num, ud.qkey) = (rep.qpn(), rep.qkey.get());
            ud.ah_attr = self.ah_attr_of(id).unwrap_or_default();
            return self.push_event(id, EventType::ESTABLISHED, 0, Payload::Ud(Box::new(ud)));
        };
        self.push_event(id, EventType::ADDR_ERROR, -errno, Payload::Ud(Box::new(ud)));
    }

    fn take_qkey(&mut self, id: CmaId, qkey: u32) -> Result<(), CmaError> {
        self.id_mut(id)?.choose_qkey(qkey)
    }
}

impl<'a> Request<'a> {
    fn of_req(origin: &'a Origin, req: &'a Req) -> Self {
        let conn = ConnParam {
            qp_num: req.qpn(),
            responder_resources: req.initiator_depth(),
            initiator_depth: req.responder_resources(),
            flow_control: req.flow_control(),
            retry_count: req.retry_count(),
            rnr_retry_count: req.rnr_retry_count(),
            srq: req.srq(),
            ..ConnParam::default()
        };
        let qp_type = match req.transport() {
            TransportService::Rc => QpType::RC,
            TransportService::Uc => QpType::UC,
            TransportService::Xrc => QpType::XRC_TGT,
            TransportService::Other => QpType::default(),
        };
        Self {
            origin,
            service_id: req.service_id.get(),
            qp_type,
            path: Path::of_request(&origin.addressing, req),
            private_data: &req.private_data,
            conn,
            vendor_id: req.vendor_id(),
        }
    }

    fn of_sidr(origin: &'a Origin, req: &'a SidrReq) -> Self {
        let addressing = origin.addressing.reply();
        Self {
            origin,
            service_id: req.service_id.get(),
            qp_type: QpType::UD,
            path: Path { addressing, pkey: req.pkey.get(), ..Path::default() },
            private_data: &req.private_data,
            conn: ConnParam::default(),
            vendor_id: 0,
        }
    }

    /// rdma_cm's header in the private data; `None` between InfiniBand addresses.
    fn header(&self) -> Option<CmaHdr> {
        let (header, _) = CmaHdr::read_from_prefix(self.private_data).ok()?;
        header.ip_version().map(|_| header)
    }

    fn payload(mut self, offset: usize) -> Payload {
        let data = &self.private_data[offset..];
        if self.qp_type == QpType::UD {
            let mut ud = UdParam::default();
            fill(&mut ud.private_data, &mut ud.private_data_len, data);
            return Payload::Ud(Box::new(ud));
        }
        fill(&mut self.conn.private_data, &mut self.conn.private_data_len, data);
        Payload::Conn(Box::new(self.conn))
    }
}

/// Copies a message's private data to an event, in the field's whole length.
fn fill(into: &mut [u8], len: &mut u8, data: &[u8]) {
    into[..data.len()].copy_from_slice(data);
    *len = data.len() as u8;
}

impl Id {
    /// Local and peer address of a request to this listener; `None` if the request is for another
    /// address.
    fn addresses_of(
        &self,
        request: &Request<'_>,
        header: Option<&CmaHdr>,
    ) -> Option<(Address, Address)> {
        let own = self.source?;
        match (own, header) {
            (Address::Ip(own), Some(header)) => {
                let (to, from) = (header.destination()?, header.source()?);
                let takes = self.takes(own.ip(), to);
                let port = request.service_id as u16;
                let scope = |ip| with_scope(ip, own);
                takes.then(|| {
                    let local = SocketAddr::new(to, port);
                    let remote = SocketAddr::new(from, header.port.get());
                    (Address::Ip(scope(local)), Address::Ip(scope(remote)))
                })
            }
            (Address::Ib(own), None) => Some(ib_addresses(&own, request)),
            _ => None,
        }
    }

    fn takes(&self, own: IpAddr, to: IpAddr) -> bool {
        let is_family = own.is_ipv4() == to.is_ipv4();
        let is_wildcard = own.is_unspecified() || super::is_any(own) && self.at.is_none();
        let is_both = own.is_ipv6() && !self.settings.family_only.unwrap_or(false);
        (is_wildcard && (is_family || is_both)) || own == to
    }
}

/// Sets the scope of a link-local address in a request to its listener's, because a request carries
/// none.
fn with_scope(address: SocketAddr, own: SocketAddr) -> SocketAddr {
    match (address, own) {
        (SocketAddr::V6(mut v6), SocketAddr::V6(own)) if v6.ip().is_unicast_link_local() => {
            v6.set_scope_id(own.scope_id());
            v6.into()
        }
        _ => address,
    }
}

fn ib_addresses(own: &SockaddrIb, request: &Request<'_>) -> (Address, Address) {
    let addressing = &request.path.addressing;
    let address = |gid: Gid, sid: u64| {
        Address::Ib(SockaddrIb {
            family: AF_IB,
            pkey: request.path.pkey.into(),
            addr: gid.0,
            sid: sid.into(),
            sid_mask: u64::MAX.into(),
            ..*own
        })
    };
    let unknown = u64::from(PortSpace::TCP.0) << 16;
    (address(addressing.source, request.service_id), address(addressing.destination, unknown))
}
