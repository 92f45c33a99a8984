//! Commands that belong to no object: queries of the adapter.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::command::{Command, Reply};
use uverbs_soft_adapter::firmware::layout::command::{header, query_vport_state_out};
use uverbs_soft_adapter::firmware::layout::port::hca_vport_context;
use uverbs_soft_adapter::firmware::refusal::{Done, Refusal};

use super::capability;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::options::Options;

const QUERY_HCA_CAP: u16 = 0x100;
const QUERY_VPORT_STATE: u16 = 0x750;
const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
const NOP: u16 = 0x80d;

/// States of the virtual port, and of the port as InfiniBand numbers them.
const VPORT_UP: u64 = 1;
const ACTIVE: u64 = 4;
const DOWN: u64 = 1;

/// Offset in bits of the payload in outputs.
const PAYLOAD: usize = 0x80;

/// Runs a command. The inner result is that of the firmware.
pub(super) fn run(device: &DeviceShared, command: &mut Command<'_>) -> Result<Done, Errno> {
    // A child process has no device.
    device.control(|_| Ok(()))?;
    let options = device.options();
    Ok(match command.get(header::OPCODE) as u16 {
        QUERY_HCA_CAP => capability::query(options, command),
        QUERY_VPORT_STATE => {
            command.reply.set(query_vport_state_out::STATE, u64::from(!device.is_port_down()));
            command.reply.set(query_vport_state_out::ADMIN_STATE, VPORT_UP);
            Ok(())
        }
        QUERY_HCA_VPORT_CONTEXT if !options.is_roce() => {
            port(options, device.is_port_down(), &mut command.reply);
            Ok(())
        }
        NOP => Ok(()),
        other => Err(Refusal::unknown_opcode(other)),
    })
}

/// The InfiniBand port.
fn port(options: &Options, down: bool, reply: &mut Reply) {
    let state = if down { DOWN } else { ACTIVE };
    let guid = u64::from_be_bytes(options.node_guid);
    let values = [
        (hca_vport_context::PORT_STATE, state),
        (hca_vport_context::VPORT_STATE, state),
        (hca_vport_context::SYSTEM_IMAGE_GUID, guid),
        (hca_vport_context::PORT_GUID, guid),
        (hca_vport_context::NODE_GUID, guid),
        (hca_vport_context::LID, options.lid.into()),
        (hca_vport_context::SM_LID, options.sm_lid.into()),
    ];
    values.into_iter().for_each(|(field, value)| reply.set(field.at(PAYLOAD), value));
}
