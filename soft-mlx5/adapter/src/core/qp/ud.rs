//! Unreliable datagrams.

use uverbs_mlx5_format::{AddressVector, CqeOpcode, Opcode};

use super::super::LinkLayer;
use super::super::env::Env;
use super::super::frame;
use super::super::management::QP1_QKEY;
use super::receive::Received;
use super::syndrome::Failure;
use super::wqe::SendWqe;
use super::{Qp, QpState};
use crate::packet::{Addressing, Bth, Deth, Gid, ImmDt, Opcode as Wire, Packet, View};

/// Bytes at the start of a UD receive buffer for the global route header; unchanged without one.
pub(super) const GRH_LEN: usize = 40;

/// The QP number for multicast.
pub(in crate::core) const MULTICAST_QPN: u32 = 0xff_ffff;

impl Qp {
    /// Builds the only packet of a UD send.
    pub(super) fn build_datagram(
        &self,
        env: &Env,
        wqe: &SendWqe,
        packet: &mut Packet,
    ) -> Result<(), Failure> {
        let immediate = wqe.opcode == Opcode::SEND_IMMEDIATE;
        let opcode = if immediate { Wire::UD_SEND_ONLY_IMMEDIATE } else { Wire::UD_SEND_ONLY };
        let to = &wqe.address_vector;
        let mut bth = Bth::new(opcode, self.pkey(env), to.remote_qpn(), wqe.first_psn);
        bth.set_solicited(wqe.flags.is_solicited());
        packet.start(datagram_route(env, to)?, bth);
        packet.push(Deth::new(self.qkey_for(to.qkey()), self.wire_number()));
        if immediate {
            packet.push(ImmDt(wqe.immediate));
        }
        self.fill(env, wqe, 0, packet.payload(wqe.len as usize))
    }

    /// The Q_Key of a datagram. If its top bit is set, the sending QP's own Q_Key is used
    /// (`ibv_post_send(3)`). Kernels send management datagrams on QP 1 with 0x80000000
    /// (`IB_QP_SET_QKEY` of drivers/infiniband/core/mad.c).
    fn qkey_for(&self, qkey: u32) -> u32 {
        if qkey >> 31 == 1 { self.own_qkey() } else { qkey }
    }

    fn own_qkey(&self) -> u32 {
        if self.params.special == Some(1) { QP1_QKEY } else { self.settings.qkey }
    }

    /// The QP number in packets: 0 or 1 for a management QP.
    fn wire_number(&self) -> u32 {
        self.params.special.map_or(self.number.0, u32::from)
    }

    /// The immediate field of a completion. For management datagrams it holds the P_Key, which
    /// mlx5_ib reads there.
    fn immediate_of(&self, packet: &View<'_>) -> [u8; 4] {
        let pkey = || self.params.special.map(|_| u32::from(packet.bth.pkey()).to_be_bytes());
        packet.immediate.map(|immediate| immediate.0).or_else(pkey).unwrap_or_default()
    }

    /// Handles a datagram.
    pub(super) fn receive_datagram(&mut self, env: &mut Env, from: &Addressing, packet: &View<'_>) {
        let Some(deth) = packet.deth else { return };
        let checked = self.params.special != Some(0);
        let violates = checked && deth.qkey.get() != self.own_qkey();
        env.counters.qkey_violations += u64::from(violates);
        if violates || self.state == QpState::Error {
            env.counters.datagrams_lost += 1;
            return;
        }
        // Without a receive WQE a datagram is lost.
        let Ok(mut wqe) = self.take_receive_wqe(env, None) else {
            env.counters.datagrams_lost += 1;
            env.counters.out_of_buffer += 1;
            return;
        };
        let grh = global_route_header(env, from, packet);
        let stored =
            grh.map_or(Ok(()), |grh| self.store_received(env, &mut wqe, 0, &grh, false)).and_then(
                |()| self.store_received(env, &mut wqe, GRH_LEN as u64, packet.payload, false),
            );
        let completed = match stored {
            Ok(()) => {
                let received = Received {
                    opcode: if packet.immediate.is_some() {
                        CqeOpcode::RESPONDER_SEND_IMMEDIATE
                    } else {
                        CqeOpcode::RESPONDER_SEND
                    },
                    bytes: (GRH_LEN + packet.payload.len()) as u64,
                    immediate: self.immediate_of(packet),
                    remote_qpn: deth.source(),
                    solicited: packet.bth.solicited(),
                };
                self.complete_receive(env, wqe, from, received)
            }
            // It is unconfirmed that on a real device a datagram that does not fit fails the QP.
            Err(failure) => {
                let completed = self.complete_receive_with_error(env, &wqe, failure);
                self.enter_error(env);
                completed
            }
        };
        if !completed {
            self.fail_fatally(env);
        }
    }
}

/// Addressing from an address vector.
pub(super) fn datagram_route(env: &Env, to: &AddressVector) -> Result<Addressing, Failure> {
    let source = env.config.gids.get(usize::from(to.source_gid_index())).copied();
    let infiniband = env.config.link == LinkLayer::InfiniBand;
    let global = !infiniband || to.has_grh();
    if global && source.is_none_or(Gid::is_zero) {
        return Err(Failure::ADDRESS);
    }
    let mut route = Addressing {
        source: source.unwrap_or_default(),
        destination: Gid(to.remote_gid),
        global,
        service_level: to.static_rate_sl & 0xf,
        traffic_class: to.traffic_class,
        hop_limit: to.hop_limit,
        flow_label: to.flow_label(),
        ..Addressing::default()
    };
    if infiniband {
        route.source_lid = env.config.lid | u16::from(to.loopback_path_bits & 0x7f);
        route.destination_lid = to.remote_lid_udp_port.get();
    } else {
        route.destination_mac = to.remote_mac;
        route.udp_source_port = to.remote_lid_udp_port.get();
    }
    Ok(route)
}

/// The 40 bytes before the payload, if the packet has a global route: a GRH (which looks like an
/// IPv6 header), or on IPv4 20 bytes of zeros and the IPv4 header (annex A17.4.5.2).
fn global_route_header(env: &Env, from: &Addressing, packet: &View<'_>) -> Option<[u8; GRH_LEN]> {
    if !from.global {
        return None;
    }
    let mut grh = [0; GRH_LEN];
    // Transport bytes and CRC; on RoCE also the UDP header.
    let udp = if env.config.link == LinkLayer::Ethernet { 8 } else { 0 };
    let transport = packet_len(packet) + 4 + udp;
    match (from.source.to_ipv4(), from.destination.to_ipv4()) {
        (Some(source), Some(destination)) if udp > 0 => {
            let header = &mut grh[20..];
            header[0] = 0x45;
            header[1] = from.traffic_class;
            header[2..4].copy_from_slice(&(transport as u16 + 20).to_be_bytes());
            header[6] = 0x40;
            header[8] = from.hop_limit;
            header[9] = 17;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let checksum = frame::checksum(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        _ => {
            let class = u32::from(from.traffic_class) << 20;
            let first = 6 << 28 | class | from.flow_label & 0xf_ffff;
            grh[..4].copy_from_slice(&first.to_be_bytes());
            grh[4..6].copy_from_slice(&(transport as u16).to_be_bytes());
            // Next header: UDP, or InfiniBand transport (specification 8.3.3).
            grh[6] = if udp > 0 { 17 } else { 0x1b };
            grh[7] = from.hop_limit;
            grh[8..24].copy_from_slice(&from.source.0);
            grh[24..].copy_from_slice(&from.destination.0);
        }
    }
    Some(grh)
}

fn packet_len(packet: &View<'_>) -> usize {
    let headers = packet.opcode().describe().map_or(0, |(_, _, _, headers)| headers.size());
    headers + packet.payload.len() + packet.bth.pad()
}
