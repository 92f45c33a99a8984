//! The address path of a queue pair (`ads`).

use crate::core::AddressPath;
use crate::firmware::bits::field;
use crate::firmware::layout::context::ads;
use crate::packet::Gid;

/// Offset of the peer's GID in a path, in bytes.
const GID: usize = 0x10;

pub(super) fn pkey_index(path: &[u8]) -> u16 {
    ads::PKEY_INDEX.get(path) as u16
}

pub(super) fn ack_timeout(path: &[u8]) -> u8 {
    ads::ACK_TIMEOUT.get(path) as u8
}

pub(super) fn read(path: &[u8]) -> AddressPath {
    let byte = |field: crate::firmware::bits::Field| field.get(path) as u8;
    let mut gid = Gid::default();
    gid.0.iter_mut().zip(path.iter().skip(GID)).for_each(|(to, from)| *to = *from);
    let mut mac = [0; 6];
    mac.iter_mut()
        .enumerate()
        .for_each(|(index, to)| *to = byte(field(0x130, 8).element(index, 8)));
    AddressPath {
        source_gid_index: byte(ads::SRC_ADDR_INDEX),
        global: ads::GRH.is_set(path),
        destination_gid: gid,
        destination_lid: ads::RLID.get(path) as u16,
        source_path_bits: byte(ads::MLID),
        service_level: byte(ads::SL),
        traffic_class: byte(ads::TCLASS),
        hop_limit: byte(ads::HOP_LIMIT),
        flow_label: ads::FLOW_LABEL.get32(path),
        destination_mac: mac,
        udp_source_port: ads::UDP_SPORT.get(path) as u16,
        pkey_index: pkey_index(path),
        port: byte(ads::VHCA_PORT_NUM),
        ack_timeout: ack_timeout(path),
        static_rate: byte(ads::STAT_RATE),
    }
}

pub(super) fn write(path: &AddressPath, to: &mut [u8]) {
    let values = [
        (ads::SRC_ADDR_INDEX, u64::from(path.source_gid_index)),
        (ads::GRH, u64::from(path.global)),
        (ads::RLID, u64::from(path.destination_lid)),
        (ads::MLID, u64::from(path.source_path_bits)),
        (ads::SL, u64::from(path.service_level)),
        (ads::TCLASS, u64::from(path.traffic_class)),
        (ads::HOP_LIMIT, u64::from(path.hop_limit)),
        (ads::FLOW_LABEL, u64::from(path.flow_label)),
        (ads::UDP_SPORT, u64::from(path.udp_source_port)),
        (ads::PKEY_INDEX, u64::from(path.pkey_index)),
        (ads::VHCA_PORT_NUM, u64::from(path.port)),
        (ads::ACK_TIMEOUT, u64::from(path.ack_timeout)),
        (ads::STAT_RATE, u64::from(path.static_rate)),
    ];
    values.into_iter().for_each(|(field, value)| field.set(to, value));
    to.iter_mut().skip(GID).zip(path.destination_gid.0).for_each(|(to, from)| *to = from);
    let mac = path.destination_mac.iter().enumerate();
    mac.for_each(|(index, byte)| field(0x130, 8).element(index, 8).set(to, u64::from(*byte)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_way_into_a_context_and_back() {
        let path = AddressPath {
            source_gid_index: 3,
            global: true,
            destination_gid: Gid([7; 16]),
            destination_lid: 0x1234,
            source_path_bits: 5,
            service_level: 9,
            traffic_class: 0xa5,
            hop_limit: 64,
            flow_label: 0xf_1234,
            destination_mac: [1, 2, 3, 4, 5, 6],
            udp_source_port: 0xc001,
            pkey_index: 1,
            port: 1,
            ack_timeout: 14,
            static_rate: 2,
        };
        let mut bytes = [0; 44];
        write(&path, &mut bytes);
        assert_eq!(read(&bytes), path);
    }
}
