//! What `uverbs run` puts in front of a program that was built for libibverbs: the device node
//! `/dev/infiniband/uverbsN` and its sysfs entries, played by the software ConnectX inside the program's own process.
//!
//! Redirected are opening the node, `ioctl` and `mmap` on it, asking what it is (`fstat`), and reading below
//! `/sys/class/infiniband*` and `/dev/infiniband`; a netlink socket to the kernel's RDMA devices is refused. Event descriptors are real ones and need nothing; neither do `close`, `dup` and `exec`, see
//! `node.rs`. Nothing else in the program changes.
//!
//! What this cannot do: statically linked programs and programs that make raw system calls do not come by here; a child
//! that was forked while a device was open can open the device anew, but use its parent's only for what needs none of the
//! child's memory, see `inherited.rs`.
#![cfg(target_os = "linux")]
// The hooks are public to the dynamic linker, whatever module they stand in.
#![allow(unreachable_pub)]

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

mod device;
mod faults;
mod fork;
mod hooks;
mod hooks_stat;
mod inherited;
mod node;
mod paths;
mod settings;
mod sys;
mod thread;
mod trace;
mod wire;

/// Runs when the library is loaded.
extern "C" fn set_up() {
    if let Err(reason) = check() {
        eprintln!("uverbs run: {reason}");
        // Usage, as the command itself says it. Not `exit`: nothing of the program has been set up yet.
        // SAFETY: ends the process, which has done nothing so far.
        unsafe { libc::_exit(2) };
    }
    announce_sysfs();
    fork::watch();
}

/// What was typed wrong is said at once and not at some later call of the program.
fn check() -> Result<(), String> {
    settings::Settings::from_environment()?;
    let Some(target) = settings::variable(settings::TRACE) else { return Ok(()) };
    trace::begin(&target).map_err(|error| {
        format!("cannot write the trace to {}: {error}", Path::new(&target).display())
    })
}

/// Runs when the program ends by `exit` or by returning from `main`.
extern "C" fn tear_down() {
    device::settle();
}

/// Tells the program's libibverbs where to look (`SYSFS_PATH`), and the hooks what stands for `/sys`.
fn announce_sysfs() {
    let Some(root) = device::sysfs_root() else { return };
    let Ok(root) = CString::new(root.into_os_string().into_vec()) else { return };
    let root = paths::set_sysfs_root(root);
    // SAFETY: the program's own code has not started, so no other thread reads the environment.
    unsafe { libc::setenv(c"SYSFS_PATH".as_ptr(), root.as_ptr(), 1) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static SET_UP: extern "C" fn() = set_up;

#[used]
#[unsafe(link_section = ".fini_array")]
static TEAR_DOWN: extern "C" fn() = tear_down;
