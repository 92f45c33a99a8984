//! The node, and sysfs around it.

use super::*;

#[test]
fn the_node_looks_like_a_device_and_can_be_listed() {
    succeeds("files::part_node");
}

#[test]
#[ignore = "a part of the program"]
fn part_node() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let by_path = fs::metadata(NODE).expect("stat");
    let file = fs::File::from(open());
    let by_fd = file.metadata().expect("fstat");
    assert!(by_path.file_type().is_char_device() && by_fd.file_type().is_char_device());
    assert_eq!(by_path.rdev(), by_fd.rdev());
    let names = fs::read_dir("/dev/infiniband").expect("a directory").flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["rdma_cm", "uverbs0"]);
    let link = fs::read_to_string("/sys/class/infiniband/mlx5_0/ports/1/link_layer");
    assert_eq!(link.expect("an entry").trim(), "Ethernet");
    let counters = Path::new("/sys/class/infiniband/mlx5_0/ports/1/hw_counters");
    let names: Vec<_> = fs::read_dir(counters).expect("a directory").flatten().collect();
    assert!(names.iter().any(|entry| entry.file_name() == "resp_local_length_error"), "{names:?}");
    for entry in names {
        let value = fs::read_to_string(entry.path()).expect("a counter");
        assert!(value.trim().parse::<u64>().is_ok(), "{entry:?} {value}");
    }
}

/// For every call `/sys/class/infiniband/mlx5_0` is a link into the PCI function's directory.
#[test]
fn sysfs_has_the_shape_of_pci() {
    succeeds("files::part_sysfs");
}

#[test]
#[ignore = "a part of the program"]
fn part_sysfs() {
    use std::os::unix::fs::MetadataExt;
    let class = Path::new("/sys/class/infiniband/mlx5_0");
    let function = Path::new("/sys/devices/pci0000:f7/0000:f8:00.0");
    let device = function.join("infiniband/mlx5_0");
    assert_eq!(fs::canonicalize(class).expect("realpath"), device);
    assert_eq!(fs::canonicalize(class.join("device")).expect("realpath"), function);
    assert_eq!(fs::canonicalize("/sys/bus/pci/devices/0000:f8:00.0").expect("realpath"), function);
    let text = fs::read_link(class).expect("readlink");
    assert_eq!(text, Path::new("../../devices/pci0000:f7/0000:f8:00.0/infiniband/mlx5_0"));
    assert!(fs::symlink_metadata(class).expect("lstat").is_symlink());
    assert!(fs::metadata(class).expect("stat").is_dir());
    let read = |name: &str| fs::read_to_string(function.join(name)).expect("a file");
    assert_eq!((read("vendor").trim(), read("device").trim()), ("0x15b3", "0x101d"));
    for name in ["subsystem_vendor", "subsystem_device", "numa_node", "local_cpus", "local_cpulist"]
    {
        assert!(!read(name).trim().is_empty(), "{name}");
    }
    // DPDK reads both before it looks for the RDMA device.
    assert!(read("uevent").contains("\nPCI_SLOT_NAME=0000:f8:00.0\n"), "{}", read("uevent"));
    let resources = read("resource");
    let three = |line: &str| line.split(' ').filter(|word| word.starts_with("0x")).count() == 3;
    assert!(resources.lines().count() == 13 && resources.lines().all(three), "{resources}");
    let driver = fs::canonicalize(function.join("driver")).expect("a link");
    assert_eq!(driver, Path::new("/sys/bus/pci/drivers/mlx5_core"));
    assert_eq!(
        fs::read_to_string(class.join("device/net/lo/ifindex")).expect("a file").trim(),
        "1"
    );
    // `..` leads to the kernel's own directory.
    let classes = fs::metadata(class.join("subsystem/..")).expect("stat");
    assert_eq!(classes.ino(), fs::metadata("/sys/class").expect("stat").ino());
    // Programs that copy files compare these.
    let (path, open) = (device.join("fw_ver"), fs::File::open(device.join("fw_ver")));
    let (by_path, by_fd) = (fs::metadata(path), open.expect("a file").metadata());
    let number = |found: std::io::Result<fs::Metadata>| {
        found.map(|found| (found.dev(), found.ino(), found.len())).expect("stat")
    };
    assert_eq!(number(by_path), number(by_fd));
    // Attributes cannot be written.
    let refused = fs::File::options().write(true).open(class.join("node_desc"));
    assert_eq!(refused.expect_err("sysfs").raw_os_error(), Some(libc::EACCES));
    let missing = fs::File::open(class.join("no_such_attribute"));
    assert_eq!(missing.expect_err("missing").raw_os_error(), Some(libc::ENOENT));
}

/// Names in a directory can be opened relative to its descriptor, or after `chdir`.
#[test]
fn directories_can_be_listed_and_entered() {
    succeeds("files::part_directories");
}

#[test]
#[ignore = "a part of the program"]
fn part_directories() {
    let list = |path: &str| {
        let mut names: Vec<_> = fs::read_dir(path)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("/sys/class/infiniband"), ["mlx5_0"]);
    assert_eq!(list("/sys/class/infiniband_verbs"), ["abi_version", "uverbs0"]);
    assert_eq!(list("/sys/class/infiniband/mlx5_0/ports/1/gids").len(), 256);
    let directory = fs::File::open("/sys/class/infiniband/mlx5_0").expect("a directory");
    // SAFETY: an open directory and a C string.
    let file =
        unsafe { libc::openat(directory.as_raw_fd(), c"ports/1/state".as_ptr(), libc::O_RDONLY) };
    // SAFETY: just created, without another owner.
    let file = unsafe { OwnedFd::from_raw_fd(Errno::result(file).expect("it opens")) };
    let text = std::io::read_to_string(fs::File::from(file)).expect("text");
    assert_eq!(text, "4: ACTIVE\n");
    env::set_current_dir("/sys/class/infiniband").expect("a directory");
    assert_eq!(fs::read_to_string("mlx5_0/node_type").expect("a file"), "1: CA\n");
    env::set_current_dir("/").expect("a directory");
    assert!(fs::read_to_string("mlx5_0/node_type").is_err());
}

/// A process creates a directory on disk for each directory that it lists, and no files.
#[test]
fn reading_sysfs_makes_no_files() {
    succeeds("files::part_files");
}

#[test]
#[ignore = "a part of the program"]
fn part_files() {
    let root = env::var_os("UVERBS_RUN_SYSFS").expect("a directory");
    let count = || fs::read_dir(&root).expect("a directory").count();
    let before = count();
    let class = "/sys/class/infiniband/mlx5_0";
    for index in 0..256 {
        let gid = fs::read_to_string(format!("{class}/ports/1/gids/{index}"));
        assert_eq!(gid.expect("a GID").len(), 40);
    }
    make_context(&open()).expect("a context");
    assert_eq!(count(), before);
    drop(fs::read_dir(class).expect("a directory"));
    drop(fs::read_dir(class).expect("a directory"));
    assert_eq!(count(), before + 1);
}

#[test]
fn glob_patterns_find_the_devices() {
    succeeds("files::part_glob");
}

#[test]
#[ignore = "a part of the program"]
fn part_glob() {
    let found = |pattern: &std::ffi::CStr| {
        // SAFETY: a plain struct, a C string, and what the function stored in the struct.
        unsafe {
            let mut list: libc::glob_t = std::mem::zeroed();
            let result = libc::glob(pattern.as_ptr(), 0, None, &raw mut list);
            let paths =
                (0..list.gl_pathc).map(|at| std::ffi::CStr::from_ptr(*list.gl_pathv.add(at)));
            let paths: Vec<_> = paths.map(|path| path.to_str().unwrap().to_owned()).collect();
            libc::globfree(&raw mut list);
            (result, paths)
        }
    };
    let port = "/sys/class/infiniband/mlx5_0/ports/1/state";
    assert_eq!(found(c"/sys/class/infiniband/*/ports/*/state"), (0, vec![port.into()]));
    assert_eq!(found(c"/dev/infiniband/uverbs[0-9]"), (0, vec![NODE.into()]));
    assert_eq!(found(c"/sys/class/infiniband/*/nothing").0, libc::GLOB_NOMATCH);
    assert_eq!(found(c"/proc/self/stat?s"), (0, vec!["/proc/self/status".into()]));
}
