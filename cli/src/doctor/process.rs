//! What this process may do: a program started from the same place may do the same.

use nix::sys::resource::{Resource, getrlimit};

use super::Check;
use super::tree::Tree;
use crate::diagnosis::{CAP_IPC_LOCK, has_capability};

const SUBJECT: &str = "rights of a program started here";
/// Bits of linux/capability.h.
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_NICE: u32 = 23;
/// What `/proc/self/uid_map` holds in the first user namespace.
const ALL_IDS: &str = "4294967295";

pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    let status = tree.read("proc/self/status").unwrap_or_default();
    vec![memlock(&status), raw_packets(tree, &status), priority(&status)]
}

fn memlock(status: &str) -> Check {
    let check = Check::new(
        SUBJECT,
        "pinned memory",
        "getrlimit(RLIMIT_MEMLOCK)",
        "every queue and registered buffer counts against it",
    );
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return check };
    if has_capability(status, CAP_IPC_LOCK) == Some(true) || soft == nix::libc::RLIM_INFINITY {
        return check.ok("unlimited");
    }
    check.judge(
        soft >= 1 << 30,
        format!("{} KiB", soft >> 10),
        "ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a \
            container, or CAP_IPC_LOCK",
    )
}

fn raw_packets(tree: &Tree, status: &str) -> Check {
    let check = Check::new(
        SUBJECT,
        "raw packets (CAP_NET_RAW)",
        "/proc/self/status, /proc/self/uid_map",
        "the kernel asks for it when raw packet queue pairs and steering rules are made",
    );
    let cure = "setcap cap_net_raw+ep PROGRAM, AmbientCapabilities=CAP_NET_RAW in a systemd unit, \
        or --cap-add NET_RAW for a container";
    let is_first = tree
        .read("proc/self/uid_map")
        .is_some_and(|map| map.split_whitespace().last() == Some(ALL_IDS));
    match (has_capability(status, CAP_NET_RAW), is_first) {
        (None, _) => check,
        (Some(true), true) => check.ok("yes"),
        (Some(true), false) => check.note(
            "yes, in a user namespace: kernels that ask for it in the first namespace refuse",
        ),
        (Some(false), _) => check.change("no", cure),
    }
}

fn priority(status: &str) -> Check {
    let check = Check::new(
        SUBJECT,
        "real-time priority (CAP_SYS_NICE)",
        "/proc/self/status",
        "on a processor that is not isolated only a real-time thread keeps others away",
    );
    let limit = getrlimit(Resource::RLIMIT_RTPRIO).map_or(0, |(soft, _)| soft);
    match has_capability(status, CAP_SYS_NICE) {
        Some(true) => check.note("yes"),
        Some(false) if limit > 0 => check.note(format!("up to {limit} (RLIMIT_RTPRIO)")),
        Some(false) => check.note("no"),
        None => check,
    }
}
