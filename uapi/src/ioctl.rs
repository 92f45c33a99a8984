//! The ioctl itself: its number, its header and its attributes.
//!
//! Source: `rdma_user_ioctl_cmds.h`, and `drivers/infiniband/core/uverbs_ioctl.c` for what the
//! kernel checks: the header's length is 24 bytes plus 16 per attribute and at most one page, the
//! reserved words are zero, the driver id is that of the device.

crate::macros::abi_structs! {
    /// The head of a request; the attributes follow it.
    struct IoctlHdr = "struct ib_uverbs_ioctl_hdr", 24 {
        /// Bytes of header and attributes together.
        @0 length: u16,
        /// Which kind of object.
        @2 object_id: crate::objects::ObjectId,
        /// Which of the object's methods.
        @4 method_id: crate::objects::MethodId,
        /// How many attributes follow.
        @6 num_attrs: u16,
        @8 reserved1: u64,
        /// The driver that defines the ids from 0x1000 on.
        @16 driver_id: crate::enums::DriverId,
        @20 reserved2: u32,
    }

    /// One attribute.
    struct IoctlAttr = "struct ib_uverbs_attr", 16 {
        /// Which attribute of the method.
        @0 attr_id: crate::objects::AttrId,
        /// Length in bytes of what the attribute carries; 0 for handles and file descriptors.
        @2 len: u16,
        /// The sender sets [`AttrFlags::MANDATORY`], the kernel [`AttrFlags::VALID_OUTPUT`].
        @4 flags: AttrFlags,
        /// The selected element of an enum attribute, in the low byte; zero for all others.
        @6 enum_id: u16 as "attr_data",
        /// Depends on the attribute: an input of at most eight bytes; the address of a longer input
        /// or of an output; an object's handle; a file descriptor's number, sign-extended.
        @8 data: u64,
    }
}

mod values {
    crate::macros::abi_flags! {
        /// Flags of an attribute.
        flags AttrFlags: u16 {
            /// A kernel that does not know this attribute must fail with EPROTONOSUPPORT.
            MANDATORY = 1 << 0 => UVERBS_ATTR_F_MANDATORY,
            /// Set by the kernel: it wrote this output.
            VALID_OUTPUT = 1 << 1 => UVERBS_ATTR_F_VALID_OUTPUT,
        }
    }
}

mod constants {
    crate::macros::abi_constants! {
        /// The ioctl's number: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
        RDMA_VERBS_IOCTL: u32 = 0xc018_1b01 RDMA_VERBS_IOCTL,
        /// The ioctl's type.
        RDMA_IOCTL_MAGIC: u8 = 0x1b RDMA_IOCTL_MAGIC,
        /// An id shifted right by this is the number of its namespace.
        ID_NS_SHIFT: u16 = 12 UVERBS_ID_NS_SHIFT,
        /// The first id of the driver's namespace.
        ID_DRIVER_NS: u16 = 0x1000 UVERBS_ID_DRIVER_NS,
        /// The bits of an id that are its namespace: 0 is generic, 1 the driver's.
        ID_NS_MASK: u16 = 0xf000 UVERBS_ID_NS_MASK,
        /// Flag of an extended write command.
        CMD_FLAG_EXTENDED: u32 = 0x8000_0000 IB_USER_VERBS_CMD_FLAG_EXTENDED,
        /// Bits of a write command that are its number.
        CMD_COMMAND_MASK: u32 = 0xff IB_USER_VERBS_CMD_COMMAND_MASK,
        /// Numbers from this one on are only for extended commands.
        CMD_THRESHOLD: u32 = 50 IB_USER_VERBS_CMD_THRESHOLD,
        /// Binary logarithm of the longest indirection table.
        MAX_LOG_IND_TBL_SIZE: u32 = 0x0d IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE,
        /// Bytes of a device's name, the final zero included.
        DEVICE_NAME_MAX: usize = 64 IB_DEVICE_NAME_MAX,
        /// Version of the write commands, in sysfs as `abi_version`.
        USER_VERBS_ABI_VERSION: u32 = 6 IB_USER_VERBS_ABI_VERSION,
        /// The mlx5 driver's version, in sysfs as the device's `abi_version`.
        MLX5_ABI_VERSION: u32 = 1 MLX5_IB_UVERBS_ABI_VERSION,
    }
}

pub(crate) use constants::CONSTANTS;
pub use constants::{
    CMD_COMMAND_MASK, CMD_FLAG_EXTENDED, CMD_THRESHOLD, DEVICE_NAME_MAX, ID_DRIVER_NS, ID_NS_MASK,
    ID_NS_SHIFT, MAX_LOG_IND_TBL_SIZE, MLX5_ABI_VERSION, RDMA_IOCTL_MAGIC, RDMA_VERBS_IOCTL,
    USER_VERBS_ABI_VERSION,
};
pub use values::AttrFlags;
pub(crate) use values::CONSTANTS as FLAG_CONSTANTS;
