//! The number of system calls up to a connected queue pair: docs/start-up.md compares it with
//! libibverbs'.

use std::sync::Arc;

use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{AccessFlags, Buffer, Device};

#[test]
fn no_phase_makes_more_system_calls_than_the_docs_say() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let mut before = 0;
    let mut calls = |soft: &SoftDevice| {
        let now = soft.ioctl_count();
        now - std::mem::replace(&mut before, now)
    };
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let open = calls(&soft);
    let pd = context.alloc_pd().unwrap();
    let region = pd.register(Buffer::new(4096).unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
    let memory = calls(&soft);
    let cq = context.create_raw_cq(64).build().unwrap();
    let completion_queue = calls(&soft);
    let builder = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).max_send_wr(16).max_recv_wr(16);
    let mut qp = builder.build().unwrap();
    let queue_pair = calls(&soft);
    let own = qp.endpoint();
    qp.connect(&own).unwrap();
    let connect = calls(&soft);
    drop((qp, cq, region, pd, context));
    let close = calls(&soft);
    let counted = [open, memory, completion_queue, queue_pair, connect, close];
    assert_eq!(counted, [4, 2, 2, 6, 2, 4]);
}
