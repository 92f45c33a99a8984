//! Time and memory for creating and destroying many queue pairs.
//!
//! `cargo bench --features soft --bench scale -- [--json] [--device NAME] [COUNT …]`. The default
//! counts are 1,000, 10,000 and 100,000. The default device is a software device in this process,
//! whose own memory is included. Queue pairs share the register of a thread domain, because a
//! device has fewer registers. `libibverbs.c` does the same with libibverbs, and `count` compares
//! the two.

use std::fs;
use std::time::Instant;

use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{Context, Device, Result};

const DEFAULT: [usize; 3] = [1_000, 10_000, 100_000];

/// Cost per queue pair.
struct Cost {
    create_ns: u128,
    destroy_ns: u128,
    /// Growth of the resident set.
    bytes: u64,
}

/// What the arguments ask for.
#[derive(Default)]
struct Arguments {
    counts: Vec<usize>,
    json: bool,
    device: Option<String>,
}

impl Arguments {
    /// The first argument that is not understood is the error.
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut asked = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => asked.json = true,
                "--device" => asked.device = Some(arguments.next().ok_or(argument)?),
                count => asked.counts.push(count.parse().map_err(|_| argument)?),
            }
        }
        if asked.counts.is_empty() {
            asked.counts = DEFAULT.to_vec();
        }
        Ok(asked)
    }
}

fn main() -> Result<()> {
    // cargo adds --bench.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Arguments { counts, json, device } = Arguments::parse(arguments).unwrap_or_else(|wrong| {
        eprintln!("unknown argument {wrong}; there are --json, --device NAME and counts");
        std::process::exit(2);
    });
    if !json {
        println!("{:>11} {:>12} {:>12} {:>12}", "queue pairs", "create ns", "destroy ns", "bytes");
    }
    for count in counts {
        let Cost { create_ns, destroy_ns, bytes } = measure(&open(device.as_deref())?, count)?;
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

/// The device of this name, or a software device of its own.
fn open(name: Option<&str>) -> Result<Context> {
    match name {
        Some(name) => uverbs::device(name)?.open(),
        None => {
            let soft = SoftDevice::builder("soft0").without_wire().build();
            Device::from_soft(soft.expect("the device starts")).open()
        }
    }
}

/// Marks a place in a trace of system calls: it looks for a file of this name.
fn phase(name: &str) {
    let _ = fs::metadata(name);
}

/// Creates `count` queue pairs, and destroys them in the same order.
fn measure(context: &Context, count: usize) -> Result<Cost> {
    let pd = context.alloc_pd()?;
    let cq = context.create_raw_cq(1023).build()?;
    let domain = context.alloc_thread_domain()?;
    let make = |_| {
        let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle());
        builder.max_send_wr(4).max_recv_wr(4).max_inline_data(0).build_in(&domain)
    };
    let before = resident();
    phase("/phase/create");
    let start = Instant::now();
    let all = (0..count).map(make).collect::<Result<Vec<_>>>()?;
    let create_ns = start.elapsed().as_nanos() / count.max(1) as u128;
    phase("/phase/created");
    let bytes = resident().saturating_sub(before) / count.max(1) as u64;
    phase("/phase/destroy");
    let start = Instant::now();
    drop(all);
    let destroy_ns = start.elapsed().as_nanos() / count.max(1) as u128;
    phase("/phase/end");
    Ok(Cost { create_ns, destroy_ns, bytes })
}

/// Bytes of this process that are in memory (`VmRSS` of proc_pid_status(5)).
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
