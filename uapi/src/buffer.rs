//! Descriptions of user memory in attributes of current kernels.

use crate::enums::BufferType;

crate::macros::abi_structs! {
    /// A buffer by address or dma-buf.
    struct BufferDesc = "struct ib_uverbs_buffer_desc", 32 {
        @0 kind: BufferType as "type",
        /// File descriptor of the dma-buf.
        @4 fd: i32,
        /// None are defined.
        @8 flags: u32,
        /// None are defined.
        @12 optional_flags: u32,
        /// Address, or offset in the dma-buf.
        @16 addr: u64,
        /// Bytes.
        @24 length: u64,
    }
}
