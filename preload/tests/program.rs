//! The library in front of a program: this test file itself, run again with `LD_PRELOAD`.
//!
//! The ignored tests are the program's parts; they only make sense inside such a run.

use std::env;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
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

/// Runs one of the ignored tests below as a program with the library in front of it; gives what it said and the trace.
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
    // SAFETY: the child makes no use of what other threads of its parent may have locked: it ends by `_exit`.
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
    // What needs no more than the request, the parent does; a child of the child asks the same parent.
    let is_served = ask_port(inherited) == Ok(()) && make_context(inherited) == Err(Errno::EINVAL);
    let own = open();
    is_served && make_context(&own).is_ok() && ask_port(&own).is_ok()
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
    // In a child, whose only other threads are the library's: were one of them to take the signal, its default action would
    // end the child.
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
    let names: Vec<_> = fs::read_dir("/dev/infiniband").expect("a directory").flatten().collect();
    assert_eq!(names.len(), 1);
    let link = fs::read_to_string("/sys/class/infiniband/mlx5_0/ports/1/link_layer");
    assert_eq!(link.expect("an entry").trim(), "Ethernet");
    // SAFETY: a number that socket gives is ours, or -1.
    let netlink = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_RDMA) };
    assert_eq!(Errno::result(netlink), Err(Errno::EPROTONOSUPPORT));
    // SAFETY: as above.
    let other = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
    // SAFETY: just made, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(Errno::result(other).expect("other sockets are as ever")) });
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
