//! A device's wire: the fault injector, the recorder, the network.

use std::io::{self, BufWriter, ErrorKind};
use std::sync::Arc;

use crate::fault::Faulty;
use crate::runtime::clock;
use crate::wire::{HostAddress, Link, LinkType, Network, Pcap, Place, RoutedWire, Waker, Wire};

use super::Settings;
use super::recording::{Recording, Start};

type Connected = (Box<dyn Wire>, Arc<Waker>, Place);

/// Puts device number `index` on the network. Its recording begins when the device exists.
pub(super) fn connect(settings: &Settings, index: u32) -> io::Result<(Connected, Option<Start>)> {
    let waker = Arc::new(Waker::new()?);
    let (mut wire, place) = join(settings, index, waker.clone())?;
    let mut start = None;
    if let Some(path) = &settings.pcap {
        let (file, begins) = Recording::open(path, index, settings.token.as_deref())
            .map_err(|error| explained(&error, format!("cannot record to {}", path.display())))?;
        let recorder = Pcap::new(wire, BufWriter::new(file), LinkType::Ethernet);
        let recorder = recorder.map_err(|error| explained(&error, "cannot record".into()))?;
        wire = Box::new(recorder.since(clock::epoch()));
        start = Some(begins);
    }
    if let Some(faults) = &settings.faults {
        // Each device gets a different seed.
        let mut plan = faults.plan.clone();
        plan.seed = plan.seed.wrapping_add(u64::from(index));
        wire = Box::new(Faulty::new(wire, plan));
    }
    Ok(((wire, waker, place), start))
}

fn join(settings: &Settings, index: u32, waker: Arc<Waker>) -> io::Result<(Box<dyn Wire>, Place)> {
    let link = if settings.is_infiniband { Link::InfiniBand } else { Link::Ethernet };
    let Some(list) = &settings.addresses else {
        let network = Network::join_any(link, Some(waker), settings.carrier);
        return network.map(on_loopback);
    };
    let address = HostAddress::of_list(list, index)
        .map_err(|cause| io::Error::new(ErrorKind::InvalidInput, cause))?;
    let Some(station) = address.station() else {
        let wire = RoutedWire::at(&address, link)?;
        let place = wire.interface().clone().into();
        return Ok((Box::new(wire), place));
    };
    let network = Network::join_as(station, link, Some(waker), settings.carrier);
    network.map(on_loopback).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            io::Error::new(error.kind(), format!("another process has {address}"))
        }
        _ => explained(&error, format!("cannot use {address}")),
    })
}

/// Begins the recording of a device that exists.
pub(super) fn begin(start: Start) -> io::Result<()> {
    start.begin().map_err(|error| explained(&error, "cannot record".into()))
}

/// The same error, prefixed with the operation that failed.
fn explained(error: &io::Error, what: String) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn on_loopback(network: Network) -> (Box<dyn Wire>, Place) {
    let place = network.station().into();
    (Box::new(network), place)
}
