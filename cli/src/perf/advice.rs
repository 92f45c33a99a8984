//! What on this machine gets in the way of low and steady latency, as far as /sys and /proc tell.

use std::fs;
use std::path::Path;

use uverbs::DeviceKind;

use crate::device::Chosen;

/// Advice for a measurement on this device; nothing where nothing is known to be wrong.
pub(super) fn for_device(chosen: &Chosen) -> Vec<String> {
    let software = (chosen.context.kind() == DeviceKind::Software).then(|| {
        "the software device is measured: its numbers say nothing about an adapter".to_owned()
    });
    let name = chosen.context.device().name();
    software.into_iter().chain(for_machine(Path::new("/"), name)).collect()
}

fn for_machine(root: &Path, device: &str) -> Vec<String> {
    let read =
        |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
    let mut advice = Vec::new();
    let governor = read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if let Some(governor) = governor.filter(|governor| governor != "performance") {
        advice.push(format!("the processors' frequency governor is {governor}: cpupower frequency-set -g performance"));
    }
    if read("sys/devices/system/cpu/isolated").is_some_and(|list| list.is_empty()) {
        advice.push("no processor is kept free of other work: boot with isolcpus= and nohz_full=, and use --cpu on one of those".to_owned());
    }
    if read("sys/devices/system/cpu/smt/active").as_deref() == Some("1") {
        advice.push("hyper-threads share a core: keep the sibling of the measured processor idle, or turn them off".to_owned());
    }
    if read("proc/sys/kernel/sched_rt_runtime_us").is_some_and(|text| text != "-1") {
        advice.push("real-time programs are throttled: before chrt -f 50 uverbs perf …, sysctl kernel.sched_rt_runtime_us=-1".to_owned());
    }
    if let Some(node) =
        read(&format!("sys/class/infiniband/{device}/device/numa_node")).filter(|node| node != "-1")
    {
        advice.push(format!("the adapter is attached to NUMA node {node}: run there (numactl -N {node} -m {node} uverbs perf …)"));
    }
    let load = read("proc/loadavg").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load.filter(|load| *load > 1.0) {
        advice.push(format!("other programs are running (load average {load})"));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_is_known_to_be_wrong_is_told_and_nothing_else() {
        let scratch = Scratch::new("advice");
        assert!(for_machine(scratch.path(), "mlx5_0").is_empty());
        for (path, text) in [
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/isolated", "\n"),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
            ("sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
            ("proc/loadavg", "7.50 1.00 1.00 1/100 1\n"),
        ] {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("write");
        }
        let advice = for_machine(scratch.path(), "mlx5_0");
        assert_eq!(advice.len(), 6, "{advice:?}");
        assert!(advice[4].contains("NUMA node 1"), "{advice:?}");
    }
}
