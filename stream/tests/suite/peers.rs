//! Peers of other protocols, and errors with their sources.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Instant;

use uverbs::cm;
use uverbs_stream::{Broken, Config};

use crate::network::{Network, Rdma, address, config, context};

#[test]
fn a_client_of_another_protocol_is_refused() {
    let listener = Rdma::listen();
    let to = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let stranger = cm::Connector::new().context(&context());
    let error = stranger.connect(to).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    let said = &source.downcast_ref::<cm::Rejection>().unwrap().private_data;
    assert!(String::from_utf8_lossy(said).contains("does not use"), "{error}");
    // The listener still accepts.
    let mut client = Rdma::connect(to).unwrap();
    let (mut server, _) = accepting.join().unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn connecting_to_a_server_of_another_protocol_fails() {
    let mut listener = cm::Listener::builder().context(&context()).bind(address()).unwrap();
    let to = listener.local_address().unwrap();
    let connecting = thread::spawn(move || Rdma::connect(to).err().unwrap());
    // The listener accepts, and the client ends the connection before it is established.
    let deadline = Instant::now() + std::time::Duration::from_secs(60);
    while !connecting.is_finished() && Instant::now() < deadline {
        let _ = listener.try_accept();
        thread::yield_now();
    }
    let error = connecting.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

#[test]
fn errors_keep_their_source() {
    let mut to = address();
    to.set_port(7);
    let error = config().connect(to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let verb = error.get_ref().and_then(|inner| inner.downcast_ref::<uverbs::Error>()).unwrap();
    let rejection = std::error::Error::source(verb).unwrap();
    assert!(rejection.downcast_ref::<cm::Rejection>().is_some());
    let (server, mut client) = Rdma::pair();
    server.set_linger(std::time::Duration::ZERO).unwrap();
    drop(server);
    let error = client.read(&mut [0; 1]).unwrap_err();
    let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>());
    assert!(matches!(broken, Some(Broken::Disconnected)), "{error:?}");
}

/// Later calls must not wait, because no event would wake them.
#[test]
fn a_removed_device_closes_its_listener() {
    let soft = uverbs::soft::SoftDevice::builder("soft0").without_wire().build().unwrap();
    let context = uverbs::Device::from_soft(soft.clone()).open().unwrap();
    let gids = context.gid_table(1).unwrap();
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an IPv4 address");
    let listener = Config::new().context(&context).bind((ipv4, 0)).unwrap();
    soft.remove();
    let expected = [ErrorKind::NotConnected, ErrorKind::InvalidInput, ErrorKind::InvalidInput];
    assert_eq!(expected.map(|_| listener.accept().unwrap_err().kind()), expected);
}

/// The error names the type that is needed to parse an address with an interface.
#[test]
fn an_interface_in_a_text_is_explained() {
    let text = "[fe80::1%lo]:7471";
    let config = config();
    let errors = [config.connect(text).unwrap_err(), config.bind(text).unwrap_err()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let in_tasks = runtime.block_on(async {
        let connect = uverbs_stream::tokio::Stream::connect_with(&config, text).await.unwrap_err();
        [connect, uverbs_stream::tokio::Listener::bind_with(&config, text).await.unwrap_err()]
    });
    for error in errors.into_iter().chain(in_tasks) {
        assert!(error.to_string().contains("cm::Address"), "{error}");
    }
}
