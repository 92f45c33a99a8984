//! How structures that lie in packets are declared.

/// Declares a structure that is read from bytes and written to them as it lies in memory: without padding, at any address.
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
