//! `{:?}` of every public type is one log line: it takes no lock and omits the rings' content.

mod common;

use std::fmt::Debug;

use common::Setup;
use uverbs::cm::Channel;
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{AccessFlags, Buffer, Device, WqState};

/// Bound on the characters of one object; builders print the most.
const MAX_CHARS: usize = 1000;

fn is_a_line(name: &str, object: &impl Debug) {
    let [line, lines] = [format!("{object:?}"), format!("{object:#?}")];
    if !(line.len() <= MAX_CHARS && lines.len() <= 2 * MAX_CHARS) {
        println!("XX {name}: {}: {line:.1500}", line.len());
    }
}

#[test]
fn debug_output_of_every_object_is_a_line() {
    let soft = SoftDevice::builder("soft0").without_wire().build().unwrap();
    is_a_line("SoftDevice", &soft);
    let device = Device::from_soft(soft);
    is_a_line("Device", &device);
    let Setup { context, pd, cq: raw } = Setup::on(device.open().unwrap());
    is_a_line("Context", &context);
    is_a_line("ProtectionDomain", &pd);
    let channel = context.create_completion_channel().unwrap();
    is_a_line("CompletionChannel", &channel);
    let cq = context.create_cq(256).channel(&channel).build().unwrap();
    is_a_line("CompletionQueue", &cq);
    is_a_line("CqHandle", cq.handle());
    is_a_line("raw::CompletionQueue", &raw);
    let slab = pd.create_slab(256, 64).unwrap();
    is_a_line("Slab", &slab);
    is_a_line("Slot", &slab.take().unwrap());
    let srq = pd.create_srq(64).build().unwrap();
    is_a_line("SharedReceiveQueue", &srq);
    is_a_line("SrqHandle", srq.handle());
    let builder = pd.create_qp::<Rc>(cq.handle(), cq.handle());
    is_a_line("QpBuilder", &builder);
    let qp = builder.clone().build().unwrap();
    is_a_line("QueuePair", &qp);
    let domain = context.alloc_thread_domain().unwrap();
    is_a_line("ThreadDomain", &domain);
    is_a_line("shared QueuePair", &builder.build_in(&domain).unwrap());
    let buffer = Buffer::new(4096).unwrap();
    let region = pd.register(buffer, AccessFlags::LOCAL_WRITE).unwrap();
    is_a_line("MemoryRegion", &region);
    let wq = pd.create_wq(cq.handle(), 16).build().unwrap();
    assert_eq!(wq.state(), WqState::Rdy);
    is_a_line("WorkQueue", &wq);
    is_a_line("WqHandle", &wq.handle());
    let table = context.create_indirection_table(&[wq.handle()]).unwrap();
    is_a_line("IndirectionTable", &table);
    let channel = Channel::of(&context).unwrap();
    is_a_line("cm::Channel", &channel);
    is_a_line("cm::Id", &channel.create_id(uverbs::cm::PortSpace::Tcp).unwrap());
    let raw_qp = pd.create_raw_qp::<Rc>(raw.handle(), raw.handle()).build().unwrap();
    is_a_line("raw::QueuePair", &raw_qp);
}
