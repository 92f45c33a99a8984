//! Queue and port counters.

use uverbs_mlx5_format::Opcode;

use super::driver::{Driver, Input, run};
use super::queues::{Address, Qp};
use crate::bits::field;
use crate::layout::command::{alloc_q_counter_out, query_q_counter_in, query_q_counter_out};
use crate::{Cable, Fabric, Settings};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::packet::Gid;
use uverbs_soft::wire::Station;

fn queue_counters(driver: &mut Driver, set: u32, clear: bool) -> u64 {
    let input = Input::new(0x773, 32)
        .set(query_q_counter_in::COUNTER_SET_ID, set.into())
        .set(query_q_counter_in::CLEAR, clear.into());
    query_q_counter_out::OUT_OF_BUFFER.get(&driver.done(input, 256))
}

fn port_counters(driver: &mut Driver) -> [u64; 4] {
    let reply = driver.done(Input::new(0x770, 32), 528);
    [0x180, 0x1c0, 0x200, 0x240].map(|bit| field(bit, 64).get(&reply))
}

#[test]
fn a_write_without_a_receive_is_counted() {
    let fabric = Fabric::new();
    let settings = [1, 2].map(|n| Settings::at(Station::candidate(n), LinkLayer::InfiniBand));
    let addresses = settings.clone().map(|settings| Address {
        link: settings.link,
        lid: settings.lid,
        gid: Gid::default(),
    });
    let mut drivers = settings.map(|settings| {
        let cable = Cable::to_fabric(&settings, &fabric).unwrap();
        Driver::ready(settings, cable)
    });
    let mut qps = [0, 1].map(|side| Qp::new(&mut drivers[side]));
    for side in [0, 1] {
        qps[side].connect(&mut drivers[side], qps[1 - side].number, addresses[1 - side]);
    }
    let reply = drivers[1].done(Input::new(0x771, 8), 16);
    let set = alloc_q_counter_out::COUNTER_SET_ID.get32(&reply);
    assert_eq!(queue_counters(&mut drivers[1], set, false), 0);
    let (target, key) = (drivers[1].alloc(64), drivers[1].lkey);
    qps[0].post(&mut drivers[0], Opcode::RDMA_WRITE_IMMEDIATE, (target, key), b"no receives!");
    run(&mut drivers, |drivers| queue_counters(&mut drivers[1], set, false) > 0);
    assert!(queue_counters(&mut drivers[1], set, true) > 0);
    // No device makes progress in between.
    assert_eq!(queue_counters(&mut drivers[1], set, false), 0, "cleared");
    let (sender, receiver) = (port_counters(&mut drivers[0]), port_counters(&mut drivers[1]));
    assert!(sender[2] > 0 && sender[3] > sender[2] && receiver[0] > 0, "{sender:?} {receiver:?}");
    drivers[1].done(Input::new(0x772, 16).set(alloc_q_counter_out::COUNTER_SET_ID, set.into()), 8);
    let query = Input::new(0x773, 32).set(query_q_counter_in::COUNTER_SET_ID, set.into());
    assert_eq!(drivers[1].command(query, 256).unwrap_err().0, 5, "the set does not exist");
}
