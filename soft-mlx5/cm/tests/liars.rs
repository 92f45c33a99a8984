//! Hostile peers: a network between two hosts changes bytes of datagrams, repeats them, and sends
//! them from other addresses. No datagram may cause a panic or a leftover id.
//!
//! `SEED=n cargo test -p uverbs-soft-cm --test liars` repeats one run; `RUNS=n` sets how many
//! seeds are tried.

#[path = "connections/seeds.rs"]
mod seeds;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use uverbs_soft_cm::cma::{
    Address, Addresses, Cma, CmaConfig, CmaError, CmaId, DeviceInfo, GidSlot, Interface, Route,
    Target,
};
use uverbs_soft_cm::mad::MAD_LEN;
use uverbs_soft_packet::prng::Prng;
use uverbs_soft_packet::{Addressing, Gid};
use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::connect::{ConnParam, Ece};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::enums::QpType;
use zerocopy::IntoBytes;

const SECOND: u64 = 1_000_000_000;
const PORT: u16 = 7000;
const STEPS: u32 = 400;

fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host as u8 + 1)
}

/// The IP stack of a host with one device; every address is a neighbour.
struct Stack(usize);

impl Addresses for Stack {
    fn interface_of(&self, address: IpAddr) -> Result<Interface, CmaError> {
        let gid = Gid::from_ipv4(ip(self.0));
        let is_own = address == IpAddr::from(ip(self.0));
        is_own.then_some(Interface { device: 0, gid }).ok_or(CmaError(libc::EADDRNOTAVAIL))
    }

    fn route(&self, _: Option<IpAddr>, to: SocketAddr, _: PortSpace) -> Result<Route, CmaError> {
        let IpAddr::V4(v4) = to.ip() else { return Err(CmaError(libc::ENETUNREACH)) };
        let addressing = Addressing::roce(Gid::from_ipv4(ip(self.0)), Gid::from_ipv4(v4));
        Ok(Route { device: 0, source: ip(self.0).into(), addressing })
    }

    fn answers(&self, _: u64, _: usize, _: &Addressing) -> bool {
        true
    }
}

struct World {
    hosts: [Cma; 2],
    /// All sent datagrams: receiving host, addressing, bytes.
    sent: Vec<(usize, Addressing, Vec<u8>)>,
    /// The ids of each host that the program has not destroyed.
    ids: [Vec<CmaId>; 2],
    prng: Prng,
    now: u64,
    /// Number of datagrams that arrived with changes.
    changed: u32,
}

fn host(number: usize, seed: u64) -> (Cma, Vec<CmaId>) {
    let mut cma = Cma::new(CmaConfig { seed: Some(seed), ..CmaConfig::default() });
    let gid = Gid::from_ipv4(ip(number));
    let info = DeviceInfo {
        node_guid: (0x0002_c903_0000_0000 + number as u64).to_be_bytes(),
        gids: vec![GidSlot { gid, is_default_type: true }],
        mtu: 3,
        ack_delay: 16,
        ..DeviceInfo::default()
    };
    cma.add_device(info, Some(seed ^ 1));
    let listen = |(space, qp_type)| {
        let id = cma.create(space, qp_type).expect("an id");
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        cma.bind(id, Address::Ip(address), false, &Stack(number)).expect("free");
        cma.listen(id, &Stack(number)).expect("bound");
        id
    };
    let ids = [(PortSpace::TCP, QpType::RC), (PortSpace::UDP, QpType::UD)].map(listen).to_vec();
    (cma, ids)
}

impl World {
    fn new(seed: u64) -> Self {
        let ((one, ids_of_one), (other, ids_of_other)) = (host(0, seed), host(1, seed + 1));
        Self {
            hosts: [one, other],
            sent: Vec::new(),
            ids: [ids_of_one, ids_of_other],
            prng: Prng::new(seed),
            now: 0,
            changed: 0,
        }
    }

    fn run(mut self) -> u32 {
        for _ in 0..STEPS {
            self.now += self.prng.below(2 * SECOND);
            match self.prng.below(3) {
                0 => self.ask(),
                1 => self.act(),
                _ => {}
            }
            (0..8).for_each(|_| self.deliver());
            for host in 0..2 {
                self.hosts[host].step(self.now, &Stack(host));
                self.run_to_idle(host);
            }
        }
        self.finish()
    }

    /// A program starts to connect, or to look up a service.
    fn ask(&mut self) {
        let host = self.prng.below(2) as usize;
        let kinds = [(PortSpace::TCP, QpType::RC), (PortSpace::UDP, QpType::UD)];
        let (space, qp_type) = kinds[self.prng.below(2) as usize];
        let id = self.hosts[host].create(space, qp_type).expect("an id");
        let destination = Address::Ip(SocketAddr::new(ip(1 - host).into(), PORT));
        let target = Target { source: None, destination, timeout_ms: 2000 };
        self.hosts[host].resolve_addr(self.now, id, &target, &Stack(host)).expect("a route");
        self.ids[host].push(id);
    }

    /// A program makes a random call on one of its ids. The call may be refused.
    fn act(&mut self) {
        let host = self.prng.below(2) as usize;
        let at = self.prng.below(self.ids[host].len() as u64) as usize;
        let (id, param) = (self.ids[host][at], self.param());
        let (cma, now) = (&mut self.hosts[host], self.now);
        let _ = match self.prng.below(6) {
            0 => cma.accept(now, id, Some(&param), Ece::default()),
            1 => cma.accept(now, id, None, Ece::default()),
            2 => cma.reject(now, id, 28, &[7; 148]),
            3 => cma.disconnect(now, id),
            4 => cma.connect(now, id, &param, Ece::default(), &Stack(host)),
            // The first two are the listeners.
            _ if at < 2 => Ok(()),
            _ => {
                self.ids[host].swap_remove(at);
                cma.destroy(now, id);
                Ok(())
            }
        };
    }

    fn param(&mut self) -> ConnParam {
        let qp_num = self.prng.below(1 << 24) as u32;
        let private_data_len = self.prng.below(57) as u8;
        ConnParam { qp_num, private_data_len, valid: 1, ..ConnParam::default() }
    }

    /// Delivers one of all sent datagrams, usually with changes.
    fn deliver(&mut self) {
        let Some(last) = self.sent.len().checked_sub(1) else { return };
        let at = last - (self.prng.below(8) as usize).min(last);
        let (to, mut addressing, mut bytes) = self.sent[at].clone();
        let changes = self.prng.below(4);
        for _ in 0..changes {
            // The first 24 bytes are the header; the attribute is at 16.
            let range = if self.prng.chance(200_000) { (16, 18) } else { (24, MAD_LEN as u64) };
            bytes[self.prng.within(range.0, range.1 - 1) as usize] = self.prng.next() as u8;
        }
        if self.prng.chance(50_000) {
            addressing.source = Gid::from_ipv4(Ipv4Addr::from(self.prng.next() as u32));
        }
        if self.prng.chance(20_000) {
            bytes.truncate(self.prng.below(MAD_LEN as u64) as usize);
        }
        self.changed += u32::from(changes > 0);
        self.hosts[to].receive(self.now, 0, &addressing, &bytes);
        self.run_to_idle(to);
    }

    /// A program handles its events, continues its attempts, and makes every query.
    fn run_to_idle(&mut self, host: usize) {
        while let Some(event) = self.hosts[host].take_event() {
            let (id, now, param) = (event.id, self.now, self.param());
            let cma = &mut self.hosts[host];
            let _ = match event.event {
                EventType::ADDR_RESOLVED => cma.resolve_route(id, 2000),
                EventType::ROUTE_RESOLVED => {
                    cma.connect(now, id, &param, Ece::default(), &Stack(host))
                }
                EventType::CONNECT_RESPONSE => cma.accept(now, id, None, Ece::default()),
                EventType::CONNECT_REQUEST => {
                    self.ids[host].push(id);
                    cma.accept(now, id, Some(&param), Ece::default())
                }
                _ => Ok(()),
            };
            let cma = &self.hosts[host];
            for state in 0..5 {
                let _ = cma.init_qp_attr(id, state);
            }
            let _ = (cma.query_addr(id), cma.query_gid(id));
            let _ = (cma.query_path(id), cma.query_route(id));
        }
        while let Some((_, out)) = self.hosts[host].take_mad() {
            let addressing = Addressing::roce(out.addressing.source, out.addressing.destination);
            self.sent.push((1 - host, addressing, out.mad.as_bytes().to_vec()));
        }
    }

    /// Destroys all ids, and checks that no object is left.
    fn finish(mut self) -> u32 {
        for host in 0..2 {
            for id in std::mem::take(&mut self.ids[host]) {
                self.hosts[host].destroy(self.now, id);
            }
            let cma = &self.hosts[host];
            assert_eq!(cma.id_count(), 0, "host {host}");
            assert_eq!(cma.engine(0).map(|engine| engine.id_count()), Some(0), "host {host}");
        }
        self.changed
    }
}

#[test]
fn changed_datagrams_are_survived_and_leave_no_id() {
    let seeds = seeds::single().map_or(0..seeds::runs(10), |seed| seed..seed + 1);
    for seed in seeds {
        let changed = seeds::print_if_panics(seed, || World::new(seed).run());
        assert!(changed > STEPS / 2, "seed {seed}: {changed} datagrams only were changed");
    }
}
