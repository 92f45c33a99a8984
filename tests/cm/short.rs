//! Listeners, connectors and the connections that they return.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use uverbs::cm::{Connection, Connector, Id, Listener, Rejection, ReplyData, RequestData};
use uverbs::cq::Status;
use uverbs::qp::{PostFlags, RnrTimer, State};
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{AccessFlags, Context, Device, ErrorKind, PollError, op};

use crate::{PATIENCE, address_of, device_and_address, finished, link_local_of};

fn connector(context: &Context) -> Connector {
    Connector::new().context(context).timeout(PATIENCE)
}

/// Both ends of a connection: the accepting end first.
fn pair(context: &Context, address: SocketAddr) -> (Connection, Connection) {
    let builder = Listener::builder().context(context).private_data(ReplyData::of(b"welcome"));
    let mut listener = builder.bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let server =
        std::thread::spawn(move || listener.accept_until(Instant::now() + PATIENCE).unwrap());
    let client = connector(context).private_data(RequestData::of(b"hello")).connect(to).unwrap();
    (server.join().unwrap(), client)
}

/// Sends a message from one end to the other.
fn transfer(from: &mut Connection, to: &mut Connection) {
    let slab = to.resources.pd.create_slab(1, 64).unwrap();
    to.qp.post_receive(slab.take().unwrap()).unwrap();
    let source = from.resources.pd.create_slab(1, 64).unwrap();
    let mut slot = source.take().unwrap();
    slot.write(b"across").unwrap();
    from.qp.post_send(op::Send, slot, PostFlags::SIGNALED).unwrap();
    assert_eq!(&finished(&mut to.resources.cq).unwrap()[..], b"across");
    finished(&mut from.resources.cq);
}

#[test]
fn two_ends_connect_and_transfer() {
    let (context, address) = device_and_address();
    let (mut server, mut client) = pair(&context, address);
    transfer(&mut client, &mut server);
    transfer(&mut server, &mut client);
    assert_eq!(server.private_data().len(), 56);
    assert_eq!(&server.private_data()[..6], b"hello\0");
    assert_eq!(&client.private_data()[..8], b"welcome\0");
    assert_eq!(client.private_data().len(), 196);
    assert_eq!(server.link.peer_address().unwrap(), client.link.local_address().unwrap());
    assert_eq!(client.link.peer_address().unwrap(), server.link.local_address().unwrap());
    assert!(server.context().is_same(&context) && client.context().is_same(&context));
}

#[test]
fn ipv6_addresses_work_too() {
    let (context, _) = device_and_address();
    let (mut server, mut client) = pair(&context, link_local_of(&context));
    transfer(&mut client, &mut server);
    assert!(client.link.peer_address().unwrap().unwrap().is_ipv6());
    let SocketAddr::V6(mut address) = link_local_of(&context) else { unreachable!() };
    address.set_scope_id(0);
    let error = Listener::builder().context(&context).bind(SocketAddr::V6(address)).unwrap_err();
    assert!(error.cause().contains("link-local"), "{error}");
}

/// Only one of the threads gets the event.
#[test]
fn all_threads_that_wait_for_the_end_learn_of_it() {
    let (context, address) = device_and_address();
    let (server, client) = pair(&context, address);
    let (say, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (say, link) = (say.clone(), &client.link);
            scope.spawn(move || {
                say.send(()).unwrap();
                link.wait_disconnected(Some(PATIENCE)).unwrap();
            });
        }
        (0..4).for_each(|_| told.recv().unwrap());
        drop(server);
    });
    assert!(client.link.has_ended().unwrap());
}

#[test]
fn a_disconnect_reaches_the_other_end_in_either_order() {
    for server_first in [true, false] {
        let (context, address) = device_and_address();
        let (server, client) = pair(&context, address);
        let (mut first, mut second) =
            if server_first { (server, client) } else { (client, server) };
        first.disconnect().unwrap();
        assert_eq!(first.qp.state(), State::Err);
        second.wait_disconnected(Some(PATIENCE)).unwrap();
        first.wait_disconnected(Some(PATIENCE)).unwrap();
    }
}

#[test]
fn both_ends_may_disconnect_at_once() {
    let (context, address) = device_and_address();
    let (mut server, mut client) = pair(&context, address);
    server.disconnect().unwrap();
    client.disconnect().unwrap();
    server.wait_disconnected(Some(PATIENCE)).unwrap();
    client.wait_disconnected(Some(PATIENCE)).unwrap();
}

#[test]
fn dropping_a_connection_disconnects_the_peer() {
    let (context, address) = device_and_address();
    let (server, mut client) = pair(&context, address);
    drop(server);
    client.wait_disconnected(Some(PATIENCE)).unwrap();
}

/// `wait_disconnected` and `has_ended` report the end, any number of times, and the posted receive
/// is flushed.
#[test]
fn a_disconnect_is_reported_each_time_and_flushes_receives() {
    for waits in [true, false] {
        let (context, address) = device_and_address();
        let (server, mut client) = pair(&context, address);
        assert!(!client.has_ended().unwrap());
        let slab = client.resources.pd.create_slab(1, 64).unwrap();
        client.qp.post_receive(slab.take().unwrap()).unwrap();
        drop(server);
        if waits {
            client.wait_disconnected(Some(PATIENCE)).unwrap();
        } else {
            while !client.has_ended().unwrap() {
                context.poll_idle();
            }
        }
        client.wait_disconnected(None).unwrap();
        assert!(client.has_ended().unwrap() && client.link.has_ended().unwrap());
        let status = loop {
            match client.resources.cq.poll() {
                Ok(done) => break done.completion.status(),
                Err(PollError::Empty) => context.poll_idle(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(status, Status::Flushed);
    }
}

#[test]
fn a_removed_device_is_reported_each_time() {
    let soft = SoftDevice::builder("soft0").without_wire().build().unwrap();
    let context = Device::from_soft(soft.clone()).open().unwrap();
    let (mut server, mut client) = pair(&context, crate::address_of(&context));
    soft.remove();
    for _ in 0..2 {
        let error = server.wait_disconnected(Some(PATIENCE)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
        let error = client.has_ended().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
    }
}

#[test]
fn the_caller_sets_access_rights_and_timers() {
    let (context, address) = device_and_address();
    let timer = RnrTimer::from_code(5);
    let mut listener = Listener::builder()
        .context(&context)
        .access(AccessFlags::REMOTE_READ)
        .options(|options| options.qp.min_rnr_timer = timer)
        .bind(address)
        .unwrap();
    let to = listener.local_address().unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let client = connector(&context).qp(|qp| qp.min_rnr_timer = timer).connect(to).unwrap();
    let server = server.join().unwrap();
    let (mine, theirs) = (server.qp.query().unwrap(), client.qp.query().unwrap());
    assert_eq!((mine.min_rnr_timer, theirs.min_rnr_timer), (timer, timer));
    assert!(mine.access.contains(AccessFlags::REMOTE_READ));
    let writing = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    assert!(!mine.access.intersects(writing));
    assert!(!theirs.access.intersects(writing | AccessFlags::REMOTE_READ));
}

#[test]
fn a_connect_without_a_listener_is_refused() {
    let (context, mut address) = device_and_address();
    address.set_port(7);
    let error = connector(&context).connect(address).unwrap_err();
    assert_eq!(error.errno(), 111, "{error}");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<Rejection>().unwrap().reason.0, 8);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(error.cure().contains("start the server"), "{error}");
}

#[test]
fn an_error_names_the_address_that_no_device_has() {
    let (context, _) = device_and_address();
    let builder = || Listener::builder().context(&context);
    let error = builder().bind("192.0.2.1:0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("no RDMA device has the address 192.0.2.1"), "{error}");
    assert!(error.cure().contains("uverbs info"), "{error}");
    let error = connector(&context).connect("192.0.2.1:7").unwrap_err();
    assert!(error.to_string().contains("192.0.2.1:7"), "{error}");
    assert!(!error.cause().is_empty() && !error.cure().is_empty(), "{error}");
}

#[test]
fn a_port_in_use_is_refused() {
    let (context, address) = device_and_address();
    let first = Listener::builder().context(&context).bind(address).unwrap();
    let taken = first.local_address().unwrap();
    let error = Listener::builder().context(&context).bind(taken).unwrap_err();
    assert_eq!(error.errno(), 98, "{error}");
    assert!(error.cure().contains("port"), "{error}");
}

/// Loopback and wildcard addresses belong to the machine: two devices cannot both listen at the
/// same port of one. At their own addresses each device has its own ports.
#[test]
fn devices_share_the_ports_of_loopback_and_wildcard_addresses() {
    const IN_USE: i32 = 98;
    const NOT_AVAILABLE: i32 = 99;
    let cases = [
        ("127.0.0.1", "127.0.0.1", IN_USE),
        ("0.0.0.0", "0.0.0.0", NOT_AVAILABLE),
        ("127.0.0.1", "0.0.0.0", NOT_AVAILABLE),
        ("0.0.0.0", "::", NOT_AVAILABLE),
        ("::", "0.0.0.0", NOT_AVAILABLE),
        ("::", "::1", IN_USE),
    ];
    let [one, two] = ["one", "two"].map(|name| {
        let device = SoftDevice::builder(name).build().unwrap();
        Device::from_soft(device).open().unwrap()
    });
    let bind = |context: &Context, ip: &str, port| {
        Listener::builder().context(context).bind(SocketAddr::new(ip.parse().unwrap(), port))
    };
    for (bound, ours, errno) in cases {
        let first = bind(&one, bound, 0).unwrap();
        let port = first.local_address().unwrap().port();
        let error = bind(&two, ours, port).unwrap_err();
        assert_eq!(error.errno(), errno, "{bound}, {ours}: {error}");
        assert!(error.cause().contains("has the port"), "{bound}, {ours}: {error}");
        // The port is still free at the second device's own address.
        drop(bind(&two, &address_of(&two).ip().to_string(), port).unwrap());
        drop(first);
        bind(&two, ours, port).unwrap();
    }
}

#[test]
fn a_port_taken_at_all_addresses_is_taken_at_each() {
    let (context, mut address) = device_and_address();
    let all = Listener::builder().context(&context).bind("0.0.0.0:0").unwrap();
    address.set_port(all.local_address().unwrap().port());
    let error = Listener::builder().context(&context).bind(address).unwrap_err();
    assert!(error.cause().contains("bound to the port"), "{error}");
}

#[test]
fn an_ipv4_and_an_ipv6_only_listener_share_a_port() {
    let device = SoftDevice::builder("one").build().unwrap();
    let context = Device::from_soft(device).open().unwrap();
    let ipv4 = Listener::builder().context(&context).bind("0.0.0.0:0").unwrap();
    let port = ipv4.local_address().unwrap().port();
    let address = SocketAddr::new([0u16; 8].into(), port);
    Listener::builder().context(&context).ipv6_only().bind(address).unwrap();
}

#[test]
fn listening_at_a_loopback_address_of_no_device_is_refused() {
    let (context, _) = device_and_address();
    let error = Listener::builder().context(&context).bind("127.77.255.254:0").unwrap_err();
    assert_eq!(error.errno(), 99, "{error}");
}

#[test]
fn a_connect_to_a_peer_that_does_not_answer_times_out() {
    let (context, address) = device_and_address();
    // The listener never takes requests, so they wait.
    let listener = Listener::builder().context(&context).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let impatient = Connector::new().context(&context).timeout(Duration::from_millis(50));
    let error = impatient.connect(to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains(&to.to_string()), "{error}");
}

#[test]
fn a_peer_that_gives_up_does_not_stop_the_listener() {
    let (context, address) = device_and_address();
    let mut listener = Listener::builder().context(&context).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let impatient = Connector::new().context(&context).timeout(Duration::from_millis(20));
    impatient.connect(to).unwrap_err();
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let mut client = connector(&context).connect(to).unwrap();
    let mut server = server.join().unwrap();
    transfer(&mut client, &mut server);
}

#[test]
fn a_listener_does_not_wait_past_its_deadline() {
    let (context, address) = device_and_address();
    let mut listener = Listener::builder().context(&context).bind(address).unwrap();
    assert_eq!(listener.try_accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let past = Instant::now();
    assert_eq!(listener.accept_until(past).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn a_factory_that_fails_refuses_the_peer() {
    let (context, address) = device_and_address();
    let refuse =
        |_: &uverbs::cm::ConnectionRequest| -> uverbs::Result<(uverbs::QueuePair<Rc>, ())> {
            Err(uverbs::PollError::Overrun.into())
        };
    let builder = Listener::builder().context(&context);
    let mut listener = builder.bind_with(address, refuse).unwrap();
    let to = listener.local_address().unwrap();
    let server = std::thread::spawn(move || listener.accept().map(drop));
    let error = connector(&context).connect(to).unwrap_err();
    assert_eq!(error.errno(), 111, "{error}");
    server.join().unwrap().unwrap_err();
}

/// Otherwise both ends would report a connection that does not work.
#[test]
fn a_queue_pair_of_another_device_is_refused_at_either_end() {
    let (context, address) = device_and_address();
    let other = crate::common::soft_device(|builder| builder.node_guid([7; 8])).open().unwrap();
    let make = move |context: &Context| {
        let cq = context.create_cq(16).build()?;
        let qp = context.alloc_pd()?.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
        Ok((qp, cq))
    };
    let is_named = |error: uverbs::Error| {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.cure().contains("Id::context"), "{error}");
    };
    let context_of_other = other.clone();
    let builder = Listener::builder().context(&context);
    let mut listener = builder.bind_with(address, move |_| make(&context_of_other)).unwrap();
    let to = listener.local_address().unwrap();
    is_named(connector(&context).connect_with(to, |_| make(&other)).unwrap_err());
    let server = std::thread::spawn(move || listener.accept_until(Instant::now() + PATIENCE));
    let refused = connector(&context).connect(to).unwrap_err();
    assert_eq!(refused.errno(), 111, "{refused}");
    is_named(server.join().unwrap().unwrap_err());
}

#[test]
fn queue_pairs_of_the_raw_layer_connect_too() {
    let (context, address) = device_and_address();
    let make = |context: &Context| {
        let cq = context.create_raw_cq(16).build()?;
        let qp = context.alloc_pd()?.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
        Ok((qp, cq))
    };
    let builder = Listener::builder().context(&context);
    let mut listener =
        builder.bind_with(address, move |request| make(&request.context()?)).unwrap();
    let to = listener.local_address().unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let client = connector(&context).connect_with(to, |id| make(&id.context()?)).unwrap();
    assert_eq!(server.join().unwrap().qp.state(), State::Rts);
    assert_eq!(client.qp.state(), State::Rts);
}

#[test]
fn connections_may_share_a_doorbell_register() {
    let (context, address) = device_and_address();
    let domain = context.alloc_thread_domain().unwrap();
    let cq = context.create_cq(1024).build().unwrap();
    let pd = context.alloc_pd().unwrap();
    let queue = cq.handle().clone();
    let make = move |id: &Id| {
        let builder = id.create_qp::<Rc, _>(&pd, &queue, &queue)?;
        Ok((builder.max_send_wr(1).max_recv_wr(1).build_in(&domain)?, ()))
    };
    let (builder, theirs) = (Listener::builder().context(&context), make.clone());
    let mut listener = builder.bind_with(address, move |request| theirs(request.id())).unwrap();
    let to = listener.local_address().unwrap();
    let server = std::thread::spawn(move || [(); 3].map(|()| listener.accept().unwrap()));
    let clients = [(); 3].map(|()| connector(&context).connect_with(to, &make).unwrap());
    let servers = server.join().unwrap();
    assert!(clients.iter().chain(&servers).all(|end| end.qp.state() == State::Rts));
}

/// All clients have one listener, one completion queue and one shared receive queue.
#[test]
fn a_thousand_clients_share_a_receive_queue() {
    const CLIENTS: usize = 1000;
    let (context, address) = device_and_address();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(2 * CLIENTS as u32).build().unwrap();
    let mut srq = pd.create_srq(CLIENTS as u32).build().unwrap();
    let slab = pd.create_slab(CLIENTS as u32, 16).unwrap();
    (0..CLIENTS).for_each(|_| srq.post(slab.take().unwrap()).unwrap());
    let (handle, shared, domain) = (cq.handle().clone(), srq.handle().clone(), pd.clone());
    let builder = Listener::builder().context(&context);
    let mut listener = builder
        .bind_with(address, move |_| {
            let qp = domain.create_qp::<Rc>(&handle, &handle).max_send_wr(1);
            Ok((qp.shared_receive_queue(&shared).build()?, ()))
        })
        .unwrap();
    let to = listener.local_address().unwrap();
    let (done, wait) = mpsc::channel::<()>();
    let clients = std::thread::spawn({
        let context = context.clone();
        move || {
            let connector = connector(&context).queue_depths(1, 1);
            let mut all = Vec::new();
            for number in 0..CLIENTS as u64 {
                let mut client = connector.connect(to).unwrap();
                let slab = client.resources.pd.create_slab(1, 16).unwrap();
                let mut slot = slab.take().unwrap();
                slot.write(&number.to_le_bytes()).unwrap();
                client.qp.post_send(op::Send, slot, PostFlags::SIGNALED).unwrap();
                finished(&mut client.resources.cq);
                all.push(client);
            }
            wait.recv().unwrap();
        }
    });
    let connections: Vec<_> =
        (0..CLIENTS).map(|_| listener.accept_until(Instant::now() + PATIENCE).unwrap()).collect();
    let mut numbers: Vec<u64> = (0..CLIENTS)
        .map(|_| finished(&mut cq).unwrap()[..8].try_into().map(u64::from_le_bytes).unwrap())
        .collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..CLIENTS as u64));
    done.send(()).unwrap();
    clients.join().unwrap();
    drop(connections);
}

#[test]
fn two_devices_of_a_process_connect() {
    let ends = crate::network::ends_of(crate::network::Medium::Memory, &Default::default());
    let [one, two] = ends.map(|end| end.setup.context);
    let mut listener = Listener::builder().context(&one).bind(address_of(&one)).unwrap();
    let to = listener.local_address().unwrap();
    let server = std::thread::spawn(move || listener.accept().unwrap());
    let mut client = connector(&two).connect(to).unwrap();
    let mut server = server.join().unwrap();
    assert!(server.context().is_same(&one) && client.context().is_same(&two));
    transfer(&mut client, &mut server);
}
