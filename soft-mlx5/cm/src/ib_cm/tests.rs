mod lost;

use zerocopy::IntoBytes;

use super::*;
use crate::mad::{CmaHdr, GSI_QKEY, SidrStatus, TransportService};
use crate::tests::{Recorded, two_kernels};
use uverbs_soft_packet::prng::Prng;

const CLIENT_GUID: u64 = 0x0000_7fff_fe12_0003;
const SERVER_GUID: u64 = 0x0000_7fff_fe12_0002;
const RPING: u64 = 0x0106_1c06;
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([10, 9, 0, last].into())
}

fn path() -> Path {
    let mut addressing = Addressing::roce(gid(2), gid(1));
    addressing.flow_label = 0x76fa4;
    Path { addressing, pkey: 0xffff, mtu: 3, rate: 0, life: 16 }
}

/// The request that rdma_cm sends for rping.
fn request(private_data: &[u8]) -> ReqParam<'_> {
    ReqParam {
        service_id: RPING,
        path: path(),
        transport: TransportService::Rc,
        qpn: 0x4f,
        starting_psn: 0xfc1026,
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        ece: Ece { vendor_id: 0x15b3, attr_mod: 0 },
        private_data,
    }
}

fn acceptance() -> RepParam<'static> {
    RepParam {
        qpn: 0x4d,
        starting_psn: 0x546629,
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        ece: Ece { vendor_id: 0x15b3, attr_mod: 0 },
        ..RepParam::default()
    }
}

/// An engine whose first communication id is that of a recorded kernel.
fn engine(node_guid: u64, first: u32) -> IbCm {
    let mut cm =
        IbCm::new(IbCmConfig { node_guid, ack_delay: 16, seed: Some(1), ..Default::default() });
    (cm.operand, cm.agent) = (first, 2);
    cm
}

/// A client at 10.9.0.2 and a server at 10.9.0.1, which listens.
struct Pair {
    client: IbCm,
    server: IbCm,
    listener: CmId,
    now: u64,
}

impl Pair {
    fn new() -> Self {
        // In the recordings, an id was created before the listener.
        let (client, mut server) =
            (engine(CLIENT_GUID, 0x54d8_dda3), engine(SERVER_GUID, 0x6820_1ced));
        server.next = 1000;
        let listener = server.create();
        server.next = 0;
        server.listen(listener, RPING, 0).unwrap();
        Self { client, server, listener, now: 0 }
    }

    /// Delivers the client's datagrams to the server, and counts them.
    fn deliver_to_server(&mut self) -> usize {
        carry(&mut self.client, &mut self.server, self.now)
    }

    fn deliver_to_client(&mut self) -> usize {
        carry(&mut self.server, &mut self.client, self.now)
    }

    /// A request that has arrived: its id at the client and at the server.
    fn request(&mut self, param: &ReqParam) -> (CmId, CmId) {
        let id = self.client.create();
        self.client.send_req(self.now, id, param).unwrap();
        self.deliver_to_server();
        let (server, event) = self.server.take_event().unwrap();
        assert!(matches!(event, Event::ReqReceived(origin, _) if origin.listener == self.listener));
        (id, server)
    }

    fn connect(&mut self) -> (CmId, CmId) {
        let (id, server) = self.request(&request(&[]));
        self.server.send_rep(self.now, server, &acceptance()).unwrap();
        self.deliver_to_client();
        assert!(matches!(self.client.take_event(), Some((_, Event::RepReceived(..)))));
        self.client.send_rtu(id, &[]).unwrap();
        self.deliver_to_server();
        assert!(matches!(self.server.take_event(), Some((_, Event::RtuReceived(_)))));
        (id, server)
    }
}

fn carry(from: &mut IbCm, to: &mut IbCm, now: u64) -> usize {
    let mads: Vec<Outgoing> = std::iter::from_fn(|| from.take_mad()).collect();
    mads.iter().for_each(|out| to.receive(now, &out.addressing, out.mad.as_bytes()));
    mads.len()
}

fn sends(cm: &mut IbCm, recorded: &Recorded) {
    let out = cm.take_mad().expect("a datagram");
    assert_eq!(out.mad.as_bytes(), recorded.bytes, "{:?}", out.mad.attribute());
    assert_eq!(out.addressing.source, gid(recorded.sender));
}

fn event_of(cm: &mut IbCm, now: u64, recorded: &Recorded) -> Event {
    let other = 3 - recorded.sender;
    let addressing = Addressing::roce(gid(recorded.sender), gid(other));
    cm.receive(now, &addressing, &recorded.bytes);
    cm.take_event().expect("an event").1
}

#[test]
fn a_recorded_connection_of_two_kernels_is_reproduced_exactly() {
    let recorded = two_kernels();
    let mut pair = Pair::new();
    let header = CmaHdr::new([10, 9, 0, 2].into(), 0xc0a2, [10, 9, 0, 1].into()).unwrap();
    let mut data = header.as_bytes().to_vec();
    data.resize(92, 0);
    let (client, server) = (pair.client.create(), CmId(0));

    pair.client.send_req(0, client, &request(&data)).unwrap();
    sends(&mut pair.client, &recorded[2]);
    assert!(matches!(event_of(&mut pair.server, 0, &recorded[2]), Event::ReqReceived(..)));
    pair.server.send_mra(server, 24, MraTiming::OnDuplicate, &[]).unwrap();
    pair.server.send_rep(0, server, &acceptance()).unwrap();
    sends(&mut pair.server, &recorded[3]);
    assert!(matches!(event_of(&mut pair.client, 0, &recorded[3]), Event::RepReceived(0, _)));
    pair.client.send_rtu(client, &[]).unwrap();
    sends(&mut pair.client, &recorded[4]);
    assert!(matches!(event_of(&mut pair.server, 0, &recorded[4]), Event::RtuReceived(_)));
    pair.client.send_dreq(0, client, &[]).unwrap();
    sends(&mut pair.client, &recorded[5]);
    assert!(matches!(event_of(&mut pair.server, 0, &recorded[5]), Event::DreqReceived(_)));
    pair.server.send_drep(0, server, &[]).unwrap();
    sends(&mut pair.server, &recorded[6]);
    assert!(matches!(event_of(&mut pair.client, 0, &recorded[6]), Event::DrepReceived(_)));
    assert_eq!(GSI_QKEY, 0x8001_0000);
}

/// The kernel cannot answer from a multicast GID (`ib_init_ah_attr_from_wc` in
/// drivers/infiniband/core/verbs.c), and drops the request before it looks for a listener.
#[test]
fn a_request_to_a_group_is_dropped() {
    let group = Gid::from_ipv4([239, 1, 1, 1].into());
    let mut pair = Pair::new();
    let mut param = request(&[]);
    param.path.addressing.destination = group;
    for service_id in [RPING, RPING + 1] {
        let id = pair.client.create();
        pair.client.send_req(0, id, &ReqParam { service_id, ..param }).unwrap();
        assert_eq!(pair.deliver_to_server(), 1);
        let resolution = SidrReqParam {
            service_id,
            path: param.path,
            timeout: SECOND,
            max_cm_retries: 1,
            private_data: &[],
        };
        let id = pair.client.create();
        pair.client.send_sidr_req(0, id, &resolution).unwrap();
        assert_eq!(pair.deliver_to_server(), 1);
        assert!(pair.server.take_event().is_none());
        assert_eq!(pair.deliver_to_client(), 0, "no answer");
    }
}

#[test]
fn a_recorded_refusal_and_resolution_are_reproduced_exactly() {
    let recorded = two_kernels();
    let mut server = engine(SERVER_GUID, 1);
    server.receive(0, &Addressing::roce(gid(2), gid(1)), &recorded[0].bytes);
    sends(&mut server, &recorded[1]);
    assert!(server.take_event().is_none() && server.id_count() == 0);

    let mut client = engine(CLIENT_GUID, 0x55d8_dda3);
    let id = client.create();
    client.send_req(0, id, &request(&[])).unwrap();
    let Event::RejReceived(rej) = event_of(&mut client, 0, &recorded[1]) else { panic!() };
    assert_eq!(rej.reason(), RejReason::INVALID_SERVICE_ID);
    assert_eq!(client.state(id), Some(State::Idle));

    let (mut client, mut server) = (engine(CLIENT_GUID, 0x56d8_dda3), engine(SERVER_GUID, 7));
    let (id, listener) = (client.create(), server.create());
    server.listen(listener, 0x0111_1c06, 0).unwrap();
    let data = recorded[12].mad().body::<SidrReq>().unwrap().private_data;
    let (path, timeout) = (path(), 4096 * MILLISECOND);
    let param = SidrReqParam {
        service_id: 0x0111_1c06,
        path,
        timeout,
        max_cm_retries: 15,
        private_data: &data,
    };
    client.send_sidr_req(0, id, &param).unwrap();
    sends(&mut client, &recorded[12]);
    assert!(matches!(event_of(&mut server, 0, &recorded[12]), Event::SidrReqReceived(..)));
    let rep = SidrRepParam { qpn: 0x50, qkey: 0x0123_4567, ..SidrRepParam::default() };
    server.send_sidr_rep(CmId(1), &rep).unwrap();
    sends(&mut server, &recorded[13]);
    let Event::SidrRepReceived(_, rep) = event_of(&mut client, 0, &recorded[13]) else { panic!() };
    assert_eq!((rep.status(), rep.qpn(), rep.qkey.get()), (SidrStatus::SUCCESS, 0x50, 0x0123_4567));
}

#[test]
fn queue_pairs_get_the_negotiated_attributes() {
    let mut pair = Pair::new();
    let id = pair.client.create();
    let param = ReqParam {
        responder_resources: 5,
        initiator_depth: 3,
        retry_count: 6,
        rnr_retry_count: 5,
        ..request(&[])
    };
    assert_eq!(pair.client.init_attr(id), Err(CmError::State(State::Idle)));
    pair.client.send_req(0, id, &param).unwrap();
    assert_eq!(pair.client.rtr_attr(id), Err(CmError::State(State::ReqSent)));
    pair.deliver_to_server();
    let (server, _) = pair.server.take_event().unwrap();
    let mirrored = pair.server.rtr_attr(server).unwrap();
    assert_eq!(mirrored.max_dest_rd_atomic, Some(3));
    let rep =
        RepParam { responder_resources: 2, initiator_depth: 4, rnr_retry_count: 1, ..acceptance() };
    pair.server.send_rep(0, server, &rep).unwrap();
    pair.deliver_to_client();

    let (rtr, rts) = (pair.client.rtr_attr(id).unwrap(), pair.client.rts_attr(id).unwrap());
    assert_eq!((rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic), (0x4d, 0xfc1026, Some(4)));
    let requester = Requester { retry_count: 6, rnr_retry_count: 1, max_rd_atomic: 2 };
    assert_eq!(rts, RtsAttr { sq_psn: 0x546629, requester: Some(requester), timeout: Some(18) });
    let (rtr, rts) = (pair.server.rtr_attr(server).unwrap(), pair.server.rts_attr(server).unwrap());
    assert_eq!((rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic), (0x4f, 0x546629, Some(2)));
    assert_eq!(rtr.path.addressing.flow_label, 0x76fa4);
    assert_eq!(rtr.path.addressing.destination, gid(2));
    let requester = Requester { retry_count: 6, rnr_retry_count: 5, max_rd_atomic: 4 };
    assert_eq!(rts, RtsAttr { sq_psn: 0xfc1026, requester: Some(requester), timeout: Some(18) });
    assert!(pair.server.init_attr(server).unwrap().remote_read_and_atomic);
}

/// Times of all datagrams that an engine sends until it has no deadline.
fn send_times(cm: &mut IbCm) -> Vec<u64> {
    let mut times = Vec::new();
    let mut now = 0;
    loop {
        times.extend(std::iter::from_fn(|| cm.take_mad()).map(|_| now / MILLISECOND));
        let Some(next) = cm.next_wake() else {
            return times;
        };
        now = next;
        cm.step(now);
    }
}

#[test]
fn a_request_is_sent_sixteen_times() {
    let mut client = engine(CLIENT_GUID, 1);
    let id = client.create();
    client.send_req(0, id, &request(&[])).unwrap();
    let times: Vec<u64> = (0..16).map(|sent| sent * 4608).collect();
    assert_eq!(send_times(&mut client), times);
    assert_eq!(client.take_event(), Some((id, Event::ReqError)));
    assert_eq!(client.state(id), Some(State::Idle));
    assert_eq!(client.counters().sent.get(Attribute::Req), 1);
    assert_eq!(client.counters().retried.get(Attribute::Req), 15);
}

#[test]
fn a_reply_is_repeated_as_the_request_specifies() {
    let mut pair = Pair::new();
    let (_, server) = pair.request(&ReqParam { max_cm_retries: 3, ..request(&[]) });
    pair.server.send_rep(0, server, &acceptance()).unwrap();
    assert_eq!(send_times(&mut pair.server), [0, 4096, 8192, 12288]);
    assert_eq!(pair.server.take_event(), Some((server, Event::RepError)));
}

#[test]
fn an_unanswered_disconnect_ends_in_timewait() {
    let mut pair = Pair::new();
    let (id, _) = pair.connect();
    pair.client.send_dreq(0, id, &[]).unwrap();
    assert_eq!(send_times(&mut pair.client).len(), 16);
    assert_eq!(pair.client.take_event(), Some((id, Event::DreqError)));
    assert_eq!(pair.client.take_event(), Some((id, Event::TimewaitExit)));
}

#[test]
fn timewait_lasts_an_ack_timeout_and_outlives_its_id() {
    let mut pair = Pair::new();
    let (id, server) = pair.connect();
    pair.client.send_dreq(0, id, &[]).unwrap();
    pair.deliver_to_server();
    pair.server.take_event();
    pair.server.send_drep(0, server, &[]).unwrap();
    pair.deliver_to_client();
    pair.client.take_event();
    assert_eq!(pair.client.send_req(0, id, &request(&[])), Err(CmError::State(State::TimeWait)));
    pair.client.step(1024 * MILLISECOND - 1);
    assert_eq!(pair.client.take_event(), None);
    pair.client.step(1024 * MILLISECOND);
    assert_eq!(pair.client.take_event(), Some((id, Event::TimewaitExit)));
    pair.server.destroy(0, server).unwrap();
    pair.server.step(2 * SECOND);
    assert_eq!(pair.server.take_event(), None);
}

#[test]
fn an_mra_answers_repetitions_only() {
    let mut pair = Pair::new();
    let (id, server) = pair.request(&request(&[]));
    pair.server.send_mra(server, 24, MraTiming::OnDuplicate, &[]).unwrap();
    assert_eq!(pair.deliver_to_client(), 0);
    pair.now = 4608 * MILLISECOND;
    pair.client.step(pair.now);
    assert_eq!((pair.deliver_to_server(), pair.deliver_to_client()), (1, 1));
    let Some((_, Event::MraReceived(mra))) = pair.client.take_event() else { panic!() };
    assert_eq!((mra.service_timeout(), pair.client.state(id)), (24, Some(State::MraReqReceived)));
    // 2^16 ms that the MRA requests, and 2^9 ms of this side: packet lifetime 16, and one more for
    // both directions.
    let silent = pair.now + 65_536 * MILLISECOND + 512 * MILLISECOND;
    pair.client.step(silent - 1);
    assert!(pair.client.take_mad().is_none());
    pair.client.step(silent);
    assert!(pair.client.take_mad().is_some());
    assert_eq!(pair.server.counters().duplicates.get(Attribute::Req), 1);
}

#[test]
fn lost_answers_are_repeated() {
    let mut pair = Pair::new();
    let (id, server) = pair.request(&request(&[]));
    pair.server.send_rep(0, server, &acceptance()).unwrap();
    pair.deliver_to_client();
    pair.client.send_rtu(id, &[5]).unwrap();
    pair.client.take_mad().expect("an RTU, which is lost");
    pair.server.step(4096 * MILLISECOND);
    assert_eq!((pair.deliver_to_client(), pair.deliver_to_server()), (1, 1));
    let Some((_, Event::RtuReceived(rtu))) = pair.server.take_event() else { panic!() };
    assert_eq!(rtu.private_data[0], 5);

    pair.client.send_dreq(0, id, &[]).unwrap();
    pair.deliver_to_server();
    pair.server.take_event();
    pair.server.send_drep(0, server, &[6]).unwrap();
    pair.server.take_mad().expect("a DREP, which is lost");
    pair.client.step(4608 * MILLISECOND);
    assert_eq!((pair.deliver_to_server(), pair.deliver_to_client()), (1, 1));
    pair.client.take_event();
    let Some((_, Event::DrepReceived(drep))) = pair.client.take_event() else { panic!() };
    assert_eq!(drep.private_data[0], 6);
}

#[test]
fn received_data_may_establish_a_connection_before_the_rtu() {
    let mut pair = Pair::new();
    let (id, server) = pair.request(&request(&[]));
    assert_eq!(pair.server.establish(server), Err(CmError::State(State::ReqReceived)));
    pair.server.send_rep(0, server, &acceptance()).unwrap();
    pair.server.establish(server).unwrap();
    assert_eq!(pair.server.take_event(), Some((server, Event::UserEstablished)));
    assert_eq!(pair.server.establish(server), Err(CmError::IsConnected));
    assert_eq!(CmError::IsConnected.errno(), libc::EISCONN);
    pair.deliver_to_client();
    pair.client.send_rtu(id, &[]).unwrap();
    pair.deliver_to_server();
    assert_eq!(pair.server.take_event(), None);
    assert_eq!(pair.server.counters().duplicates.get(Attribute::Rtu), 1);
}

#[test]
fn a_new_request_of_the_same_queue_pair_ends_the_stale_connection() {
    let mut pair = Pair::new();
    let (old, server) = pair.connect();
    // The client drops the connection without a message to the peer.
    pair.client.forget(old).unwrap();
    let new = pair.client.create();
    pair.client.send_req(0, new, &request(&[])).unwrap();
    pair.deliver_to_server();
    assert_eq!(pair.server.state(server), Some(State::DreqSent));
    pair.deliver_to_client();
    let Some((_, Event::RejReceived(rej))) = pair.client.take_event() else { panic!() };
    assert_eq!(rej.reason(), RejReason::STALE_CONNECTION);
    // The client does not know the old id, and answers its DREQ at once.
    pair.deliver_to_server();
    assert!(matches!(pair.server.take_event(), Some((_, Event::DrepReceived(_)))));
}

#[test]
fn datagrams_of_strangers_end_no_connection() {
    let mut pair = Pair::new();
    let (id, server) = pair.connect();
    pair.client.send_dreq(0, id, &[]).unwrap();
    let dreq = pair.client.take_mad().unwrap();
    let stranger = Addressing { source: gid(9), ..dreq.addressing };
    pair.server.receive(0, &stranger, dreq.mad.as_bytes());
    assert_eq!(pair.server.state(server), Some(State::Established));
    // The right peer, but another queue pair.
    let mut other = dreq.mad;
    let mut body = *other.body::<Dreq>().unwrap();
    body.set_remote_qpn(0x4e);
    other = Mad::new(1, 0, body);
    pair.server.receive(0, &dreq.addressing, other.as_bytes());
    assert_eq!(pair.server.state(server), Some(State::Established));
    // A request from another port names the connection's queue pair. It is refused, and the
    // connection stays established.
    let mut again = Req::default();
    again.ca_guid = CLIENT_GUID.into();
    again.set_local_id(CommId(77)).set_qpn(0x4f);
    pair.server.receive(0, &stranger, Mad::new(2, 0, again).as_bytes());
    assert_eq!(pair.server.state(server), Some(State::Established));
    pair.server.receive(0, &dreq.addressing, dreq.mad.as_bytes());
    assert_eq!(pair.server.state(server), Some(State::DreqReceived));
}

#[test]
fn destroying_an_id_notifies_its_peer() {
    let mut pair = Pair::new();
    let (id, server) = pair.request(&request(&[]));
    // REQ sent: withdrawn; the peer finds it by CA GUID and communication id.
    pair.client.destroy(0, id).unwrap();
    pair.deliver_to_server();
    let Some((_, Event::RejReceived(rej))) = pair.server.take_event() else { panic!() };
    assert_eq!((rej.reason(), rej.ca_guid()), (RejReason::TIMEOUT, CLIENT_GUID));
    pair.server.destroy(0, server).unwrap();

    // REQ received: refused.
    let (id, server) = pair.request(&request(&[]));
    pair.server.destroy(0, server).unwrap();
    pair.deliver_to_client();
    let Some((_, Event::RejReceived(rej))) = pair.client.take_event() else { panic!() };
    assert_eq!(rej.reason(), RejReason::CONSUMER_DEFINED);
    pair.client.destroy(0, id).unwrap();

    // Established: disconnected.
    let (id, server) = pair.connect();
    pair.client.destroy(0, id).unwrap();
    pair.deliver_to_server();
    assert!(matches!(pair.server.take_event(), Some((_, Event::DreqReceived(_)))));
    pair.server.destroy(0, server).unwrap();
    assert_eq!((pair.client.id_count(), pair.server.id_count()), (0, 1));
    assert!(pair.server.remote_ids.is_empty() && pair.server.remote_qpns.is_empty());
    assert_eq!(pair.client.destroy(0, id), Err(CmError::NoSuchId));
}

#[test]
fn a_dropped_request_is_accepted_when_it_is_repeated() {
    let mut pair = Pair::new();
    let (_, server) = pair.request(&request(&[]));
    pair.server.forget(server).unwrap();
    assert_eq!(pair.deliver_to_client(), 0);
    pair.client.step(4608 * MILLISECOND);
    pair.deliver_to_server();
    assert!(matches!(pair.server.take_event(), Some((_, Event::ReqReceived(..)))));
}

#[test]
fn too_long_private_data_are_refused_and_leave_the_id_usable() {
    let mut pair = Pair::new();
    let id = pair.client.create();
    assert_eq!(pair.client.send_req(0, id, &request(&[0; 93])), Err(CmError::TooLong));
    assert_eq!(pair.client.state(id), Some(State::Idle));
    pair.client.send_req(0, id, &request(&[1; 92])).unwrap();
    pair.deliver_to_server();
    let (server, _) = pair.server.take_event().unwrap();
    let long = RepParam { private_data: &[0; 197], ..acceptance() };
    assert_eq!(pair.server.send_rep(0, server, &long), Err(CmError::TooLong));
    let reason = RejReason::CONSUMER_DEFINED;
    assert_eq!(pair.server.send_rej(0, server, reason, &[], &[0; 149]), Err(CmError::TooLong));
    let mra = pair.server.send_mra(server, 20, MraTiming::Now, &[0; 223]);
    assert_eq!(mra, Err(CmError::TooLong));
    assert_eq!(pair.server.state(server), Some(State::ReqReceived));
    pair.server.send_rej(0, server, reason, &[], &[2; 148]).unwrap();
    pair.deliver_to_client();
    let Some((_, Event::RejReceived(rej))) = pair.client.take_event() else { panic!() };
    assert_eq!(rej.private_data, [2; 148]);
    assert_eq!(CmError::TooLong.errno(), libc::EINVAL);
}

#[test]
fn a_service_id_has_one_listener() {
    let mut cm = engine(SERVER_GUID, 1);
    let (one, other) = (cm.create(), cm.create());
    cm.listen(one, 0x0106_0000, 0xffff_ffff_ffff_0000).unwrap();
    assert_eq!(cm.listen(other, RPING, 0), Err(CmError::Busy));
    assert_eq!(cm.listen(one, 5, 0), Err(CmError::State(State::Listen)));
    cm.destroy(0, one).unwrap();
    cm.listen(other, RPING, 0).unwrap();
}

/// Any datagram in any state causes no panic, no id without a listener, and no leftover object.
#[test]
fn any_datagram_is_survived() {
    let mut prng = Prng::new(12);
    for round in 0..300 {
        let mut pair = Pair::new();
        let (id, server) = pair.connect();
        if prng.chance(500_000) {
            pair.server.send_dreq(0, server, &[]).unwrap();
        }
        for _ in 0..40 {
            let mad = mangled(&mut prng, &pair, id, server);
            let addressing = Addressing::roce(gid(2), gid(1));
            pair.server.receive(0, &addressing, &mad);
            pair.server.step(prng.below(10 * SECOND));
        }
        while pair.server.take_mad().is_some() || pair.server.take_event().is_some() {}
        let ids: Vec<CmId> = pair.server.ids.keys().copied().collect();
        ids.into_iter().for_each(|id| pair.server.destroy(0, id).unwrap());
        let left = (pair.server.remote_ids.len(), pair.server.remote_qpns.len());
        assert_eq!((left, pair.server.remote_sidr.len()), ((0, 0), 0), "round {round}");
        assert!(pair.server.listeners.is_empty());
    }
}

/// Random bytes, mostly with existing ids and service ids.
fn mangled(prng: &mut Prng, pair: &Pair, client: CmId, server: CmId) -> Vec<u8> {
    let mut bytes = vec![0u8; 256];
    bytes.fill_with(|| prng.next() as u8);
    let attribute = Attribute::ALL[prng.below(11) as usize];
    let header = crate::mad::MadHeader::new(attribute, prng.next(), 0);
    bytes[..24].copy_from_slice(header.as_bytes());
    let ids = [pair.client.comm_id(client).0, pair.server.comm_id(server).0, 0];
    for at in [24, 28] {
        let id = ids[prng.below(3) as usize].to_be_bytes();
        bytes[at..at + 4].copy_from_slice(&id);
    }
    if prng.chance(500_000) {
        bytes[32..40].copy_from_slice(&RPING.to_be_bytes());
        bytes[40..48].copy_from_slice(&CLIENT_GUID.to_be_bytes());
    }
    bytes
}

/// A peer can request up to 2.4 hours for each of sixteen tries. This side waits less.
#[test]
fn the_response_time_that_a_peer_requests_is_bounded() {
    let mut pair = Pair::new();
    let client = pair.client.create();
    let param = ReqParam { local_cm_response_timeout: 31, ..request(&[]) };
    pair.client.send_req(0, client, &param).unwrap();
    let first = pair.client.next_wake().unwrap();
    pair.deliver_to_server();
    pair.server.send_mra(CmId(0), 31, MraTiming::Now, &[]).unwrap();
    pair.deliver_to_client();
    assert!(pair.client.step(first).is_empty(), "the peer requested more time");
    let next = pair.client.next_wake().unwrap();
    assert!(next < 70_000 * MILLISECOND, "{next}");
    pair.server.send_rep(0, CmId(0), &acceptance()).unwrap();
    let next = pair.server.next_wake().unwrap();
    assert!(next < 20_000 * MILLISECOND, "{next}");
}

/// Connections that a peer opens and closes leave no timers for hours.
#[test]
fn the_timewait_that_a_peer_requests_is_bounded() {
    let mut pair = Pair::new();
    let param = ReqParam { path: Path { life: 30, ..path() }, ..request(&[]) };
    let (client, server) = pair.request(&param);
    pair.server.send_rep(0, server, &acceptance()).unwrap();
    pair.deliver_to_client();
    pair.client.send_rtu(client, &[]).unwrap();
    pair.deliver_to_server();
    pair.server.destroy(0, server).unwrap();
    let mut last = 0;
    while let Some(next) = pair.server.next_wake() {
        last = next;
        pair.server.step(next);
    }
    assert!(last < 20_000 * MILLISECOND, "{last}");
}
