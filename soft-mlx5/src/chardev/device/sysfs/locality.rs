//! The processors that are local to the device: those of the first NUMA node.

use std::fs::read_to_string;
use std::thread::available_parallelism;

/// The texts of `numa_node`, `local_cpus` and `local_cpulist`.
pub(super) struct Locality {
    pub(super) node: String,
    pub(super) mask: String,
    pub(super) list: String,
}

impl Locality {
    pub(super) fn of_machine() -> Self {
        Self::of_node(0).unwrap_or_else(|| {
            Self::without_nodes(available_parallelism().map_or(1, std::num::NonZero::get))
        })
    }

    fn of_node(node: u32) -> Option<Self> {
        let read = |name| {
            let text =
                read_to_string(format!("/sys/devices/system/node/node{node}/{name}")).ok()?;
            Some(text.trim().to_owned())
        };
        Some(Self { node: node.to_string(), mask: read("cpumap")?, list: read("cpulist")? })
    }

    /// A kernel without NUMA reports node -1 and all processors as local.
    fn without_nodes(processors: usize) -> Self {
        let list = match processors {
            1 => "0".to_owned(),
            more => format!("0-{}", more - 1),
        };
        Self { node: "-1".into(), mask: mask(processors), list }
    }
}

/// A bit per processor in groups of 32, the highest group first, as the kernel's `%*pb` prints it.
fn mask(processors: usize) -> String {
    let group = |index: usize| match processors - index * 32 {
        32.. => u32::MAX,
        rest => (1 << rest) - 1,
    };
    let groups: Vec<u32> = (0..processors.div_ceil(32)).rev().map(group).collect();
    let texts = groups.iter().enumerate().map(|(at, group)| match at {
        0 => format!("{group:x}"),
        _ => format!("{group:08x}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_in_groups_of_32() {
        assert_eq!(mask(1), "1");
        assert_eq!(mask(2), "3");
        assert_eq!(mask(32), "ffffffff");
        assert_eq!(mask(36), "f,ffffffff");
        assert_eq!(mask(64), "ffffffff,ffffffff");
        assert_eq!(Locality::without_nodes(4).list, "0-3");
    }
}
