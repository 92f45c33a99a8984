//! A limit of locked memory or of descriptors is reached during a creation.

use std::any::Any;
use std::sync::Arc;

use uverbs::qp_type::{Rc, Ud};
use uverbs::soft::SoftDevice;
use uverbs::{Buffer, Device, Result};

use crate::common::ALL_ACCESS;

/// A program in which nearly every creation pins memory.
fn program(device: &Device) -> Result<Vec<Box<dyn Any>>> {
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_raw_cq(200).build()?;
    let region = pd.register(Buffer::new(20_000).unwrap(), ALL_ACCESS)?;
    let srq = pd.create_raw_srq(300).build()?;
    let rc = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    let ud = pd
        .create_raw_qp::<Ud>(cq.handle(), cq.handle())
        .max_send_wr(300)
        .max_send_sge(2)
        .build()?;
    cq.resize(1000)?;
    Ok(vec![Box::new((rc, ud, srq)), Box::new((region, cq, pd, context))])
}

#[test]
fn a_creation_beyond_the_memory_limit_fails_and_leaves_nothing_pinned() {
    let mut verbs = Vec::new();
    for pages in 0.. {
        let builder = SoftDevice::builder("soft0").without_wire().locked_memory(pages * 4096);
        let soft = Arc::new(builder.build().unwrap());
        let device = Device::from_shared_soft(soft.clone());
        let before = soft.inspect(|core| core.counts()).unwrap();
        let result = program(&device);
        let done = result.is_ok();
        if let Err(error) = &result {
            assert_eq!(error.errno(), libc::ENOMEM, "{error}");
            verbs.push(error.verb());
        }
        drop(result);
        assert_eq!(soft.inspect(|core| core.counts()).unwrap(), before, "{pages} pages");
        assert_eq!(soft.handle_count(), 0);
        if done {
            break;
        }
    }
    verbs.dedup();
    assert_eq!(verbs, ["create_cq", "reg_mr", "create_srq", "create_qp", "resize_cq"]);
}

#[test]
fn a_failed_creation_unpins_its_memory() {
    let builder = SoftDevice::builder("soft0").without_wire().locked_memory(64 << 10);
    let device = Device::from_soft(builder.build().unwrap());
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    for _ in 0..20 {
        let mut cq = context.create_raw_cq(500).build().unwrap();
        let error = cq.resize(1000).unwrap_err();
        assert_eq!((error.verb(), error.errno()), ("resize_cq", libc::ENOMEM));
        assert_eq!(context.create_raw_cq(1000).build().unwrap_err().errno(), libc::ENOMEM);
        cq.resize(250).unwrap();
        cq.resize(500).unwrap();
        drop(cq);
        let most = pd.register(Buffer::new(60 << 10).unwrap(), ALL_ACCESS).unwrap();
        let more = pd.register(Buffer::new(8 << 10).unwrap(), ALL_ACCESS).unwrap_err();
        assert_eq!((more.verb(), more.errno()), ("reg_mr", libc::ENOMEM));
        most.deregister().unwrap();
    }
}
