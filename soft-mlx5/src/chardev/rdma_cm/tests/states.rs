//! Each command in each state of an id, with the errno of Linux 6.12: from checks of `ucma.c`, then
//! of `cma.c` for the id's state, then of `cm.c` for the connection's state.

use nix::errno::Errno;
use uverbs_uapi::cm::address::{Query, ResolveAddr, ResolveRoute};
use uverbs_uapi::cm::connect::{Disconnect, InitQpAttr, Listen, Notify, Reject};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::cm::id::{MigrateId, SetOption};
use uverbs_uapi::cm::multicast::JoinMcast;
use uverbs_uapi::cm::path::{PathFlags, PathRecData, QueryRoute};
use uverbs_uapi::cm::{IdOption, JoinFlags, OptionLevel, PortSpace, QueryOption};
use uverbs_uapi::enums::EventType as QpEvent;
use zerocopy::IntoBytes;

use super::rules::{ADDRESS, establish, sockaddr};
use super::{Client, host, host_on_network};
use crate::chardev::{RdmaCm, SoftDevice};

/// An address that no device has.
const SILENT: [u8; 4] = [127, 20, 77, 99];

/// An id in some state, and the file of its peer.
struct Subject {
    client: Client,
    id: u32,
    peer: Client,
}

/// Creates ids in each state. Each id has a port of its own.
struct World {
    host: RdmaCm,
    device: SoftDevice,
    port: u16,
}

impl World {
    fn new() -> Self {
        let (host, device) = host(ADDRESS);
        Self { host, device, port: 2000 }
    }

    fn subject(&mut self, space: PortSpace) -> Subject {
        self.port += 1;
        let [client, peer] = [(); 2].map(|()| Client::open(&self.host));
        let id = client.create(space, 88);
        Subject { client, id, peer }
    }

    fn bound(&mut self, space: PortSpace, address: [u8; 4]) -> Subject {
        let subject = self.subject(space);
        subject.client.bind(subject.id, address, self.port).unwrap();
        subject
    }

    fn listening(&mut self, space: PortSpace, address: [u8; 4]) -> Subject {
        let subject = self.bound(space, address);
        subject.client.send(&Listen { id: subject.id, backlog: 8 }).unwrap();
        subject
    }

    /// On the network, because a single device treats every station as a neighbour.
    fn searching(&mut self, space: PortSpace) -> Subject {
        let (host, device) = host_on_network(ADDRESS);
        let mut network = Self { host, device, port: self.port };
        let subject = network.subject(space);
        let (id, dst_addr) = (subject.id, sockaddr(SILENT, 1));
        let timeout_ms = 600_000;
        let request = ResolveAddr { id, timeout_ms, dst_size: 16, dst_addr, ..Default::default() };
        subject.client.send(&request).unwrap();
        subject
    }

    fn found(&mut self, space: PortSpace) -> Subject {
        let subject = self.subject(space);
        subject.client.ask_for_address(subject.id, ADDRESS, self.port).unwrap();
        subject.client.expect(EventType::ADDR_RESOLVED);
        subject
    }

    fn routed(&mut self, space: PortSpace) -> Subject {
        let subject = self.found(space);
        subject.client.ask_for_route(subject.id);
        subject.client.expect(EventType::ROUTE_RESOLVED);
        subject
    }

    /// The active side, and the passive side's id.
    fn asking(&mut self, space: PortSpace) -> (Subject, u32) {
        let subject = self.routed(space);
        let listener = subject.peer.create(space, 77);
        subject.peer.bind(listener, ADDRESS, self.port).unwrap();
        subject.peer.send(&Listen { id: listener, backlog: 8 }).unwrap();
        subject.client.connect(subject.id, 1, 0).unwrap();
        let request = subject.peer.expect(EventType::CONNECT_REQUEST).id;
        (subject, request)
    }

    fn answered(&mut self, space: PortSpace, event: EventType) -> (Subject, u32) {
        let (subject, request) = self.asking(space);
        subject.peer.accept(request, 9, 2, 0).unwrap();
        subject.client.expect(event);
        (subject, request)
    }

    fn established(&mut self) -> (Subject, u32) {
        let (subject, request) = self.asking(PortSpace::TCP);
        establish(&subject.peer, request, &subject.client, subject.id);
        (subject, request)
    }

    /// The active side has disconnected, and the passive side has received this.
    fn leaving(&mut self) -> (Subject, u32) {
        let (subject, request) = self.established();
        subject.client.send(&Disconnect { id: subject.id }).unwrap();
        subject.peer.expect(EventType::DISCONNECTED);
        (subject, request)
    }

    fn refused(&mut self) -> (Subject, u32) {
        let (subject, request) = self.asking(PortSpace::TCP);
        subject.peer.send(&Reject { id: request, ..Reject::default() }).unwrap();
        subject.client.expect(EventType::REJECTED);
        (subject, request)
    }

    fn disconnected(&mut self) -> Subject {
        let (subject, request) = self.leaving();
        subject.peer.send(&Disconnect { id: request }).unwrap();
        subject.client.expect(EventType::DISCONNECTED);
        subject
    }

    fn removed(&mut self) -> Subject {
        let subject = self.bound(PortSpace::TCP, ADDRESS);
        self.device.remove();
        subject.client.expect(EventType::DEVICE_REMOVAL);
        *self = Self { port: self.port, ..Self::new() };
        subject
    }
}

impl Subject {
    /// The other side.
    fn passive((subject, id): (Self, u32)) -> Self {
        Self { client: subject.peer, id, peer: subject.client }
    }
}

fn set(client: &Client, id: u32, level: OptionLevel, optname: u32, value: &[u8]) -> Answer {
    let (optval, optlen) = (value.as_ptr() as u64, value.len() as u32);
    client.send(&SetOption { optval, id, level, optname, optlen })
}

fn set_flag(client: &Client, id: u32, option: IdOption, on: i32) -> Answer {
    set(client, id, OptionLevel::ID, option.0, &on.to_ne_bytes())
}

fn set_byte(client: &Client, id: u32, option: IdOption) -> Answer {
    set(client, id, OptionLevel::ID, option.0, &[18])
}

fn set_path(client: &Client, id: u32) -> Answer {
    let path = PathRecData { flags: PathFlags::USABLE, reserved: 0, path_rec: [0; 64] };
    set(client, id, OptionLevel::IB, 1, path.as_bytes())
}

fn join(client: &Client, id: u32) -> Answer {
    let (addr_size, join_flags) = (16, JoinFlags::FULL_MEMBER);
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |response| JoinMcast { response, uid: 1, id, addr_size, join_flags, addr };
    client.ask(join).map(drop)
}

fn attributes(client: &Client, id: u32, qp_state: u32) -> Answer {
    client.ask(|response| InitQpAttr { response, id, qp_state }).map(drop)
}

fn query(client: &Client, id: u32, option: QueryOption) -> Answer {
    // A path's response has a variable length, so a response of fixed length is used.
    client.ask(|response| Query { response, id, option }).map(drop)
}

fn query_route(client: &Client, id: u32) -> Answer {
    client.ask(|response| QueryRoute { response, id, option: 0 }).map(drop)
}

fn resolve_route(client: &Client, id: u32) -> Answer {
    client.send(&ResolveRoute { id, timeout_ms: 1000 })
}

fn notify(client: &Client, id: u32, event: QpEvent) -> Answer {
    client.send(&Notify { id, event })
}

type Answer = Result<(), Errno>;
type Command = (&'static str, fn(&Subject) -> Answer);

/// The commands, in the order of the answers' letters.
const COMMANDS: [Command; 28] = [
    ("bind", |s| s.client.bind(s.id, ADDRESS, 0)),
    ("listen", |s| s.client.send(&Listen { id: s.id, backlog: 1 })),
    ("resolve address", |s| s.client.ask_for_address(s.id, ADDRESS, 1)),
    ("resolve route", |s| resolve_route(&s.client, s.id)),
    ("connect", |s| s.client.connect(s.id, 1, 0)),
    ("accept a request", |s| s.client.accept(s.id, 5, 2, 0)),
    ("accept a reply", |s| s.client.accept(s.id, 0, 0, 0)),
    ("reject", |s| s.client.send(&Reject { id: s.id, ..Reject::default() })),
    ("disconnect", |s| s.client.send(&Disconnect { id: s.id })),
    ("notify: established", |s| notify(&s.client, s.id, QpEvent::COMM_EST)),
    ("notify: migrated", |s| notify(&s.client, s.id, QpEvent::PATH_MIG)),
    ("attributes of INIT", |s| attributes(&s.client, s.id, 1)),
    ("attributes of RTR", |s| attributes(&s.client, s.id, 2)),
    ("attributes of RTS", |s| attributes(&s.client, s.id, 3)),
    ("attributes of ERR", |s| attributes(&s.client, s.id, 6)),
    ("join", |s| join(&s.client, s.id)),
    ("reuse", |s| set_flag(&s.client, s.id, IdOption::REUSEADDR, 1)),
    ("no reuse", |s| set_flag(&s.client, s.id, IdOption::REUSEADDR, 0)),
    ("family only", |s| set_flag(&s.client, s.id, IdOption::AFONLY, 1)),
    ("ACK timeout", |s| set_byte(&s.client, s.id, IdOption::ACK_TIMEOUT)),
    ("type of service", |s| set_byte(&s.client, s.id, IdOption::TOS)),
    ("path", |s| set_path(&s.client, s.id)),
    ("query addresses", |s| query(&s.client, s.id, QueryOption::ADDR)),
    ("query GIDs", |s| query(&s.client, s.id, QueryOption::GID)),
    ("query path", |s| query(&s.client, s.id, QueryOption::PATH)),
    ("query route", |s| query_route(&s.client, s.id)),
    ("migrate", |s| {
        let (id, fd) = (s.id, s.client.descriptor());
        s.peer.ask(|response| MigrateId { response, id, fd }).map(drop)
    }),
    ("destroy", |s| s.client.destroy(s.id).map(drop)),
];

type State = (&'static str, fn(&mut World) -> Subject, &'static str);

const RC: PortSpace = PortSpace::TCP;
const UD: PortSpace = PortSpace::UDP;
const ANY: [u8; 4] = [0; 4];
const REPLY: EventType = EventType::CONNECT_RESPONSE;
const RESOLVED: EventType = EventType::ESTABLISHED;

/// The answers in each state: `.` success, `i` EINVAL, `c` EISCONN, `x` ENXIO.
///
/// Columns: bind to route, connect to disconnect, notify, attributes, join, options, queries,
/// migrate and destroy.
#[rustfmt::skip]
const STATES: [State; 28] = [
    ("idle", |w| w.subject(RC),                   "...i iiiii ii iiii i .....i .... .."),
    ("bound", |w| w.bound(RC, ADDRESS),           "i..i iiiii ii .... i .i...i .... .."),
    ("bound to any", |w| w.bound(RC, ANY),        "i..i iiiii ii iiii i .i...i .... .."),
    ("address query", |w| w.searching(RC),        "iiii iiiii ii iiii i .ii..i .... .."),
    ("address resolved", |w| w.found(RC),         "iii. iiiii ii .... i .ii... .... .."),
    ("route resolved", |w| w.routed(RC),          "iiii .iiii ii .... i .ii..i .... .."),
    ("listening", |w| w.listening(RC, ADDRESS),   "iiii iiii. ii iiii i iii..i .... .."),
    ("listening to any", |w| w.listening(RC, ANY), "iiii iiiii ii iiii i iii..i .... .."),
    ("REQ sent", |w| w.asking(RC).0,              "iiii iii.. ii .iii i .ii..i .... .."),
    ("REP received", |w| w.answered(RC, REPLY).0, "iiii ii... ii ...i i .ii..i .... .."),
    ("established, active", |w| w.established().0, "iiii iiii. c. ...i i .ii..i .... .."),
    ("DREQ sent", |w| w.leaving().0,              "iiii iiii. ii iiii i .ii..i .... .."),
    ("REJ received", |w| w.refused().0,           "iiii iiii. ii iiii i .ii..i .... .."),
    ("disconnected", World::disconnected,         "iiii iiii. ii iiii i .ii..i .... .."),
    ("REQ received", |w| Subject::passive(w.asking(RC)),
                                                  "iiii i.i.. ii ...i i .ii..i .... .."),
    ("REP sent", |w| Subject::passive(w.answered(RC, REPLY)),
                                                  "iiii iii.. .i ...i i .ii..i .... .."),
    ("established, passive", |w| Subject::passive(w.established()),
                                                  "iiii iiii. c. ...i i .ii..i .... .."),
    ("DREQ received", |w| Subject::passive(w.leaving()),
                                                  "iiii iiii. ii iiii i .ii..i .... .."),
    ("REJ sent", |w| Subject::passive(w.refused()),
                                                  "iiii iiii. ii iiii i .ii..i .... .."),
    ("device removed", World::removed,            "xxxx xxxxx xx xxxx x xxxxxx xxxx x."),
    ("UD bound", |w| w.bound(UD, ADDRESS),        "i..i iiiii ii .... . .i.i.i .... .."),
    ("UD address resolved", |w| w.found(UD),      "iii. iiiii ii .... . .iii.. .... .."),
    ("UD route resolved", |w| w.routed(UD),       "iiii .iiii ii .... i .iii.i .... .."),
    ("UD listening", |w| w.listening(UD, ADDRESS), "iiii iiii. ii .... i iiii.i .... .."),
    ("SIDR_REQ sent", |w| w.asking(UD).0,         "iiii iiii. ii .... i .iii.i .... .."),
    ("SIDR_REQ received", |w| Subject::passive(w.asking(UD)),
                                                  "iiii i.... ii .... i .iii.i .... .."),
    ("SIDR_REP sent", |w| Subject::passive(w.answered(UD, RESOLVED)),
                                                  "iiii iiii. ii .... i .iii.i .... .."),
    ("SIDR_REP received", |w| w.answered(UD, RESOLVED).0,
                                                  "iiii iiii. ii .... i .iii.i .... .."),
];

fn answer_of(letter: char) -> Answer {
    match letter {
        '.' => Ok(()),
        'c' => Err(Errno::EISCONN),
        'i' => Err(Errno::EINVAL),
        'x' => Err(Errno::ENXIO),
        _ => unreachable!("not a letter of the table"),
    }
}

#[test]
fn every_command_is_answered_in_every_state_as_by_the_kernel() {
    let mut world = World::new();
    let mut wrong = Vec::new();
    for (state, prepare, answers) in STATES {
        let expected: Vec<Answer> =
            answers.chars().filter(|letter| *letter != ' ').map(answer_of).collect();
        assert_eq!(expected.len(), COMMANDS.len(), "{state}");
        for ((command, run), expected) in COMMANDS.iter().zip(expected) {
            let answer = run(&prepare(&mut world));
            if answer != expected {
                wrong.push(format!("{state}, {command}: {answer:?} instead of {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
