//! A software device whose thread is halted: it executes commands, but changes no queue. No thread
//! reads doorbells, so only the benchmark accesses both sides' queues. It writes the completions.

use std::io;
use std::sync::Arc;

use uverbs::soft::packet::{Gid, Packet, PacketPool};
use uverbs::soft::wire::{Station, Waker, Wire};
use uverbs::soft::{DeviceBuilder, Qpn, SoftDevice};

use crate::producer::Producer;

/// A wire whose `receive` never returns, so that the device thread stays in it.
struct Halt;

impl Wire for Halt {
    fn send(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) {}

    fn receive(&mut self, _: u64, _: &mut Vec<Packet>, _: &mut PacketPool) -> usize {
        loop {
            std::thread::park();
        }
    }

    fn join(&mut self, _: Gid) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: Gid) {}
}

/// The fields of a QP that the benchmark needs to complete its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpNumbers {
    pub(crate) number: u32,
    pub(crate) user_index: u32,
    cqn: u32,
}

/// An InfiniBand device that is halted, for as long as the process runs.
pub(crate) fn device(name: &str) -> io::Result<SoftDevice> {
    halted(SoftDevice::builder(name).infiniband())
}

/// A device of any kind that is halted, for as long as the process runs.
pub(crate) fn halted(builder: DeviceBuilder) -> io::Result<SoftDevice> {
    let waker = Arc::new(Waker::new()?);
    let device = builder.wire(Box::new(Halt), waker, Station::candidate(0)).build()?;
    // Dropping it would wait for the thread.
    std::mem::forget(device.clone());
    Ok(device)
}

/// Looks up a QP in the software device.
pub(crate) fn numbers_of(device: &SoftDevice, number: u32) -> QpNumbers {
    let info = device.inspect(|core| core.query_qp(Qpn(number))).expect("the same process");
    let params = info.expect("a QP").params;
    QpNumbers { number, user_index: params.user_index, cqn: params.send_cq.0 }
}

/// The device's part of the CQ that a QP's sends complete to.
pub(crate) fn producer(device: &SoftDevice, qp: QpNumbers) -> Producer {
    let cqn = uverbs::soft::Cqn(qp.cqn);
    let info = device.inspect(|core| core.query_cq(cqn)).expect("the same process");
    let ring = info.expect("a CQ").ring;
    let (address, _) = ring.buffer.locate(0, 64).expect("a ring");
    let address = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the device is halted, and its CQs live as long as the process.
    unsafe { Producer::new(address, 1 << ring.log_entries) }
}
