//! Encodes and decodes values.

use proptest::prelude::*;
use uverbs_mlx5::format::WQEBB_SIZE;
use uverbs_mlx5_inspect::{Service, Wqe, decode_ring, parse_dump};

use crate::generate::OPCODES;
use crate::strategy::wqe;

proptest! {
    #[test]
    fn decoding_what_was_encoded_gives_the_same((service, wqe) in wqe()) {
        let bytes = wqe.encode();
        prop_assert_eq!(bytes.len(), usize::from(wqe.control.ds()) * 16);
        prop_assert_eq!(Wqe::decode(&bytes, service), Ok(wqe));
    }

    #[test]
    fn nothing_is_wrong_with_legal_wqes((service, wqe) in wqe()) {
        prop_assert_eq!(wqe.findings(service), vec![]);
    }

    #[test]
    fn encoding_stays_within_its_slots((_, wqe) in wqe(), fill in any::<u8>()) {
        let blocks = 16;
        let mut ring = vec![fill; blocks * WQEBB_SIZE];
        prop_assert!(wqe.encode_into_ring(&mut ring));
        let first = usize::from(wqe.control.index());
        let taken = |block: usize| (block + blocks - first % blocks) % blocks < wqe.blocks();
        for (block, bytes) in ring.chunks(WQEBB_SIZE).enumerate() {
            prop_assert!(taken(block) || bytes.iter().all(|byte| *byte == fill), "block {}", block);
        }
    }

    #[test]
    fn a_wrapped_wqe_is_the_unwrapped_one_rotated((_, wqe) in wqe()) {
        let blocks = 16;
        let mut wrapped = vec![0; blocks * WQEBB_SIZE];
        prop_assert!(wqe.encode_into_ring(&mut wrapped));
        let mut straight = wqe.encode_blocks();
        straight.resize(wrapped.len(), 0);
        straight.rotate_right(usize::from(wqe.control.index()) % blocks * WQEBB_SIZE);
        prop_assert_eq!(wrapped, straight);
    }

    #[test]
    fn a_ring_too_small_is_left_alone((_, wqe) in wqe()) {
        let mut ring = vec![0xaa; 48];
        prop_assert!(!wqe.encode_into_ring(&mut ring));
        prop_assert!(ring.iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    fn a_ring_decodes_into_what_was_put_there(
        wqes in prop::collection::vec(wqe(), 1..6), start in any::<u16>()
    ) {
        let service = Service::Rc;
        let mut ring = vec![0; 128 * WQEBB_SIZE];
        let mut index = start;
        let mut expected = Vec::new();
        for (_, mut wqe) in wqes.into_iter().filter(|(of, _)| *of == service) {
            let opcode = wqe.control.opcode();
            wqe.control.opmod_index_opcode = uverbs_mlx5::format::ControlSegment::first_word(
                wqe.control.opcode_modifier(), index, opcode).into();
            prop_assert!(wqe.encode_into_ring(&mut ring));
            index = index.wrapping_add(wqe.blocks() as u16);
            expected.push(wqe);
        }
        // Rotate the ring so that the first WQE is at slot 0.
        ring.rotate_left(usize::from(start) % 128 * WQEBB_SIZE);
        let decoded = decode_ring(&ring, None, service);
        let decoded: Vec<_> = decoded.into_iter().map(|entry| entry.wqe).collect();
        prop_assert_eq!(&decoded[..expected.len()], &expected[..]);
    }

    #[test]
    fn a_dump_as_hex_reads_back((_, wqe) in wqe()) {
        let bytes = wqe.encode();
        let mut dump = String::new();
        for (line, chunk) in bytes.chunks(16).enumerate() {
            dump += &format!("{:08x}:", line * 16);
            for byte in chunk {
                dump += &format!(" {byte:02x}");
            }
            dump += "  ................\n";
        }
        prop_assert_eq!(parse_dump(&dump, false), Ok(bytes));
    }
}

fn opcodes(service: Service) -> usize {
    OPCODES.iter().filter(|opcode| service.allows(**opcode)).count()
}

#[test]
fn every_service_has_its_opcodes() {
    let counts: Vec<_> = Service::ALL.iter().map(|of| (of.name(), opcodes(*of))).collect();
    let expected =
        [("rc", 12), ("ud", 3), ("raw_packet", 3), ("xrc_send", 12), ("dci", 12), ("uc", 6)];
    assert_eq!(counts, expected);
}
