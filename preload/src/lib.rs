//! The library that `uverbs run` preloads into a program that was built for libibverbs. A software
//! ConnectX in the program's own process provides the device node `/dev/infiniband/uverbsN` and its
//! sysfs entries.
//!
//! The hooks answer for the node (`open`, `ioctl`, `mmap`, `stat`), for the connection manager's
//! node `/dev/infiniband/rdma_cm` (`write`, `read`), for their entries below `/sys` and
//! `/dev/infiniband` (opening, listing, `stat`, links), for sockets of RDMA netlink, and for the
//! same calls made through `syscall(2)`. Event descriptors are real ones and need nothing; neither
//! do `close`, `dup` and `exec`, see `node.rs`. Polls of a completion queue that find nothing, and
//! sleeps on a completion channel, let the device make progress, see `polling.rs`, `extended.rs`
//! and `sleeping.rs`. Nothing else in the program changes.
//!
//! The hooks do not see the calls of statically linked programs, nor system calls that a program
//! makes by an instruction of its own. A child that was forked while a device was open can open the
//! device itself. It can use its parent's device only for calls that need none of the child's
//! memory, see `inherited.rs`.
#![cfg(target_os = "linux")]
// The hooks are public to the dynamic linker, whatever module they are in.
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
            // Usage, as the command itself says it. Not `exit`: nothing of the program has been set
            // up yet. SAFETY: ends the process, which has done nothing so far.
            unsafe { libc::_exit(2) };
        }
    }
    fork::watch();
}

/// Reports mistakes of the command line now, not at a later call of the program. Returns the number
/// of devices.
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

/// Tells the hooks the directory for what the program lists, and the number of devices.
fn announce(devices: u32) {
    let root = settings::variable(settings::SYSFS).map(|root| {
        // As `/proc` will show it: without symbolic links.
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
