//! Flow counters: the frames that entries of flow tables count.

use super::driver::{Driver, Input, Refused, run};
use super::frames::{Receiver, Sender, frame, pair, queue_tir, station, steer_with};
use crate::bits::field;
use crate::layout::ethernet::{
    create_flow_group_in, flow_context, flow_counter, query_flow_counter_in, set_fte_in,
    traffic_counter,
};

const FORWARD: u64 = 4;
const DROP: u64 = 2;
const COUNT: u64 = 8;
const NO_SUCH: u64 = 5;
const BUSY: u64 = 6;
const SHORT: u64 = 0x50;

fn allocate(driver: &mut Driver) -> u32 {
    flow_counter::ID.get32(&driver.done(Input::new(0x939, 16), 16))
}

fn free(driver: &mut Driver, number: u32) -> Result<(), Refused> {
    let input = Input::new(0x93a, 16).set(flow_counter::ID, number.into());
    driver.command(input, 16).map(drop)
}

fn query_input(number: u32) -> Input {
    Input::new(0x93b, 32).set(query_flow_counter_in::FLOW_COUNTER_ID, number.into())
}

/// Packets and octets of entry `index` in a response.
fn counts(reply: &[u8], index: usize) -> [u64; 2] {
    let place = 0x80 + index * 128;
    [traffic_counter::PACKETS, traffic_counter::OCTETS].map(|field| field.at(place).get(reply))
}

fn query(driver: &mut Driver, number: u32) -> [u64; 2] {
    counts(&driver.done(query_input(number), 32), 0)
}

/// Two devices, a sender on the first, and a receiver with its TIR on the second.
fn ready() -> ([Driver; 2], Sender, Receiver, u32) {
    let mut drivers = pair();
    let sender = Sender::new(&mut drivers[0]);
    let receiver = Receiver::new(&mut drivers[1]);
    let tir = queue_tir(&mut drivers[1], receiver.number);
    (drivers, sender, receiver, tir)
}

/// Deletes the entry that [`steer_with`] made.
fn delete_entry(driver: &mut Driver, table: u32) {
    let input = Input::new(0x938, 64)
        .set(create_flow_group_in::TABLE_ID, table.into())
        .set(set_fte_in::FLOW_INDEX, 2);
    driver.done(input, 8);
}

/// Adds these counters to an entry with `destinations` destinations.
fn counting(entry: Input, action: u64, destinations: usize, counters: &[u32]) -> Input {
    let entry = entry
        .set(flow_context::ACTION.at(0x200), action)
        .set(flow_context::DESTINATION_LIST_SIZE.at(0x200), destinations as u64)
        .set(flow_context::FLOW_COUNTER_LIST_SIZE.at(0x200), counters.len() as u64);
    counters.iter().enumerate().fold(entry, |entry, (index, number)| {
        entry.set(field(0x1a00 + (destinations + index) * 64, 32), (*number).into())
    })
}

/// Sends three frames to two addresses, and waits until all have left.
fn send_three(drivers: &mut [Driver; 2], sender: &mut Sender) {
    for to in [2, 3, 2] {
        sender.send(&mut drivers[0], &frame(station(to).mac(), 1));
    }
    let mut sent = 0;
    run(drivers, |drivers| {
        sent += usize::from(drivers[0].poll(&mut sender.cq).is_some());
        sent == 3
    });
    run(drivers, |_| true);
}

#[test]
fn an_entry_counts_the_frames_that_it_matches() {
    let (mut drivers, mut sender, mut receiver, tir) = ready();
    let [counter, idle] = [(); 2].map(|()| allocate(&mut drivers[1]));
    assert_eq!(query(&mut drivers[1], counter), [0; 2]);
    let mac = station(2).mac();
    let entry = |entry| counting(entry, FORWARD | COUNT, 1, &[counter]);
    let table = steer_with(&mut drivers[1], mac, tir, entry);
    send_three(&mut drivers, &mut sender);
    assert_eq!((0..3).filter_map(|_| drivers[1].poll(&mut receiver.cq)).count(), 2);
    let octets = 2 * frame(mac, 1).len() as u64;
    assert_eq!(query(&mut drivers[1], counter), [2, octets]);
    assert_eq!(query(&mut drivers[1], idle), [0; 2]);
    // A query of a range, which clears it. The first number of the range is not a counter.
    let range = query_input(0)
        .set(query_flow_counter_in::NUM_OF_COUNTERS, 4)
        .set(query_flow_counter_in::CLEAR, 1);
    let reply = drivers[1].done(range, 16 + 4 * 16);
    assert_eq!(counts(&reply, counter as usize), [2, octets]);
    assert_eq!(counts(&reply, 0), [0; 2]);
    assert_eq!(query(&mut drivers[1], counter), [0; 2], "cleared");
    assert_eq!(free(&mut drivers[1], counter).unwrap_err().0, BUSY);
    delete_entry(&mut drivers[1], table);
    free(&mut drivers[1], counter).unwrap();
    let gone = drivers[1].command(query_input(counter), 32).unwrap_err();
    assert_eq!(gone.0, NO_SUCH);
}

/// As Linux allocates the counters of its own rules (`mlx5_fc_bulk_create`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_counters.c).
#[test]
fn counters_of_a_bulk_are_used_singly_and_freed_together() {
    let (mut drivers, mut sender, _receiver, tir) = ready();
    let single = allocate(&mut drivers[1]);
    let input = Input::new(0x939, 16).set(flow_counter::BULK, 7);
    let first = flow_counter::ID.get32(&drivers[1].done(input, 16));
    assert!(first > single && first % 4 == 0);
    let (used, last) = (first + 5, first + 7 * 128 - 1);
    let entry = |entry| counting(entry, FORWARD | COUNT, 1, &[used]);
    let table = steer_with(&mut drivers[1], station(2).mac(), tir, entry);
    send_three(&mut drivers, &mut sender);
    assert_eq!(query(&mut drivers[1], used)[0], 2);
    assert_eq!(query(&mut drivers[1], last), [0; 2]);
    assert_eq!(free(&mut drivers[1], first).unwrap_err().0, BUSY);
    delete_entry(&mut drivers[1], table);
    assert_eq!(free(&mut drivers[1], used).unwrap_err().0, NO_SUCH, "the first names all");
    free(&mut drivers[1], first).unwrap();
    for gone in [first, used, last] {
        assert_eq!(drivers[1].command(query_input(gone), 32).unwrap_err().0, NO_SUCH);
    }
    assert_eq!(query(&mut drivers[1], single), [0; 2]);
}

#[test]
fn frames_that_an_entry_drops_are_counted_by_all_its_counters() {
    let (mut drivers, mut sender, mut receiver, tir) = ready();
    let counters = [(); 2].map(|()| allocate(&mut drivers[1]));
    let mac = station(2).mac();
    let entry = |entry| counting(entry, DROP | COUNT, 0, &counters);
    steer_with(&mut drivers[1], mac, tir, entry);
    send_three(&mut drivers, &mut sender);
    assert!(drivers[1].poll(&mut receiver.cq).is_none());
    for counter in counters {
        assert_eq!(query(&mut drivers[1], counter)[0], 2);
    }
}

/// Linux changes an entry in this way for a second rule with the same match (`add_rule_fte`,
/// drivers/net/ethernet/mellanox/mlx5/core/fs_core.c).
#[test]
fn counters_can_be_added_to_an_entry() {
    let (mut drivers, mut sender, _receiver, tir) = ready();
    let counter = allocate(&mut drivers[1]);
    let table = steer_with(&mut drivers[1], station(2).mac(), tir, |entry| entry);
    let change = Input::new(0x936, 848)
        .set(field(0x30, 16), 1)
        .set(create_flow_group_in::TABLE_ID, table.into())
        .set(set_fte_in::FLOW_INDEX, 2)
        .set(set_fte_in::MODIFY_ENABLE_MASK, 8)
        .set(field(0x1a00, 8), 2)
        .set(field(0x1a08, 24), tir.into());
    drivers[1].done(counting(change, FORWARD | COUNT, 1, &[counter]), 8);
    send_three(&mut drivers, &mut sender);
    assert_eq!(query(&mut drivers[1], counter)[0], 2);
}

#[test]
fn counters_that_do_not_exist_are_refused() {
    let mut driver = pair().into_iter().next().unwrap();
    assert_eq!(free(&mut driver, 7).unwrap_err().0, NO_SUCH);
    let entry = counting(Input::new(0x936, 848), COUNT, 0, &[7]);
    assert_eq!(driver.command(entry, 8).unwrap_err().0, NO_SUCH);
    let long = query_input(0).set(query_flow_counter_in::NUM_OF_COUNTERS, 257);
    assert_eq!(driver.command(long, 16 + 257 * 16).unwrap_err().0, 3);
    // The list is longer than the command.
    let long = Input::new(0x936, 848)
        .set(flow_context::ACTION.at(0x200), COUNT)
        .set(flow_context::FLOW_COUNTER_LIST_SIZE.at(0x200), 64);
    assert_eq!(driver.command(long, 8).unwrap_err().0, SHORT);
}
