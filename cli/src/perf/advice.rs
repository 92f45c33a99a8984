//! Advice about settings of this machine, found in /sys and /proc, that raise latency or its
//! variation.

use std::fs;
use std::path::PathBuf;

use uverbs::DeviceKind;
use uverbs::error::MEMLOCK_CURE;

use crate::device::Chosen;
use crate::diagnosis::{CAP_IPC_LOCK, has_capability};

/// How the measurement is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// The processor that it is pinned to.
    pub(super) cpu: Option<usize>,
    /// Whether it sleeps between messages.
    pub(super) sleeps: bool,
}

/// Advice for a measurement on this device; none if nothing is known to be wrong.
pub(super) fn for_device(chosen: &Chosen, how: Use) -> Vec<String> {
    let software = (chosen.context.kind() == DeviceKind::Software).then(|| {
        "the software device is measured: its numbers say nothing about an adapter".to_owned()
    });
    let machine = Machine { root: PathBuf::from("/"), how };
    let name = chosen.context.device().name();
    software.into_iter().chain(machine.advice(name)).collect()
}

/// A bit of CapEff in /proc/self/status (`include/uapi/linux/capability.h`).
const CAP_SYS_NICE: u32 = 23;

/// The wake-up time of a processor, in microseconds, above which advice is given.
const SLOW_WAKE: u32 = 10;

struct Machine {
    root: PathBuf,
    how: Use,
}

impl Machine {
    fn advice(&self, device: &str) -> Vec<String> {
        let all = [
            self.clock(),
            self.governor(),
            self.placement(),
            self.ticks(),
            self.sibling(),
            self.idle_states(),
            self.priority(),
            self.throttling(),
            self.node(device),
            self.balancing(),
            self.locked_memory(),
            self.huge_pages(),
            self.load(),
        ];
        all.into_iter().flatten().collect()
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// A file of the measured processor, or of the first one.
    fn cpu(&self, path: &str) -> Option<String> {
        let cpu = self.how.cpu.unwrap_or(0);
        self.read(&format!("sys/devices/system/cpu/cpu{cpu}/{path}"))
    }

    /// The processors in a list of `sys/devices/system/cpu`.
    fn cpus(&self, name: &str) -> Option<Vec<usize>> {
        Some(list(&self.read(&format!("sys/devices/system/cpu/{name}"))?))
    }

    fn clock(&self) -> Option<String> {
        let source =
            self.read("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
        let is_slow = matches!(source.as_str(), "hpet" | "acpi_pm" | "jiffies");
        is_slow.then(|| format!("reading the clock ({source}) takes a system call and longer than a message: boot with tsc=reliable if the processor has a steady one"))
    }

    fn governor(&self) -> Option<String> {
        let governor = self.cpu("cpufreq/scaling_governor")?;
        (governor != "performance").then(|| format!("the processors' frequency governor is {governor}: cpupower frequency-set -g performance"))
    }

    /// Whether the measurement has a processor for itself.
    fn placement(&self) -> Option<String> {
        let isolated = self.cpus("isolated")?;
        match (self.how.cpu, isolated.as_slice()) {
            (_, []) => Some("no processor is kept free of other work: boot with isolcpus= and nohz_full=, and use --cpu on one of those".to_owned()),
            (None, [first, ..]) => Some(format!("nothing keeps the measurement on one processor: --cpu {first} is isolated")),
            (Some(cpu), [first, ..]) if !isolated.contains(&cpu) => {
                Some(format!("processor {cpu} is not isolated: --cpu {first} is"))
            }
            _ => None,
        }
    }

    fn ticks(&self) -> Option<String> {
        let (cpu, isolated) = (self.how.cpu?, self.cpus("isolated")?);
        let quiet = self.cpus("nohz_full").unwrap_or_default();
        (isolated.contains(&cpu) && !quiet.contains(&cpu)).then(|| {
            format!(
                "the timer interrupts processor {cpu} all the time: boot with nohz_full={cpu} too"
            )
        })
    }

    fn sibling(&self) -> Option<String> {
        if self.read("sys/devices/system/cpu/smt/active")? != "1" {
            return None;
        }
        let own = self.how.cpu.unwrap_or(0);
        let siblings = list(&self.cpu("topology/thread_siblings_list").unwrap_or_default());
        let others: Vec<String> =
            siblings.iter().filter(|cpu| **cpu != own).map(usize::to_string).collect();
        let which = if self.how.cpu.is_some() && !others.is_empty() {
            format!("processor {} idle, it is the other half of {own}", others.join(","))
        } else {
            "the sibling of the measured processor idle".to_owned()
        };
        Some(format!("hyper-threads share a core: keep {which}, or turn them off"))
    }

    /// Wake-up times matter only if the measurement sleeps.
    fn idle_states(&self) -> Option<String> {
        if !self.how.sleeps {
            return None;
        }
        let state = |number: u32| {
            let file = |name: &str| self.cpu(&format!("cpuidle/state{number}/{name}"));
            let latency: u32 = file("latency")?.parse().ok()?;
            Some((latency, file("disable").is_some_and(|text| text == "1")))
        };
        let states = (0..).map_while(state).filter(|(_, is_disabled)| !is_disabled);
        let slowest = states.map(|(latency, _)| latency).max()?;
        (slowest > SLOW_WAKE).then(|| format!("an idle processor takes up to {slowest} µs to wake: cpupower idle-set -D {SLOW_WAKE}"))
    }

    /// Whether a real-time priority would be granted to this program.
    fn priority(&self) -> Option<String> {
        let limit = self.limit("Max realtime priority")?;
        let may = limit != "0" || self.has_capability(CAP_SYS_NICE)?;
        (!may).then(|| "this user may not run at a real-time priority: raise rtprio in /etc/security/limits.conf (ulimit -r), then chrt -f 50 uverbs perf …".to_owned())
    }

    fn throttling(&self) -> Option<String> {
        let share = self.read("proc/sys/kernel/sched_rt_runtime_us")?;
        (share != "-1").then(|| "real-time programs are throttled: before chrt -f 50 uverbs perf …, sysctl kernel.sched_rt_runtime_us=-1".to_owned())
    }

    fn node(&self, device: &str) -> Option<String> {
        let node = self.read(&format!("sys/class/infiniband/{device}/device/numa_node"))?;
        if node == "-1" {
            return None;
        }
        let near = list(
            &self.read(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default(),
        );
        match self.how.cpu {
            Some(cpu) if near.contains(&cpu) => None,
            Some(cpu) if !near.is_empty() => Some(format!(
                "processor {cpu} is not on the adapter's NUMA node {node}: those from {} on are",
                near[0]
            )),
            _ => Some(format!(
                "the adapter is attached to NUMA node {node}: run there (numactl -N {node} -m {node} uverbs perf …)"
            )),
        }
    }

    fn balancing(&self) -> Option<String> {
        let balancing = self.read("proc/sys/kernel/numa_balancing")?;
        (balancing != "0").then(|| {
            "the kernel unmaps pages to see which processor uses them: sysctl kernel.numa_balancing=0"
                .to_owned()
        })
    }

    fn locked_memory(&self) -> Option<String> {
        let limit: u64 = self.limit("Max locked memory")?.parse().ok()?;
        let is_bound = !self.has_capability(CAP_IPC_LOCK)?;
        is_bound.then(|| {
            format!("only {} KiB of memory may be registered: {MEMLOCK_CURE}", limit >> 10)
        })
    }

    fn huge_pages(&self) -> Option<String> {
        let modes = self.read("sys/kernel/mm/transparent_hugepage/enabled")?;
        modes.contains("[always]").then(|| "the kernel gathers pages into huge ones at any moment: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".to_owned())
    }

    fn load(&self) -> Option<String> {
        let text = self.read("proc/loadavg")?;
        let load: f64 = text.split(' ').next()?.parse().ok()?;
        (load > 1.0).then(|| format!("other programs are running (load average {load})"))
    }

    /// The soft limit of this name in /proc/self/limits.
    fn limit(&self, name: &str) -> Option<String> {
        let text = self.read("proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    }

    fn has_capability(&self, bit: u32) -> Option<bool> {
        has_capability(&self.read("proc/self/status")?, bit)
    }
}

/// A list of processors as the kernel writes it: `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::scratch::Scratch;

    const POLLING: Use = Use { cpu: None, sleeps: false };

    /// The advice for a measurement on a machine with these files.
    fn advice(how: Use, files: &[(&str, &str)]) -> Vec<String> {
        // Tests run in parallel.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let scratch = Scratch::new(&format!("advice-{number}"));
        for (path, text) in files {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("write");
        }
        Machine { root: scratch.path().to_owned(), how }.advice("mlx5_0")
    }

    fn assert_says(how: Use, files: &[(&str, &str)], words: &[&str]) {
        let advice = advice(how, files);
        assert_eq!(advice.len(), words.len(), "{advice:?}");
        for (line, word) in advice.iter().zip(words) {
            assert!(line.contains(word), "{line:?} says {word:?}");
        }
    }

    const GOVERNOR: &str = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    const ISOLATED: &str = "sys/devices/system/cpu/isolated";
    const SMT: &str = "sys/devices/system/cpu/smt/active";
    const NODE: &str = "sys/class/infiniband/mlx5_0/device/numa_node";
    const LIMITS: &str = "proc/self/limits";
    const STATUS: &str = "proc/self/status";

    #[test]
    fn what_is_known_to_be_wrong_is_told_and_nothing_else() {
        assert_says(POLLING, &[], &[]);
        assert_says(
            POLLING,
            &[
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
                (GOVERNOR, "powersave\n"),
                (ISOLATED, "\n"),
                (SMT, "1\n"),
                ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
                (NODE, "1\n"),
                ("proc/sys/kernel/numa_balancing", "1\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
                ("proc/loadavg", "7.50 1.00 1.00 1/100 1\n"),
            ],
            &[
                "hpet",
                "powersave",
                "isolcpus=",
                "hyper-threads",
                "throttled",
                "NUMA node 1",
                "numa_balancing=0",
                "madvise",
                "7.5",
            ],
        );
        let good = [
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            (GOVERNOR, "performance\n"),
            (SMT, "0\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
            (NODE, "-1\n"),
            ("proc/sys/kernel/numa_balancing", "0\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/loadavg", "0.50 1.00 1.00 1/100 1\n"),
        ];
        assert_says(POLLING, &good, &[]);
    }

    #[test]
    fn the_processor_that_was_named_is_looked_at() {
        let on = |cpu| Use { cpu: Some(cpu), sleeps: false };
        let files = [
            (ISOLATED, "2-3,6\n"),
            ("sys/devices/system/cpu/nohz_full", "3\n"),
            (SMT, "1\n"),
            ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3,7\n"),
            (GOVERNOR, "powersave\n"),
            (NODE, "1\n"),
            ("sys/devices/system/node/node1/cpulist", "3-4\n"),
        ];
        assert_says(on(3), &files, &["processor 7 idle, it is the other half of 3"]);
        let words = ["nohz_full=2", "sibling", "processor 2 is not on the adapter's NUMA node 1"];
        assert_says(on(2), &files, &words);
        assert_says(
            on(1),
            &files,
            &["processor 1 is not isolated: --cpu 2 is", "sibling", "node 1"],
        );
        assert_says(POLLING, &files[..1], &["--cpu 2 is isolated"]);
    }

    #[test]
    fn idle_states_matter_only_if_the_measurement_sleeps() {
        let files = [
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "133\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "890\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "1\n"),
        ];
        assert_says(POLLING, &files, &[]);
        assert_says(Use { sleeps: true, ..POLLING }, &files, &["133 µs"]);
    }

    #[test]
    fn limits_bind_processes_without_the_capability() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max locked memory         8388608              8388608              bytes\n\
            Max realtime priority     0                    0\n";
        let free = "CapEff:\t000001fffeffffff\n";
        let bound = "Name:\tuverbs\nCapEff:\t0000000000000000\n";
        assert_says(POLLING, &[(LIMITS, limits), (STATUS, free)], &[]);
        let files = [(LIMITS, limits), (STATUS, bound)];
        assert_says(POLLING, &files, &["real-time priority", "only 8192 KiB"]);
        let limits = limits.replace("8388608 ", "unlimited ").replace("y     0", "y     99");
        assert_says(POLLING, &[(LIMITS, &limits), (STATUS, bound)], &[]);
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list(""), [0; 0]);
        assert_eq!(list("what"), [0; 0]);
    }
}
