use std::fs;

use super::*;
use crate::scratch::Scratch;

/// A machine with two processors on two nodes, of which the second is set aside, and one adapter.
const MACHINE: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.95+deb13-amd64\n"),
    ("proc/sys/kernel/nmi_watchdog", "0\n"),
    ("proc/sys/kernel/numa_balancing", "0\n"),
    ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc\n"),
    ("proc/cmdline", "quiet isolcpus=domain,managed_irq,1 nohz_full=1\n"),
    ("proc/77/comm", "ptp4l\n"),
    ("proc/irq/9/effective_affinity_list", "0\n"),
    ("proc/irq/30/effective_affinity_list", "\n"),
    ("proc/irq/30/smp_affinity_list", "0\n"),
    ("proc/irq/31/effective_affinity_list", "0\n"),
    ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
    ("proc/self/uid_map", "         0          0 4294967295\n"),
    ("sys/devices/system/cpu/present", "0-1\n"),
    ("sys/devices/system/cpu/isolated", "1\n"),
    ("sys/devices/system/cpu/nohz_full", "1\n"),
    ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1\n"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/disable", "0\n"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/latency", "0\n"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/name", "POLL\n"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state1/disable", "1\n"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state1/latency", "133\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/devices/system/node/node0/cpulist", "0\n"),
    ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
    ("sys/devices/system/node/node1/cpulist", "1\n"),
    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "64\n"),
    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "60\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/kernel/mm/ksm/run", "0\n"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "00000000,00000001\n"),
    ("sys/class/infiniband/mlx5_0/fw_ver", "22.41.1000\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "0\n"),
    ("sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
    ("sys/class/infiniband/mlx5_0/device/current_link_speed", "16.0 GT/s PCIe\n"),
    ("sys/class/infiniband/mlx5_0/device/max_link_speed", "16.0 GT/s PCIe\n"),
    ("sys/class/infiniband/mlx5_0/device/current_link_width", "16\n"),
    ("sys/class/infiniband/mlx5_0/device/max_link_width", "16\n"),
    ("sys/class/infiniband/mlx5_0/device/iommu_group/type", "identity\n"),
    ("sys/class/infiniband/mlx5_0/device/msi_irqs/30", "msix\n"),
    ("sys/class/infiniband/mlx5_0/device/msi_irqs/31", "msix\n"),
    ("sys/class/infiniband/mlx5_0/device/net/eth0/mtu", "1500\n"),
];

/// The machine, with these files changed.
fn machine(name: &str, changes: &[(&str, &str)]) -> (Scratch, Tree) {
    let scratch = Scratch::new(name);
    for (path, contents) in MACHINE.iter().chain(changes) {
        let path = scratch.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(path, contents).expect("a file");
    }
    let tree = Tree::new(scratch.path());
    (scratch, tree)
}

fn report(tree: &Tree, device: Option<&str>, cpus: Option<&str>) -> Outcome<Report> {
    let text = |value: &str| value.to_owned();
    let (device, cpus) = (device.map(text), cpus.map(text));
    examine(tree, &args::Doctor { device, cpus, check: false, json: false, root: None })
}

/// The checks that ask for a change, without those that depend on this process's limits.
fn changes(name: &str, changes: &[(&str, &str)]) -> Vec<(String, &'static str)> {
    let (_scratch, tree) = machine(name, changes);
    let checks = report(&tree, None, None).expect("a report").checks;
    let found = checks.into_iter().filter(|check| check.verdict == Verdict::Change);
    found.map(|check| (check.subject, check.name)).collect()
}

fn pair(subject: &str, name: &'static str) -> (String, &'static str) {
    (subject.to_owned(), name)
}

/// What the test machine lacks: huge pages of the first node.
fn lacking() -> Vec<(String, &'static str)> {
    vec![pair("memory", "huge pages")]
}

#[test]
fn a_well_set_machine_lacks_what_it_lacks() {
    assert_eq!(changes("well", &[]), lacking());
}

/// Each wrong setting is found, and nothing else changes.
#[test]
fn each_wrong_setting_is_found() {
    let cpu = "sys/devices/system/cpu";
    let device = "sys/class/infiniband/mlx5_0";
    for (path, contents, subject, name) in [
        ("proc/sys/kernel/osrelease".into(), "5.4.0", "machine", "kernel"),
        ("proc/sys/kernel/nmi_watchdog".into(), "1", "machine", "NMI watchdog"),
        ("proc/cpuinfo".into(), "flags : tsc", "machine", "time stamp counter"),
        ("proc/5/comm".into(), "irqbalance", "machine", "irqbalance"),
        ("proc/sys/kernel/numa_balancing".into(), "1", "memory", "NUMA balancing"),
        ("sys/kernel/mm/ksm/run".into(), "1", "memory", "merging of pages (KSM)"),
        (format!("{cpu}/cpufreq/boost"), "0", "machine", "frequency boost"),
        (
            "sys/kernel/mm/transparent_hugepage/enabled".into(),
            "[always] madvise never",
            "memory",
            "transparent huge pages",
        ),
        (
            format!("{cpu}/cpu1/cpufreq/scaling_governor"),
            "powersave",
            "processor 1",
            "frequency governor",
        ),
        (
            format!("{cpu}/cpu1/topology/thread_siblings_list"),
            "0-1",
            "processor 1",
            "hardware threads",
        ),
        (format!("{cpu}/cpu1/cpuidle/state1/disable"), "0", "processor 1", "sleep states"),
        ("proc/irq/9/effective_affinity_list".into(), "1", "processor 1", "interrupts"),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus".into(), "2", "processor 1", "packet steering"),
        (format!("{device}/device/iommu_group/type"), "DMA-FQ", "mlx5_0", "IOMMU"),
        (format!("{device}/device/current_link_width"), "8", "mlx5_0", "PCIe width"),
        (format!("{device}/ports/1/state"), "1: DOWN", "mlx5_0", "port"),
        (
            format!("{device}/ports/1/hw_counters/out_of_buffer"),
            "3",
            "mlx5_0",
            "receives that found no buffer",
        ),
        (
            "sys/module/pcie_aspm/parameters/policy".into(),
            "default [powersave]",
            "mlx5_0",
            "PCIe power saving",
        ),
        (
            "sys/class/net/eth0/statistics/rx_missed_errors".into(),
            "7",
            "mlx5_0 (eth0)",
            "frames without a buffer",
        ),
    ] {
        let mut found = changes("each", &[(path.as_str(), contents)]);
        found.retain(|found| !lacking().contains(found));
        assert_eq!(found, [pair(subject, name)], "{path}");
    }
}

/// A state that a limit forbids is not entered.
#[test]
fn limits_of_the_time_to_wake_up_count() {
    let cpu = "sys/devices/system/cpu/cpu1";
    let deep = format!("{cpu}/cpuidle/state1/disable");
    let own = format!("{cpu}/power/pm_qos_resume_latency_us");
    let machine = "dev/cpu_dma_latency";
    let sleeps = |more: &[(&str, &str)]| {
        let files = [&[(deep.as_str(), "0")], more].concat();
        changes("limits", &files).contains(&pair("processor 1", "sleep states"))
    };
    assert!(sleeps(&[]));
    assert!(sleeps(&[(&own, "0")]), "0 does not limit it");
    assert!(!sleeps(&[(&own, "n/a")]));
    assert!(!sleeps(&[(&own, "132")]));
    assert!(sleeps(&[(&own, "133")]));
    assert!(!sleeps(&[(machine, "\0\0\0\0")]));
    assert!(!sleeps(&[(&own, "0"), (machine, "\x02\0\0\0")]));
    assert!(sleeps(&[(machine, "\0\x01\0\0")]));
}

/// Functions and ports that a device shares its rate with, or that keep frames from it.
#[test]
fn virtual_functions_and_several_ports_are_told() {
    let device = "sys/class/infiniband/mlx5_0";
    let [vfs, layer] =
        [format!("{device}/device/sriov_numvfs"), format!("{device}/ports/1/link_layer")];
    let second = format!("{device}/ports/2/state");
    let told = |files: &[(&str, &str)], name: &str| {
        let (_scratch, tree) = machine("functions", files);
        let report = report(&tree, None, None).expect("a report");
        let check = report.checks.into_iter().find(|check| check.name == name).expect("the check");
        (check.verdict, check.value)
    };
    assert_eq!(told(&[(&vfs, "0")], "function").1, "physical");
    assert!(told(&[(&vfs, "4")], "function").1.contains("4 virtual functions"));
    assert_eq!(told(&[], "ports"), (Verdict::Ok, "1".to_owned()));
    assert_eq!(told(&[(&second, "4: ACTIVE")], "ports"), (Verdict::Note, "2".to_owned()));
    let two = told(&[(&second, "4: ACTIVE"), (&layer, "Ethernet")], "ports");
    assert!(two.1.contains("no raw packet"), "{}", two.1);
}

#[test]
fn a_vector_on_a_polling_processor_is_found_twice() {
    let found = changes("vector", &[("proc/irq/31/effective_affinity_list", "0-1")]);
    assert!(found.contains(&pair("processor 1", "interrupts")), "{found:?}");
    assert!(found.contains(&pair("mlx5_0", "completion vectors")), "{found:?}");
}

#[test]
fn a_processor_that_was_not_set_aside_is_told_all_of_it() {
    let (_scratch, tree) = machine("cpus", &[]);
    let report = report(&tree, None, Some("0")).expect("a report");
    let of = |name: &str| {
        let mut checks = report.checks.iter().filter(|check| check.subject == "processor 0");
        checks.find(|check| check.name == name).expect("the check").verdict
    };
    for name in ["isolation", "timer tick", "RCU callbacks", "interrupts", "packet steering"] {
        assert_eq!(of(name), Verdict::Change, "{name}");
    }
    assert_eq!(of("distance to the device"), Verdict::Change);
    assert_eq!(of("frequency governor"), Verdict::Unknown);
}

#[test]
fn what_the_machine_does_not_have_is_refused() {
    let (_scratch, tree) = machine("refused", &[]);
    for (device, cpus) in [
        (Some("mlx5_9"), None),
        (None, Some("2")),
        (None, Some("1-0")),
        (None, Some("x")),
        (None, Some("")),
        (None, Some("0-99999999999")),
    ] {
        let refused = report(&tree, device, cpus).expect_err("refused");
        assert_eq!(refused.status(), 2, "{device:?} {cpus:?}");
    }
    assert!(report(&tree, Some("soft"), None).is_ok());
}

/// The capability that matters is the second of two; a list that leads back to itself ends.
#[test]
fn read_request_sizes_are_read_from_configuration_space() {
    let mut config = [0; 256];
    (config[0x34], config[0x40], config[0x41]) = (0x40, 1, 0x60);
    config[0x60] = 0x10;
    config[0x68..0x6a].copy_from_slice(&0x2010u16.to_le_bytes());
    assert_eq!(device::device_control(&config), Some(0x2010));
    let mut looping = config;
    (looping[0x60], looping[0x61]) = (5, 0x40);
    assert_eq!(device::device_control(&looping), None);
    for end in 0..256 {
        let _ = device::device_control(&config[..end]);
    }
    let path = "sys/class/infiniband/mlx5_0/device/config";
    let (scratch, tree) = machine("config", &[]);
    fs::write(scratch.path().join(path), config).expect("a file");
    let report = report(&tree, None, None).expect("a report");
    let value = |name: &str| {
        let check = report.checks.iter().find(|check| check.name == name).expect("the check");
        (check.verdict, check.value.clone())
    };
    assert_eq!(value("PCIe read requests"), (Verdict::Ok, "512 bytes".to_owned()));
    assert_eq!(value("PCIe relaxed ordering"), (Verdict::Note, "allowed".to_owned()));
}

/// The same right counts or not, by the kernel's version.
#[test]
fn what_a_right_in_a_user_namespace_is_worth_depends_on_the_kernel() {
    for (release, verdict, words) in [
        ("6.12.95", Verdict::Change, "refused"),
        ("6.14.0", Verdict::Note, "kernels that ask"),
        ("6.17.1-rc2", Verdict::Note, "device's network namespace"),
    ] {
        let changes = [
            ("proc/self/uid_map", "         0       1000          1\n"),
            ("proc/sys/kernel/osrelease", release),
            ("sys/module/ib_core/parameters/netns_mode", "N\n"),
        ];
        let (_scratch, tree) = machine("rights", &changes);
        let report = report(&tree, None, None).expect("a report");
        let of = |name: &str| report.checks.iter().find(|check| check.name == name);
        let raw = of("raw packets (CAP_NET_RAW)").expect("the check");
        assert_eq!(raw.verdict, verdict, "{release}: {}", raw.value);
        assert!(raw.value.contains(words), "{}", raw.value);
        assert_eq!(of("administration (CAP_NET_ADMIN)").expect("the check").value, "yes");
        let namespaces = of("network namespaces of devices").expect("the check");
        assert!(namespaces.value.starts_with("exclusive"), "{}", namespaces.value);
    }
}

#[test]
fn lists_and_masks_are_the_kernels() {
    let all = members("0-2, 8").expect("a list");
    assert_eq!(tree::list(&all), "0-2,8");
    assert!(members("").expect("empty").is_empty());
    assert_eq!((members("3-1"), members("0-70000"), members("a")), (None, None, None));
    assert_eq!(tree::is_in_mask("00000002,00000001", 33), Some(true));
    assert_eq!(tree::is_in_mask("00000002,00000001", 1), Some(false));
    assert_eq!(tree::is_in_mask("1", 64), Some(false));
    assert_eq!(tree::is_in_mask("x", 0), None);
}

#[test]
fn the_text_names_the_reason_and_the_cure() {
    let (_scratch, tree) = machine("text", &[("proc/sys/kernel/numa_balancing", "1")]);
    let text = text(&report(&tree, None, None).expect("a report"));
    for expected in ["\nmemory\n", "CHANGE  NUMA balancing", "why:  it unmaps", "cure: sysctl"] {
        assert!(text.contains(expected), "{expected:?} is missing in {text}");
    }
}

/// What else ran on the other thread of the core is part of the value.
#[test]
fn work_on_the_other_thread_of_a_core_is_shown() {
    let siblings = "sys/devices/system/cpu/cpu1/topology/thread_siblings_list";
    let times = "cpu  9 0 0 9\ncpu0 20 0 4 70 5 0 1 0 0 0\ncpu1 1 0 0 1\n";
    let (_scratch, tree) = machine("siblings", &[(siblings, "0-1"), ("proc/stat", times)]);
    let checks = processors::checks(&tree, 1, &[]);
    let check = checks.iter().find(|check| check.name == "hardware threads").expect("a check");
    assert_eq!(check.value, "shares its core with 0, 25 % busy since boot");
}
