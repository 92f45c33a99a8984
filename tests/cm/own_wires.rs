//! Devices on a private wire of the program: a switch, with a cable that the test cuts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use uverbs::cm::{Connector, Listener};
use uverbs::soft::SoftDevice;
use uverbs::soft::fault::{FaultControl, FaultPlan, Faulty};
use uverbs::soft::wire::{Station, Switch, Waker};
use uverbs::{Context, Device, ErrorKind};

use crate::PATIENCE;

/// A device on the switch, and the control of faults for its packets.
fn device(switch: &Switch, number: u32) -> (Context, SocketAddr, FaultControl) {
    let (waker, station) = (Arc::new(Waker::new().unwrap()), Station::candidate(number));
    let port = switch.attach(station, Some(waker.clone())).unwrap();
    let wire = Faulty::new(port, FaultPlan::default());
    let control = wire.control();
    let device = SoftDevice::builder("soft0").wire(Box::new(wire), waker, station);
    let context = Device::from_soft(device.build().unwrap()).open().unwrap();
    (context, SocketAddr::new(IpAddr::from(station.address()), 0), control)
}

#[test]
fn peers_on_a_switch_connect_by_the_addresses_of_their_stations() {
    let switch = Switch::new();
    let (client, _, _) = device(&switch, 7001);
    let (server, address, sent) = device(&switch, 7002);
    let mut listener = Listener::builder().context(&server).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let connector = Connector::new().context(&client);
    let server = thread::spawn(move || {
        [(); 2].map(|()| listener.accept_until(Instant::now() + PATIENCE).unwrap())
    });
    let first = connector.clone().timeout(PATIENCE).connect(to).unwrap();

    // The server's replies are lost.
    sent.set_plan(FaultPlan::cut());
    let soon = connector.clone().timeout(Duration::from_millis(200));
    let before = sent.counters().dropped;
    let error = soon.connect(to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(sent.counters().dropped > before, "the server has answered");
    sent.set_plan(FaultPlan::default());
    let again = connector.timeout(PATIENCE).connect(to).unwrap();

    let accepted = server.join().unwrap().map(|accepted| accepted.link.peer_address().unwrap());
    let connected = [first, again].map(|connection| connection.link.local_address().unwrap());
    assert_eq!(accepted, connected);
}
