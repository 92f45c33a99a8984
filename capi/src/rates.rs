//! Static rates: `enum ibv_rate`, multiples of 2.5 Gbit/s, and Mbit/s.

use std::ffi::{c_int, c_uint};

/// Code, multiple of 2.5 Gbit/s, Mbit/s. Rates of FDR and later are not whole multiples. For them
/// `ibv_rate_to_mult` gives the multiple that libibverbs gives, or the nearest one where libibverbs
/// of rdma-core 44 gives −1.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 41, 103_125),
    (17, 82, 206_250),
    (18, 124, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult`, or −1.
pub(crate) extern "C" fn rate_to_mult(rate: c_uint) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

/// `mult_to_ibv_rate`, or `IBV_RATE_MAX`.
pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|known| known.1 == mult).map_or(0, |known| known.0)
}

/// `ibv_rate_to_mbps`, or −1.
pub(crate) extern "C" fn rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

/// `mbps_to_ibv_rate`, or `IBV_RATE_MAX`.
pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|known| known.2 == mbps).map_or(0, |known| known.0)
}
