#[path = "../../../../tests/common/child.rs"]
#[allow(clippy::duplicate_mod, reason = "each test module has its own")]
mod child;

use super::*;
use crate::host::channel::sysfs::Driver;
use child::{Outcome, in_child_without_system_calls};

fn entry(node: &str, number: Option<(u64, u64)>, driver: Driver) -> Entry {
    Entry {
        name: "mlx5_0".into(),
        node: node.into(),
        number,
        abi_version: Some(1),
        driver,
        attributes: "/nowhere".into(),
    }
}

#[test]
fn another_driver_is_refused_by_name() {
    let error = check(&entry("/dev/null", None, Driver::Other("irdma".into()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotMlx5);
    assert!(error.to_string().contains("irdma"), "{error}");
}

#[test]
fn a_missing_node_names_the_cure() {
    let error = check(&entry("/nowhere/uverbs0", None, Driver::Mlx5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.cure().contains("--device=/nowhere/uverbs0"), "{error}");
}

#[test]
fn a_node_with_another_number_is_refused() {
    let error = check(&entry("/dev/null", Some((231, 192)), Driver::Mlx5)).unwrap_err();
    assert!(error.to_string().contains("1:3"), "{error}");
    let opened = KernelChannel::open(&entry("/dev/null", Some((231, 192)), Driver::Mlx5));
    assert!(opened.is_err());
}

#[test]
fn a_plain_file_is_not_a_device() {
    let error = check(&entry("/etc/passwd", None, Driver::Mlx5)).unwrap_err();
    assert!(error.to_string().contains("not a character device"), "{error}");
}

/// In strict seccomp mode the kernel kills a process at any system call but read, write and
/// exit.
#[test]
fn idling_makes_no_system_call() {
    let file = File::open("/dev/null").unwrap();
    let channel = KernelChannel::adopt(&entry("/dev/null", None, Driver::Mlx5), file).unwrap();
    let channel: &dyn Channel = &channel;
    let run = |(): &()| (0..1000).for_each(|_| channel.poll_idle());
    assert_eq!(in_child_without_system_calls(|| (), run), Outcome::Well);
}
