//! Firmware objects that steering rules lead to (`mlx5_ib_devx_is_flow_dest`), and those that count
//! their frames (`mlx5_ib_devx_is_flow_counter`).
#![forbid(unsafe_code)]

use nix::errno::Errno;

use super::rules::opcode::{ALLOC_FLOW_COUNTER, CREATE_FLOW_TABLE, CREATE_RQ, CREATE_TIR};
use crate::chardev::abi::call::Call;
use crate::chardev::objects::object::Object;
use crate::core::ReceiveSource;
use crate::locking::lock;

/// Number of a handle's counter, `offset` after its first one.
pub(crate) fn counter(call: &Call<'_>, handle: u32, offset: u32) -> Result<u32, Errno> {
    match call.any_object(handle)? {
        Object::Devx(object) if object.id().0 == ALLOC_FLOW_COUNTER => {
            object.numbers().nth(offset as usize).ok_or(Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The receiver of a rule that leads to a firmware object, and the handles that the rule needs
/// besides the object's own. A flow table is looked up for each frame. The receive queues of a TIR
/// are read when the rule is created: unlike on a ConnectX, later changes to the list do not affect
/// the rule.
pub(crate) fn receiver(call: &Call<'_>, handle: u32) -> Result<(ReceiveSource, Vec<u32>), Errno> {
    let (kind, number) = match call.any_object(handle)? {
        Object::Devx(object) => object.id(),
        _ => return Err(Errno::EINVAL),
    };
    match kind {
        CREATE_FLOW_TABLE => Ok((ReceiveSource::FlowTable(number), Vec::new())),
        CREATE_TIR => receive_queues(call, number),
        _ => Err(Errno::EINVAL),
    }
}

fn receive_queues(call: &Call<'_>, number: u32) -> Result<(ReceiveSource, Vec<u32>), Errno> {
    let spread = lock(&call.file.device.firmware).spread(number).map_err(|_| Errno::EINVAL)?;
    // A queue of another context has no handle in this file.
    let handle = |number: u32| {
        let mut all = call.state.handles.iter();
        let found = all.find(|(_, entry)| match &entry.object {
            Object::Devx(object) => object.id() == (CREATE_RQ, number),
            _ => false,
        });
        found.map(|(handle, _)| handle).ok_or(Errno::EINVAL)
    };
    let handles = spread.table.iter().map(|queue| handle(queue.0)).collect::<Result<_, _>>()?;
    Ok((ReceiveSource::Spread(spread), handles))
}
