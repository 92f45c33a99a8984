//! The same comparison on a machine with more threads to run than processors: beside busy loops.
//!
//! It counts round trips per second. A median would say little, because a few round trips that wait
//! for the busy loops' time slices may take most of the time.

use std::process::{Child, Command};

use crate::link::{Case, Measure, Transport, Wait};
use crate::partner::{Client, Place};
use crate::report::median;

const RUNS: usize = 3;
pub(crate) const BYTES: usize = 16;

/// Round trips of a run: they take at most about a second over TCP beside eight busy loops.
fn round_trips(wait: Wait) -> u64 {
    match wait {
        Wait::Poll => 60,
        Wait::Sleep => 2000,
    }
}

/// Processes that run busy loops until this is dropped.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start(count: usize) -> Self {
        let program = std::env::current_exe().expect("this program");
        let own = std::process::id().to_string();
        let start =
            |_| Command::new(&program).args(["--spin", &own]).spawn().expect("one more process");
        Self((0..count).map(start).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A busy loop, which ends by itself if `parent` has ended.
pub(crate) fn spin(parent: u32) {
    while std::os::unix::process::parent_id() == parent {
        (0..1_000_000).for_each(|_| std::hint::spin_loop());
    }
}

/// Prints a table of round trips per second beside `busy_loops` busy loops.
pub(crate) fn measure(busy_loops: usize, is_wanted: impl Fn(Place, Wait) -> bool) {
    println!(
        "round trips of {BYTES} bytes per second beside {busy_loops} busy loops, medians of {RUNS} runs"
    );
    println!("{:<24} {:<9} {:>11} {:>11} {:>7}", "", "waiting", "TCP", "ours", "gain");
    let _busy = BusyLoops::start(busy_loops);
    for place in Place::ALL {
        let waits = [Wait::Sleep, Wait::Poll].into_iter().filter(|wait| is_wanted(place, *wait));
        for wait in waits {
            println!("{}", compare(place, wait));
        }
    }
}

fn compare(place: Place, wait: Wait) -> String {
    let mut client = Client::start(place);
    let (mut tcp, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        for (transport, rates) in [(Transport::Tcp, &mut tcp), (Transport::Rdma, &mut ours)] {
            let count = round_trips(wait);
            let case = Case { measure: Measure::RoundTrips, transport, wait, size: BYTES, count };
            rates.push(1e9 / client.run(case));
        }
    }
    let gain = median(ours.iter().zip(&tcp).map(|(ours, tcp)| ours / tcp).collect());
    let waiting = if wait == Wait::Poll { "polling" } else { "sleeping" };
    let (tcp, ours) = (median(tcp), median(ours));
    format!("{:<24} {waiting:<9} {tcp:>11.0} {ours:>11.0} {gain:>7.2}", place.to_string())
}
