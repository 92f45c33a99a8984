//! Compares the answers of the character-device front end with the kernel's: return codes,
//! capabilities, every field of every response, the order of events.
//!
//! A fixed sequence of raw requests results in a record. `kernel-ib.txt` and `kernel-roce.txt` are
//! the records of an unmodified kernel (6.12, its own ib_uverbs and mlx5_ib, on the software
//! ConnectX's PCI front end; `cargo xtask kernel-test --record` writes them). The record must be
//! the same on the built-in device, and again in the guest. `differences.txt` lists the allowed
//! differences with their reasons.

mod differences;
mod events;
mod memory;
mod node;
mod queries;
mod queue_pairs;
mod queues;
mod recorder;

use std::sync::Arc;

use differences::{Differences, Who};
use node::Source;
use recorder::Recorder;
use uverbs::soft::SoftDevice;

const KERNEL_IB: &str = include_str!("kernel-ib.txt");
const KERNEL_ROCE: &str = include_str!("kernel-roce.txt");

fn record(source: &Source) -> String {
    let mut recorder = Recorder::default();
    queries::record(source, &mut recorder);
    memory::record(source, &mut recorder);
    queues::record(source, &mut recorder);
    queue_pairs::record(source, &mut recorder);
    events::record(source, &mut recorder);
    recorder.lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect()
}

/// Checks that the record of a software device is the kernel's.
fn compare_soft(infiniband: bool) {
    if std::env::var_os("UVERBS_TEST_DEVICE").is_some() {
        return;
    }
    let builder = SoftDevice::builder("soft0").without_wire();
    let builder = if infiniband { builder.infiniband() } else { builder };
    let device = Source::Soft(Arc::new(builder.build().expect("a software device starts")));
    let (kernel, link) = if infiniband { (KERNEL_IB, "ib") } else { (KERNEL_ROCE, "roce") };
    Differences::new(Who::Soft, link).check(kernel, &record(&device));
}

#[test]
fn the_software_device_answers_as_the_kernel_on_ethernet() {
    compare_soft(false);
}

#[test]
fn the_software_device_answers_as_the_kernel_on_infiniband() {
    compare_soft(true);
}

#[test]
fn this_kernel_answers_as_the_recorded_one() {
    let Ok(name) = std::env::var("UVERBS_TEST_DEVICE") else { return };
    let source = Source::kernel(&name);
    let infiniband = source.attribute("ports/1/link_layer") == "InfiniBand";
    let text = record(&source);
    // `cargo xtask kernel-test --record` reads the record from the console.
    text.lines().for_each(|line| println!("@@ record {line}"));
    let (recorded, link) = if infiniband { (KERNEL_IB, "ib") } else { (KERNEL_ROCE, "roce") };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    Differences::new(Who::of_release(&release), link).check(recorded, &text);
}
