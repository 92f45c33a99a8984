//! What many queue pairs cost: time and memory of creating and destroying them on the software
//! device, whose own memory is included.
//!
//! `cargo bench --features soft --bench scale -- [--json] [COUNT …]`: without a count 1,000, 10,000
//! and 20,000. Queue pairs share the register of a thread domain: a device has fewer registers.

use std::time::Instant;

use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{Device, Result};

const DEFAULT: [usize; 3] = [1_000, 10_000, 20_000];

/// Per queue pair.
struct Cost {
    create_ns: u128,
    destroy_ns: u128,
    /// Growth of the resident set.
    bytes: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let given: Vec<usize> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let counts = if given.is_empty() { DEFAULT.to_vec() } else { given };
    if !json {
        println!("{:>11} {:>12} {:>12} {:>12}", "queue pairs", "create ns", "destroy ns", "bytes");
    }
    for count in counts {
        let Cost { create_ns, destroy_ns, bytes } = measure(count.max(1))?;
        if json {
            println!(
                "{{\"queue_pairs\":{count},\"create_ns\":{create_ns},\
                 \"destroy_ns\":{destroy_ns},\"bytes\":{bytes}}}"
            );
        } else {
            println!("{count:>11} {create_ns:>12} {destroy_ns:>12} {bytes:>12}");
        }
    }
    Ok(())
}

/// Creates `count` queue pairs on a device of their own, and destroys them in the same order.
fn measure(count: usize) -> Result<Cost> {
    let soft = SoftDevice::builder("soft0").without_wire().build().expect("the device starts");
    let context = Device::from_soft(soft).open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_raw_cq(1024).build()?;
    let domain = context.alloc_thread_domain()?;
    let make = |_| {
        let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        builder.max_send_wr(4).max_recv_wr(4).build_in(&domain)
    };
    let before = resident();
    let start = Instant::now();
    let all = (0..count).map(make).collect::<Result<Vec<_>>>()?;
    let create_ns = start.elapsed().as_nanos() / count as u128;
    let bytes = resident().saturating_sub(before) / count as u64;
    let start = Instant::now();
    drop(all);
    let destroy_ns = start.elapsed().as_nanos() / count as u128;
    Ok(Cost { create_ns, destroy_ns, bytes })
}

/// Bytes of this process that are in memory (`VmRSS` of proc_pid_status(5)).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
