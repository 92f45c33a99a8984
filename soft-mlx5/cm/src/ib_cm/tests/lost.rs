//! Peers that end without a message.

use super::*;

/// The engine's event when the peer with this last byte of its address has ended, and its id's
/// state.
fn after_loss(cm: &mut IbCm, peer: u8) -> Option<(Option<State>, Event)> {
    cm.lose_peers(5, &|to| to.destination == gid(peer));
    cm.take_event().map(|(id, event)| (cm.state(id), event))
}

/// A peer that ended without a message has the same effect as one whose kernel disconnected.
#[test]
fn a_lost_peer_has_the_same_effect_as_a_destroyed_id() {
    let bye = |from: &mut IbCm, id: CmId, to: &mut IbCm| {
        from.destroy(5, id).unwrap();
        carry(from, to, 5);
        let (id, event) = to.take_event().unwrap();
        Some((to.state(id), outcome(event)))
    };
    let lost =
        |found: Option<(Option<State>, Event)>| found.map(|(state, event)| (state, outcome(event)));
    for messages in 1..=3 {
        let begin = || {
            let mut pair = Pair::new();
            let (client, server) = begun(&mut pair, messages);
            (pair, client, server)
        };
        let (mut pair, _, server) = begin();
        let expected = bye(&mut pair.server, server, &mut pair.client);
        assert_eq!(lost(after_loss(&mut begin().0.client, 1)), expected, "server after {messages}");
        let (mut pair, client, _) = begin();
        let expected = bye(&mut pair.client, client, &mut pair.server);
        assert_eq!(lost(after_loss(&mut begin().0.server, 2)), expected, "client after {messages}");
        assert_eq!(after_loss(&mut begin().0.server, 3), None, "another peer");
    }
}

/// A connection attempt after `messages` of its messages have arrived.
fn begun(pair: &mut Pair, messages: u32) -> (CmId, CmId) {
    if messages == 3 {
        return pair.connect();
    }
    let (client, server) = (pair.client.create(), CmId(0));
    pair.client.send_req(0, client, &request(&[])).unwrap();
    pair.deliver_to_server();
    pair.server.take_event().unwrap();
    if messages == 2 {
        pair.server.send_rep(0, server, &acceptance()).unwrap();
        pair.deliver_to_client();
        pair.client.take_event().unwrap();
    }
    (client, server)
}

/// rdma_cm's view of an event: the reject reason, if it is a rejection.
fn outcome(event: Event) -> Option<RejReason> {
    match event {
        Event::DreqReceived(_) | Event::DrepReceived(_) => None,
        Event::RejReceived(rej) => Some(rej.reason()),
        event => panic!("{event:?}"),
    }
}

#[test]
fn requests_to_a_lost_peer_are_answered() {
    let mut pair = Pair::new();
    let (client, _) = pair.connect();
    pair.client.send_dreq(0, client, &[]).unwrap();
    let (state, event) = after_loss(&mut pair.client, 1).unwrap();
    assert!(state == Some(State::TimeWait) && matches!(event, Event::DrepReceived(_)));
    assert_eq!(after_loss(&mut pair.client, 1), None, "it is over");

    let id = pair.client.create();
    let sidr = SidrReqParam {
        service_id: RPING,
        path: path(),
        timeout: SECOND,
        max_cm_retries: 1,
        private_data: &[],
    };
    pair.client.send_sidr_req(0, id, &sidr).unwrap();
    let (state, event) = after_loss(&mut pair.client, 1).unwrap();
    let Event::SidrRepReceived(_, rep) = event else { panic!("{event:?}") };
    assert_eq!((state, rep.status()), (Some(State::Idle), SidrStatus::REJECT));
}
