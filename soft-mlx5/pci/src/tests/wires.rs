//! Two devices on a wire.

use super::driver::{Driver, run};
use super::queues::{Address, Qp, set_gid};
use crate::{Cable, Fabric, Settings};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::memory::HostMemory;
use uverbs_soft::packet::Gid;
use uverbs_soft::wire::Station;

const LINKS: [LinkLayer; 2] = [LinkLayer::InfiniBand, LinkLayer::Ethernet];

/// Connects a QP of each device with a QP of the other, and writes in both directions.
fn converse(cables: [(Settings, Cable); 2]) {
    let addresses = [0, 1].map(|side| Address {
        link: cables[side].0.link,
        lid: cables[side].0.lid,
        gid: Gid::from_ipv4([10, 0, 0, side as u8 + 1].into()),
    });
    let mut drivers = cables.map(|(settings, cable)| Driver::ready(settings, cable));
    if addresses[0].link == LinkLayer::Ethernet {
        drivers.iter_mut().zip(addresses).for_each(|(driver, at)| set_gid(driver, at.gid));
    }
    let mut qps = [0, 1].map(|side| Qp::new(&mut drivers[side]));
    for side in [0, 1] {
        qps[side].connect(&mut drivers[side], qps[1 - side].number, addresses[1 - side]);
    }
    for side in [0, 1] {
        let target = drivers[1 - side].alloc(64);
        let key = drivers[1 - side].lkey;
        qps[side].write(&mut drivers[side], (target, key), b"over the wire");
        run(&mut drivers, |drivers| drivers[side].poll(&mut qps[side].cq).is_some());
        assert_eq!(drivers[1 - side].bytes(target, 13), b"over the wire");
        drivers[1 - side].memory.write(target, &[0; 64]).unwrap();
    }
}

#[test]
fn devices_of_one_process_reach_each_other() {
    for link in LINKS {
        let fabric = Fabric::new();
        converse([1, 2].map(|n| {
            let settings = Settings::at(Station::candidate(n), link);
            let cable = Cable::to_fabric(&settings, &fabric).unwrap();
            (settings, cable)
        }));
    }
}

#[test]
fn devices_reach_each_other_over_udp() {
    LINKS.into_iter().for_each(|link| converse(over_udp(link)));
}

/// Two cables between stations that no other process uses.
fn over_udp(link: LinkLayer) -> [(Settings, Cable); 2] {
    let cable = |station, peer| {
        let settings = Settings::at(station, link);
        Cable::over_udp(&settings, &[peer]).map(|cable| (settings, cable))
    };
    for n in 0..1000 {
        let first = std::process::id().wrapping_mul(641).wrapping_add(2 * n);
        let [a, b] = [first, first + 1].map(Station::candidate);
        match (cable(a, b), cable(b, a)) {
            (Ok(a), Ok(b)) => return [a, b],
            (a, b) => {
                let error = a.err().or(b.err()).unwrap();
                assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
            }
        }
    }
    panic!("no free stations");
}

#[test]
fn a_lid_has_one_device() {
    let fabric = Fabric::new();
    let settings = Settings::infiniband(1, 7);
    let _cable = Cable::to_fabric(&settings, &fabric).unwrap();
    let error = Cable::to_fabric(&settings, &fabric).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let error = Cable::to_fabric(&Settings::infiniband(1, 0), &fabric).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}
