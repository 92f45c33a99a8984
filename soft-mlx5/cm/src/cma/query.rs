//! Queries of an id's device, addresses and path.

use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::address::{AF_IB, QueryAddrResp, SockaddrIb, SockaddrIn6, SockaddrStorage};
use uverbs_uapi::cm::path::{PathFlags, PathRecData, QueryRouteResp, UserPathRec};
use zerocopy::{FromBytes, IntoBytes};

use super::attributes::PORT;
use super::{Address, Binding, Cma, CmaError, CmaId};
use crate::ib_cm::Path;
use uverbs_soft_packet::{Addressing, Gid};

/// Selector "exactly" of a path record's fields (`IB_SA_EQ`).
const EXACTLY: u8 = 2;

impl Cma {
    /// Device, and addresses in the form in which the user gave them (`ucma_query_addr`).
    ///
    /// # Errors
    /// ENOENT.
    pub fn query_addr(&self, id: CmaId) -> Result<QueryAddrResp, CmaError> {
        let entry = self.id(id)?;
        let mut answer = self.query_device(id)?;
        if let Some(source) = entry.source {
            answer.src_addr = source.storage();
            answer.src_size = answer.src_addr.len().unwrap_or(0);
        }
        if let Some(destination) = entry.destination() {
            answer.dst_addr = destination.storage();
            answer.dst_size = answer.dst_addr.len().unwrap_or(0);
        }
        Ok(answer)
    }

    fn query_device(&self, id: CmaId) -> Result<QueryAddrResp, CmaError> {
        let mut answer = QueryAddrResp::default();
        if self.id(id)?.at.is_some() {
            let info = &self.device_of(id)?.info;
            answer.node_guid = u64::from_be_bytes(info.node_guid).into();
            (answer.port_num, answer.ibdev_index) = (PORT, info.index);
        }
        Ok(answer)
    }

    /// Device, and addresses as GIDs and service ids (`ucma_query_gid`).
    ///
    /// # Errors
    /// ENOENT.
    pub fn query_gid(&self, id: CmaId) -> Result<QueryAddrResp, CmaError> {
        let entry = self.id(id)?;
        let mut answer = self.query_device(id)?;
        let side = |address: Option<Address>| ib_storage(address, entry.space, entry.at.is_some());
        (answer.src_addr, answer.dst_addr) = (side(entry.source), side(entry.destination()));
        let size = size_of::<SockaddrIb>() as u16;
        (answer.src_size, answer.dst_size) = (size, size);
        Ok(answer)
    }

    /// Port space and binding of an id that is bound to an IP address.
    pub fn binding(&self, id: CmaId) -> Option<(PortSpace, &Binding)> {
        let entry = self.ids.get(&id)?;
        entry.source?.ip()?;
        Some((entry.space, self.ports.binding(id)?))
    }

    /// The path as the subnet administration's record, if there is one (`ucma_query_path`).
    ///
    /// # Errors
    /// ENOENT.
    pub fn query_path(&self, id: CmaId) -> Result<Option<PathRecData>, CmaError> {
        let entry = self.id(id)?;
        let Some(path) = entry.path else { return Ok(None) };
        let service_id = entry.listens_to().unwrap_or(0);
        let is_roce = !self.device_of(id)?.info.infiniband;
        let path_rec = pack(&path, service_id, is_roce);
        Ok(Some(PathRecData { flags: PathFlags::USABLE, reserved: 0, path_rec }))
    }

    /// Paths and addresses in the older form (`ucma_query_route`).
    ///
    /// # Errors
    /// ENOENT.
    pub fn query_route(&self, id: CmaId) -> Result<QueryRouteResp, CmaError> {
        let entry = self.id(id)?;
        let device = self.query_device(id)?;
        let mut answer = QueryRouteResp {
            node_guid: device.node_guid,
            port_num: device.port_num,
            ibdev_index: device.ibdev_index,
            src_addr: shorter(entry.source),
            dst_addr: shorter(entry.destination()),
            ..QueryRouteResp::default()
        };
        if entry.at.is_none() {
            return Ok(answer);
        }
        match entry.path {
            Some(path) => {
                answer.num_paths = 1;
                answer.ib_route[0] = record(&path);
            }
            None => {
                let gid = |address: Option<Address>| address.map_or([0; 16], |a| a.gid().0);
                answer.ib_route[0] = UserPathRec {
                    dgid: gid(entry.destination()),
                    sgid: gid(entry.source),
                    pkey: 0xffff.into(),
                    ..UserPathRec::default()
                };
            }
        }
        Ok(answer)
    }
}

impl super::id::Id {
    /// Service id in the path record: on the passive side, that of the request.
    fn listens_to(&self) -> Option<u64> {
        self.route.is_none().then(|| self.source.map(|source| source.service_id(self.space)))?
    }
}

fn ib_storage(address: Option<Address>, space: PortSpace, has_device: bool) -> SockaddrStorage {
    let gid = |address: &Address| if has_device { address.gid() } else { Gid::default() };
    match address {
        Some(Address::Ib(ib)) => SockaddrStorage::new(&ib),
        Some(ip) => SockaddrStorage::new(&SockaddrIb {
            family: AF_IB,
            addr: gid(&ip).0,
            sid: ip.service_id(space).into(),
            ..SockaddrIb::default()
        }),
        None => SockaddrStorage::new(&SockaddrIb {
            family: AF_IB,
            sid: super::service_id(space, 0).into(),
            ..SockaddrIb::default()
        }),
    }
}

/// The first 28 bytes of an address.
fn shorter(address: Option<Address>) -> SockaddrIn6 {
    let storage = address.map(|address| address.storage()).unwrap_or_default();
    SockaddrIn6::read_from_prefix(storage.as_bytes()).map(|(short, _)| short).unwrap_or_default()
}

/// The attribute PathRecord (IBTA volume 1, 15.2.5.16), big endian. On RoCE the kernel packs the
/// neighbour's MAC address into the fields of LIDs and raw traffic, because its struct has them in
/// one union: a flag, then the MAC address.
fn pack(path: &Path, service_id: u64, is_roce: bool) -> [u8; 64] {
    let to = &path.addressing;
    let mac = to.destination_mac;
    let (lids, raw) = match is_roce {
        true => ([1, mac[0], mac[1], mac[2]], u32::from(mac[3] & 1)),
        false => (lids(to.destination_lid, to.source_lid), 0),
    };
    let mut record = [0; 64];
    record[..8].copy_from_slice(&service_id.to_be_bytes());
    record[8..24].copy_from_slice(&to.destination.0);
    record[24..40].copy_from_slice(&to.source.0);
    record[40..44].copy_from_slice(&lids);
    let flow = raw << 31 | (to.flow_label & 0xf_ffff) << 8 | u32::from(to.hop_limit);
    record[44..48].copy_from_slice(&flow.to_be_bytes());
    // Reversible.
    (record[48], record[49]) = (to.traffic_class, 0x80);
    record[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    record[53] = to.service_level;
    let exactly = |value: u8| EXACTLY << 6 | value & 0x3f;
    (record[54], record[55], record[56]) =
        (exactly(path.mtu), exactly(path.rate), exactly(path.life));
    record
}

impl Path {
    /// Parses a path record of the user (`ib_sa_unpack_path`). `known` is the neighbour's
    /// addressing.
    pub fn of_record(record: &[u8; 64], known: Addressing) -> Self {
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| record[at + byte]));
        let gid = |at: usize| Gid(std::array::from_fn(|byte| record[at + byte]));
        let lid = |at: usize| u16::from_be_bytes([record[at], record[at + 1]]);
        let has_lids = known.destination_lid != 0;
        let addressing = Addressing {
            destination: gid(8),
            source: gid(24),
            destination_lid: if has_lids { lid(40) } else { 0 },
            source_lid: if has_lids { lid(42) } else { 0 },
            flow_label: word(44) >> 8 & 0xf_ffff,
            hop_limit: record[47],
            traffic_class: record[48],
            service_level: record[53] & 0xf,
            ..known
        };
        let low = |at: usize| record[at] & 0x3f;
        Self { addressing, pkey: lid(50), mtu: low(54), rate: low(55), life: low(56) }
    }
}

fn lids(destination: u16, source: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (destination.to_be_bytes(), source.to_be_bytes());
    [a, b, c, d]
}

/// The path as the kernel's struct (`ib_copy_path_rec_to_user`).
fn record(path: &Path) -> UserPathRec {
    let to = &path.addressing;
    UserPathRec {
        dgid: to.destination.0,
        sgid: to.source.0,
        dlid: to.destination_lid.into(),
        slid: to.source_lid.into(),
        flow_label: to.flow_label.into(),
        reversible: 1.into(),
        mtu: u32::from(path.mtu).into(),
        pkey: path.pkey.into(),
        hop_limit: to.hop_limit,
        traffic_class: to.traffic_class,
        sl: to.service_level,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.life,
        ..UserPathRec::default()
    }
}
