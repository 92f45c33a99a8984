use super::*;
use crate::host::channel::sysfs::Driver;

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
    // SAFETY: the child calls nothing that takes a lock or allocates: prctl, the method under
    // test, and exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: as above. `SYS_exit` is the exit that strict mode allows.
        unsafe {
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) != 0 {
                libc::syscall(libc::SYS_exit, 2);
            }
            (0..1000).for_each(|_| channel.poll_idle());
            libc::syscall(libc::SYS_exit, 0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child of this test and stores its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "a system call was made: status {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "strict seccomp mode is not available");
}
