//! A device's wire: the fault injector, the recorder, the loopback network.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use uverbs_soft::fault::Faulty;
use uverbs_soft::wire::{Link, LinkType, Network, Pcap, Station, Waker, Wire};

use crate::settings::Settings;

type Connected = (Box<dyn Wire>, Arc<Waker>, Station);

/// Puts device number `index` on the network.
pub(crate) fn connect(settings: &Settings, index: u32) -> Result<Connected, String> {
    let waker = Arc::new(Waker::new().map_err(|error| error.to_string())?);
    let network = join(settings, index, waker.clone())?;
    let station = network.station();
    let mut wire: Box<dyn Wire> = Box::new(network);
    if let Some(path) = &settings.pcap {
        let file = recording(path, index)
            .map_err(|error| format!("cannot record to {}: {error}", path.display()))?;
        let recorder = Pcap::new(wire, BufWriter::new(file), LinkType::Ethernet);
        wire = Box::new(recorder.map_err(|error| format!("cannot record: {error}"))?);
    }
    if let Some(plan) = settings.plan() {
        // Each device has faults of its own.
        let mut plan = plan.clone();
        plan.seed = plan.seed.wrapping_add(u64::from(index));
        wire = Box::new(Faulty::new(wire, plan));
    }
    Ok((wire, waker, station))
}

fn join(settings: &Settings, index: u32, waker: Arc<Waker>) -> Result<Network, String> {
    let link = if settings.is_infiniband { Link::InfiniBand } else { Link::Ethernet };
    let Some(first) = settings.address else {
        return Network::join_any(link, Some(waker), settings.carrier)
            .map_err(|error| error.to_string());
    };
    let address = (u32::from(first) + index).into();
    let station =
        Station::new(address).ok_or_else(|| format!("{address} is no loopback address"))?;
    Network::join_as(station, link, Some(waker), settings.carrier).map_err(|error| {
        match error.kind() {
            ErrorKind::AddrInUse => format!("another process has {address}"),
            _ => format!("cannot use {address}: {error}"),
        }
    })
}

/// The file for a device's recording. The first device's file has the name that the user gave. The
/// names of others, of this process or of another, end with process and device, because a recording
/// has one writer.
fn recording(path: &Path, index: u32) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mut other = path.as_os_str().to_owned();
            other.push(format!(".{}-{index}", std::process::id()));
            File::create(other)
        }
        result => result,
    }
}
