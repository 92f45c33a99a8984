//! The library that `uverbs run` preloads into a program for libibverbs. It provides the device
//! node `/dev/infiniband/uverbsN` and its sysfs entries, by a software ConnectX in the program's
//! process.
//!
//! It has hooks for calls on the node (`open`, `ioctl`, `mmap`, `stat`), on the connection
//! manager's node `/dev/infiniband/rdma_cm` (`write`, `read`), on their entries below `/sys` and
//! `/dev/infiniband` (opening, listing, `stat`, links) and on sockets of RDMA netlink, also if
//! these calls are made through `syscall(2)`. Event descriptors are real ones and need no hook;
//! neither do `close`, `dup` and `exec`, see `node.rs`. The device makes progress when a poll of a
//! completion queue finds nothing, and while a thread sleeps on a completion channel, see
//! `polling.rs`, `extended.rs` and `sleeping.rs`. Nothing else in the program changes.
//!
//! There are no hooks in statically linked programs, and none for a program's own system call
//! instructions. A child that was forked while a device was open can open the device itself. It can
//! use its parent's device only for calls that do not access the child's memory later, see
//! `inherited.rs`.
#![cfg(target_os = "linux")]
// The dynamic linker needs the hooks, in whatever module they are.
#![allow(unreachable_pub)]

use std::path::Path;
use uverbs_soft::settings::Settings;

mod contexts;
mod device;
mod extended;
mod files;
mod fork;
mod hooks;
mod hooks_glob;
mod hooks_path;
mod hooks_stat;
mod inherited;
mod netlink;
mod node;
mod open_files;
mod paths;
mod polling;
mod rdma_cm;
mod settings;
mod sleeping;
mod sys;
mod thread;
mod trace;

/// Runs when the library is loaded.
extern "C" fn set_up() {
    match check() {
        Ok(devices) => announce(devices),
        Err(reason) => {
            eprintln!("uverbs run: {reason}");
            // The status for wrong usage, as of the command itself. Not `exit`, because the program
            // is not initialized yet. SAFETY: ends the process, which has done nothing so far.
            unsafe { libc::_exit(2) };
        }
    }
    fork::watch();
}

/// Checks the settings now, so that mistakes are not reported only at a later call of the program.
/// Returns the number of devices.
fn check() -> Result<u32, String> {
    let devices = Settings::from_environment(settings::DEVICES)?.devices;
    if let Some(target) = settings::variable(settings::TRACE) {
        trace::begin(&target).map_err(|error| {
            format!("cannot write the trace to {}: {error}", Path::new(&target).display())
        })?;
    }
    Ok(devices)
}

/// Runs when the program ends by `exit` or by returning from `main`.
extern "C" fn tear_down() {
    if polling::is_interrupted_at_work() {
        return;
    }
    rdma_cm::close_all();
    device::flush();
}

/// Passes the directory for listed directories, and the number of devices, to the hooks.
fn announce(devices: u32) {
    let root = settings::variable(settings::SYSFS).map(|root| {
        // Without symbolic links, as in `/proc`.
        std::fs::canonicalize(&root).unwrap_or_else(|_| root.into())
    });
    paths::set_up(root.and_then(|root| root.into_os_string().into_string().ok()), devices);
}

#[used]
#[unsafe(link_section = ".init_array")]
static SET_UP: extern "C" fn() = set_up;

#[used]
#[unsafe(link_section = ".fini_array")]
static TEAR_DOWN: extern "C" fn() = tear_down;
