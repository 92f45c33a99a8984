//! Objects can be dropped in any order while messages are in flight.

use std::any::Any;
use std::sync::Arc;

use uverbs::mw::WindowType;
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::soft::prng::Prng;
use uverbs::{Device, QueuePair, op};

use super::common::{self, ALL_ACCESS, REMOTE};
use super::{Buffer, PostFlags, SIGNALED, Slab};

const ORDERS: u64 = 300;

type Object = Box<dyn Any>;

/// One object of each type, connected, with requests in flight.
fn objects(device: &Device) -> Vec<Object> {
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_completion_channel().unwrap();
    let mut cq = context.create_cq(64).channel(&channel).build().unwrap();
    let mut received = context.create_cq(64).build().unwrap();
    let mut srq = pd.create_srq(8).build().unwrap();
    let slab = pd.create_slab(16, 5000).unwrap();
    let region = pd.register(Buffer::new(8192).unwrap(), ALL_ACCESS).unwrap();
    let window = pd.alloc_mw(WindowType::Type2).unwrap();
    let queue_pair = |shared: bool| -> QueuePair<Rc> {
        let builder = pd.create_qp(cq.handle(), received.handle());
        let builder = builder.access(REMOTE);
        let builder = if shared { builder.shared_receive_queue(srq.handle()) } else { builder };
        builder.build().unwrap()
    };
    let (mut a, mut b) = (queue_pair(false), queue_pair(true));
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    a.connect(&end_b).unwrap();
    b.connect(&end_a).unwrap();
    for _ in 0..3 {
        a.post_receive(slab.take().unwrap()).unwrap();
        srq.post(slab.take().unwrap()).unwrap();
    }
    cq.arm();
    received.arm();
    a.post_send(op::Send, filled(&slab), PostFlags::empty()).unwrap();
    a.post_send(op::Write(region.remote(0).unwrap()), filled(&slab), SIGNALED).unwrap();
    a.post_inline(op::Send, b"short", SIGNALED).unwrap();
    b.post_send(op::Send, filled(&slab), SIGNALED).unwrap();
    let held = filled(&slab);
    vec![
        Box::new(context),
        Box::new(pd),
        Box::new(channel),
        Box::new(cq),
        Box::new(received),
        Box::new(srq),
        Box::new(slab),
        Box::new(region),
        Box::new(window),
        Box::new(a),
        Box::new(b),
        Box::new(held),
    ]
}

/// A slot with more bytes than one packet carries.
fn filled(slab: &Slab) -> uverbs::Slot {
    let mut slot = slab.take().unwrap();
    slot.write(&[7; 5000]).unwrap();
    slot
}

fn in_random_order(mut objects: Vec<Object>, chance: &mut Prng) {
    while !objects.is_empty() {
        let next = chance.below(objects.len() as u64) as usize;
        drop(objects.swap_remove(next));
    }
}

#[test]
fn objects_dropped_in_any_order_under_load_leave_no_kernel_object() {
    if !common::is_soft() {
        return;
    }
    let builder = SoftDevice::builder("soft0").without_wire();
    let builder = if common::on_infiniband() { builder.infiniband() } else { builder };
    let soft = Arc::new(builder.build().unwrap());
    let device = Device::from_shared_soft(soft.clone());
    let left =
        || (soft.inspect(|core| format!("{:?}", core.counts())).unwrap(), soft.handle_count());
    let before = left();
    for seed in 0..ORDERS {
        in_random_order(objects(&device), &mut Prng::new(seed));
        assert_eq!(left(), before, "seed {seed}");
    }
}
