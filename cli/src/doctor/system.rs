//! Checks of the whole machine: isolated processors, clocks, the kernel, background work.

use std::collections::BTreeSet;

use super::Check;
use super::rule::Rule;
use super::tree::{Tree, list, members};

const SUBJECT: &str = "machine";
/// Processors to which the scheduler moves no programs.
const ISOLATED: &str = "sys/devices/system/cpu/isolated";
/// The first kernel with dynamic doorbell pages.
const DYNAMIC_UARS: (u32, u32) = (5, 7);

const RULES: &[Rule] = &[
    Rule {
        name: "clock source",
        path: "sys/devices/system/clocksource/clocksource0/current_clocksource",
        wanted: Some(|value| value == "tsc" || value == "arch_sys_counter"),
        why: "other clocks cost a system call or a slow register for each reading of the time",
        cure: "find out why the kernel gave the TSC up (dmesg | grep -i tsc); kernel parameter \
            tsc=reliable where the machine's clocks are known to agree",
    },
    Rule {
        name: "NMI watchdog",
        path: "proc/sys/kernel/nmi_watchdog",
        wanted: Some(|value| value == "0"),
        why: "it interrupts each processor from time to time",
        cure: "sysctl kernel.nmi_watchdog=0",
    },
    Rule {
        name: "turbo",
        path: "sys/devices/system/cpu/intel_pstate/no_turbo",
        wanted: Some(|value| value == "0"),
        why: "without it the polling processor runs at its base frequency",
        cure: "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo (1 if even times count more \
            than short ones)",
    },
    Rule {
        name: "frequency boost",
        path: "sys/devices/system/cpu/cpufreq/boost",
        wanted: Some(|value| value == "1"),
        why: "without it the polling processor runs at its base frequency",
        cure: "echo 1 > /sys/devices/system/cpu/cpufreq/boost (0 if even times count more than \
            short ones)",
    },
];

pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    let mut checks = vec![kernel(tree), isolation(tree), tsc(tree), interrupts(tree)];
    checks.extend(RULES.iter().map(|rule| rule.check(tree, SUBJECT, "")));
    checks.push(time_daemons(tree));
    checks
}

pub(super) fn isolated(tree: &Tree) -> BTreeSet<usize> {
    tree.read(ISOLATED).and_then(|text| members(&text)).unwrap_or_default()
}

fn kernel(tree: &Tree) -> Check {
    let check = Check::new(
        SUBJECT,
        "kernel",
        "/proc/sys/kernel/osrelease",
        "queue pairs have doorbell pages of their own from Linux 5.7 on; before, they share a few",
    );
    let Some(release) = tree.read("proc/sys/kernel/osrelease") else { return check };
    match version(&release) {
        Some(version) => check.judge(version >= DYNAMIC_UARS, release, "a kernel from 5.7 on"),
        None => check.note(release),
    }
}

/// The first two numbers of a release: `6.12.95+deb13-amd64`.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn isolation(tree: &Tree) -> Check {
    let check = Check::new(
        SUBJECT,
        "isolated processors",
        format!("/{ISOLATED}"),
        "the scheduler moves other programs to a processor that is not isolated",
    );
    let isolated = isolated(tree);
    check.judge(
        !isolated.is_empty(),
        if isolated.is_empty() { "none".to_owned() } else { list(&isolated) },
        "kernel parameters isolcpus=domain,managed_irq,LIST nohz_full=LIST, and pin the polling \
            thread there (or a cpuset partition); --cpus LIST checks others",
    )
}

fn tsc(tree: &Tree) -> Check {
    let check = Check::new(
        SUBJECT,
        "time stamp counter",
        "/proc/cpuinfo",
        "only a counter of constant rate that never stops gives comparable times",
    );
    let Some(text) = tree.read("proc/cpuinfo") else { return check };
    let Some(flags) = text.lines().find_map(|line| line.strip_prefix("flags")) else {
        return check.unknown("not an x86 processor");
    };
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    let is_steady = has("constant_tsc") && has("nonstop_tsc");
    let value = if is_steady { "constant, never stops" } else { "may change its rate or stop" };
    check.judge(is_steady, value, "another machine; in a guest, pass the invariant TSC through")
}

fn interrupts(tree: &Tree) -> Check {
    let check = Check::new(
        SUBJECT,
        "irqbalance",
        "/proc/*/comm",
        "it moves interrupts to any processor that it is not told to leave alone",
    );
    match daemons(tree, &["irqbalance"]).is_empty() {
        true => check.ok("does not run"),
        false => check.change(
            "runs",
            "IRQBALANCE_BANNED_CPULIST=LIST in /etc/default/irqbalance, or stop it",
        ),
    }
}

fn time_daemons(tree: &Tree) -> Check {
    let check = Check::new(
        SUBJECT,
        "time synchronisation",
        "/proc/*/comm",
        "times of different machines can be compared only if their clocks are synchronised",
    );
    let known = ["ptp4l", "phc2sys", "chronyd", "ntpd", "systemd-timesyn", "timemaster", "sfptpd"];
    let running = daemons(tree, &known);
    match running.is_empty() {
        true => check.note("no daemon runs here (a container or guest may have its host's)"),
        false => check.note(running.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// Those of the given programs that run.
fn daemons(tree: &Tree, names: &[&str]) -> BTreeSet<String> {
    let pids = tree.names("proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    pids.filter_map(|pid| tree.read(format!("proc/{pid}/comm")))
        .filter(|name| names.contains(&name.as_str()))
        .collect()
}
