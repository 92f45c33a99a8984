//! Why the kernel refuses raw packets: the missing capability and its namespace.

use std::fs;

/// Bit of CAP_NET_RAW in the sets of /proc/self/status.
const CAP_NET_RAW: u32 = 13;

/// What the process lacks for raw packet queue pairs and steering rules, as far as /proc shows it.
pub(crate) fn lacking() -> &'static str {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    explain(has_net_raw(&read("/proc/self/status")), is_initial(&read("/proc/self/uid_map")))
}

/// Linux 6.12 requires the capability in the initial user namespace (`capable`), kernels since the
/// middle of 2025 in the user namespace of the device's network namespace
/// (`rdma_uattrs_has_raw_cap`).
fn explain(has: Option<bool>, initial: bool) -> &'static str {
    match (has, initial) {
        (Some(false), _) => {
            "raw packets need the capability CAP_NET_RAW, which this process does not have"
        }
        (Some(true), false) => {
            "this process has CAP_NET_RAW in a user namespace of its own, as in a rootless container; \
             Linux 6.12 and older want it in the initial user namespace"
        }
        (Some(true), true) => {
            "this process has CAP_NET_RAW, but not in the user namespace that owns the device's \
             network namespace"
        }
        (None, _) => "raw packets need the capability CAP_NET_RAW",
    }
}

fn has_net_raw(status: &str) -> Option<bool> {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let set = u64::from_str_radix(set.trim(), 16).ok()?;
    Some(set >> CAP_NET_RAW & 1 == 1)
}

/// Whether all user ids map to themselves, as in the initial user namespace.
fn is_initial(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests;
