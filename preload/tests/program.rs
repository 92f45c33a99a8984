//! The library in front of a program: this test file itself, run again with `LD_PRELOAD`.
//!
//! The ignored tests are the program's parts; they only make sense inside such a run.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use uverbs_uapi::cm::address::{AF_INET6, BindIp, SockaddrIn6};
use uverbs_uapi::cm::id::CreateId;
use uverbs_uapi::cm::{Message, PortSpace};
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::mlx5::AllocUcontextReqV2;
use uverbs_uapi::objects::device::{get_context, query_port};
use uverbs_uapi::request::Request;
use zerocopy::{FromZeros, IntoBytes};

const NODE: &str = "/dev/infiniband/uverbs0";
const RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;
/// Nothing here takes a tenth of it, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The library as cargo built it for this test.
fn library() -> PathBuf {
    let own = env::current_exe().expect("a path");
    let directory = own.parent().expect("a directory");
    [directory, directory.parent().expect("a directory")]
        .map(|place| place.join("libuverbs_preload.so"))
        .into_iter()
        .find(|path| path.is_file())
        .expect("libuverbs_preload.so beside the test")
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("preload-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs one of the ignored tests below as a program with the library in front of it; gives what it
/// said and the trace.
fn run(part: &str, options: &[(&str, &str)]) -> (Output, String) {
    let scratch = Scratch::new(part);
    let trace = scratch.0.join("trace");
    let output = Command::new(env::current_exe().expect("a path"))
        .args(["--exact", part, "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_PRELOAD", library())
        .env("UVERBS_RUN_SYSFS", &scratch.0)
        .env("UVERBS_RUN_TRACE", &trace)
        .envs(options.iter().copied())
        .output()
        .expect("the program starts");
    (output, fs::read_to_string(trace).unwrap_or_default())
}

#[track_caller]
fn succeeds(part: &str) -> String {
    let (output, trace) = run(part, &[]);
    assert!(output.status.success(), "{part}: {output:?}\n{trace}");
    trace
}

fn open() -> OwnedFd {
    let file = fs::File::options().read(true).write(true).open(NODE).expect("the node opens");
    file.into()
}

fn ioctl(fd: &OwnedFd, request: *mut u8) -> Result<(), Errno> {
    // SAFETY: a whole request, whose buffers live as long as it.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), RDMA_VERBS_IOCTL, request) }).map(drop)
}

fn make_context(fd: &OwnedFd) -> Result<u32, Errno> {
    let mut driver = AllocUcontextReqV2::new_zeroed();
    driver.total_num_bfregs = 16;
    driver.max_cqe_version = 1;
    let (mut vectors, mut answer) = (0u32, [0u8; 72]);
    let mut request = Request::<get_context::Call>::new(DriverId::MLX5);
    request.output(get_context::NUM_COMP_VECTORS, &mut vectors);
    request.driver_data(driver.as_bytes(), &mut answer).expect("short enough");
    ioctl(fd, request.as_mut_ptr())?;
    Ok(vectors)
}

fn ask_port(fd: &OwnedFd) -> Result<(), Errno> {
    let mut answer = [0u8; 48];
    let mut request = Request::<query_port::Call>::new(DriverId::MLX5);
    request.constant(query_port::PORT_NUM, 1u64);
    request.output_bytes(query_port::RESP, &mut answer).expect("short enough");
    ioctl(fd, request.as_mut_ptr())
}

#[test]
fn duplicates_are_the_same_file_and_the_last_close_counts() {
    let trace = succeeds("part_duplicates");
    assert_eq!(trace.matches(" close\n").count(), 1, "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_duplicates() {
    let first = open();
    assert!(make_context(&first).expect("a context") > 0);
    let second = first.try_clone().expect("a duplicate");
    drop(first);
    assert_eq!(ask_port(&second), Ok(()));
    assert_eq!(make_context(&second), Err(Errno::EINVAL), "the context is there already");
    drop(second);
    let trace = PathBuf::from(env::var_os("UVERBS_RUN_TRACE").expect("a trace"));
    let begin = Instant::now();
    while !fs::read_to_string(&trace).expect("the trace").contains(" close\n") {
        assert!(begin.elapsed() < PATIENCE, "the last close went unnoticed");
        std::thread::yield_now();
    }
}

#[test]
fn many_threads_may_open_ask_and_close() {
    let trace = succeeds("part_threads");
    assert_eq!(trace.matches(" open = ").count(), 8 * 25, "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_threads() {
    let work = || {
        for _ in 0..25 {
            let file = open();
            make_context(&file).expect("a context");
            ask_port(&file).expect("a port");
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn a_forked_child_starts_anew_and_asks_its_parent_about_the_parents_device() {
    succeeds("part_fork");
}

#[test]
#[ignore = "a part of the program"]
fn part_fork() {
    let file = open();
    make_context(&file).expect("a context");
    // SAFETY: the child makes no use of what other threads of its parent may have locked: it ends
    // by `_exit`.
    match unsafe { fork() }.expect("a fork") {
        ForkResult::Child => {
            let status = i32::from(!child_starts_anew(&file));
            // SAFETY: ends the child without running its parent's end.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            assert_eq!(ask_port(&file), Ok(()), "the parent's device is as it was");
        }
    }
}

fn child_starts_anew(inherited: &OwnedFd) -> bool {
    // What needs no more than the request, the parent does; a child of the child asks the same
    // parent.
    let is_served = ask_port(inherited) == Ok(()) && make_context(inherited) == Err(Errno::EINVAL);
    let own = open();
    is_served && make_context(&own).is_ok() && ask_port(&own).is_ok()
}

#[test]
fn a_child_whose_parent_has_ended_is_told_so() {
    let (output, _) = run("part_orphan", &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the orphan got EIO"), "{output:?}");
}

#[test]
#[ignore = "a part of the program"]
fn part_orphan() {
    let file = open();
    make_context(&file).expect("a context");
    let parent = Pid::this();
    // SAFETY: the child makes system calls and ends.
    if let ForkResult::Child = unsafe { fork() }.expect("a child") {
        // SAFETY: a call without pointers: a child that hangs ends.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        while nix::unistd::getppid() == parent {
            std::thread::yield_now();
        }
        if ask_port(&file) == Err(Errno::EIO) {
            println!("the orphan got EIO");
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
}

#[test]
fn an_executed_program_has_devices_of_its_own() {
    succeeds("part_exec");
}

#[test]
#[ignore = "a part of the program"]
fn part_exec() {
    let file = open();
    make_context(&file).expect("a context");
    let status = Command::new(env::current_exe().expect("a path"))
        .args(["--exact", "part_executed", "--ignored"])
        .env("UVERBS_TEST_FD", file.as_raw_fd().to_string())
        .status()
        .expect("it starts");
    assert!(status.success());
    assert_eq!(ask_port(&file), Ok(()));
}

#[test]
#[ignore = "a part of the program"]
fn part_executed() {
    let number: i32 = env::var("UVERBS_TEST_FD").expect("a number").parse().expect("a number");
    // SAFETY: only asks whether there is a descriptor of that number.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    assert_eq!(Errno::result(flags), Err(Errno::EBADF), "the node was opened with O_CLOEXEC");
    let file = open();
    make_context(&file).expect("a context");
}

#[test]
fn signals_are_the_programs_own() {
    succeeds("part_signals");
}

#[test]
#[ignore = "a part of the program"]
fn part_signals() {
    let file = open();
    make_context(&file).expect("a context");
    // In a child, whose only other threads are the library's: were one of them to take the signal,
    // its default action would end the child.
    let wanted = SigSet::from(Signal::SIGUSR1);
    // SAFETY: the child opens its own device and ends by `_exit`.
    match unsafe { fork() }.expect("a fork") {
        ForkResult::Child => {
            wanted.thread_block().expect("blocked");
            let own = open();
            let made = make_context(&own).is_ok();
            kill(Pid::this(), Signal::SIGUSR1).expect("sent");
            let got = wanted.wait() == Ok(Signal::SIGUSR1);
            // SAFETY: ends the child without running its parent's end.
            unsafe { libc::_exit(i32::from(!(made && got))) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}

#[test]
fn the_node_looks_like_a_device_and_can_be_listed() {
    succeeds("part_node");
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

/// `/sys/class/infiniband/mlx5_0` is a link into the PCI function's directory, by whichever call a
/// program looks at it.
#[test]
fn sysfs_has_the_shape_of_pci() {
    succeeds("part_sysfs");
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
    let driver = fs::canonicalize(function.join("driver")).expect("a link");
    assert_eq!(driver, Path::new("/sys/bus/pci/drivers/mlx5_core"));
    assert_eq!(
        fs::read_to_string(class.join("device/net/lo/ifindex")).expect("a file").trim(),
        "1"
    );
    // The way out again is the kernel's own.
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

/// Directories are listed, and names in them opened by the directory's descriptor or after `chdir`.
#[test]
fn directories_can_be_listed_and_entered() {
    succeeds("part_directories");
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
    // SAFETY: just made, and of no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(Errno::result(file).expect("it opens")) };
    let text = std::io::read_to_string(fs::File::from(file)).expect("text");
    assert_eq!(text, "4: ACTIVE\n");
    env::set_current_dir("/sys/class/infiniband").expect("a directory");
    assert_eq!(fs::read_to_string("mlx5_0/node_type").expect("a file"), "1: CA\n");
    env::set_current_dir("/").expect("a directory");
    assert!(fs::read_to_string("mlx5_0/node_type").is_err());
}

/// What a process lays out on disk: directories that it lists, and no file of sysfs' contents.
#[test]
fn looking_at_a_device_makes_no_files() {
    succeeds("part_files");
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

/// UCX patches the C library's `mmap` and makes the system calls itself, through `syscall(2)`.
#[test]
fn calls_through_syscall_reach_the_device() {
    let trace = succeeds("part_syscall");
    assert!(trace.contains("mmap("), "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_syscall() {
    let node = std::ffi::CString::new(NODE).expect("a path");
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, node.as_ptr(), flags, 0) };
    // SAFETY: just made, and of no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(Errno::result(fd as i32).expect("it opens")) };
    make_context(&file).expect("a context");
    let mut answer = [0u8; 48];
    let mut request = Request::<query_port::Call>::new(DriverId::MLX5);
    request.constant(query_port::PORT_NUM, 1u64);
    request.output_bytes(query_port::RESP, &mut answer).expect("short enough");
    // SAFETY: a whole request, whose buffers live as long as it.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), RDMA_VERBS_IOCTL, request.as_mut_ptr())
    };
    assert_eq!(result, 0);
    // The device's clock page: command 5 of the offset.
    let (length, shared) = (4096usize, libc::MAP_SHARED);
    let map = |fd: i32, offset: i64| {
        let nowhere = std::ptr::null_mut::<u8>();
        // SAFETY: a new mapping.
        unsafe {
            libc::syscall(libc::SYS_mmap, nowhere, length, libc::PROT_READ, shared, fd, offset)
        }
    };
    assert!(map(file.as_raw_fd(), 5 << 20) > 0, "{}", std::io::Error::last_os_error());
    assert_eq!(map(-1, 0), -1);
    assert_eq!(Errno::last(), Errno::EBADF, "other calls fail as ever");
    // SAFETY: no arguments.
    assert_eq!(unsafe { libc::syscall(libc::SYS_getpid) }, i64::from(std::process::id()));
    let link = c"/sys/class/infiniband/mlx5_0";
    let (at, mut text) = (libc::AT_FDCWD, [0u8; 256]);
    // SAFETY: a plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: C strings, a struct and a buffer of that length.
    unsafe {
        let there = libc::syscall(libc::SYS_newfstatat, at, node.as_ptr(), &raw mut stat, 0);
        assert_eq!((there, stat.st_mode & libc::S_IFMT), (0, libc::S_IFCHR));
        assert_eq!(libc::syscall(libc::SYS_faccessat, at, node.as_ptr(), libc::R_OK), 0);
        let into = text.as_mut_ptr();
        let length = libc::syscall(libc::SYS_readlinkat, at, link.as_ptr(), into, text.len());
        assert!(text[..length as usize].ends_with(b"infiniband/mlx5_0"));
    }
}

#[test]
fn patterns_find_the_devices() {
    succeeds("part_glob");
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

/// The functions of libibverbs that a C program links; `None` without the library, which CI has.
fn verbs_library() -> Option<*mut libc::c_void> {
    // SAFETY: a C string; the library's initialisation asks nothing of the caller.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        assert!(env::var_os("CI").is_none(), "libibverbs is not installed");
        println!("skipped: libibverbs is not installed");
        return None;
    }
    Some(library)
}

#[test]
fn polls_that_find_nothing_let_the_device_make_progress() {
    succeeds("part_polling");
}

#[test]
#[ignore = "a part of the program"]
fn part_polling() {
    type Pointer = *mut libc::c_void;
    // Offsets of `<infiniband/verbs.h>` on 64-bit machines: `struct ibv_context` begins with a
    // pointer and the table of operations, of which `poll_cq` is the twelfth.
    const POLL_CQ: usize = 12;
    let Some(library) = verbs_library() else { return };
    // As the dynamic linker binds a program's calls: this library comes first.
    let bound = |name: &std::ffi::CStr| {
        // SAFETY: C strings.
        let (first, own) = unsafe {
            let first = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (first, libc::dlsym(library, name.as_ptr()))
        };
        let function = if first.is_null() { own } else { first };
        assert!(!function.is_null(), "{name:?}");
        function
    };
    // SAFETY: the types that `<infiniband/verbs.h>` declares, as far as arguments are passed.
    unsafe {
        let list: extern "C" fn(*mut i32) -> *mut Pointer =
            std::mem::transmute(bound(c"ibv_get_device_list"));
        let open: extern "C" fn(Pointer) -> *mut Pointer =
            std::mem::transmute(bound(c"ibv_open_device"));
        let create: extern "C" fn(*mut Pointer, i32, Pointer, Pointer, i32) -> Pointer =
            std::mem::transmute(bound(c"ibv_create_cq"));
        let destroy: extern "C" fn(Pointer) -> i32 = std::mem::transmute(bound(c"ibv_destroy_cq"));
        let close: extern "C" fn(*mut Pointer) -> i32 =
            std::mem::transmute(bound(c"ibv_close_device"));
        let null = std::ptr::null_mut();
        for _ in 0..100 {
            let context = open(*list(std::ptr::null_mut()));
            assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
            let place = *context.add(POLL_CQ);
            let mut symbol: libc::Dl_info = std::mem::zeroed();
            assert_ne!(libc::dladdr(place, &raw mut symbol), 0);
            let file = std::ffi::CStr::from_ptr(symbol.dli_fname).to_str().expect("a path");
            assert!(file.ends_with("libuverbs_preload.so"), "{file}");
            let poll: extern "C" fn(Pointer, i32, Pointer) -> i32 = std::mem::transmute(place);
            let queue = create(context, 4, null, null, 0);
            assert!(!queue.is_null(), "{}", std::io::Error::last_os_error());
            let mut completion = [0u64; 16];
            assert!((0..100).all(|_| poll(queue, 1, completion.as_mut_ptr().cast()) == 0));
            assert_eq!((destroy(queue), close(context)), (0, 0));
        }
    }
}

/// A server that forks before it first looks for devices: each child has devices of its own.
#[test]
fn a_child_of_a_process_without_a_device_gets_its_own() {
    succeeds("part_early_fork");
}

#[test]
#[ignore = "a part of the program"]
fn part_early_fork() {
    let children: Vec<Pid> = (0..3)
        // SAFETY: the child makes no use of what other threads of its parent may have locked: it
        // ends by `_exit`.
        .map(|_| match unsafe { fork() }.expect("a fork") {
            ForkResult::Child => {
                let path = "/sys/class/infiniband/mlx5_0/ports/1/gids/3";
                let is_there = fs::read_to_string(path).is_ok();
                let is_usable = make_context(&open()).is_ok();
                // SAFETY: ends the child without running its parent's end.
                unsafe { libc::_exit(i32::from(!(is_there && is_usable))) }
            }
            ForkResult::Parent { child } => child,
        })
        .collect();
    for child in children {
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    }
    make_context(&open()).expect("the parent's own");
}

/// `RDMA_NLDEV_CMD_…` and `RDMA_NLDEV_ATTR_…` of rdma/rdma_netlink.h.
const GET: u16 = 1;
const PORT_GET: u16 = 5;
const RES_QP_GET: u16 = 10;
const GET_CHARDEV: u16 = 15;
const DEV_INDEX: u16 = 1;
const PORT_INDEX: u16 = 3;
const CHARDEV_TYPE: u16 = 69;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;

/// A request of RDMA netlink.
fn question(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        body.extend((value.len() as u16 + 4).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(((5u16 << 10) + command).to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend(77u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// What a socket of RDMA netlink answers first.
fn asked(socket: &OwnedFd, question: &[u8]) -> Vec<u8> {
    let fd = socket.as_raw_fd();
    // SAFETY: so many bytes.
    let sent = unsafe { libc::send(fd, question.as_ptr().cast(), question.len(), 0) };
    assert_eq!(sent, question.len() as isize);
    received(socket)
}

fn received(socket: &OwnedFd) -> Vec<u8> {
    let mut answer = vec![0; 4096];
    // SAFETY: so much room.
    let length = unsafe {
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    answer.truncate(Errno::result(length).expect("an answer") as usize);
    answer
}

fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

#[test]
fn rdma_netlink_answers() {
    succeeds("part_netlink");
}

#[test]
#[ignore = "a part of the program"]
fn part_netlink() {
    // SAFETY: a number that socket gives is ours, or -1.
    let socket = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA)
    };
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(Errno::result(socket).expect("a socket")) };
    let contains = |answer: &[u8], text: &[u8]| answer.windows(text.len()).any(|part| part == text);
    let answer = asked(&socket, &question(GET, DUMP, &[]));
    assert_eq!(kind(&answer), (5 << 10) + GET);
    assert_eq!(answer[8..12], 77u32.to_ne_bytes(), "the request's number");
    assert!(contains(&answer, b"mlx5_0\0") && contains(&answer, b"roce\0"));
    assert_eq!(kind(&received(&socket)), 3, "NLMSG_DONE");
    let (device, port) = ([0u8; 4], 1u32.to_ne_bytes());
    let answer =
        asked(&socket, &question(PORT_GET, 0, &[(DEV_INDEX, &device), (PORT_INDEX, &port)]));
    assert!(contains(&answer, b"lo\0"));
    let attributes: [(u16, &[u8]); 2] = [(DEV_INDEX, &device), (CHARDEV_TYPE, b"uverbs\0")];
    let answer = asked(&socket, &question(GET_CHARDEV, 0, &attributes));
    assert!(contains(&answer, b"uverbs0\0"));
    let errno = |answer: &[u8]| {
        assert_eq!(kind(answer), 2, "NLMSG_ERROR");
        -i32::from_ne_bytes(answer[16..20].try_into().expect("four bytes"))
    };
    let answer = asked(&socket, &question(RES_QP_GET, DUMP, &[(DEV_INDEX, &device)]));
    assert_eq!(kind(&answer), 3, "NLMSG_DONE: there are none");
    let answer = asked(&socket, &question(RES_QP_GET, 0, &[(DEV_INDEX, &device)]));
    assert_eq!(errno(&answer), libc::EOPNOTSUPP);
    let answer = asked(&socket, &question(PORT_GET, 0, &[(DEV_INDEX, &[9, 0, 0, 0])]));
    assert_eq!(errno(&answer), libc::EINVAL);
    // Not a message: nothing to answer, as with the kernel.
    // SAFETY: so many bytes.
    assert_eq!(unsafe { libc::send(socket.as_raw_fd(), [1u8; 5].as_ptr().cast(), 5, 0) }, 5);
    drop(socket);
    // SAFETY: as above.
    let other = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
    // SAFETY: just made, and of no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(Errno::result(other).expect("other sockets are as ever")) });
}

#[test]
fn the_connection_managers_node_takes_commands_only() {
    let trace = succeeds("part_connection_manager");
    assert!(trace.contains("rdma_cm CREATE_ID") && trace.contains("rdma_cm close"), "{trace}");
}

/// `RDMA_USER_CM_CMD_CREATE_ID`: header, and a body with the answer's address.
fn create_id(into: &mut u32) -> Vec<u8> {
    let body = CreateId { uid: 1, response: into as *mut u32 as u64, ..CreateId::default() };
    Message::new(&CreateId { ps: PortSpace::TCP, ..body }).as_bytes().to_vec()
}

#[test]
#[ignore = "a part of the program"]
fn part_connection_manager() {
    let version = fs::read_to_string("/sys/class/misc/rdma_cm/abi_version").expect("the ABI");
    assert_eq!(version, "4\n");
    let open = || fs::File::options().read(true).write(true).open("/dev/infiniband/rdma_cm");
    let mut file = open().expect("the node opens");
    assert!(file.metadata().expect("its kind").file_type().is_char_device());
    let mut id = u32::MAX;
    file.write_all(&create_id(&mut id)).expect("an id");
    assert_eq!(id, 0);
    let mut second = file.try_clone().expect("a duplicate");
    second.write_all(&create_id(&mut id)).expect("another id of the same file");
    assert_eq!(id, 1);
    let refused = |error: io::Error| error.raw_os_error();
    assert_eq!(file.read(&mut [0; 8]).map_err(refused), Err(Some(libc::EINVAL)));
    assert_eq!(file.write(&[0; 4]).map_err(refused), Err(Some(libc::EINVAL)));
    let fd: OwnedFd = second.into();
    assert_eq!(ioctl(&fd, std::ptr::null_mut()), Err(Errno::ENOTTY));
    let mut poll =
        libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "neither readable nor writable");
    drop((fd, file));
    let trace = PathBuf::from(env::var_os("UVERBS_RUN_TRACE").expect("a trace"));
    let begin = Instant::now();
    while !fs::read_to_string(&trace).expect("the trace").contains("rdma_cm close\n") {
        assert!(begin.elapsed() < PATIENCE, "the last close went unnoticed");
        std::thread::yield_now();
    }
    open().expect("again").write_all(&create_id(&mut id)).expect("an id");
    assert_eq!(id, 0, "the numbers were given back");
}

/// `RDMA_USER_CM_CMD_BIND_IP`: any address, and a port.
fn bind_port(id: u32, port: u16) -> Vec<u8> {
    let addr = SockaddrIn6 { family: AF_INET6, port: port.into(), ..SockaddrIn6::default() };
    Message::new(&BindIp { addr, id, ..BindIp::default() }).as_bytes().to_vec()
}

fn open_cm() -> fs::File {
    let node = "/dev/infiniband/rdma_cm";
    fs::File::options().read(true).write(true).open(node).expect("the node opens")
}

/// An id of the file, bound to a port that no other id may have.
fn bind_new(file: &mut fs::File, port: u16) -> u32 {
    let mut id = u32::MAX;
    file.write_all(&create_id(&mut id)).expect("an id");
    file.write_all(&bind_port(id, port)).expect("the port is free");
    id
}

#[test]
fn a_close_of_the_connection_managers_node_is_done_when_it_returns() {
    let trace = succeeds("part_closing");
    let [opened, closed] = ["rdma_cm open", "rdma_cm close\n"].map(|l| trace.matches(l).count());
    assert!(opened - closed <= 1, "each but the last is closed once: {opened} {closed}");
}

#[test]
#[ignore = "a part of the program"]
fn part_closing() {
    // Each open closes what is abandoned.
    for _ in 0..2000 {
        assert_eq!(bind_new(&mut open_cm(), 4791), 0, "ids were given back");
    }
    // So does each call on a file that was open already.
    let opened: Vec<fs::File> = (0..100).map(|_| open_cm()).collect();
    for mut file in opened {
        bind_new(&mut file, 4791);
    }
    // Several threads that close and open find each other's work done.
    let ports = [4801, 4802, 4803, 4804];
    let threads = ports.map(|port| {
        std::thread::spawn(move || {
            (0..300).for_each(|_| {
                bind_new(&mut open_cm(), port);
            });
        })
    });
    for thread in threads {
        thread.join().expect("each port is free again at once");
    }
}

#[test]
fn calls_fail_as_ordered() {
    let (output, trace) = run("part_failing", &[("UVERBS_RUN_FAULTS", "1,ioctl=1:ENOMEM")]);
    assert!(output.status.success(), "{output:?}");
    assert!(trace.contains("DEVICE.GET_CONTEXT") && trace.contains("-1 ENOMEM"), "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_failing() {
    let file = open();
    assert_eq!(make_context(&file), Err(Errno::ENOMEM));
    assert!(make_context(&file).is_ok());
}

#[test]
fn what_is_typed_wrong_is_said_before_the_program_starts() {
    let (output, _) = run("part_failing", &[("UVERBS_RUN_LINK", "token-ring")]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "uverbs run: --link token-ring is not understood");
}
