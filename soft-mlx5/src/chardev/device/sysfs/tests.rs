use super::*;
use crate::chardev::device::options::{GidEntry, GidType, Options};
use crate::packet::Gid;

fn tree() -> Sysfs {
    let address = Gid::from_ipv4([127, 0, 0, 2].into());
    let gids = vec![GidEntry { gid: address, kind: GidType::RoceV2 }];
    Sysfs::of(&Options { gids, ..Options::default() })
}

#[test]
fn files_that_discovery_reads_have_the_expected_content() {
    let tree = tree();
    assert_eq!(tree.read("class/infiniband_verbs/uverbs0/ibdev"), Some("soft0\n"));
    assert_eq!(tree.read("/class/infiniband_verbs/uverbs0/dev"), Some("231:192\n"));
    assert_eq!(tree.read("class/infiniband/soft0/node_type"), Some("1: CA\n"));
    let first = "class/infiniband/soft0/ports/1/gids/0";
    assert_eq!(tree.read(first), Some("0000:0000:0000:0000:0000:ffff:7f00:0002\n"));
    let kind = "class/infiniband/soft0/ports/1/gid_attrs/types/0";
    assert_eq!(tree.read(kind), Some("RoCE v2\n"));
    assert_eq!(tree.list("class"), ["infiniband", "infiniband_verbs"]);
    assert_eq!(tree.list("class/infiniband/soft0/ports"), ["1"]);
}

#[test]
fn the_device_is_a_function_on_a_pci_bus() {
    let tree = tree();
    let device = "devices/pci0000:f7/0000:f8:00.0/infiniband/soft0";
    let links = ["class/infiniband/soft0", "bus/pci/devices/0000:f8:00.0/infiniband/soft0"];
    for path in links {
        assert_eq!(tree.canonical(path, true).as_deref(), Some(device));
    }
    let function = "class/infiniband/soft0/device";
    assert_eq!(tree.canonical(function, true).as_deref(), Some("devices/pci0000:f7/0000:f8:00.0"));
    assert_eq!(tree.read(&format!("{function}/vendor")), Some("0x15b3\n"));
    assert_eq!(tree.read(&format!("{function}/net/lo/ifindex")), Some("1\n"));
    let driver = tree.canonical(&format!("{function}/driver"), true);
    assert_eq!(driver.as_deref(), Some("bus/pci/drivers/mlx5_core"));
    assert_eq!(
        tree.find("class/infiniband/soft0"),
        Some(Found::Link("../../devices/pci0000:f7/0000:f8:00.0/infiniband/soft0"))
    );
    assert_eq!(
        tree.canonical("dev/char/231:192/../..", true).as_deref(),
        Some("devices/pci0000:f7/0000:f8:00.0")
    );
}

#[test]
fn circular_links_are_not_resolved() {
    let mut tree = Sysfs::default();
    tree.link("one", "two");
    tree.link("two", "one");
    assert_eq!(tree.canonical("one", true), None);
    assert_eq!(tree.canonical("one", false).as_deref(), Some("one"));
    assert_eq!(tree.read("one"), None);
}

#[test]
fn each_device_has_a_different_pci_address() {
    let addresses: BTreeSet<String> = (0..32).map(layout::pci_address).collect();
    assert_eq!(addresses.len(), 32);
    assert_eq!(layout::pci_address(0), "0000:f8:00.0");
    assert_eq!(layout::pci_address(9), "0000:f9:00.1");
}

#[test]
fn a_tree_that_is_written_reads_the_same() {
    let root = std::env::temp_dir().join(format!("uverbs-sysfs-{}", std::process::id()));
    let tree = tree();
    tree.write_to(&root).expect("written");
    for path in ["class/infiniband/soft0/device/modalias", "class/infiniband_verbs/uverbs0/dev"] {
        let read = std::fs::read_to_string(root.join(path)).expect("a file");
        assert_eq!(tree.read(path), Some(read.as_str()));
    }
    std::fs::remove_dir_all(root).expect("removed");
}
