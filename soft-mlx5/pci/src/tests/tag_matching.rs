//! Tag matching SRQs (XRQs), created, armed and destroyed as by mlx5_ib.

use super::driver::{Driver, Input, settings};
use super::strictness::{
    BAD_INPUT_LENGTH, BAD_PARAMETER, BAD_RESOURCE, RESOURCE_BUSY, ready_driver, status,
};
use crate::Cable;
use crate::bits::{Field, field};
use crate::layout::capability::general;
use crate::layout::command::{arm_rq_in, header};
use crate::layout::context::{qpc, tag_matching_topology as topology, wq, xrqc};
use uverbs_soft::core::LinkLayer;

/// Offsets of the context, its part about tag matching, and its work queue, in bits.
const CONTEXT: usize = 0x80;
const TAGS: usize = CONTEXT + 0x100;
const QUEUE: usize = CONTEXT + 0x400;
/// Bytes before the page list.
const LENGTH: usize = 336;
const QP_CONTEXT: usize = 0xc0;
const LOG_TAGS: u64 = 7;

/// A queue of 16 receives with the longest list, without the page of its ring.
fn without_pages(driver: &mut Driver) -> Input {
    let (record, cq) = (driver.alloc(8), driver.create_cq());
    Input::new(0x717, LENGTH)
        .set(xrqc::TOPOLOGY.at(CONTEXT), 1)
        .set(xrqc::OFFLOAD.at(CONTEXT), 1)
        .set(xrqc::USER_INDEX.at(CONTEXT), 0x1234)
        .set(xrqc::CQN.at(CONTEXT), cq.number.into())
        .set(topology::LOG_MATCHING_LIST_SZ.at(TAGS), LOG_TAGS)
        .set(wq::PD.at(QUEUE), driver.pd.into())
        .set(wq::DBR_ADDR.at(QUEUE), record)
        .set(wq::LOG_WQ_SZ.at(QUEUE), 4)
        .set(wq::LOG_WQ_STRIDE.at(QUEUE), 5)
}

fn good(driver: &mut Driver) -> Input {
    let ring = driver.alloc(4096);
    without_pages(driver).page(ring)
}

fn query(driver: &mut Driver, xrqn: u32) -> impl Fn(Field) -> u64 {
    let shown = driver.done(Input::new(0x719, 16).number(xrqn), LENGTH);
    move |field| field.get(&shown)
}

/// A queue pair of the queue, with a send ring or without.
fn queue_pair(driver: &mut Driver, xrqn: u32, sends: bool) -> Input {
    let (ring, record, cq) = (driver.alloc(4096), driver.alloc(8), driver.create_cq());
    Input::new(0x500, 272)
        .set(qpc::PD.at(QP_CONTEXT), driver.pd.into())
        .set(qpc::RQ_TYPE.at(QP_CONTEXT), 1)
        .set(qpc::SRQN_RMPN_XRQN.at(QP_CONTEXT), xrqn.into())
        .set(qpc::NO_SQ.at(QP_CONTEXT), u64::from(!sends))
        .set(qpc::UAR_PAGE.at(QP_CONTEXT), driver.uar.into())
        .set(qpc::CQN_SND.at(QP_CONTEXT), cq.number.into())
        .set(qpc::CQN_RCV.at(QP_CONTEXT), cq.number.into())
        .set(qpc::DBR_ADDR.at(QP_CONTEXT), record)
        .pages(ring, 64)
}

fn offload(qp: Input) -> Input {
    qp.set(qpc::OFFLOAD_TYPE.at(QP_CONTEXT), 1)
}

#[test]
fn a_query_shows_what_the_queue_was_created_with() {
    let mut driver = ready_driver();
    let input = good(&mut driver);
    let xrqn = driver.create(input);
    let shown = query(&mut driver, xrqn);
    let context = [xrqc::STATE, xrqc::TOPOLOGY, xrqc::OFFLOAD, xrqc::USER_INDEX];
    assert_eq!(context.map(|field| shown(field.at(CONTEXT))), [0, 1, 1, 0x1234]);
    let queue = [wq::LOG_WQ_SZ, wq::LOG_WQ_STRIDE, wq::LWM];
    assert_eq!(queue.map(|field| shown(field.at(QUEUE))), [4, 5, 0]);
    let counts = [topology::APPEND_NEXT_INDEX, topology::SW_PHASE_CNT, topology::HW_PHASE_CNT];
    assert_eq!(counts.map(|field| shown(field.at(TAGS))), [0; 3]);
    assert_eq!(shown(topology::LOG_MATCHING_LIST_SZ.at(TAGS)), LOG_TAGS);
}

#[test]
fn both_commands_arm_the_limit() {
    let mut driver = ready_driver();
    let input = good(&mut driver);
    let xrqn = driver.create(input);
    let arm = |opcode| Input::new(opcode, 16).set(arm_rq_in::SRQ_NUMBER, xrqn.into());
    let extended = arm(0x703).set(header::OP_MOD, 2);
    // No receive is posted, so that the limit is reached at once and no longer armed.
    driver.done(extended.set(arm_rq_in::LWM, 3), 8);
    driver.done(arm(0x71a).set(arm_rq_in::LWM, 3), 8);
    assert_eq!(query(&mut driver, xrqn)(wq::LWM.at(QUEUE)), 0);
    let too_many = arm(0x703).set(header::OP_MOD, 2).set(arm_rq_in::LWM, 17);
    assert_eq!(status(&mut driver, too_many, 8), BAD_PARAMETER);
    let old = arm(0x703).set(header::OP_MOD, 1).set(arm_rq_in::LWM, 3);
    assert_eq!(status(&mut driver, old, 8), BAD_PARAMETER, "an SRQ of old firmware");
}

#[test]
fn a_queue_in_use_is_not_destroyed() {
    let mut driver = ready_driver();
    let input = good(&mut driver);
    let cq = xrqc::CQN.at(CONTEXT).get32(input.bytes());
    let xrqn = driver.create(input);
    let input = queue_pair(&mut driver, xrqn, true);
    let qp = driver.create(input);
    let destroy = |opcode, number| Input::new(opcode, 16).number(number);
    assert_eq!(status(&mut driver, destroy(0x718, xrqn), 8), RESOURCE_BUSY);
    assert_eq!(status(&mut driver, destroy(0x401, cq), 8), RESOURCE_BUSY, "its CQ");
    driver.done(destroy(0x501, qp), 8);
    driver.done(destroy(0x718, xrqn), 8);
    driver.done(destroy(0x401, cq), 8);
    assert_eq!(status(&mut driver, destroy(0x718, xrqn), 8), BAD_RESOURCE, "twice");
}

#[test]
fn commands_about_other_kinds_of_queues_refuse_it() {
    let mut driver = ready_driver();
    let input = good(&mut driver);
    let xrqn = driver.create(input);
    for (opcode, output) in [(0x706, 8), (0x707, 80), (0x708, 8), (0x90e, 8), (0x90f, 272)] {
        let input = Input::new(opcode, 16).number(xrqn);
        assert_eq!(status(&mut driver, input, output), BAD_RESOURCE, "{opcode:#x}");
    }
    for (opcode, output) in [(0x718, 8), (0x719, LENGTH), (0x71a, 8)] {
        let input = Input::new(opcode, 16).number(0x7777);
        assert_eq!(status(&mut driver, input, output), BAD_RESOURCE, "{opcode:#x}");
    }
}

#[test]
fn a_queue_with_an_invalid_context_is_not_created() {
    let mut driver = ready_driver();
    let wrong = [
        (xrqc::STATE.at(CONTEXT), 1, BAD_PARAMETER),
        (xrqc::RLKEY.at(CONTEXT), 1, BAD_PARAMETER),
        (xrqc::TOPOLOGY.at(CONTEXT), 0, BAD_PARAMETER),
        (xrqc::OFFLOAD.at(CONTEXT), 0, BAD_PARAMETER),
        (xrqc::OFFLOAD.at(CONTEXT), 2, BAD_PARAMETER),
        (xrqc::DC.at(CONTEXT), 1, BAD_PARAMETER),
        (xrqc::CQN.at(CONTEXT), 0x7777, BAD_RESOURCE),
        (topology::LOG_MATCHING_LIST_SZ.at(TAGS), LOG_TAGS + 1, BAD_PARAMETER),
        (topology::LOG_MATCHING_LIST_SZ.at(TAGS), 15, BAD_PARAMETER),
        (wq::WQ_TYPE.at(QUEUE), 1, 0),
        (wq::WQ_TYPE.at(QUEUE), 2, BAD_PARAMETER),
        (wq::WQ_TYPE.at(QUEUE), 3, BAD_PARAMETER),
        (wq::PD.at(QUEUE), 0x7777, BAD_RESOURCE),
        (wq::DBR_ADDR.at(QUEUE), 4, BAD_PARAMETER),
        (wq::LOG_WQ_STRIDE.at(QUEUE), 4, BAD_PARAMETER),
        (wq::LOG_WQ_STRIDE.at(QUEUE), 15, BAD_PARAMETER),
        (wq::LOG_WQ_SZ.at(QUEUE), 31, BAD_PARAMETER),
        (wq::LOG_WQ_PG_SZ.at(QUEUE), 31, BAD_PARAMETER),
        (wq::PAGE_OFFSET.at(QUEUE), 31, 0),
    ];
    for (field, value, expected) in wrong {
        let input = good(&mut driver).set(field, value);
        let outcome = driver.command(input, 16).map_or_else(|refused| refused.0, |_| 0);
        assert_eq!(outcome, expected, "{field:?} of {value:#x}");
    }
    assert_eq!(driver.device.firmware.core.counts().srqs, 2);
}

#[test]
fn a_page_list_holds_the_whole_ring() {
    let mut driver = ready_driver();
    let input = without_pages(&mut driver);
    assert_eq!(status(&mut driver, input, 16), BAD_PARAMETER, "no page");
    let longer = good(&mut driver).set(wq::LOG_WQ_SZ.at(QUEUE), 8);
    assert_eq!(status(&mut driver, longer, 16), BAD_PARAMETER, "one page for two");
    let large = without_pages(&mut driver).set(wq::LOG_WQ_PG_SZ.at(QUEUE), 1);
    assert_eq!(status(&mut driver, large.page(0x1000), 16), BAD_PARAMETER, "not a page's address");
    let short = Input::new(0x717, LENGTH - 8);
    assert_eq!(status(&mut driver, short, 16), BAD_INPUT_LENGTH);
}

#[test]
fn only_a_queue_pair_without_sends_has_the_rendezvous_offload() {
    let mut driver = ready_driver();
    let input = good(&mut driver);
    let xrqn = driver.create(input);
    let input = offload(queue_pair(&mut driver, xrqn, true));
    assert_eq!(status(&mut driver, input, 16), BAD_PARAMETER);
    let input = queue_pair(&mut driver, xrqn, false).set(qpc::OFFLOAD_TYPE.at(QP_CONTEXT), 2);
    assert_eq!(status(&mut driver, input, 16), BAD_PARAMETER, "an offload of another kind");
    let input = offload(queue_pair(&mut driver, xrqn, false));
    let qpn = driver.create(input);
    let shown = driver.done(Input::new(0x50b, 16).number(qpn), 272);
    assert_eq!(qpc::OFFLOAD_TYPE.at(QP_CONTEXT).get(&shown), 1);
}

#[test]
fn user_contexts_use_only_queues_of_their_own() {
    let mut driver = ready_driver();
    let uid_of = |driver: &mut Driver| field(0x50, 16).get(&driver.done(Input::new(0xa04, 64), 16));
    let (uid, other) = (uid_of(&mut driver), uid_of(&mut driver));
    let pd = driver.create(Input::new(0x800, 16).set(header::UID, uid));
    let cq = driver.create_cq_with(|input| input.set(header::UID, uid));
    let input = good(&mut driver).set(header::UID, uid).set(wq::PD.at(QUEUE), pd.into());
    let xrqn = driver.create(input.set(xrqc::CQN.at(CONTEXT), cq.number.into()));
    let arm = |uid| Input::new(0x71a, 16).number(xrqn).set(header::UID, uid);
    assert_eq!(status(&mut driver, arm(other), 8), BAD_RESOURCE);
    driver.done(arm(uid), 8);
    let input = queue_pair(&mut driver, xrqn, true).set(header::UID, other);
    assert_eq!(status(&mut driver, input, 16), BAD_RESOURCE, "a queue pair on it");
    let input = good(&mut driver).set(header::UID, other);
    let input = input.set(xrqc::CQN.at(CONTEXT), cq.number.into());
    assert_eq!(status(&mut driver, input, 16), BAD_RESOURCE, "a CQ of another");
}

/// The kernel's driver reports tag matching to programs according to these capabilities.
#[test]
fn infiniband_ports_announce_tag_matching() {
    for (link, list, queues) in [(LinkLayer::InfiniBand, LOG_TAGS, 16), (LinkLayer::Ethernet, 0, 0)]
    {
        let mut driver = Driver::ready(settings(link), Cable::default());
        let shown = driver.done(Input::new(0x100, 16), 16 + 4096);
        let get = |field: Field| field.at(CONTEXT).get(&shown);
        let announced = u64::from(list != 0);
        assert_eq!(get(general::TAG_MATCHING), announced);
        assert_eq!(get(general::RNDV_OFFLOAD_RC), announced);
        assert_eq!(get(general::RNDV_OFFLOAD_DC), 0);
        assert_eq!(get(general::LOG_TAG_MATCHING_LIST_SZ), list);
        assert_eq!(get(general::LOG_MAX_XRQ), queues);
        let input = good(&mut driver);
        assert_eq!(driver.command(input, 16).is_ok(), list != 0);
    }
}
