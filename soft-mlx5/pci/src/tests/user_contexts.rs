//! User contexts, whose rings and keys are in umems.

use super::driver::{Driver, Input, settings};
use crate::Cable;
use crate::bits::{Field, field};
use crate::layout::command::{create_cq_in, create_mkey_in, create_qp_in, header};
use crate::layout::context::{cqc, mkc, qpc};
use uverbs_soft::core::LinkLayer;

const UID: Field = field(0x50, 16);
const BAD_PARAMETER: u64 = 3;
const BAD_RESOURCE: u64 = 5;
const BUSY: u64 = 6;
const BYTES: u64 = 2 * 4096;

/// A driver and the number of a user context.
fn ready() -> (Driver, u64) {
    let mut driver = Driver::ready(settings(LinkLayer::InfiniBand), Cable::default());
    let uid = UID.get(&driver.done(Input::new(0xa04, 64), 16));
    (driver, uid)
}

/// A umem of two contiguous pages.
fn umem(driver: &mut Driver, uid: u64, writable: bool) -> u32 {
    let start = driver.alloc(BYTES);
    let rights = 1 | u64::from(writable) << 1;
    let input = Input::new(0xa08, 64)
        .set(header::UID, uid)
        .set(field(0x140, 64), 2)
        .set(field(0x180, 64), start | rights)
        .set(field(0x1c0, 64), (start + 4096) | rights);
    driver.create(input)
}

fn cq(driver: &Driver, uid: u64, ring: (u32, u64), record: (u32, u64)) -> Input {
    Input::new(0x400, 272)
        .set(header::UID, uid)
        .set(create_cq_in::CQ_UMEM_VALID, 1)
        .set(create_cq_in::CQ_UMEM_ID, ring.0.into())
        .set(create_cq_in::CQ_UMEM_OFFSET, ring.1)
        .set(cqc::DBR_UMEM_VALID.at(0x80), 1)
        .set(cqc::DBR_UMEM_ID.at(0x80), record.0.into())
        .set(cqc::DBR_ADDR.at(0x80), record.1)
        .set(cqc::LOG_CQ_SIZE.at(0x80), 6)
        .set(cqc::UAR_PAGE.at(0x80), driver.uar.into())
        .set(cqc::C_EQN_OR_APU_ELEMENT.at(0x80), driver.eq.into())
}

fn key(driver: &Driver, uid: u64, memory: u32) -> Input {
    Input::new(0x200, 272)
        .set(header::UID, uid)
        .set(create_mkey_in::MKEY_UMEM_VALID, 1)
        .set(create_mkey_in::MKEY_UMEM_ID, memory.into())
        .set(mkc::ACCESS_MODE_1_0.at(0x80), 1)
        .set(mkc::LR.at(0x80), 1)
        .set(mkc::PD.at(0x80), driver.pd.into())
        .set(mkc::QPN.at(0x80), 0xff_ffff)
        .set(mkc::LEN.at(0x80), BYTES)
}

fn status(driver: &mut Driver, input: Input) -> u64 {
    driver.command(input, 16).map_or_else(|(status, _)| status, |_| 0)
}

#[test]
fn a_umem_in_use_cannot_be_destroyed() {
    let (mut driver, uid) = ready();
    let (ring, record) = (umem(&mut driver, uid, true), umem(&mut driver, uid, true));
    let input = cq(&driver, uid, (ring, 4096), (record, 64));
    let queue = driver.create(input);
    for used in [ring, record] {
        assert_eq!(status(&mut driver, Input::new(0xa0a, 16).number(used)), BUSY);
    }
    driver.done(Input::new(0x401, 16).number(queue), 8);
    for free in [ring, record] {
        driver.done(Input::new(0xa0a, 16).number(free), 8);
        assert_eq!(status(&mut driver, Input::new(0xa0a, 16).number(free)), BAD_RESOURCE);
    }
    driver.done(Input::new(0xa06, 16).set(UID, uid), 8);
}

#[test]
fn rings_and_records_must_be_inside_umems_of_their_context() {
    let (mut driver, uid) = ready();
    let other = UID.get(&driver.done(Input::new(0xa04, 64), 16));
    assert_ne!(uid, other);
    let (memory, theirs) = (umem(&mut driver, uid, true), umem(&mut driver, other, true));
    let read_only = umem(&mut driver, uid, false);
    let fine = (memory, 0);
    let wrong = [
        ((memory, 4097), fine, BAD_PARAMETER),
        ((memory, u64::MAX), fine, BAD_PARAMETER),
        (fine, (memory, BYTES - 7), BAD_PARAMETER),
        // Across two pages, which need not be contiguous.
        (fine, (memory, 4092), BAD_PARAMETER),
        ((theirs, 0), fine, BAD_RESOURCE),
        (fine, (theirs, 0), BAD_RESOURCE),
        ((read_only, 0), fine, BAD_PARAMETER),
    ];
    for (ring, record, expected) in wrong {
        let input = cq(&driver, uid, ring, record);
        assert_eq!(status(&mut driver, input), expected, "{ring:?} {record:?}");
    }
    let input = cq(&driver, uid, fine, (memory, 4096));
    driver.create(input);
}

#[test]
fn mkeys_grant_no_more_access_than_their_umem() {
    let (mut driver, uid) = ready();
    let (memory, read_only) = (umem(&mut driver, uid, true), umem(&mut driver, uid, false));
    let writing = |input: Input| input.set(mkc::LW.at(0x80), 1);
    let input = key(&driver, uid, read_only);
    driver.create(input);
    let input = writing(key(&driver, uid, memory));
    driver.create(input);
    let input = writing(key(&driver, uid, read_only));
    assert_eq!(status(&mut driver, input), BAD_PARAMETER);
    let input = key(&driver, uid, memory).set(mkc::LEN.at(0x80), BYTES + 1);
    assert_eq!(status(&mut driver, input), BAD_PARAMETER);
    let physical = key(&driver, uid, memory).set(mkc::ACCESS_MODE_1_0.at(0x80), 0);
    assert_eq!(status(&mut driver, physical), BAD_PARAMETER);
}

#[test]
fn user_contexts_cannot_use_objects_of_others_or_privileged_commands() {
    let (mut driver, uid) = ready();
    let other = UID.get(&driver.done(Input::new(0xa04, 64), 16));
    let memory = umem(&mut driver, uid, true);
    let domain =
        |driver: &mut Driver, uid| driver.create(Input::new(0x800, 16).set(header::UID, uid));
    let (mine, theirs) = (domain(&mut driver, uid), domain(&mut driver, other));
    let input = cq(&driver, uid, (memory, 0), (memory, 4096));
    let queue = driver.create(input);
    let pair = |pd: u32| {
        Input::new(0x500, 272)
            .set(header::UID, uid)
            .set(create_qp_in::WQ_UMEM_VALID, 1)
            .set(create_qp_in::WQ_UMEM_ID, memory.into())
            .set(qpc::DBR_UMEM_VALID.at(0xc0), 1)
            .set(qpc::DBR_UMEM_ID.at(0xc0), memory.into())
            .set(qpc::PD.at(0xc0), pd.into())
            .set(qpc::CQN_SND.at(0xc0), queue.into())
            .set(qpc::CQN_RCV.at(0xc0), queue.into())
            .set(qpc::RQ_TYPE.at(0xc0), 3)
    };
    let uar = u64::from(driver.uar);
    let pair = |pd| pair(pd).set(qpc::UAR_PAGE.at(0xc0), uar);
    assert_eq!(status(&mut driver, pair(theirs)), BAD_RESOURCE);
    assert_eq!(status(&mut driver, pair(mine).set(qpc::RLKY.at(0xc0), 1)), BAD_PARAMETER);
    assert_eq!(status(&mut driver, pair(mine).set(qpc::ST.at(0xc0), 8)), BAD_PARAMETER);
    driver.create(pair(mine));
}
