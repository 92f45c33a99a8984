//! The connection manager's commands and events, against bytes recorded from unmodified programs of
//! rdma-core 44 under Linux 6.12 (rping, ucmatose, mckey, rdma_server).

use uverbs_uapi::cm::address::{
    AF_IB, AF_INET, Bind, Query, QueryAddrResp, SockaddrIb, SockaddrIn, SockaddrIn6,
    SockaddrStorage, address_len,
};
use uverbs_uapi::cm::connect::{Accept, ConnParam, Connect, Disconnect, Ece, InitQpAttr, Listen};
use uverbs_uapi::cm::event::{EventResp, EventType, GetEvent};
use uverbs_uapi::cm::id::{CreateId, DestroyId, MigrateId};
use uverbs_uapi::cm::multicast::{JoinMcast, LeaveMcast};
use uverbs_uapi::cm::path::{PathFlags, PathRecData, QueryRouteResp};
use uverbs_uapi::cm::{Cmd, CmdHdr, Command, JoinFlags, Message, PortSpace, QueryOption};
use uverbs_uapi::enums::QpType;
use uverbs_uapi::write::qp::QpAttr;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a hexadecimal text in which `[n]` means n bytes of zero.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, part) in text.split(['[', ']']).enumerate() {
        if index % 2 == 1 {
            out.resize(out.len() + part.parse::<usize>().unwrap(), 0);
            continue;
        }
        let digits = part.as_bytes().chunks(2);
        out.extend(
            digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()),
        );
    }
    out
}

fn same<C: Command>(body: &C, output: usize, recorded: &str) {
    let message = Message::with_output(body, output);
    let (header, rest) = CmdHdr::read_from_prefix(message.as_bytes()).unwrap();
    assert_eq!(header.cmd, C::COMMAND);
    assert_eq!(usize::from(header.input), rest.len());
    assert_eq!(usize::from(header.output), output);
    assert_eq!(rest, bytes(recorded));
}

fn event(recorded: &str) -> EventResp {
    EventResp::read_from_bytes(&bytes(recorded)).unwrap()
}

#[test]
fn ids() {
    let create = CreateId {
        uid: 0x55b8_d034_1120,
        response: 0x7fff_9b60_02c4,
        ps: PortSpace::IB,
        qp_type: QpType::RC,
        ..Default::default()
    };
    same(&create, 4, "201134d0b8550000c402609bff7f00003f01020000000000");
    let destroy = DestroyId { response: 0x7fff_9b60_02c4, ..Default::default() };
    same(&destroy, 4, "c402609bff7f[10]");
    let migrate = MigrateId { response: 0x7ffd_57d0_e564, id: 2, fd: 3 };
    same(&migrate, 4, "64e5d057fd7f00000200000003000000");
}

#[test]
fn addresses() {
    let any = SockaddrIb {
        family: AF_IB,
        sid: 0x0106_0000.into(),
        sid_mask: 0xffff_ffff_ffff_0000.into(),
        ..Default::default()
    };
    let bind = Bind { id: 0, addr_size: 48, reserved: 0, addr: SockaddrStorage::new(&any) };
    same(&bind, 0, "00000000300000001b[27]01060000ffffffffffff[90]");
    assert_eq!(bind.addr.len(), Some(48));
    assert_eq!(bind.addr.get::<SockaddrIb>(), Some(any));
    assert_eq!(bind.addr.get::<SockaddrIn>(), None);

    let query = Query { response: 0x7fff_9b60_0170, id: 0, option: QueryOption::ADDR };
    same(&query, 280, "7001609bff7f[10]");
    let answer = bytes("[12]300030001b[27]0106c2d9ffffffffffffffff[88]1b[135]");
    let answer = QueryAddrResp::read_from_bytes(&answer).unwrap();
    let bound = answer.src_addr.get::<SockaddrIb>().unwrap();
    assert_eq!((answer.node_guid.get(), answer.src_size, answer.dst_size), (0, 48, 48));
    assert_eq!((bound.sid.get(), bound.sid_mask.get()), (0x0106_c2d9, u64::MAX));
}

#[test]
fn lengths_of_addresses() {
    assert_eq!(address_len(AF_INET), Some(size_of::<SockaddrIn>() as u16));
    assert_eq!(address_len(10), Some(size_of::<SockaddrIn6>() as u16));
    assert_eq!(address_len(1), None);
    assert!(SockaddrStorage::default().is_empty());
}

#[test]
fn connections() {
    let conn = ConnParam {
        qp_num: 0x801,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..Default::default()
    };
    let ece = Ece { vendor_id: 0x15b3, attr_mod: 0 };
    let connect = Connect { conn_param: conn, id: 1, reserved: 0, ece };
    same(&connect, 0, "0108[264]01010007070101[7]b315[6]");
    let conn = ConnParam { qp_num: 0x803, ..conn };
    let accept = Accept { uid: 0x7f7b_ec00_0ce0, conn_param: conn, id: 2, reserved: 0, ece };
    same(&accept, 0, "e00c00ec7b7f00000308[264]01010007070102[7]b315[6]");
    same(&Listen { id: 0, backlog: 3 }, 0, "0000000003000000");
    same(&Disconnect { id: 2 }, 0, "02000000");
    let init = InitQpAttr { response: 0x7fff_9b60_0080, id: 2, qp_state: 1 };
    same(&init, 144, "8000609bff7f00000200000001000000");
    let attr = bytes("3900000001[31]0e[96]01[10]");
    let attr = QpAttr::read_from_bytes(&attr).unwrap();
    assert_eq!((attr.qp_attr_mask.0, attr.qp_access_flags.0, attr.port_num), (0x39, 0xe, 1));
}

#[test]
fn multicast() {
    let group = SockaddrIn { family: AF_INET, addr: [239, 1, 1, 1], ..Default::default() };
    let join = JoinMcast {
        response: 0x7fff_b599_d3d4,
        uid: 0x55f0_dcd8_a790,
        id: 0,
        addr_size: 16,
        join_flags: JoinFlags::FULL_MEMBER,
        addr: SockaddrStorage::new(&group),
    };
    same(&join, 4, "d4d399b5ff7f000090a7d8dcf055[6]1000000002000000ef010101[120]");
    same(&LeaveMcast { response: 0x7fff_b599_d534, ..Default::default() }, 4, "34d599b5ff7f[10]");
    let joined =
        event("90a7d8dcf055[6]0c[7]ffffff0067452301[10]ffffef010101000000000140[7]0101[277]");
    assert_eq!(joined.event, EventType::MULTICAST_JOIN);
    let ud = joined.ud();
    assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, 0x0123_4567));
    assert_eq!(ud.ah_attr.grh.dgid[12..], [239, 1, 1, 1]);
}

#[test]
fn events() {
    same(&GetEvent { response: 0x7f7b_f3c0_ace0 }, 336, "e0acc0f37b7f0000");
    let request = event("c04434d0b85500000200000004[7]0108[262]38000101000707[37]b315[6]");
    assert_eq!((request.event, request.status()), (EventType::CONNECT_REQUEST, 0));
    let conn = request.conn();
    assert_eq!((conn.qp_num, conn.private_data_len, conn.retry_count), (0x801, 56, 7));
    assert_eq!(request.ece.vendor_id, 0x15b3);
    let response = event("c0349764335600000100000005[7]0308[262]c4000101000007[37]b315[6]");
    assert_eq!(response.event, EventType::CONNECT_RESPONSE);
    assert_eq!((response.conn().private_data_len, response.conn().rnr_retry_count), (196, 7));

    let mut again = EventResp { param: [0xff; 304], ..response };
    again.set_conn(&response.conn());
    assert_eq!(again, response);
    let mut ud = again.ud();
    ud.private_data_len = 136;
    again.set_ud(&ud);
    assert_eq!(again.ud(), ud);
    let failed = EventResp { raw_status: 110u32.wrapping_neg(), ..Default::default() };
    assert_eq!(failed.status(), -110);
}

#[test]
fn lengths_for_older_kernels() {
    assert_eq!(EventResp::LENGTHS, [336, 324]);
    assert_eq!(Connect::LENGTHS, [288, 280]);
    assert_eq!(Accept::LENGTHS, [296, 288]);
    assert_eq!(QueryRouteResp::LENGTHS, [208, 200]);
    assert_eq!(QueryAddrResp::LENGTHS, [280, 272]);
    assert_eq!((size_of::<PathRecData>(), PathFlags::USABLE.0), (72, 0x2b));
}

#[test]
fn any_bytes_are_an_event() {
    let event = EventResp::read_from_bytes(&[0xff; 336]).unwrap();
    assert_eq!(event.event.name(), None);
    assert_eq!(event.event.to_string(), "0xffffffff");
    assert_eq!(Cmd(25).name(), None);
    assert_eq!(event.as_bytes(), [0xff; 336]);
}
