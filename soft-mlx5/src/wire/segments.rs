//! Groups and orders packets that are sent as one message, which the kernel segments into datagrams
//! (`UDP_SEGMENT`).

#![forbid(unsafe_code)]

use super::mmsg::BATCH;
use crate::packet::rocev2::ICRC_LEN;
use crate::packet::{Packet, Transport};

/// Most datagrams of a message: `UDP_MAX_SEGMENTS` of include/linux/udp.h, which was 64 before
/// Linux 6.9 and is 128 since.
const MAX_SEGMENTS: usize = 64;

/// Most bytes of a message: those of a UDP datagram over IPv4. IPv6 would allow 20 more.
const MAX_BYTES: usize = 65_507;

const _: () = assert!(MAX_SEGMENTS <= BATCH);

/// How many of these packets, which have no CRC yet, can be one message: they have the same path,
/// and all are as long as the first; only the last may be shorter.
pub(super) fn run_length(packets: &[Packet]) -> usize {
    let Some((first, rest)) = packets.split_first() else { return 0 };
    let len = first.bytes().len();
    let most = if first.addressing.is_multicast() {
        1
    } else {
        MAX_SEGMENTS.min(MAX_BYTES / (len + ICRC_LEN))
    };
    let mut count = 1;
    for packet in rest.iter().take(most.saturating_sub(1)) {
        if packet.addressing != first.addressing || packet.bytes().len() > len {
            break;
        }
        count += 1;
        if packet.bytes().len() < len {
            break;
        }
    }
    count
}

/// Moves responses after the requests that are sent with them: an acknowledgement is shorter than a
/// request with data, so it can end the same message. Requests and responses of a queue pair are
/// not ordered with each other. Datagrams stay after responses, because a datagram may be a
/// disconnect request, after which the peer drops unacknowledged messages.
pub(super) fn requests_first(packets: &mut [Packet]) {
    if !packets.is_sorted_by_key(is_response) {
        packets.sort_by_key(is_response);
    }
}

fn is_response(packet: &Packet) -> bool {
    let operation = packet.bth().and_then(|bth| bth.opcode().describe());
    operation.is_some_and(|(transport, operation, ..)| {
        operation.is_response() || transport == Transport::Ud
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Addressing, Gid};

    fn route(last: u8) -> Addressing {
        let [a, b] = [1, last].map(|last| Gid::from_ipv4([10, 0, 0, last].into()));
        Addressing::roce(a, b)
    }

    fn packets(route: Addressing, lengths: &[usize]) -> Vec<Packet> {
        lengths.iter().map(|len| Packet::from_bytes(route, &vec![7; *len])).collect()
    }

    #[test]
    fn a_run_ends_with_a_shorter_packet_and_before_a_longer_one() {
        let of = |lengths: &[usize]| run_length(&packets(route(2), lengths));
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[80]), 1);
        assert_eq!(of(&[80, 80, 80]), 3);
        assert_eq!(of(&[80, 80, 76, 80]), 3);
        assert_eq!(of(&[1052, 1036, 1036]), 2);
        assert_eq!(of(&[80, 84, 84]), 1);
    }

    #[test]
    fn an_acknowledgement_ends_the_message_that_it_leaves_with() {
        // BTH opcodes of a reliable connection, ACKNOWLEDGE and SEND Only, and of datagrams.
        let (acknowledgement, send, datagram) = (0x11, 0x04, 0x64);
        let packet = |opcode, tag, len| {
            let mut bytes = vec![tag; len];
            bytes[0] = opcode;
            Packet::from_bytes(route(2), &bytes)
        };
        let mut packets = vec![
            packet(acknowledgement, 1, 16),
            packet(send, 2, 76),
            packet(acknowledgement, 3, 16),
            packet(datagram, 5, 280),
            packet(send, 4, 76),
        ];
        assert_eq!(run_length(&packets), 1);
        requests_first(&mut packets);
        let tags: Vec<u8> = packets.iter().map(|packet| packet.bytes()[1]).collect();
        assert_eq!(tags, [2, 4, 1, 3, 5]);
        assert_eq!(run_length(&packets), 3);
    }

    #[test]
    fn a_run_fits_into_a_message() {
        assert_eq!(run_length(&packets(route(2), &[16; 100])), MAX_SEGMENTS);
        assert_eq!(run_length(&packets(route(2), &[4108; 100])), 15);
    }

    #[test]
    fn packets_of_a_run_have_one_path_and_one_receiver() {
        let mut two = packets(route(2), &[80, 80]);
        two.extend(packets(route(3), &[80, 80]));
        assert_eq!(run_length(&two), 2);
        let group = Addressing::roce(route(2).source, Gid::from_ipv4([239, 1, 2, 3].into()));
        assert_eq!(run_length(&packets(group, &[80, 80])), 1);
    }
}
