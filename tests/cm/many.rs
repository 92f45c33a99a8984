//! Many connections whose ids share two channels.

use std::collections::HashMap;

use uverbs::cm::{
    AcceptOptions, Channel, ConnectOptions, Event, EventKind, Id, IdKey, PortSpace, QpOptions,
};
use uverbs::layer::Safe;
use uverbs::qp::SharedBlueFlame;
use uverbs::qp_type::Rc;
use uverbs::{CompletionQueue, ProtectionDomain, QueuePair, ThreadDomain};

use crate::{PATIENCE, device_and_address, listener, next};

/// Connections requested at a time, fewer than the largest backlog.
const AT_ONCE: usize = 500;

/// Queue pairs that share a doorbell register, as there are more queue pairs than registers.
type SharingQp = QueuePair<Rc, Safe, SharedBlueFlame>;

/// The objects that queue pairs are created from.
struct Factory {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    domain: ThreadDomain,
}

impl Factory {
    fn queue_pair(&self, id: &Id) -> SharingQp {
        let cq = self.cq.handle();
        let builder = id.create_qp::<Rc, _>(&self.pd, cq, cq).unwrap();
        builder.max_send_wr(1).max_recv_wr(1).build_in(&self.domain).unwrap()
    }
}

/// One end of all connections: all of its ids are on one channel.
struct End {
    channel: Channel,
    factory: Factory,
    ids: HashMap<IdKey, (Id, Option<SharingQp>)>,
    established: usize,
}

impl End {
    fn new(channel: Channel, factory: Factory) -> Self {
        Self { channel, factory, ids: HashMap::new(), established: 0 }
    }

    fn begin(&mut self, to: std::net::SocketAddr) {
        let id = self.channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_address(None, to, PATIENCE).unwrap();
        self.ids.insert(id.key(), (id, None));
    }

    fn handle(&mut self, event: Event) {
        let key = event.id;
        match event.kind {
            EventKind::AddressResolved => self.ids[&key].0.resolve_route(PATIENCE).unwrap(),
            EventKind::RouteResolved => {
                let own = self.ids.get_mut(&key).unwrap();
                let qp = self.factory.queue_pair(&own.0);
                own.0.connect(&qp, &ConnectOptions::default()).unwrap();
                own.1 = Some(qp);
            }
            EventKind::ConnectResponse(_) => {
                let (id, qp) = self.ids.get_mut(&key).unwrap();
                id.establish(qp.as_mut().unwrap(), &QpOptions::default()).unwrap();
                self.established += 1;
            }
            EventKind::ConnectRequest(request) => {
                let mut qp = self.factory.queue_pair(request.id());
                let id = request.accept(&mut qp, &AcceptOptions::default()).unwrap();
                self.ids.insert(id.key(), (id, Some(qp)));
            }
            EventKind::Established => self.established += 1,
            other => panic!("{other:?}"),
        }
    }

    /// Handles the events that have arrived.
    fn handle_arrived(&mut self) {
        while let Ok(event) = self.channel.try_next_event() {
            self.handle(event);
        }
    }
}

/// Connects `count` pairs of queue pairs of one device.
fn connect(count: usize) -> [End; 2] {
    let (context, address) = device_and_address();
    let (at, listening, to) = listener(&context, address, PortSpace::Tcp);
    let factory = || {
        let cq = context.create_cq(16).build().unwrap();
        let domain = context.alloc_thread_domain().unwrap();
        Factory { pd: context.alloc_pd().unwrap(), cq, domain }
    };
    let mut client = End::new(Channel::of(&context).unwrap(), factory());
    let mut server = End::new(at, factory());
    while server.established < count {
        while client.ids.len() < count.min(server.established + AT_ONCE) {
            client.begin(to);
        }
        client.handle_arrived();
        match client.established {
            done if done == count => server.handle(next(&server.channel)),
            _ => server.handle_arrived(),
        }
    }
    assert_eq!((client.established, server.established), (count, count));
    drop(listening);
    [client, server]
}

#[test]
fn ids_of_one_channel_connect_at_once() {
    let [client, server] = connect(200);
    let peer = |id: &Id| id.peer_address().unwrap();
    let own = |id: &Id| id.local_address().unwrap();
    let mut there: Vec<_> = server.ids.values().map(|(id, _)| peer(id)).collect();
    let mut here: Vec<_> = client.ids.values().map(|(id, _)| own(id)).collect();
    there.sort();
    here.sort();
    assert_eq!(here, there);
}

/// Dropping ids drops only their events. The events of the other ids stay in order.
#[test]
fn dropping_ids_keeps_the_events_of_other_ids() {
    let (context, address) = device_and_address();
    let (_at, _listening, to) = listener(&context, address, PortSpace::Tcp);
    let channel = Channel::of(&context).unwrap();
    let begin = |_| {
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_address(None, to, PATIENCE).unwrap();
        id
    };
    let mut ids: Vec<Id> = (0..100).map(begin).collect();
    let kept = ids.split_off(50);
    drop(ids);
    for id in &kept {
        let event = next(&channel);
        assert_eq!(event.id, id.key(), "events of the remaining ids, in order");
        assert!(matches!(event.kind, EventKind::AddressResolved));
    }
    assert!(channel.try_next_event().is_err());
}

#[test]
#[ignore = "takes minutes"]
fn tens_of_thousands_of_connections_share_two_channels_and_two_registers() {
    const COUNT: usize = 20_000;
    let ends = connect(COUNT);
    assert!(ends.iter().all(|end| end.ids.len() == COUNT));
}
