//! Checks that the path from a tick to a trade makes no system call and no allocation: the kernel
//! kills the example's trading thread at a system call, and the allocator aborts at an allocation.
//!
//! The software device makes progress in its own thread. The trading thread cannot end without a
//! system call, so it sets a flag when it is done, and spins until the process exits.

#[allow(dead_code, reason = "its main function is not called")]
#[path = "../examples/tick_to_trade.rs"]
mod tick_to_trade;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tick_to_trade::{Desk, Exchange, QUOTES, last_seen};
use uverbs::Device;
use uverbs::soft::SoftDevice;

const PATIENCE: Duration = Duration::from_secs(60);
/// Quotes that are sent before the exchange waits for the desk.
const BURST: u64 = 20;
/// Environment variable of the child process: an additional action of the trading thread.
const ROLE: &str = "UVERBS_TRADING_THREAD";

thread_local!(static TRADES: Cell<bool> = const { Cell::new(false) });

/// An allocator that aborts if the trading thread allocates or frees.
struct Strict;

impl Strict {
    fn check() {
        if TRADES.get() {
            std::process::abort();
        }
    }
}

// SAFETY: the system's allocator, whose contract is passed on.
unsafe impl GlobalAlloc for Strict {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::check();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::check();
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Strict = Strict;

/// Kills this process at the next system call of this thread.
fn forbid_system_calls() {
    let kill = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_KILL_PROCESS,
    };
    let mut program = libc::sock_fprog { len: 1, filter: &raw const kill as *mut _ };
    let program: *mut libc::sock_fprog = &raw mut program;
    // SAFETY: the BPF program lives during the call, which copies it. If this thread makes a system
    // call from here on, the process ends, as intended.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let filter = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, filter, program), 0);
    }
}

/// The trading thread's progress: the next quote's number plus one, or [`FAILED`].
static REACHED: AtomicU64 = AtomicU64::new(0);
const FAILED: u64 = u64::MAX;

/// The trading thread: never returns.
fn trade(mut desk: Desk, role: &str) -> ! {
    TRADES.set(true);
    let calls = role == "calls";
    if role == "allocates" {
        std::hint::black_box(Box::new(1));
    }
    forbid_system_calls();
    if calls {
        // SAFETY: it has no arguments.
        unsafe { libc::getppid() };
    }
    loop {
        let failed = desk.trade().is_err();
        REACHED.store(if failed { FAILED } else { desk.next }, Ordering::Release);
        std::hint::spin_loop();
    }
}

/// Runs one test of this program in a child process, in the given role.
fn child(test: &str, role: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

fn devices() -> [Device; 2] {
    ["soft0", "soft1"].map(|name| Device::from_soft(SoftDevice::named(name).unwrap()))
}

/// The child's part: an exchange in this thread, a desk in another one.
fn run(role: String) {
    let [there, here] = devices();
    let desk = Desk::new(&here.open().unwrap()).unwrap();
    let mut exchange = Exchange::new(&there.open().unwrap()).unwrap();
    std::thread::spawn(move || trade(desk, &role));
    let start = Instant::now();
    for number in 0..QUOTES {
        exchange.publish(number).unwrap();
        if number % BURST != 0 {
            continue;
        }
        while REACHED.load(Ordering::Acquire) <= last_seen(number) {
            exchange.take_orders().unwrap();
            assert!(start.elapsed() < PATIENCE, "quote {number} was not seen");
            exchange.rx.context().poll_idle();
        }
        assert_ne!(REACHED.load(Ordering::Acquire), FAILED);
    }
    while exchange.orders < QUOTES / 4 {
        exchange.take_orders().unwrap();
        assert!(start.elapsed() < PATIENCE, "{} orders", exchange.orders);
        exchange.rx.context().poll_idle();
    }
    // The trading thread cannot end.
    std::process::exit(0);
}

#[test]
fn a_tick_becomes_a_trade_without_system_calls_and_allocations() {
    const NAME: &str = "a_tick_becomes_a_trade_without_system_calls_and_allocations";
    match std::env::var(ROLE) {
        Ok(role) => run(role),
        Err(_) => assert!(child(NAME, "trades").success()),
    }
}

#[test]
fn a_system_call_and_an_allocation_of_the_trading_thread_end_it() {
    const NAME: &str = "a_tick_becomes_a_trade_without_system_calls_and_allocations";
    if std::env::var(ROLE).is_ok() {
        return;
    }
    assert_eq!(child(NAME, "calls").signal(), Some(libc::SIGSYS));
    assert_eq!(child(NAME, "allocates").signal(), Some(libc::SIGABRT));
}
