//! The page that converts device ticks to nanoseconds.
//!
//! The kernel writes it at any time: read it through volatile or atomic loads, never through a
//! reference to this struct. Bit 0 of `sign` is set while the kernel writes; read again if it was
//! set or `sign` changed.

crate::macros::abi_structs! {
    /// The clock page (`struct mlx5_ib_clock_info` in headers before 2026).
    struct ClockInfo = "struct ib_uverbs_clock_info", 56 {
        /// Sequence counter.
        @0 sign: u32,
        /// Zero.
        @4 resv: u32,
        /// Nanoseconds at the last update.
        @8 nsec: u64,
        /// Ticks at the last update.
        @16 cycles: u64,
        /// Fraction of a nanosecond at the last update, scaled by `shift`.
        @24 frac: u64,
        /// Nanoseconds per tick, scaled by `shift`.
        @32 mult: u32,
        /// Number of fraction bits in `frac` and `mult`.
        @36 shift: u32,
        /// The valid bits of a tick count.
        @40 mask: u64,
        /// The kernel updates the page at least once in so many nanoseconds.
        @48 overflow_period: u64,
    }
}
