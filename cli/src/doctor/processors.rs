//! Checks of a polling processor: other work on it, and whether it may sleep or slow down.

use std::collections::BTreeSet;

use super::Check;
use super::device::Examined;
use super::rule::Rule;
use super::tree::{Tree, is_in_mask, list, members};

/// The longest time to wake up from a sleep state, in microseconds, that needs no change.
const ACCEPTABLE_WAKE_UP: u64 = 2;

const RULES: &[Rule] = &[Rule {
    name: "frequency governor",
    path: "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor",
    wanted: Some(|value| value == "performance"),
    why: "other governors lower the frequency, and raise it only after they see load",
    cure: "cpupower -c {} frequency-set -g performance",
}];

pub(super) fn checks(tree: &Tree, cpu: usize, devices: &[Examined]) -> Vec<Check> {
    let subject = format!("processor {cpu}");
    let mut checks = vec![
        isolated(tree, &subject, cpu),
        tickless(tree, &subject, cpu),
        callbacks(tree, &subject, cpu),
        siblings(tree, &subject, cpu),
        sleep(tree, &subject, cpu),
        interrupts(tree, &subject, cpu),
        packets(tree, &subject, cpu),
    ];
    checks.extend(RULES.iter().map(|rule| rule.check(tree, &subject, &cpu.to_string())));
    checks.extend(devices.iter().map(|device| node(tree, &subject, cpu, device)));
    checks
}

/// Whether a processor list in a file contains the processor.
fn is_listed(tree: &Tree, path: &str, cpu: usize) -> bool {
    tree.read(path).and_then(|text| members(&text)).is_some_and(|all| all.contains(&cpu))
}

fn isolated(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let path = "sys/devices/system/cpu/isolated";
    let why = "the scheduler moves other programs to a processor that is not isolated";
    let is_isolated = is_listed(tree, path, cpu);
    Check::new(subject, "isolation", format!("/{path}"), why).judge(
        is_isolated,
        if is_isolated { "isolated" } else { "not isolated" },
        format!("kernel parameter isolcpus=domain,managed_irq,{cpu}, or a cpuset partition"),
    )
}

fn tickless(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let path = "sys/devices/system/cpu/nohz_full";
    let why = "the timer interrupts a busy processor 100 to 1000 times per second";
    let is_tickless = is_listed(tree, path, cpu);
    Check::new(subject, "timer tick", format!("/{path}"), why).judge(
        is_tickless,
        if is_tickless { "stops while one thread runs" } else { "never stops" },
        format!("kernel parameter nohz_full={cpu}"),
    )
}

/// RCU callbacks. `nohz_full` also moves them to other processors (`rcu_init_nohz` of
/// kernel/rcu/tree_nocb.h).
fn callbacks(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let why = "RCU runs callbacks of the kernel on the processor that queued them";
    let line = tree.read("proc/cmdline").unwrap_or_default();
    let parameter = line.split_whitespace().find_map(|word| word.strip_prefix("rcu_nocbs="));
    let all = parameter == Some("all");
    let named = parameter.and_then(members).is_some_and(|members| members.contains(&cpu));
    let run_elsewhere = all || named || is_listed(tree, "sys/devices/system/cpu/nohz_full", cpu);
    Check::new(subject, "RCU callbacks", "/proc/cmdline", why).judge(
        run_elsewhere,
        if run_elsewhere { "run elsewhere" } else { "run here" },
        format!("kernel parameter rcu_nocbs={cpu} (nohz_full={cpu} implies it)"),
    )
}

fn siblings(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let why = "two threads of one core share its units and caches";
    let check = Check::new(subject, "hardware threads", format!("/{path}"), why);
    let Some(mut others) = tree.read(&path).and_then(|text| members(&text)) else { return check };
    others.remove(&cpu);
    let busiest = others.iter().filter_map(|other| busy_percent(tree, *other)).max();
    let load = busiest.map_or_else(String::new, |part| format!(", {part} % busy since boot"));
    let others = list(&others);
    match others.is_empty() {
        true => check.ok("the core's only one"),
        false => check.change(
            format!("shares its core with {others}{load}"),
            format!("keep {others} idle, or echo 0 > /sys/devices/system/cpu/cpu{others}/online"),
        ),
    }
}

/// The percentage of the time since boot in which a processor was not idle. The fields of
/// `/proc/stat` (Documentation/filesystems/proc.rst) begin with user, nice, system, idle, iowait,
/// irq, softirq and steal.
fn busy_percent(tree: &Tree, cpu: usize) -> Option<u64> {
    let text = tree.read("proc/stat")?;
    let times = text.lines().find_map(|line| line.strip_prefix(&format!("cpu{cpu} ")))?;
    let times: Vec<u64> = times.split_whitespace().take(8).flat_map(str::parse).collect();
    let (all, idle): (u64, u64) = (times.iter().sum(), times.iter().skip(3).take(2).sum());
    (100 * (all - idle)).checked_div(all)
}

fn sleep(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let states = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let why = "a thread that waits for an event starts later by the time that waking takes";
    let check = Check::new(subject, "sleep states", format!("/{states}"), why);
    let names = tree.names(&states);
    if names.is_empty() {
        return check.unknown("this machine or kernel does not have them (a guest's host decides)");
    }
    let limit = latency_limit(tree, cpu);
    let entered = names.iter().filter_map(|state| depth(tree, &format!("{states}/{state}")));
    match entered.filter(|(latency, _)| *latency <= limit).max() {
        Some((latency, name)) if latency > ACCEPTABLE_WAKE_UP => check.change(
            format!("down to {name}, {latency} us to wake up"),
            "hold /dev/cpu_dma_latency open with 0 written to it while the program runs, or \
                cpupower idle-set -D 2",
        ),
        Some((latency, name)) => check.ok(format!("down to {name}, {latency} us to wake up")),
        None => check.ok("all disabled"),
    }
}

/// The longest time in microseconds that the processor may take to wake up. It is the lower of two
/// limits: the machine's (kernel/power/qos.c) and the processor's
/// (Documentation/ABI/testing/sysfs-devices-power). In the latter, 0 means no limit, and `n/a`
/// means that no delay is allowed.
fn latency_limit(tree: &Tree, cpu: usize) -> u64 {
    let machine = tree.bytes("dev/cpu_dma_latency");
    let machine = machine.and_then(|bytes| bytes.first_chunk().map(|all| i32::from_ne_bytes(*all)));
    let path = format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
    let own = match tree.read(&path).as_deref() {
        Some("n/a") => 0,
        Some(text) => text.parse().ok().filter(|limit| *limit != 0).unwrap_or(u64::MAX),
        None => u64::MAX,
    };
    machine.and_then(|limit| limit.try_into().ok()).map_or(own, |limit| own.min(limit))
}

/// The exit latency and the name of an enabled sleep state.
fn depth(tree: &Tree, state: &str) -> Option<(u64, String)> {
    let is_enabled = tree.number(format!("{state}/disable")) == Some(0);
    let latency = tree.number(format!("{state}/latency"))?;
    is_enabled.then(|| (latency, tree.read(format!("{state}/name")).unwrap_or_default()))
}

fn interrupts(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let why = "each interrupt takes the processor for microseconds";
    let check = Check::new(subject, "interrupts", "/proc/irq/*/effective_affinity_list", why);
    let all = tree.names("proc/irq").into_iter().filter_map(|name| name.parse::<usize>().ok());
    let aimed: BTreeSet<usize> = all.filter(|irq| is_aimed(tree, *irq, cpu)).collect();
    if !tree.exists("proc/irq") {
        return check;
    }
    if aimed.is_empty() {
        return check.ok("none is delivered here");
    }
    check.change(
        format!("{} are delivered here: {}", aimed.len(), list(&aimed)),
        format!(
            "echo OTHERS > /proc/irq/N/smp_affinity_list for each, and irqaffinity=OTHERS \
                without {cpu} as kernel parameter"
        ),
    )
}

/// Whether an interrupt is delivered to the processor. Kernels without the effective list only show
/// the allowed processors.
fn is_aimed(tree: &Tree, irq: usize, cpu: usize) -> bool {
    let read = |file: &str| tree.read(format!("proc/irq/{irq}/{file}"));
    let effective = read("effective_affinity_list").filter(|text| !text.is_empty());
    let allowed = effective.or_else(|| read("smp_affinity_list"));
    allowed.and_then(|text| members(&text)).is_some_and(|all| all.contains(&cpu))
}

fn packets(tree: &Tree, subject: &str, cpu: usize) -> Check {
    let why = "the kernel's packet steering (RPS) processes packets of other programs there";
    let check =
        Check::new(subject, "packet steering", "/sys/class/net/*/queues/rx-*/rps_cpus", why);
    let mut steered = BTreeSet::new();
    for interface in tree.names("sys/class/net") {
        let queues = format!("sys/class/net/{interface}/queues");
        let masks = tree.names(&queues).into_iter().filter(|name| name.starts_with("rx-"));
        let masks = masks.filter_map(|queue| tree.read(format!("{queues}/{queue}/rps_cpus")));
        if masks.into_iter().any(|mask| is_in_mask(&mask, cpu) == Some(true)) {
            steered.insert(interface);
        }
    }
    let names = steered.into_iter().collect::<Vec<_>>().join(", ");
    match names.is_empty() {
        true => check.ok("no interface steers packets here"),
        false => check.change(
            names,
            "a mask without this processor in /sys/class/net/IF/queues/rx-N/rps_cpus",
        ),
    }
}

/// Whether the processor and the device are on one NUMA node.
fn node(tree: &Tree, subject: &str, cpu: usize, device: &Examined) -> Check {
    let path = device.file("numa_node");
    let why = "doorbells, completions and data cross the link between sockets";
    let check = Check::new(subject, "distance to the device", format!("/{path}"), why);
    let Some(node) = tree.read(&path).and_then(|text| text.parse::<i32>().ok()) else {
        return check;
    };
    if node < 0 {
        return check.note(format!("{}: the machine names no node", device.name));
    }
    let is_near = is_listed(tree, &format!("sys/devices/system/node/node{node}/cpulist"), cpu);
    check.judge(
        is_near,
        format!("{} is on node {node}{}", device.name, if is_near { "" } else { ", this is not" }),
        format!("poll on a processor of /sys/devices/system/node/node{node}/cpulist"),
    )
}
