//! DC targets, created and destroyed by the commands that mlx5_ib sends.

use super::driver::{Driver, Input, settings};
use crate::Cable;
use crate::bits::field;
use crate::layout::context::{dctc, eqc, wq};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::memory::HostMemory;

/// Statuses, `MLX5_CMD_STAT_*`.
const BAD_PARAMETER: u64 = 0x3;
const BAD_RESOURCE: u64 = 0x5;

/// `MLX5_EVENT_TYPE_DCT_DRAINED`.
const DRAINED: u8 = 0x1c;
const KEY: u64 = 0x1122_3344_5566_7788;

/// An SRQ for targets.
fn srq(driver: &mut Driver) -> u32 {
    let (record, ring) = (driver.alloc(8), driver.alloc(4096));
    let input = Input::new(0x90c, 272)
        .set(field(0x100 + 0x8, 4), 1)
        .set(wq::DBR_ADDR.at(0x280), record)
        .set(wq::LOG_WQ_SZ.at(0x280), 4)
        .set(wq::LOG_WQ_STRIDE.at(0x280), 5)
        .set(wq::PD.at(0x280), driver.pd.into());
    driver.create(input.pages(ring, 512))
}

/// The command that creates a target, without its MTU.
fn target(driver: &mut Driver) -> Input {
    let (srq, cq) = (srq(driver), driver.create_cq());
    Input::new(0x710, 128)
        .set(dctc::CQN.at(0x80), cq.number.into())
        .set(dctc::SRQN_XRQN.at(0x80), srq.into())
        .set(dctc::PD.at(0x80), driver.pd.into())
        .set(dctc::DC_ACCESS_KEY.at(0x80), KEY)
        .set(dctc::RWE.at(0x80), 1)
        .set(dctc::PORT.at(0x80), 1)
        .set(dctc::MIN_RNR_NAK.at(0x80), 12)
}

/// An event queue for the event of drained targets. Returns its ring.
fn create_event_queue(driver: &mut Driver) -> u64 {
    let ring = driver.alloc(4096);
    (0..64).for_each(|slot| driver.memory.write(ring + slot * 64 + 63, &[1]).unwrap());
    let input = Input::new(0x301, 272)
        .set(eqc::LOG_EQ_SIZE.at(0x80), 6)
        .set(eqc::UAR_PAGE.at(0x80), driver.uar.into())
        .set(field(0x2c0, 64), 1 << DRAINED);
    driver.create(input.pages(ring, 4096));
    ring
}

#[test]
fn a_drained_target_raises_an_event() {
    let mut driver = Driver::ready(settings(LinkLayer::InfiniBand), Cable::default());
    let ring = create_event_queue(&mut driver);
    let input = target(&mut driver);
    let dctn = driver.create(input.set(dctc::MTU.at(0x80), 3));
    let input = |opcode| Input::new(opcode, 16).number(dctn);
    let shown = driver.done(input(0x713), 128);
    let get = |field: crate::bits::Field| field.at(0x80).get(&shown);
    assert_eq!((get(dctc::STATE), get(dctc::MTU), get(dctc::MIN_RNR_NAK)), (0, 3, 12));
    assert_eq!((get(dctc::DC_ACCESS_KEY), get(dctc::RWE), get(dctc::RRE)), (KEY, 1, 0));
    assert_eq!(driver.command(input(0x50b), 272).unwrap_err().0, BAD_RESOURCE, "QUERY_QP");

    assert_eq!(driver.bytes(ring, 64)[63], 1, "no event yet");
    driver.done(input(0x712), 8);
    let event = driver.bytes(ring, 64);
    assert_eq!((event[1], event[63]), (DRAINED, 0));
    assert_eq!(event[56..60], dctn.to_be_bytes());
    assert_eq!(dctc::STATE.at(0x80).get(&driver.done(input(0x713), 128)), 2, "drained");
    assert!(driver.device.firmware.objects_left().contains("1 DCTs"));
    driver.done(input(0x711), 8);
    assert!(!driver.device.firmware.objects_left().contains("DCTs"));
    assert_eq!(driver.command(input(0x712), 8).unwrap_err().0, BAD_RESOURCE);
}

/// perftest queries the first 256 bytes before it creates DC queue pairs.
#[test]
fn capabilities_are_truncated_to_the_requested_length() {
    let mut driver = Driver::ready(settings(LinkLayer::InfiniBand), Cable::default());
    let mut ask = |length| driver.done(Input::new(0x100, 16).set(field(0x30, 16), 1), length);
    let (whole, part) = (ask(16 + 4096), ask(16 + 256));
    assert_eq!(part[16..], whole[16..16 + 256]);
    assert_eq!(field(0x80 + 0x21a, 1).get(&part), 1, "dct");
}

#[test]
fn a_target_with_invalid_attributes_is_not_created() {
    let mut driver = Driver::ready(settings(LinkLayer::InfiniBand), Cable::default());
    let input = target(&mut driver).set(dctc::MTU.at(0x80), 7);
    assert_eq!(driver.command(input, 16).unwrap_err().0, BAD_PARAMETER, "an invalid MTU");
    let input = target(&mut driver).set(dctc::MTU.at(0x80), 3);
    let input = input.set(dctc::PKEY_INDEX.at(0x80), 0xffff);
    assert_eq!(driver.command(input, 16).unwrap_err().0, BAD_PARAMETER, "no such P_Key");
    assert_eq!(driver.device.firmware.core.counts().qps, 0);
}
