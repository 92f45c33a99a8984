//! Asynchronous events: their receivers, their removal with the object, and their count.

use uverbs_uapi::enums::QpType;

use super::super::SoftDevice;
use super::bench::{Client, Cq, Memory, Qp, QpRequest, Uar, builder, read_async};
use crate::core::{AsyncKind, Cqn, EventObject, Qpn};

struct Bench {
    events: i32,
    cq: Cq,
    qp: Qp,
    client: Client,
    _uar: Uar,
    _memory: [Memory; 2],
}

fn bench(device: &SoftDevice) -> Bench {
    let client = Client::open(device);
    let events = client.async_events();
    let (uar, memory) = (client.uar(), [Memory::pages(1), Memory::pages(2)]);
    let pd = client.alloc_pd();
    let cq = client.create_cq(&memory[1], &uar, None, 0xc0).unwrap();
    let request =
        QpRequest { qp_type: QpType::RC, ..QpRequest::rc(&memory[0], &uar, pd, cq.handle) };
    let qp = client.create_qp(&request).unwrap();
    Bench { events, cq, qp, client, _uar: uar, _memory: memory }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: the bench owns the descriptor.
        unsafe { libc::close(self.events) };
    }
}

#[test]
fn events_have_the_programs_handle_of_the_object() {
    let device = builder().build().unwrap();
    let bench = bench(&device);
    let qp = EventObject::Qp(Qpn(bench.qp.qpn));
    let kinds = [
        (AsyncKind::CommunicationEstablished, 4),
        (AsyncKind::SqDrained, 5),
        (AsyncKind::PathMigrated, 6),
        (AsyncKind::PathMigrationFailed, 7),
        (AsyncKind::LastWqeReached, 16),
    ];
    for (kind, number) in kinds {
        device.raise(kind, qp).unwrap();
        assert_eq!(read_async(bench.events), Some((0x9091, number)));
    }
    device.raise(AsyncKind::CqError, EventObject::Cq(Cqn(bench.cq.cqn))).unwrap();
    assert_eq!(read_async(bench.events), Some((0xc0, 0)));
    assert_eq!(read_async(bench.events), None);
    assert_eq!(bench.client.destroy_qp(bench.qp.handle), Ok(5));
    assert_eq!(bench.client.destroy_cq(bench.cq.handle), Ok((0, 1)));
}

#[test]
fn unread_events_are_removed_with_their_object() {
    let device = builder().build().unwrap();
    let bench = bench(&device);
    let qp = EventObject::Qp(Qpn(bench.qp.qpn));
    device.raise(AsyncKind::CommunicationEstablished, qp).unwrap();
    device.raise(AsyncKind::PortError, EventObject::Port(1)).unwrap();
    device.raise(AsyncKind::SqDrained, qp).unwrap();
    assert_eq!(read_async(bench.events), Some((0x9091, 4)));
    assert_eq!(bench.client.destroy_qp(bench.qp.handle), Ok(1), "one was read");
    assert_eq!(read_async(bench.events), Some((1, 10)), "the port's is still there");
    assert_eq!(read_async(bench.events), None);
}

#[test]
fn port_events_go_to_every_context() {
    let device = builder().build().unwrap();
    let benches = [bench(&device), bench(&device)];
    let kinds = [
        (AsyncKind::PortActive, 9),
        (AsyncKind::LidChange, 11),
        (AsyncKind::PkeyChange, 12),
        (AsyncKind::SmChange, 13),
        (AsyncKind::ClientReregister, 17),
        (AsyncKind::GidChange, 18),
    ];
    for (kind, number) in kinds {
        device.raise(kind, EventObject::Port(1)).unwrap();
        for bench in &benches {
            assert_eq!(read_async(bench.events), Some((1, number)));
        }
    }
}

#[test]
fn thousands_of_events_arrive_in_order() {
    let device = builder().build().unwrap();
    let bench = bench(&device);
    let qp = EventObject::Qp(Qpn(bench.qp.qpn));
    for turn in 0..200 {
        let kind = if turn % 2 == 0 { AsyncKind::SqDrained } else { AsyncKind::PathMigrated };
        device.raise(kind, qp).unwrap();
    }
    for turn in 0..200 {
        let next = super::bench::wait_for("event", || read_async(bench.events));
        assert_eq!(next.1, if turn % 2 == 0 { 5 } else { 6 });
    }
    assert_eq!(bench.client.destroy_qp(bench.qp.handle), Ok(200));
}
