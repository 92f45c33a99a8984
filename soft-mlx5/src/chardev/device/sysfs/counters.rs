//! The directory `hw_counters` of a port.

use super::Sysfs;
use super::layout::infiniband_device;
use crate::chardev::device::options::Options;
use crate::core::Counters;

/// The counters of mlx5_ib that this device keeps, by the driver's names (`basic_q_cnts`,
/// `out_of_seq_q_cnts`, `retrans_q_cnts` and `extended_err_cnts` in mlx5/counters.c). It is
/// unconfirmed that `resp_local_length_error` counts frames of raw packet queue pairs, and that
/// `out_of_buffer` counts RNR NAKs.
pub(crate) fn hw_counters(counters: &Counters) -> [(&'static str, u64); 5] {
    [
        ("duplicate_request", counters.duplicates),
        ("local_ack_timeout_err", counters.timeouts),
        ("out_of_buffer", counters.out_of_buffer),
        ("out_of_sequence", counters.out_of_sequence),
        ("resp_local_length_error", counters.receives_too_short),
    ]
}

/// Milliseconds for which the kernel may repeat a value (`RDMA_HW_STATS_DEFAULT_LIFESPAN`).
const LIFESPAN: &str = "10";

impl Sysfs {
    pub(crate) fn set_hw_counters(&mut self, options: &Options, counters: &Counters) {
        let directory = format!("{}/ports/1/hw_counters", infiniband_device(options));
        for (name, value) in hw_counters(counters) {
            self.add(&format!("{directory}/{name}"), &value.to_string());
        }
        self.add(&format!("{directory}/lifespan"), LIFESPAN);
    }
}
