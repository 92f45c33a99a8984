//! Requests to a device whose process has not opened rdma_cm, or has closed it: the device's ib_cm
//! answers them.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use uverbs::cm::{Channel, Connector, EventKind, Listener, LookupData, PortSpace};

use crate::network::{Medium, ends_of};
use crate::{PATIENCE, address_of, next, resolved};

const MEDIA: [Medium; 2] = [Medium::Memory, Medium::Udp];

#[test]
fn a_connection_request_is_refused_as_if_no_program_listened() {
    for medium in MEDIA {
        let [client, server] = ends_of(medium, &Default::default());
        let to = SocketAddr::new(address_of(&server.setup.context).ip(), 9);
        let connector = Connector::new().context(&client.setup.context).timeout(PATIENCE);
        let error = connector.connect(to).unwrap_err();
        assert_eq!(error.errno(), 111, "{medium:?}: {error}");
        assert!(error.cause().contains("no program listens"), "{medium:?}: {error}");
    }
}

#[test]
fn a_lookup_is_answered_as_if_there_were_no_service() {
    for medium in MEDIA {
        let [client, server] = ends_of(medium, &Default::default());
        let to = SocketAddr::new(address_of(&server.setup.context).ip(), 9);
        let channel = Channel::of(&client.setup.context).unwrap();
        let id = resolved(&channel, to, PortSpace::Udp);
        id.lookup(&LookupData::EMPTY).unwrap();
        let EventKind::Unreachable(error) = next(&channel).kind else { panic!("{medium:?}") };
        assert!(error.cause().contains("no program offers"), "{medium:?}: {error}");
    }
}

/// The server's DREQ is lost, so the server no longer knows the connection when the client's DREQ
/// arrives. It answers with a DREP nevertheless.
#[test]
fn a_disconnect_of_an_unknown_connection_is_answered() {
    for medium in MEDIA {
        let [client, server] = ends_of(medium, &Default::default());
        let context = &server.setup.context;
        let mut listener = Listener::builder().context(context).bind(address_of(context)).unwrap();
        let to = listener.local_address().unwrap();
        let accepting =
            std::thread::spawn(move || listener.accept_until(Instant::now() + PATIENCE).unwrap());
        let connector = Connector::new().context(&client.setup.context).timeout(PATIENCE);
        let mut connection = connector.connect(to).unwrap();
        let accepted = accepting.join().unwrap();
        server.cut.store(true, Ordering::Relaxed);
        drop((accepted, server.setup));
        server.soft.inspect(|_| ()).unwrap();
        server.cut.store(false, Ordering::Relaxed);
        assert!(!connection.has_ended().unwrap(), "{medium:?}");
        connection.disconnect().unwrap();
        connection.wait_disconnected(Some(PATIENCE)).unwrap();
    }
}
