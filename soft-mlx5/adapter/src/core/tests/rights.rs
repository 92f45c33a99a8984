//! The table of access rights (`ibv_post_send(3)`, `ibv_reg_mr(3)`): each right, granted and
//! refused.

use uverbs_mlx5_format::{Opcode, Syndrome};

use super::harness::*;
use crate::core::*;

/// Runs one operation between a local buffer, a remote buffer and a receive buffer with these
/// rights.
fn status(
    wr: fn(u64, Mkey) -> Wr,
    local: Access,
    remote: Access,
    receive: Access,
) -> Option<Syndrome> {
    let mut pair = Pair::new(QpType::Rc);
    let local = pair.host(0).region(8, local);
    let remote = pair.host(1).region(8, remote);
    let receive = pair.host(1).region(64, receive);
    pair.post_receive(1, receive);
    pair.post(0, &wr(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle();
    pair.one(0).syndrome
}

fn send(_: u64, _: Mkey) -> Wr {
    Wr::send()
}

fn write_immediate(address: u64, key: Mkey) -> Wr {
    Wr::write(address, key).immediate(Opcode::RDMA_WRITE_IMMEDIATE, 1)
}

fn fetch_add(address: u64, key: Mkey) -> Wr {
    Wr::fetch_add(address, key, 1)
}

fn compare_swap(address: u64, key: Mkey) -> Wr {
    Wr::compare_swap(address, key, 0, 1)
}

const NONE: Access = Access::empty();
const LW: Access = Access::LOCAL_WRITE;
const REMOTE_WRITE: Access = LW.union(Access::REMOTE_WRITE);
const REMOTE_READ: Access = Access::REMOTE_READ;
const REMOTE_ATOMIC: Access = LW.union(Access::REMOTE_ATOMIC);

#[test]
fn send_needs_no_local_right_and_local_write_of_the_receiver() {
    assert_eq!(status(send, NONE, NONE, LW), None);
    assert_eq!(status(send, NONE, ALL, NONE), Some(Syndrome::REMOTE_OPERATION));
    assert_eq!(status(send, NONE, NONE, ALL - LW), Some(Syndrome::REMOTE_OPERATION));
}

#[test]
fn write_needs_no_local_right_and_remote_write() {
    assert_eq!(status(Wr::write, NONE, REMOTE_WRITE, NONE), None);
    let without = ALL - Access::REMOTE_WRITE;
    assert_eq!(status(Wr::write, ALL, without, ALL), Some(Syndrome::REMOTE_ACCESS));
    assert_eq!(status(Wr::write, ALL, LW, ALL), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn write_with_immediate_consumes_a_receive_whose_buffer_needs_no_right() {
    assert_eq!(status(write_immediate, NONE, REMOTE_WRITE, NONE), None);
    let without = ALL - Access::REMOTE_WRITE;
    assert_eq!(status(write_immediate, ALL, without, ALL), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn read_needs_local_write_and_remote_read() {
    assert_eq!(status(Wr::read, LW, REMOTE_READ, NONE), None);
    assert_eq!(status(Wr::read, ALL - LW, REMOTE_READ, ALL), Some(Syndrome::LOCAL_PROTECTION));
    let without = ALL - Access::REMOTE_READ;
    assert_eq!(status(Wr::read, LW, without, ALL), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn atomics_need_local_write_and_remote_atomic() {
    for atomic in [fetch_add as fn(u64, Mkey) -> Wr, compare_swap] {
        assert_eq!(status(atomic, LW, REMOTE_ATOMIC, NONE), None);
        assert_eq!(status(atomic, ALL - LW, ALL, ALL), Some(Syndrome::LOCAL_PROTECTION));
        let without = ALL - Access::REMOTE_ATOMIC;
        assert_eq!(status(atomic, ALL, without, ALL), Some(Syndrome::REMOTE_ACCESS));
    }
}

#[test]
fn keys_of_another_pd_and_freed_keys_grant_no_access() {
    let mut pair = Pair::new(QpType::Rc);
    let local = pair.host(0).region(8, ALL);
    let remote = pair.host(1).region(8, ALL);
    pair.host(1).core.destroy_mkey(remote.key).unwrap();
    pair.post(0, &Wr::write(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_ACCESS));

    let mut pair = Pair::new(QpType::Rc);
    let local = pair.host(0).region(8, ALL);
    let remote = pair.host(1).region(8, ALL);
    let other = pair.host(1).core.create_pd().unwrap();
    let mut params = pair.host(1).core.query_mkey(remote.key).unwrap().clone();
    params.pd = other;
    pair.host(1).core.modify_mkey(remote.key, params).unwrap();
    pair.post(0, &Wr::write(remote.address, remote.key).all_of(local));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn the_null_key_reads_as_zeros_and_discards_writes() {
    let mut pair = Pair::new(QpType::Rc);
    let pd = pair.host(0).pd;
    let null = pair.host(0).core.create_mkey(MkeyParams::null(pd)).unwrap();
    let remote = pair.host(1).region(64, ALL);
    pair.host(1).fill(remote, 1);
    let nowhere = Region { address: 0x1234_5678, len: 64, key: null };
    pair.post(0, &Wr::read(remote.address, remote.key).all_of(nowhere));
    pair.post(0, &Wr::write(remote.address, remote.key).all_of(nowhere));
    pair.world.run_until_idle();
    assert!(pair.poll(0).iter().all(|d| d.syndrome.is_none()));
    assert_eq!(pair.host(1).bytes(remote.address, 64), [0; 64]);
}

#[test]
fn zero_based_keys_and_page_lists_are_translated() {
    let mut pair = Pair::new(QpType::Rc);
    let local = pair.host(0).region(6000, ALL);
    let data = pair.host(0).fill(local, 5);
    let frames = [pair.host(1).alloc(4096), pair.host(1).alloc(4096)];
    let pages = crate::memory::PageMap::pages(12, vec![frames[1], frames[0]], 100);
    let pd = pair.host(1).pd;
    let key = pair.host(1).core.create_mkey(MkeyParams::region(pd, 0, 6000, ALL, pages)).unwrap();
    pair.post(0, &Wr::write(0, key).all_of(local));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, None);
    assert!(pair.host(1).bytes(frames[1] + 100, 3996) == data[..3996]);
    assert!(pair.host(1).bytes(frames[0], 2004) == data[3996..]);
    pair.post(0, &Wr::write(1, key).all_of(local));
    pair.world.run_until_idle();
    assert_eq!(pair.one(0).syndrome, Some(Syndrome::REMOTE_ACCESS));
}
