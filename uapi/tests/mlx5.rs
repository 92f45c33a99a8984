//! Facts about the mlx5 part that are more than a value in a header.

use uverbs_uapi::enums::Mtu;
use uverbs_uapi::mlx5::{AllocUcontextReqV2, MmapCommand};

#[test]
fn mmap_offsets() {
    assert_eq!(MmapCommand::CORE_CLOCK.offset(0, 4096), 0x50_0000);
    assert_eq!(MmapCommand::CLOCK_INFO.offset(0, 4096), 0x70_0000);
    assert_eq!(MmapCommand::REGULAR_PAGE.offset(3, 4096), 3 << 12);
    assert_eq!(MmapCommand::WC_PAGE.offset(0x1ff, 65536), (0x1_02ff) << 16);
}

#[test]
fn context_requests_for_older_kernels() {
    assert_eq!(AllocUcontextReqV2::LENGTHS, [32, 24, 16]);
}

#[test]
fn mtu_codes() {
    assert_eq!(Mtu::MTU_256.bytes(), Some(256));
    assert_eq!(Mtu::MTU_4096.bytes(), Some(4096));
    assert_eq!(Mtu(0).bytes(), None);
    assert_eq!(Mtu(6).bytes(), None);
    assert_eq!(Mtu(9).to_string(), "0x9");
}
