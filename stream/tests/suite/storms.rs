//! Many concurrent peers, and listeners that do not accept them.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use uverbs::cm::{Channel, ConnectOptions, EventKind, Id, PortSpace, QpOptions, RequestData};
use uverbs::qp_type::Rc;
use uverbs::soft::{Errno, Fault, Moment, SoftDevice};
use uverbs::{Context, Device, QueuePair};
use uverbs_stream::{Config, Stream};

use crate::alone;
use crate::network::{address, address_of, config, context};

/// Peers that connect at the same time.
fn peers<T: Send + 'static>(
    count: usize,
    to: SocketAddr,
    work: fn(std::io::Result<Stream>) -> T,
) -> Vec<JoinHandle<T>> {
    (0..count).map(|_| thread::spawn(move || work(config().connect(to)))).collect()
}

/// Requests beyond the backlog are dropped, and their senders repeat them.
#[test]
fn many_connects_to_a_short_backlog_are_served() {
    let listener = config().backlog(1).bind(address()).unwrap();
    let all = peers(6, listener.local_addr().unwrap(), |stream| {
        let mut stream = stream.unwrap();
        stream.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    for _ in 0..all.len() {
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0; 4];
        stream.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"ping");
        stream.write_all(b"pong").unwrap();
        // Dropping the stream waits until the peer's device has its data.
    }
    all.into_iter().for_each(|peer| assert_eq!(&peer.join().unwrap(), b"pong"));
}

/// No thread accepts, and the listener is dropped with requests in its queue.
#[test]
fn waiting_peers_are_refused_when_the_listener_is_dropped() {
    let listener = config().bind(address()).unwrap();
    let all = peers(8, listener.local_addr().unwrap(), |stream| stream.map(drop));
    // It is readable when a request has arrived. The others arrive before or after the listener is
    // dropped.
    let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut files, 60_000_u16), Ok(1));
    drop(listener);
    for peer in all {
        assert_eq!(peer.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

/// Streams that are dropped before they are accepted do not delay other peers.
#[test]
fn peers_that_leave_at_once_do_not_delay_others() {
    let listener = config().bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || {
        for (mut stream, _) in std::iter::repeat_with(|| listener.accept().unwrap()) {
            let mut text = String::new();
            if stream.read_to_string(&mut text).is_ok() && text == "the last" {
                return;
            }
        }
    });
    peers(6, to, drop).into_iter().for_each(|peer| peer.join().unwrap());
    let mut last = config().connect(to).unwrap();
    last.write_all(b"the last").unwrap();
    drop(last);
    accepting.join().unwrap();
}

/// A peer that requests a connection and confirms it only on demand.
struct HalfOpen {
    id: Id,
    channel: Channel,
    qp: QueuePair<Rc>,
}

impl HalfOpen {
    fn new(to: SocketAddr) -> Self {
        Self::of(&context(), to)
    }

    fn of(context: &Context, to: SocketAddr) -> Self {
        const PATIENCE: Duration = Duration::from_secs(10);
        let channel = Channel::of(context).unwrap();
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_address(None, to, PATIENCE).unwrap();
        assert!(matches!(channel.next_event().unwrap().kind, EventKind::AddressResolved));
        id.resolve_route(PATIENCE).unwrap();
        assert!(matches!(channel.next_event().unwrap().kind, EventKind::RouteResolved));
        let cq = context.create_cq(4).build().unwrap();
        let qp = context.alloc_pd().unwrap().create_qp::<Rc>(cq.handle(), cq.handle());
        let qp = qp.build().unwrap();
        let offer = [&b"uvst"[..], &[0, 1, 0, 128, 0, 1, 0, 0], &[0; 12]].concat();
        let private_data = RequestData::new(&offer).unwrap();
        id.connect(&qp, &ConnectOptions { private_data, ..ConnectOptions::default() }).unwrap();
        Self { id, channel, qp }
    }

    fn confirm(&mut self) {
        self.id.establish(&mut self.qp, &QpOptions::default()).unwrap();
    }

    /// The listener's answer, if it arrives within the time.
    fn answer(&self, within: Duration) -> Option<EventKind> {
        self.channel.next_event_until(Instant::now() + within).ok().map(|event| event.kind)
    }
}

/// Each peer confirms and leaves. One thread takes the first of these two events, and another one
/// may take the second.
#[test]
fn several_threads_accept_peers_that_leave_at_once() {
    const LATE: Duration = Duration::from_secs(60);
    let listener = Arc::new(config().bind(address()).unwrap());
    let to = listener.local_addr().unwrap();
    let (send, found) = mpsc::channel();
    let accepting = [(); 4].map(|()| {
        let (listener, send) = (listener.clone(), send.clone());
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                send.send(stream.read(&mut [0; 1]).unwrap_err().kind()).unwrap();
            }
        })
    });
    let peers = [(); 4].map(|()| {
        thread::spawn(move || {
            for _ in 0..100 {
                let mut peer = HalfOpen::new(to);
                let answer = peer.answer(LATE);
                assert!(matches!(answer, Some(EventKind::ConnectResponse(_))), "{answer:?}");
                peer.confirm();
            }
        })
    });
    let found: Vec<_> = (0..400).map_while(|_| found.recv_timeout(LATE).ok()).collect();
    assert_eq!(found.len(), 400, "streams, or their ends, were lost");
    assert!(found.iter().all(|kind| *kind == ErrorKind::ConnectionReset));
    peers.into_iter().for_each(|thread| thread.join().unwrap());
    listener.close();
    accepting.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Only a limited number of peers that never confirm is accepted. As many others as the backlog
/// allows wait until one of those ends.
#[test]
fn half_open_peers_are_bounded() {
    const SOON: Duration = Duration::from_millis(300);
    const LATE: Duration = Duration::from_secs(30);
    let listener = config().half_open(2).backlog(2).bind(address()).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let mut answered: Vec<_> = (0..2)
        .map(|_| {
            let peer = HalfOpen::new(to);
            assert!(matches!(peer.answer(LATE), Some(EventKind::ConnectResponse(_))));
            peer
        })
        .collect();
    let waits = HalfOpen::new(to);
    assert!(waits.answer(SOON).is_none(), "there is no place");
    // The second one also waits; no further one may. Requests arrive in this order.
    let mut second = HalfOpen::new(to);
    let refused = HalfOpen::new(to).answer(LATE);
    assert!(matches!(refused, Some(EventKind::Rejected(_))), "{refused:?}");
    assert!(waits.answer(SOON).is_none());
    // The first waiting peer gives up, and the second one is accepted when another peer ends.
    drop(waits);
    drop(answered.pop());
    assert!(matches!(second.answer(LATE), Some(EventKind::ConnectResponse(_))));
    second.confirm();
    let accepted = accepting.join().unwrap();
    // Dropped before the stream, which would wait until this peer has received the end.
    drop(second);
    drop(accepted);
}

/// As below, with a task that accepts, in a runtime without timers.
#[test]
fn a_task_hears_when_a_silent_peer_loses_its_place() {
    silent_peers_keep_no_other_address_out(|listener| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = uverbs_stream::tokio::Listener::from_blocking(listener)?;
            listener.accept().await.map(|(stream, _)| stream)
        })
    });
}

#[test]
fn a_thread_hears_when_a_silent_peer_loses_its_place() {
    silent_peers_keep_no_other_address_out(|listener| listener.accept().map(|(stream, _)| stream));
}

/// Silent peers of two addresses reach the limit. A peer of a third address replaces the oldest one
/// after five seconds, in which no event wakes the listener.
fn silent_peers_keep_no_other_address_out<S: Send + 'static>(
    accept: impl FnOnce(uverbs_stream::Listener) -> std::io::Result<S> + Send + 'static,
) {
    const LATE: Duration = Duration::from_secs(30);
    let device =
        || Device::from_soft(SoftDevice::builder("soft0").build().unwrap()).open().unwrap();
    let [here, one, other, honest] = [device(), device(), device(), device()];
    let config = Config::new().context(&here).half_open(4);
    let listener = config.bind(address_of(&here)).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || accept(listener));
    let open = [&one, &one, &one, &other].map(|from| HalfOpen::of(from, to));
    let was_answered =
        |peer: &HalfOpen| matches!(peer.answer(LATE), Some(EventKind::ConnectResponse(_)));
    assert!(open.iter().all(was_answered));
    let mut peer = HalfOpen::of(&honest, to);
    assert!(was_answered(&peer), "it is kept out");
    // Checked before the listener is dropped, which refuses all others.
    assert!(matches!(open[0].answer(LATE), Some(EventKind::Rejected(_))));
    peer.confirm();
    let accepted = accepting.join().unwrap().unwrap();
    drop(peer);
    drop(accepted);
}

/// As over TCP, the peer waits until a file descriptor is free.
#[test]
fn a_listener_without_a_descriptor_loses_no_connection() {
    alone::run("storms::peers_of_a_listener_without_a_descriptor");
}

#[test]
#[ignore = "another test runs it"]
fn peers_of_a_listener_without_a_descriptor() {
    if !alone::is_alone() {
        return;
    }
    let listener = config().bind(address()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let to = listener.local_addr().unwrap();
    let mut peers = [(); 2].map(|()| HalfOpen::new(to));
    let was_answered = |peer: &HalfOpen| {
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        peer.answer(Duration::from_millis(20)).is_some()
    };
    peers.iter().for_each(|peer| while !was_answered(peer) {});
    listener.set_nonblocking(false).unwrap();
    let files = alone::take_all_descriptors();
    peers.iter_mut().for_each(HalfOpen::confirm);
    // The first connection uses the channel that the listener had already opened.
    let first = listener.accept().unwrap();
    let error = listener.accept().unwrap_err();
    assert!(error.to_string().contains("EMFILE"), "{error}");
    drop(files);
    let second = listener.accept().unwrap();
    drop(peers);
    drop((first, second));
}

/// A waiting peer that cannot be accepted is refused, and the next one is accepted at once.
#[test]
fn a_peer_that_cannot_be_accepted_keeps_no_other_waiting() {
    const LATE: Duration = Duration::from_secs(30);
    let device = || SoftDevice::builder("soft0").build().unwrap();
    let (here, there) = (device(), Device::from_soft(device()).open().unwrap());
    let context = Device::from_soft(here.clone()).open().unwrap();
    let config = Config::new().context(&context).half_open(1);
    let listener = config.bind(address_of(&context)).unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().map(|stream| (stream, listener)));
    let mut first = HalfOpen::of(&there, to);
    assert!(matches!(first.answer(LATE), Some(EventKind::ConnectResponse(_))));
    let [unlucky, next] = [(); 2].map(|()| HalfOpen::of(&there, to));
    here.inject(Fault { moment: Moment::Call(0), errno: Errno::ENOMEM });
    first.confirm();
    let accepted = accepting.join().unwrap().unwrap();
    assert!(matches!(unlucky.answer(LATE), Some(EventKind::Rejected(_))));
    assert!(matches!(next.answer(LATE), Some(EventKind::ConnectResponse(_))));
    drop(first);
    drop(accepted);
}

#[test]
fn a_listener_without_half_open_peers_is_refused() {
    let error = config().half_open(0).bind(address()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// The listener's program is busy for longer than a peer may be silent. All peers confirm
/// meanwhile, and a peer of a third address waits.
#[test]
fn a_program_that_was_busy_refuses_no_peer_that_has_confirmed() {
    const LATE: Duration = Duration::from_secs(30);
    let device =
        || Device::from_soft(SoftDevice::builder("soft0").build().unwrap()).open().unwrap();
    let [here, one, other, third] = [device(), device(), device(), device()];
    let listener = Config::new().context(&here).half_open(4).bind(address_of(&here)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let to = listener.local_addr().unwrap();
    let ask = |from: &Context| {
        let peer = HalfOpen::of(from, to);
        let mut files = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut files, 60_000_u16), Ok(1));
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        peer
    };
    let mut open = [&one, &one, &one, &other].map(ask);
    let was_answered =
        |peer: &HalfOpen| matches!(peer.answer(LATE), Some(EventKind::ConnectResponse(_)));
    assert!(open.iter().all(was_answered));
    let waiting = ask(&third);
    open.iter_mut().for_each(HalfOpen::confirm);
    thread::sleep(Duration::from_millis(5200));
    let accepted: Vec<_> = (0..4).map(|_| listener.accept()).collect();
    let is_refused: Vec<bool> = accepted.iter().map(Result::is_err).collect();
    let is_answered = was_answered(&waiting);
    drop(open);
    drop(accepted);
    assert_eq!((is_refused, is_answered), (vec![false; 4], true));
}
