//! ESP flow actions; current kernels have no driver for them.

use crate::enums::EspIvAlgo;
use crate::flags::EspFlags;

crate::macros::abi_structs! {
    /// AES-GCM key.
    struct EspKeymatAesGcm = "struct ib_uverbs_flow_action_esp_keymat_aes_gcm", 56 {
        @0 iv: u64,
        @8 iv_algo: EspIvAlgo,
        @12 salt: u32,
        @16 icv_len: u32,
        @20 key_len: u32,
        @24 aes_key: [u32; 8],
    }

    /// Replay window.
    struct EspReplayBmp = "struct ib_uverbs_flow_action_esp_replay_bmp", 4 {
        /// Packets.
        @0 size: u32,
    }

    /// Headers around the payload, as a list.
    struct EspEncap = "struct ib_uverbs_flow_action_esp_encap", 24 {
        /// Address of a filter struct.
        @0 val_ptr: u64,
        /// Address of the next entry.
        @8 next_ptr: u64,
        /// Bytes of the filter struct.
        @16 len: u16,
        /// A [`FlowSpecType`](crate::enums::FlowSpecType).
        @18 kind: u16 as "type",
        /// Zero.
        @20 padding: [u8; 4] as "",
    }

    /// The action.
    struct Esp = "struct ib_uverbs_flow_action_esp", 24 {
        @0 spi: u32,
        @4 seq: u32,
        @8 tfc_pad: u32,
        @12 flags: EspFlags,
        @16 hard_limit_pkts: u64,
    }
}
