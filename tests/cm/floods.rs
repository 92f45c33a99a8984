//! Peers that request connections and then send nothing.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs::cm::{
    Channel, ConnectOptions, EventKind, Id, Listener, ListenerBuilder, PortSpace, QpOptions,
    RejectReason, Rejection,
};
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::tokio::AsyncListener;
use uverbs::{Context, Device, ErrorKind, QueuePair};

use crate::long::queue_pair;
use crate::{PATIENCE, address_of, alone, device_and_address, next, resolved};

/// A client that sends its RTU only when the test calls `confirm`.
struct Peer {
    id: Id,
    channel: Channel,
    qp: QueuePair<Rc>,
}

impl Peer {
    fn asking(context: &Context, to: SocketAddr) -> Self {
        let channel = Channel::of(context).unwrap();
        let id = resolved(&channel, to, PortSpace::Tcp);
        let (qp, _) = queue_pair(context);
        id.connect(&qp, &ConnectOptions::default()).unwrap();
        Self { id, channel, qp }
    }

    /// A peer whose request the listener has handled.
    fn handled(listener: &mut Listener, context: &Context, to: SocketAddr) -> Self {
        let peer = Self::asking(context, to);
        handle_event(listener);
        peer
    }

    fn was_accepted(&self) -> bool {
        matches!(next(&self.channel).kind, EventKind::ConnectResponse(_))
    }

    fn refusal(&self) -> Rejection {
        match next(&self.channel).kind {
            EventKind::Rejected(rejection) => rejection,
            other => panic!("{other:?}"),
        }
    }

    fn has_no_answer(&self) -> bool {
        let error = self.channel.try_next_event().unwrap_err();
        error.kind() == ErrorKind::WouldBlock
    }

    fn confirm(&mut self) {
        self.id.establish(&mut self.qp, &QpOptions::default()).unwrap();
    }
}

/// A listener with space for two half-open peers and two waiting ones, its address, and the number
/// of queue pairs that it has created.
fn narrow(context: &Context, address: SocketAddr) -> (Listener, SocketAddr, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let builder = Listener::builder().context(context).half_open(2).backlog(2);
    let listener = builder.bind_with(address, move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        let context = request.context()?;
        let cq = context.create_cq(8).build()?;
        let pd = context.alloc_pd()?;
        let qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
        Ok((qp, uverbs::cm::Resources { cq, pd }))
    });
    let listener = listener.unwrap();
    let to = listener.local_address().unwrap();
    (listener, to, made)
}

/// A listener with space for four half-open peers and `backlog` waiting ones, and its address.
fn wide(context: &Context, backlog: u32) -> (Listener, SocketAddr) {
    let builder = Listener::builder().context(context).half_open(4).backlog(backlog);
    let listener = builder.bind(address_of(context)).unwrap();
    let to = listener.local_address().unwrap();
    (listener, to)
}

/// Devices of the loopback network, each with an address of its own.
fn devices<const N: usize>() -> [Context; N] {
    std::array::from_fn(|_| {
        Device::from_soft(SoftDevice::builder("soft0").build().unwrap()).open().unwrap()
    })
}

/// Makes the listener handle at least one event, which establishes no connection.
pub(crate) fn handle_event(listener: &mut Listener) {
    let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, PollTimeout::from(60_000_u16)), Ok(1), "nothing came");
    let error = listener.try_accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
}

/// The peer may have connected and sent messages before its end is the first event that arrives.
#[test]
fn a_peer_whose_confirmation_is_lost_is_accepted() {
    let (context, address) = device_and_address();
    let (mut listener, to, _) = narrow(&context, address);
    let mut peer = Peer::handled(&mut listener, &context, to);
    assert!(peer.was_accepted());
    peer.confirm();
    assert!(matches!(next(listener.channel()).kind, EventKind::Established));
    peer.id.disconnect().unwrap();
    let mut server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    assert!(server.has_ended().unwrap());
}

#[test]
fn an_established_connection_waits_for_a_descriptor() {
    alone::run("floods::without_a_descriptor");
}

#[test]
#[ignore = "another test runs it"]
fn without_a_descriptor() {
    if !alone::is_alone() {
        return;
    }
    let (context, address) = device_and_address();
    let (mut listener, to, _) = narrow(&context, address);
    let mut peer = Peer::handled(&mut listener, &context, to);
    assert!(peer.was_accepted());
    let mut second = Peer::handled(&mut listener, &context, to);
    assert!(second.was_accepted());
    peer.confirm();
    second.confirm();
    let files = alone::take_all_descriptors();
    // A channel was opened for the first one in time.
    listener.accept_until(Instant::now() + PATIENCE).unwrap();
    let error = listener.accept_until(Instant::now() + PATIENCE).unwrap_err();
    assert_eq!(error.errno(), nix::libc::EMFILE, "{error}");
    drop(files);
    listener.accept_until(Instant::now() + PATIENCE).unwrap();
}

#[test]
fn peers_that_do_not_confirm_are_bounded() {
    let (context, address) = device_and_address();
    let (mut listener, to, made) = narrow(&context, address);
    let mut ask = || Peer::handled(&mut listener, &context, to);
    let mut open = [ask(), ask()];
    assert!(open.iter().all(Peer::was_accepted));
    let (mut first, second) = (ask(), ask());
    for _ in 0..5 {
        let refusal = ask().refusal();
        assert_eq!(refusal.reason, RejectReason::BY_PROGRAM);
        assert!(refusal.private_data.starts_with(b"too many peers wait"), "{refusal:?}");
    }
    assert!(first.has_no_answer() && second.has_no_answer());
    assert_eq!(made.load(Ordering::Relaxed), 2, "a peer that waits costs no queue pair");

    // When a half-open peer confirms, the first waiting peer is accepted without another event.
    open[0].confirm();
    let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    assert!(first.was_accepted());
    assert!(second.has_no_answer());
    first.confirm();
    drop(listener.accept_until(Instant::now() + PATIENCE).unwrap());
    assert!(second.was_accepted());
    assert_eq!(made.load(Ordering::Relaxed), 4);
    drop(server);
}

/// The function that creates queue pairs panics for more peers than may be half open.
#[test]
fn a_panic_of_the_program_takes_no_place_of_a_peer() {
    let (context, address) = device_and_address();
    let mut panics = 3;
    let builder = Listener::builder().context(&context).half_open(1);
    let listener = builder.bind_with(address, move |request| {
        if panics > 0 {
            panics -= 1;
            std::panic::resume_unwind(Box::new("no queue pair"));
        }
        let context = request.context()?;
        let (qp, cq) = queue_pair(&context);
        Ok((qp, uverbs::cm::Resources { cq, pd: context.alloc_pd()? }))
    });
    let mut listener = listener.unwrap();
    let to = listener.local_address().unwrap();
    for _ in 0..3 {
        let peer = Peer::asking(&context, to);
        let deadline = Instant::now() + PATIENCE;
        let accept = AssertUnwindSafe(|| listener.accept_until(deadline));
        assert!(catch_unwind(accept).is_err());
        assert_eq!(peer.refusal().reason, RejectReason::BY_PROGRAM);
    }
    let mut peer = Peer::handled(&mut listener, &context, to);
    assert!(peer.was_accepted());
    peer.confirm();
    drop(listener.accept_until(Instant::now() + PATIENCE).unwrap());
}

/// The function that creates queue pairs panics for a waiting peer, which follows one that has just
/// confirmed. The same call accepts the next waiting peer.
#[test]
fn a_panic_for_a_waiting_peer_loses_no_connection() {
    let (context, address) = device_and_address();
    let mut made = 0;
    let builder = Listener::builder().context(&context).half_open(1);
    let listener = builder.bind_with(address, move |request| {
        made += 1;
        if made == 2 {
            std::panic::resume_unwind(Box::new("no queue pair"));
        }
        let context = request.context()?;
        let (qp, cq) = queue_pair(&context);
        Ok((qp, uverbs::cm::Resources { cq, pd: context.alloc_pd()? }))
    });
    let mut listener = listener.unwrap();
    let to = listener.local_address().unwrap();
    let mut ask = || Peer::handled(&mut listener, &context, to);
    let (mut first, second, third) = (ask(), ask(), ask());
    let EventKind::ConnectResponse(reply) = next(&first.channel).kind else { panic!() };
    assert!(second.has_no_answer());
    first.confirm();
    let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    assert_eq!(server.qp.number(), reply.remote_qpn);
    assert_eq!(second.refusal().reason, RejectReason::BY_PROGRAM);
    assert!(third.was_accepted());
    let accept = AssertUnwindSafe(|| listener.try_accept());
    let panicked = catch_unwind(accept).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"no queue pair"));
    assert_eq!(listener.try_accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Peers of one address that never confirm fill neither the half-open places nor the backlog for
/// another address.
#[test]
fn silent_peers_leave_places_for_other_addresses() {
    let [here, silent, honest] = devices();
    let (mut listener, to) = wide(&here, 4);
    let mut ask = |from: &Context| Peer::handled(&mut listener, from, to);
    let open: Vec<Peer> = (0..3).map(|_| ask(&silent)).collect();
    assert!(open.iter().all(Peer::was_accepted));
    let waiting: Vec<Peer> = (0..4).map(|_| ask(&silent)).collect();
    assert!(waiting.iter().all(Peer::has_no_answer), "the last place is kept");
    let mut peer = ask(&honest);
    assert_eq!(waiting[3].refusal().reason, RejectReason::BY_PROGRAM, "the newest in the queue");
    assert!(peer.was_accepted());
    peer.confirm();
    let server = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    assert_eq!(server.link.peer_address().unwrap().unwrap().ip(), address_of(&honest).ip());
    assert!(waiting[..3].iter().all(Peer::has_no_answer));
}

/// Silent peers of two addresses have all places. After a timeout, a peer of a third address gets
/// the place of the oldest one, and the others keep theirs.
#[test]
fn silent_peers_of_two_addresses_keep_no_third_one_out() {
    let [here, one, other, honest] = devices();
    let (mut listener, to) = wide(&here, 8);
    let mut ask = |from: &Context| Peer::handled(&mut listener, from, to);
    let open = [&one, &one, &one, &other].map(&mut ask);
    assert!(open.iter().all(Peer::was_accepted));
    let mut peer = ask(&honest);
    assert!(peer.has_no_answer());
    // No event wakes the listener.
    let accept = move || listener.accept_until(Instant::now() + PATIENCE).map(|it| (it, listener));
    let accepting = std::thread::spawn(accept);
    assert!(peer.was_accepted());
    peer.confirm();
    let (server, _listener) = accepting.join().unwrap().unwrap();
    assert_eq!(server.link.peer_address().unwrap().unwrap().ip(), address_of(&honest).ip());
    assert_eq!(open[0].refusal().reason, RejectReason::BY_PROGRAM);
    assert!(open[1..].iter().all(Peer::has_no_answer));
}

/// As above, where a task accepts. Its runtime has no timers.
#[test]
fn a_task_hears_when_a_silent_peer_loses_its_place() {
    let [here, one, other, honest] = devices();
    let (listener, to) = wide(&here, 8);
    let accepting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async { AsyncListener::new(listener)?.accept().await })
    });
    let open = [&one, &one, &one, &other].map(|from| Peer::asking(from, to));
    assert!(open.iter().all(Peer::was_accepted));
    let mut peer = Peer::asking(&honest, to);
    assert!(peer.was_accepted(), "it is kept out");
    peer.confirm();
    let server = accepting.join().unwrap().unwrap();
    assert_eq!(server.link.peer_address().unwrap().unwrap().ip(), address_of(&honest).ip());
}

#[tokio::test]
async fn async_listeners_bound_unconfirmed_peers_too() {
    let (context, address) = device_and_address();
    let (listener, to, made) = narrow(&context, address);
    let mut listener = AsyncListener::new(listener).unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await.unwrap() });
    let asking = tokio::task::spawn_blocking(move || {
        let mut peers: Vec<Peer> = (0..2).map(|_| Peer::asking(&context, to)).collect();
        assert!(peers.iter().all(Peer::was_accepted));
        peers.extend((0..2).map(|_| Peer::asking(&context, to)));
        // Requests arrive in order, so the two above already wait when this one is refused.
        let refusal = Peer::asking(&context, to).refusal();
        assert_eq!(refusal.reason, RejectReason::BY_PROGRAM);
        assert!(peers[2].has_no_answer() && peers[3].has_no_answer());
        peers[0].confirm();
        assert!(peers[2].was_accepted());
        peers
    });
    let peers = asking.await.unwrap();
    drop(accepting.await.unwrap());
    assert_eq!(made.load(Ordering::Relaxed), 3);
    drop(peers);
}

/// After a peer withdraws, a waiting peer is accepted. A peer that withdrew while waiting is not.
#[test]
fn a_peer_that_withdraws_frees_its_place() {
    let (context, address) = device_and_address();
    let (mut listener, to, _) = narrow(&context, address);
    let mut ask = || Peer::handled(&mut listener, &context, to);
    let ([keeps, leaves], [gone, mut waits]) = ([ask(), ask()], [ask(), ask()]);
    drop(gone);
    drop(leaves);
    let server = std::thread::spawn(move || {
        listener.accept_until(Instant::now() + PATIENCE).map(drop).unwrap();
    });
    assert!(waits.was_accepted());
    waits.confirm();
    server.join().unwrap();
    drop(keeps);
}

#[test]
fn a_listener_without_places_is_refused() {
    let (context, address) = device_and_address();
    let builder: ListenerBuilder = Listener::builder().context(&context).half_open(0);
    let error = builder.bind(address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("half open"), "{error}");
}

/// The listener's program was busy for longer than a peer may be silent. All peers have confirmed
/// meanwhile, after the request of a further address.
#[test]
fn a_program_that_was_busy_refuses_no_peer_that_has_confirmed() {
    let [here, one, other, third] = devices();
    let (mut listener, to) = wide(&here, 8);
    let mut open = [&one, &one, &one, &other].map(|from| Peer::handled(&mut listener, from, to));
    assert!(open.iter().all(Peer::was_accepted));
    let peer = Peer::asking(&third, to);
    std::thread::sleep(std::time::Duration::from_millis(200));
    open.iter_mut().for_each(Peer::confirm);
    std::thread::sleep(std::time::Duration::from_millis(5200));
    let late = std::time::Duration::from_secs(5);
    let accept = |_| listener.accept_until(Instant::now() + late).map(drop);
    let accepted: Vec<_> = (0..4).map(accept).collect();
    assert!(accepted.iter().all(Result::is_ok), "{accepted:?}");
    assert!(peer.was_accepted());
}
