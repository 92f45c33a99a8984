//! A driver's invalid commands get a status, a syndrome and a line in the log.

use super::driver::{Driver, Input, settings};
use super::queues::Qp;
use crate::Cable;
use crate::bits::field;
use crate::layout::capability::general;
use crate::layout::context::{ads, cqc, qpc, rmpc, wq};
use uverbs_soft::core::LinkLayer;

/// Statuses, `MLX5_CMD_STAT_*`.
const BAD_OPERATION: u64 = 0x2;
pub(super) const BAD_PARAMETER: u64 = 0x3;
const BAD_SYSTEM_STATE: u64 = 0x4;
pub(super) const BAD_RESOURCE: u64 = 0x5;
pub(super) const RESOURCE_BUSY: u64 = 0x6;
const BAD_QP_STATE: u64 = 0x10;
pub(super) const BAD_INPUT_LENGTH: u64 = 0x50;
const BAD_OUTPUT_LENGTH: u64 = 0x51;

pub(super) fn ready_driver() -> Driver {
    Driver::ready(settings(LinkLayer::InfiniBand), Cable::default())
}

/// The status of a command that is refused.
pub(super) fn status(driver: &mut Driver, input: Input, output: usize) -> u64 {
    let (status, syndrome) = driver.command(input, output).expect_err("refused");
    assert_ne!(syndrome, 0, "status {status:#x} has no syndrome");
    status
}

#[test]
fn commands_are_refused_in_the_wrong_phase() {
    let mut driver = Driver::found(settings(LinkLayer::InfiniBand));
    assert_eq!(status(&mut driver, Input::new(0x800, 8), 16), BAD_SYSTEM_STATE, "ALLOC_PD");
    driver.done(Input::new(0x104, 16), 8);
    assert_eq!(status(&mut driver, Input::new(0x104, 16), 8), BAD_SYSTEM_STATE, "enabled twice");
    assert_eq!(status(&mut driver, Input::new(0x800, 8), 16), BAD_SYSTEM_STATE, "ALLOC_PD");
    driver.done(Input::new(0x102, 8), 8);
    assert_eq!(status(&mut driver, Input::new(0x105, 16), 8), BAD_SYSTEM_STATE, "DISABLE_HCA");
    driver.create(Input::new(0x800, 8));
}

#[test]
fn unknown_opcodes_and_lengths_are_refused() {
    let mut driver = ready_driver();
    assert_eq!(status(&mut driver, Input::new(0x7ff, 16), 16), BAD_OPERATION);
    assert_eq!(status(&mut driver, Input::new(0x400, 16), 16), BAD_INPUT_LENGTH);
    assert_eq!(status(&mut driver, Input::new(0x800, 8), 8), BAD_OUTPUT_LENGTH);
}

#[test]
fn destroying_objects_that_do_not_exist_or_are_in_use_is_refused() {
    let mut driver = ready_driver();
    for destroy in [0x202, 0x401, 0x501, 0x706, 0x801, 0x803, 0x80f, 0x817, 0x90e] {
        let input = Input::new(destroy, 16).number(0x7777);
        assert_eq!(status(&mut driver, input, 8), BAD_RESOURCE, "{destroy:#x}");
    }
    let qp = Qp::new(&mut driver);
    let (pd, eq) = (driver.pd, driver.eq);
    for (destroy, number) in [(0x401, qp.cq.number), (0x801, pd), (0x302, eq)] {
        let input = Input::new(destroy, 16).number(number);
        assert_eq!(status(&mut driver, input, 8), RESOURCE_BUSY, "{destroy:#x}");
    }
}

#[test]
fn queue_pairs_change_state_in_order_only() {
    let mut driver = ready_driver();
    let qp = Qp::new(&mut driver);
    let input = Input::new(0x503, 272).number(qp.number);
    assert_eq!(status(&mut driver, input, 8), BAD_QP_STATE, "INIT2RTR in reset");
    driver.done(Input::new(0x502, 272).number(qp.number), 8);
    let input = Input::new(0x503, 272).number(qp.number).set(qpc::MTU.at(0xc0), 7);
    assert_eq!(status(&mut driver, input, 8), BAD_PARAMETER, "an invalid MTU");
    driver.done(Input::new(0x50a, 16).number(qp.number), 8);
}

#[test]
fn invalid_fields_are_refused() {
    let mut driver = ready_driver();
    let (uar, eq) = (driver.uar, driver.eq);
    let cq = |size: u64, page: u64| {
        Input::new(0x400, 272)
            .set(field(0x80 + 0x63, 5), size)
            .set(field(0x80 + 0x68, 24), page)
            .set(field(0x80 + 0xa0, 32), eq.into())
    };
    assert_eq!(status(&mut driver, cq(30, uar.into()), 16), BAD_PARAMETER, "too large");
    assert_eq!(status(&mut driver, cq(6, uar.into()), 16), BAD_PARAMETER, "no page list");
    assert_eq!(status(&mut driver, cq(6, 0x1fff), 16), BAD_RESOURCE, "no such UAR");
    let input = Input::new(0x100, 16).set(field(0x30, 16), 0x7e);
    assert_eq!(status(&mut driver, input, 4112), BAD_PARAMETER, "capabilities of no type");
}

#[test]
fn a_command_refuses_an_object_of_another_type() {
    let mut driver = ready_driver();
    let record = driver.alloc(8);
    let ring = driver.alloc(4096);
    let create_srq = |record: u64| {
        Input::new(0x90c, 272)
            .set(field(0x100 + 0x8, 4), 1)
            .set(wq::DBR_ADDR.at(0x280), record)
            .set(wq::LOG_WQ_SZ.at(0x280), 4)
            .set(wq::LOG_WQ_STRIDE.at(0x280), 5)
    };
    let pd = driver.pd.into();
    let create = create_srq(record + 2).set(wq::PD.at(0x280), pd).pages(ring, 512);
    assert_eq!(status(&mut driver, create, 16), BAD_PARAMETER, "an odd doorbell record");
    let number = driver.create(create_srq(record).set(wq::PD.at(0x280), pd).pages(ring, 512));
    let input = |opcode: u64| Input::new(opcode, 16).number(number);
    assert_eq!(status(&mut driver, input(0x706), 8), BAD_RESOURCE, "DESTROY_XRC_SRQ");
    assert_eq!(status(&mut driver, input(0x707), 80), BAD_RESOURCE, "QUERY_XRC_SRQ");
    driver.done(input(0x90f), 272);
    driver.done(input(0x90e), 8);
}

/// Only types of a pool without strides are modelled. All but the cyclic one have links.
#[test]
fn a_pool_is_created_and_shown_in_the_order_that_its_type_names() {
    let mut driver = ready_driver();
    let (record, ring) = (driver.alloc(8), driver.alloc(4096));
    let (kind, basic) = (wq::WQ_TYPE.at(0x280), rmpc::BASIC_CYCLIC_RCV_WQE.at(0x100));
    let pd = driver.pd.into();
    let create = |wq_type, is_basic, log_stride| {
        Input::new(0x90c, 272)
            .set(field(0x100 + 0x8, 4), 1)
            .set(basic, is_basic)
            .set(kind, wq_type)
            .set(wq::DBR_ADDR.at(0x280), record)
            .set(wq::LOG_WQ_SZ.at(0x280), 4)
            .set(wq::LOG_WQ_STRIDE.at(0x280), log_stride)
            .set(wq::PD.at(0x280), pd)
            .pages(ring, 512)
    };
    for (wq_type, is_basic, log_stride) in [(0, 0, 5), (1, 0, 5), (1, 1, 4)] {
        let number = driver.create(create(wq_type, is_basic, log_stride));
        let shown = driver.done(Input::new(0x90f, 16).number(number), 272);
        assert_eq!((kind.get(&shown), basic.get(&shown)), (wq_type, is_basic));
    }
    for (wq_type, is_basic, log_stride) in [(2, 0, 5), (3, 0, 5), (0, 1, 5), (1, 0, 4), (1, 1, 3)] {
        let refused = status(&mut driver, create(wq_type, is_basic, log_stride), 16);
        assert_eq!(refused, BAD_PARAMETER, "{wq_type} {is_basic} {log_stride}");
    }
}

#[test]
fn a_queue_pair_without_an_address_path_has_its_port() {
    let mut driver = ready_driver();
    let qp = Qp::new(&mut driver);
    let port = ads::VHCA_PORT_NUM.at(0xc0 + 0xc0);
    let port_of =
        |driver: &mut Driver| port.get(&driver.done(Input::new(0x50b, 16).number(qp.number), 272));
    assert_eq!(port_of(&mut driver), 0);
    driver.done(Input::new(0x502, 272).number(qp.number).set(port, 1), 8);
    assert_eq!(port_of(&mut driver), 1);
}

#[test]
fn leftover_objects_are_reported_and_dropped() {
    let mut driver = ready_driver();
    let _qp = Qp::new(&mut driver);
    let left = driver.device.firmware.objects_left();
    for what in
        ["1 CQs", "1 QPs", "1 UARs", "1 event queues", "1 memory keys", "1 protection domains"]
    {
        assert!(left.contains(what), "{left}");
    }
    driver.done(Input::new(0x103, 16), 16);
    assert_eq!(driver.device.firmware.objects_left(), "");
    driver.done(Input::new(0x105, 16), 8);
}

#[test]
fn a_cq_has_no_more_entries_than_announced() {
    let mut driver = ready_driver();
    let shown = driver.done(Input::new(0x100, 16), 16 + 4096);
    let most = general::LOG_MAX_CQ_SZ.at(0x80).get(&shown);
    let record = driver.alloc(8);
    let (uar, eq) = (driver.uar.into(), driver.eq.into());
    // One page of 4 GiB has the ring.
    let cq = |log_entries| {
        Input::new(0x400, 272)
            .set(cqc::LOG_CQ_SIZE.at(0x80), log_entries)
            .set(cqc::LOG_PAGE_SIZE.at(0x80), 20)
            .set(cqc::UAR_PAGE.at(0x80), uar)
            .set(cqc::C_EQN_OR_APU_ELEMENT.at(0x80), eq)
            .set(cqc::DBR_ADDR.at(0x80), record)
            .pages(0, 8)
    };
    driver.create(cq(most));
    assert_eq!(status(&mut driver, cq(most + 1), 16), BAD_PARAMETER);
}
