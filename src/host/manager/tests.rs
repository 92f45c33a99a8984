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
