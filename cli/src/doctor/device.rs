//! Checks of an adapter: its PCI function, its network interfaces, its port and its counters of
//! drops.

use std::collections::BTreeSet;

use super::Check;
use super::rule::{Rule, selected};
use super::tree::{Tree, members};
use crate::failure::{Failure, Outcome};

/// Capability id of PCI Express in configuration space (PCI_CAP_ID_EXP of linux/pci_regs.h).
const PCI_EXPRESS: u8 = 0x10;
/// Offset of the first capability's offset in configuration space (PCI_CAPABILITY_LIST).
const FIRST_CAPABILITY: usize = 0x34;
/// Offset of the device control register in that capability (PCI_EXP_DEVCTL).
const DEVICE_CONTROL: usize = 8;

/// A device that is examined.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) name: String,
}

impl Examined {
    /// The subject of checks of one of its network interfaces.
    pub(super) fn interface_subject(&self, interface: &str) -> String {
        format!("{} ({interface})", self.name)
    }

    /// The path of a file of its PCI function.
    pub(super) fn file(&self, name: &str) -> String {
        format!("sys/class/infiniband/{}/device/{name}", self.name)
    }
}

/// The device that the user names, or all of the kernel's devices.
pub(super) fn chosen(tree: &Tree, wanted: Option<&str>) -> Outcome<Vec<Examined>> {
    let names = tree.names("sys/class/infiniband");
    match wanted {
        Some("soft") => Ok(Vec::new()),
        Some(name) if !names.iter().any(|known| known == name) => {
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(Failure::usage(format!(
                "the kernel has no RDMA device {name}; it has {known} (soft: this machine only)"
            )))
        }
        Some(name) => Ok(vec![Examined { name: name.to_owned() }]),
        None => Ok(names.into_iter().map(|name| Examined { name }).collect()),
    }
}

const RULES: &[Rule] = &[
    Rule {
        name: "port",
        path: "sys/class/infiniband/{}/ports/1/state",
        wanted: Some(|value| value.ends_with("ACTIVE")),
        why: "nothing is sent or received until it is active",
        cure: "ip link set IF up; on InfiniBand a subnet manager has to run",
    },
    Rule {
        name: "rate",
        path: "sys/class/infiniband/{}/ports/1/rate",
        wanted: None,
        why: "what the link can carry",
        cure: "",
    },
    Rule {
        name: "firmware",
        path: "sys/class/infiniband/{}/fw_ver",
        wanted: None,
        why: "defects and capabilities depend on it",
        cure: "",
    },
    Rule {
        name: "receives that found no buffer",
        path: "sys/class/infiniband/{}/ports/1/hw_counters/out_of_buffer",
        wanted: Some(|value| value == "0"),
        why: "packets were lost because a receive queue was empty",
        cure: "a deeper receive queue, or a faster reader",
    },
    Rule {
        name: "IOMMU",
        path: "sys/class/infiniband/{}/device/iommu_group/type",
        wanted: Some(|value| value == "identity"),
        why: "the adapter's accesses are translated; a miss costs some hundred nanoseconds",
        cure: "kernel parameter iommu=pt",
    },
];

pub(super) fn checks(tree: &Tree, device: &Examined, polling: &BTreeSet<usize>) -> Vec<Check> {
    let subject = &device.name;
    let mut checks: Vec<Check> =
        RULES.iter().map(|rule| rule.check(tree, subject, subject)).collect();
    checks.push(pci_link(tree, device, "speed", "current_link_speed", "max_link_speed"));
    checks.push(pci_link(tree, device, "width", "current_link_width", "max_link_width"));
    checks.extend(control(tree, device));
    checks.push(function(tree, device));
    checks.push(ports(tree, device));
    checks.push(power(tree, device));
    checks.push(vectors(tree, device, polling));
    for interface in tree.names(device.file("net")) {
        checks.extend(network(tree, device, &interface));
    }
    checks
}

/// Whether the PCIe link is as fast and as wide as both ends support.
fn pci_link(
    tree: &Tree,
    device: &Examined,
    what: &'static str,
    current: &str,
    best: &str,
) -> Check {
    let name = if what == "speed" { "PCIe speed" } else { "PCIe width" };
    let why = "a slower or narrower link adds time to every doorbell and every packet";
    let check = Check::new(&device.name, name, format!("/{}", device.file(current)), why);
    match (tree.read(device.file(current)), tree.read(device.file(best))) {
        (Some(now), Some(best)) => check.judge(
            now == best,
            format!("{now} of {best}"),
            "another slot, or the slot's settings in the machine's firmware",
        ),
        _ => check,
    }
}

/// Payload and read request sizes, and relaxed ordering.
fn control(tree: &Tree, device: &Examined) -> Vec<Check> {
    let path = device.file("config");
    let check = |name, why| Check::new(&device.name, name, format!("/{path}"), why);
    let size =
        check("PCIe read requests", "the adapter cuts long reads into requests of this size");
    let order =
        check("PCIe relaxed ordering", "writes of the adapter need not wait for each other");
    let Some(control) = tree.bytes(&path).and_then(|bytes| device_control(&bytes)) else {
        let hidden = "needs root: the rest of configuration space is hidden from others";
        return vec![size.unknown(hidden), order.unknown(hidden)];
    };
    let bytes = 128u32 << (control >> 12 & 7);
    let is_relaxed = control >> 4 & 1 == 1;
    vec![
        size.judge(
            bytes >= 512,
            format!("{bytes} bytes"),
            format!("setpci -s {} CAP_EXP+8.w=5000:7000 (4096 bytes)", address(tree, device)),
        ),
        order.note(if is_relaxed { "allowed" } else { "not allowed" }),
    ]
}

/// The PCI address, for commands.
fn address(tree: &Tree, device: &Examined) -> String {
    let link = tree.link(format!("sys/class/infiniband/{}/device", device.name));
    link.unwrap_or_else(|| "ADDRESS".to_owned())
}

/// The device control register, found by following the list of capabilities.
pub(super) fn device_control(config: &[u8]) -> Option<u16> {
    let mut at = usize::from(*config.get(FIRST_CAPABILITY)?);
    // Configuration space has 256 bytes for capabilities of at least 4: a longer list is a loop.
    for _ in 0..64 {
        let (id, next) = (*config.get(at)?, *config.get(at + 1)?);
        if id == PCI_EXPRESS {
            let register = config.get(at + DEVICE_CONTROL..)?.first_chunk()?;
            return Some(u16::from_le_bytes(*register));
        }
        at = usize::from(next);
        if at == 0 {
            return None;
        }
    }
    None
}

fn function(tree: &Tree, device: &Examined) -> Check {
    let why = "the physical function decides what a virtual one may send and receive";
    let check = Check::new(&device.name, "function", format!("/{}", device.file("physfn")), why);
    if !tree.exists(device.file("numa_node")) && !tree.exists(device.file("vendor")) {
        return check;
    }
    match tree.exists(device.file("physfn")) {
        true => check.note("virtual (SR-IOV): trust and MAC checks are the host's (ip link)"),
        false => match tree.number(device.file("sriov_numvfs")) {
            Some(count) if count > 0 => check.note(format!(
                "physical, with {count} virtual functions (SR-IOV), which share the port's rate"
            )),
            _ => check.note("physical"),
        },
    }
}

/// The number of ports. mlx5 in multi-port mode has several Ethernet ports, and reports no raw
/// packet support (`raw_support` in drivers/infiniband/hw/mlx5/main.c).
fn ports(tree: &Tree, device: &Examined) -> Check {
    let path = format!("sys/class/infiniband/{}/ports", device.name);
    let why = "a device with several Ethernet ports reports no raw packet support";
    let check = Check::new(&device.name, "ports", format!("/{path}"), why);
    match tree.names(&path).len() {
        0 => check,
        1 => check.ok("1"),
        count if is_ethernet(tree, &path) => {
            check.note(format!("{count}: multi-port mode, which has no raw packet queue pairs"))
        }
        count => check.note(count.to_string()),
    }
}

fn is_ethernet(tree: &Tree, ports: &str) -> bool {
    tree.read(format!("{ports}/1/link_layer")).as_deref() == Some("Ethernet")
}

fn power(tree: &Tree, device: &Examined) -> Check {
    let path = "sys/module/pcie_aspm/parameters/policy";
    let why = "a PCIe link that sleeps between packets wakes up in microseconds";
    let check = Check::new(&device.name, "PCIe power saving", format!("/{path}"), why);
    match tree.read(path) {
        Some(policy) => check.judge(
            !selected(&policy).starts_with("powers"),
            selected(&policy).to_owned(),
            format!("echo performance > /{path}, or the kernel parameter pcie_aspm=off"),
        ),
        None => check,
    }
}

/// Interrupts of the adapter on processors that poll.
fn vectors(tree: &Tree, device: &Examined, polling: &BTreeSet<usize>) -> Check {
    let why = "completion events of other programs would interrupt the polling processors";
    let vectors = device.file("msi_irqs");
    let check = Check::new(&device.name, "completion vectors", format!("/{vectors}"), why);
    let all = tree.names(&vectors);
    if all.is_empty() {
        return check;
    }
    let lists = all
        .iter()
        .filter_map(|irq| members(&tree.read(format!("proc/irq/{irq}/effective_affinity_list"))?));
    let hits = lists.filter(|list| !list.is_disjoint(polling)).count();
    check.judge(
        hits == 0,
        format!("{} vectors, {hits} delivered to a polling processor", all.len()),
        "echo OTHERS > /proc/irq/N/smp_affinity_list for each of them",
    )
}

/// Checks of a network interface of the device.
fn network(tree: &Tree, device: &Examined, interface: &str) -> Vec<Check> {
    let base = format!("sys/class/net/{interface}");
    let subject = || device.interface_subject(interface);
    let dropped = Check::new(
        subject(),
        "frames without a buffer",
        format!("/{base}/statistics/rx_missed_errors"),
        "frames were lost before any program could see them",
    );
    let dropped = match tree.number(format!("{base}/statistics/rx_missed_errors")) {
        Some(count) => dropped.judge(
            count == 0,
            format!("{count} since the interface exists"),
            format!("ethtool -S {interface} shows which (rx_discards_phy, rx_out_of_buffer)"),
        ),
        None => dropped,
    };
    vec![dropped, clock(tree, subject(), &base), bond(tree, subject(), &base)]
}

fn clock(tree: &Tree, subject: String, base: &str) -> Check {
    let path = format!("{base}/device/ptp");
    let why = "frames get their timestamps from the adapter's clock";
    let check = Check::new(subject, "hardware clock", format!("/{path}"), why);
    match tree.names(&path).as_slice() {
        [] => check.note("none is shown"),
        clocks => check.note(format!("/dev/{}", clocks.join(", /dev/"))),
    }
}

fn bond(tree: &Tree, subject: String, base: &str) -> Check {
    let why = "with bonding, frames of one stream may come by either port";
    let check = Check::new(subject, "bond", format!("/{base}/master"), why);
    match tree.link(format!("{base}/master")) {
        Some(master) => check.note(format!("part of {master}")),
        None => check.note("none"),
    }
}
