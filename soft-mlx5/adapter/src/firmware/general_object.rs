//! General objects, whose type is a parameter of the command. One type is supported: QP numbers
//! that no QP gets, which connection managers use instead of a QP's number.

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::firmware::layout::command::general_object as layout;

/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
pub const RESERVED_NUMBERS: u64 = 0x2c;

/// log2 of the numbers of an object. That of a ConnectX is unconfirmed.
pub const LOG_NUMBERS: u32 = 6;

/// log2 of all numbers that can be reserved.
pub const LOG_ALL_NUMBERS: u32 = 16;

/// Refuses a command about objects of another type.
fn check_type(command: &Command<'_>) -> Done {
    match command.get(layout::TYPE) {
        RESERVED_NUMBERS => Ok(()),
        other => Err(Refusal::parameter("obj_type", other)),
    }
}

/// CREATE_GENERAL_OBJECT.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    check_type(command)?;
    let log_numbers = command.get32(layout::LOG_RANGE);
    if log_numbers != LOG_NUMBERS {
        return Err(Refusal::parameter("log_obj_range", log_numbers.into()));
    }
    let reserved = &mut firmware.objects.reserved;
    if reserved.len() >> (LOG_ALL_NUMBERS - LOG_NUMBERS) != 0 {
        return Err(Refusal::limit("reserved QP number"));
    }
    let first = firmware.core.reserve_qpns(1 << LOG_NUMBERS);
    reserved.insert(first, command.user_context());
    command.reply.set(layout::ID, first.into());
    Ok(())
}

/// DESTROY_GENERAL_OBJECT.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    check_type(command)?;
    let (first, user) = (command.get32(layout::ID), command.user_context());
    let owner = firmware.objects.reserved.get(&first);
    if !owner.is_some_and(|owner| user == 0 || *owner == user) {
        return Err(Refusal::no_such("range of reserved QP numbers", first));
    }
    firmware.objects.reserved.remove(&first);
    firmware.core.release_qpns(first);
    Ok(())
}
