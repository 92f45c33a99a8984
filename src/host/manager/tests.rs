use super::*;

#[test]
fn a_missing_node_names_the_module() {
    let error = Manager::open(&Roots::below("/nonexistent")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.cure().contains("rdma_ucm"), "{error}");
}

#[test]
fn a_plain_file_is_not_the_node() {
    let root = std::env::temp_dir().join(format!("uverbs-cm-node-{}", std::process::id()));
    fs::create_dir_all(root.join("dev/infiniband")).unwrap();
    fs::write(root.join("dev").join(NODE), "").unwrap();
    let error = Manager::open(&Roots::below(&root)).unwrap_err();
    fs::remove_dir_all(&root).unwrap();
    assert!(error.cause().contains("not a character device"), "{error}");
}

/// Container tools hide a node by /dev/null, which accepts every command and answers with zeros.
#[test]
fn another_device_is_not_the_node() {
    let root = std::env::temp_dir().join(format!("uverbs-cm-null-{}", std::process::id()));
    fs::create_dir_all(root.join("dev/infiniband")).unwrap();
    std::os::unix::fs::symlink("/dev/null", root.join("dev").join(NODE)).unwrap();
    let error = Manager::open(&Roots::below(&root)).unwrap_err();
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.cause().contains("is device 1:3"), "{error}");
    assert!(error.cure().contains("--device=/dev/infiniband/rdma_cm"), "{error}");
}

/// A node made by hand, or left over from before the module was loaded again.
#[test]
fn a_node_has_the_number_that_sysfs_says() {
    let root = std::env::temp_dir().join(format!("uverbs-cm-number-{}", std::process::id()));
    fs::create_dir_all(root.join(SYSFS)).unwrap();
    let path = Path::new("rdma_cm");
    let answer = |text: &str, found| {
        fs::write(root.join(SYSFS).join("dev"), text).unwrap();
        check_number(path, Some(found), &root)
    };
    assert!(answer("10:58\n", (10, 58)).is_ok());
    let error = answer("10:58\n", (10, 59)).unwrap_err();
    assert!(error.cause().contains("is device 10:59"), "{error}");
    fs::remove_dir_all(&root).unwrap();
    assert!(check_number(path, Some((10, 59)), &root).is_ok());
    assert!(check_number(path, Some((1, 3)), &root).is_err());
    assert!(check_number(path, None, &root).is_err());
}

#[test]
fn another_version_is_refused() {
    let root = std::env::temp_dir().join(format!("uverbs-cm-abi-{}", std::process::id()));
    fs::create_dir_all(root.join(SYSFS)).unwrap();
    let answer = |text: &str| {
        fs::write(root.join(SYSFS).join("abi_version"), text).unwrap();
        check_version(&root)
    };
    assert!(answer("4\n").is_ok());
    assert_eq!(answer("5\n").unwrap_err().kind(), ErrorKind::KernelTooOld);
    fs::remove_dir_all(&root).unwrap();
}
