//! Memory: huge pages, and kernel features that move or merge pages under a running program.

use super::Check;
use super::rule::{Rule, selected};
use super::tree::Tree;

const SUBJECT: &str = "memory";

const RULES: &[Rule] = &[
    Rule {
        name: "transparent huge pages",
        path: "sys/kernel/mm/transparent_hugepage/enabled",
        wanted: Some(|value| selected(value) != "always"),
        why: "with `always` khugepaged copies and remaps any program's pages while it runs",
        cure: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    },
    Rule {
        name: "NUMA balancing",
        path: "proc/sys/kernel/numa_balancing",
        wanted: Some(|value| value == "0"),
        why: "it unmaps pages to see who uses them: page faults on the hot path",
        cure: "sysctl kernel.numa_balancing=0",
    },
    Rule {
        name: "merging of pages (KSM)",
        path: "sys/kernel/mm/ksm/run",
        wanted: Some(|value| value != "1"),
        why: "a merged page is copied at the next write: a page fault on the hot path",
        cure: "echo 2 > /sys/kernel/mm/ksm/run",
    },
    Rule {
        name: "swapping",
        path: "proc/sys/vm/swappiness",
        wanted: None,
        why: "registered memory is pinned, the program's other memory is not (mlockall)",
        cure: "",
    },
];

pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    let mut checks: Vec<Check> = RULES.iter().map(|rule| rule.check(tree, SUBJECT, "")).collect();
    checks.extend(huge_pages(tree));
    checks
}

/// Huge pages of each NUMA node.
fn huge_pages(tree: &Tree) -> Vec<Check> {
    let nodes = tree.names("sys/devices/system/node");
    let nodes = nodes.iter().filter(|name| {
        name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    nodes.map(|node| of_node(tree, node)).collect()
}

fn of_node(tree: &Tree, node: &str) -> Check {
    let pools = format!("sys/devices/system/node/{node}/hugepages");
    let check = Check::new(
        SUBJECT,
        "huge pages",
        format!("/{pools}"),
        "buffers in huge pages need fewer translations, in the processor and in the adapter",
    );
    let sizes = tree.names(&pools);
    let mut found = Vec::new();
    for size in &sizes {
        let all = tree.number(format!("{pools}/{size}/nr_hugepages")).unwrap_or(0);
        let free = tree.number(format!("{pools}/{size}/free_hugepages")).unwrap_or(0);
        if all > 0 {
            let size = size.trim_start_matches("hugepages-");
            found.push(format!("{all} of {size}, {free} free"));
        }
    }
    let value = if found.is_empty() { "none reserved".to_owned() } else { found.join("; ") };
    let cure = format!("echo N > /{pools}/hugepages-2048kB/nr_hugepages");
    check.judge(!found.is_empty(), format!("{node}: {value}"), cure)
}
