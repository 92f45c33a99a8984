//! The rights of this process, which a program started from the same shell also has.

use nix::sys::resource::{Resource, getrlimit};
use uverbs::error::MEMLOCK_CURE;

use super::Check;
use super::system::version;
use super::tree::Tree;
use crate::diagnosis::{CAP_IPC_LOCK, has_capability};

const SUBJECT: &str = "rights of a program started here";
/// Bits of linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_NICE: u32 = 23;
/// The contents of `/proc/self/uid_map` in the first user namespace.
const ALL_IDS: &str = "4294967295";
/// The last kernel version known to check CAP_NET_RAW in the first user namespace (`capable` in
/// drivers/infiniband/core), and the first one known to check it in the user namespace that owns
/// the device's network namespace (`rdma_uattrs_has_raw_cap`). The behaviour of the versions
/// between is unconfirmed.
const GATES: [(u32, u32); 2] = [(6, 12), (6, 17)];

pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    let status = tree.read("proc/self/status").unwrap_or_default();
    vec![
        memlock(&status),
        raw_packets(tree, &status),
        administration(&status),
        network_namespaces(tree),
        priority(&status),
    ]
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
    check.judge(soft >= 1 << 30, format!("{} KiB", soft >> 10), MEMLOCK_CURE)
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
    let Some(has) = has_capability(status, CAP_NET_RAW) else { return check };
    let is_first = tree
        .read("proc/self/uid_map")
        .is_some_and(|map| map.split_whitespace().last() == Some(ALL_IDS));
    match (has, is_first) {
        (true, true) => check.ok("yes"),
        (true, false) => in_user_namespace(tree, check),
        (false, _) => check.change("no", cure),
    }
}

/// The capability in a user namespace other than the first one: its effect depends on the kernel.
fn in_user_namespace(tree: &Tree, check: Check) -> Check {
    let release = tree.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let [last, first] = GATES;
    match version(&release) {
        Some(version) if version >= first => check.note(format!(
            "yes, in a user namespace: Linux {release} asks for it in the one that owns the \
             device's network namespace"
        )),
        Some(version) if version <= last => check.change(
            format!(
                "yes, in a user namespace, and Linux {release} asks for it in the first one: \
                 refused"
            ),
            "start the program outside the user namespace (a container that is not rootless), or \
                a kernel from 6.17 on",
        ),
        _ => check.note(
            "yes, in a user namespace: kernels that ask for it in the first namespace refuse",
        ),
    }
}

fn administration(status: &str) -> Check {
    let check = Check::new(
        SUBJECT,
        "administration (CAP_NET_ADMIN)",
        "/proc/self/status",
        "counters of single queues (rdma statistic qp) and settings of interfaces need it, frames \
            do not",
    );
    match has_capability(status, CAP_NET_ADMIN) {
        Some(has) => check.note(if has { "yes" } else { "no" }),
        None => check,
    }
}

/// Whether devices are visible in all network namespaces, or each in one.
fn network_namespaces(tree: &Tree) -> Check {
    let path = "sys/module/ib_core/parameters/netns_mode";
    let why = "an exclusive device is there only in the network namespace that it was moved to";
    let check = Check::new(SUBJECT, "network namespaces of devices", format!("/{path}"), why);
    match tree.read(path).as_deref() {
        Some("Y" | "1") => check.note("shared: every device is seen in each of them"),
        Some(_) => check.note("exclusive: rdma dev set DEVICE netns NAME moves a device"),
        None => check.unknown("the kernel has no RDMA"),
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
