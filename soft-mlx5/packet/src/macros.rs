//! A macro that declares structures of packets.

/// Declares a structure whose bytes in memory are those in the packet: without padding, at any
/// address.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_struct {
    ($($declaration:tt)*) => {
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        $($declaration)*
    };
}
