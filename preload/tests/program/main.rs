//! Tests the library in a program: this test binary itself, run with `LD_PRELOAD`.
//!
//! The ignored tests are what the program does; other tests run them.

mod calls;
mod connection_manager;
mod files;
mod netlink;
mod processes;

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
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
/// Time limit of a test, much longer than any test takes.
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

/// A directory that is removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// The name is different in each call, because two tests may run the same part at a time.
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("preload-{name}-{process}-{number}"));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs one of the ignored tests as a program with the library preloaded. Returns its output and
/// the trace.
fn run(part: &str, options: &[(&str, &str)]) -> (Output, String) {
    let scratch = Scratch::new(&part.replace("::", "-"));
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
