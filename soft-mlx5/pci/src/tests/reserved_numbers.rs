//! Ranges of QP numbers that general objects reserve.

use std::collections::BTreeSet;

use super::driver::{Driver, Input, settings};
use crate::Cable;
use crate::bits::{Field, field};
use crate::layout::command::{general_object, header};
use uverbs_soft::core::LinkLayer;

/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u64 = 0x2c;
const UID: Field = field(0x50, 16);
const LOG_NUMBERS: u64 = 6;
const MOST: usize = 1 << (16 - LOG_NUMBERS);
const BAD_RESOURCE: u64 = 5;
const LIMIT: u64 = 8;

fn driver() -> Driver {
    Driver::ready(settings(LinkLayer::InfiniBand), Cable::default())
}

fn user(driver: &mut Driver) -> u64 {
    UID.get(&driver.done(Input::new(0xa04, 64), 16))
}

fn object(opcode: u64, user: u64) -> Input {
    Input::new(opcode, 16 + 256)
        .set(header::UID, user)
        .set(general_object::TYPE, RESERVED_QPN)
        .set(general_object::LOG_RANGE, LOG_NUMBERS)
}

/// Reserves a range. Returns its first number, or the status.
fn reserve(driver: &mut Driver, user: u64) -> Result<u64, u64> {
    let answer = driver.command(object(0xa00, user), 16).map_err(|refused| refused.0)?;
    Ok(general_object::ID.get(&answer))
}

fn release(driver: &mut Driver, user: u64, first: u64) -> Result<(), u64> {
    let mut input = Input::new(0xa03, 16).set(header::UID, user);
    input = input.set(general_object::TYPE, RESERVED_QPN).set(general_object::ID, first);
    driver.command(input, 16).map(drop).map_err(|refused| refused.0)
}

fn reserved(driver: &Driver) -> usize {
    driver.device.firmware.core.counts().reserved
}

#[test]
fn a_destroyed_range_is_no_longer_reserved() {
    let mut driver = driver();
    let user = user(&mut driver);
    let ranges = [(); 2].map(|()| reserve(&mut driver, user).unwrap());
    assert_eq!(reserved(&driver), 2);
    for (left, first) in [1, 0].into_iter().zip(ranges) {
        assert_eq!(release(&mut driver, user, first), Ok(()));
        assert_eq!(reserved(&driver), left);
        assert_eq!(release(&mut driver, user, first), Err(BAD_RESOURCE));
    }
}

#[test]
fn only_its_own_user_destroys_a_range() {
    let mut driver = driver();
    let (owner, other) = (user(&mut driver), user(&mut driver));
    let first = reserve(&mut driver, owner).unwrap();
    assert_eq!(release(&mut driver, other, first), Err(BAD_RESOURCE));
    assert_eq!(release(&mut driver, owner, first + 1), Err(BAD_RESOURCE));
    assert_eq!(reserved(&driver), 1);
    assert_eq!(release(&mut driver, owner, first), Ok(()));
    let drivers = reserve(&mut driver, 0).unwrap();
    assert_eq!(release(&mut driver, owner, drivers), Err(BAD_RESOURCE));
    let first = reserve(&mut driver, owner).unwrap();
    assert_eq!(release(&mut driver, 0, first), Ok(()), "the driver may");
}

#[test]
fn the_announced_number_of_ranges_can_be_reserved() {
    let mut driver = driver();
    let user = user(&mut driver);
    let all: BTreeSet<_> = (0..MOST).map(|_| reserve(&mut driver, user).unwrap()).collect();
    assert_eq!(all.len(), MOST);
    assert!(all.iter().all(|first| first % (1 << LOG_NUMBERS) == 0));
    assert_eq!(reserve(&mut driver, user), Err(LIMIT));
    let first = all.first().copied().unwrap();
    assert_eq!(release(&mut driver, user, first), Ok(()));
    assert!(reserve(&mut driver, user).is_ok());
    assert_eq!(reserve(&mut driver, user), Err(LIMIT));
}
