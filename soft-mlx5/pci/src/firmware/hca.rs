//! Commands about the adapter as a whole.

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use super::table::Phase;
use crate::bits::field;
use crate::layout::command::{query_issi_out, set_issi_in};

/// Interface step sequence id. Drivers choose 1 for every device since ConnectX-4.
const ISSI: u16 = 1;
/// IEEE vendor id that ConnectX adapters report.
const IEEE_VENDOR: u64 = 0x2c9;
/// Board identification; a real one names an NVIDIA part.
const PSID: &[u8; 16] = b"SOFT_CX\0\0\0\0\0\0\0\0\0";

pub(super) fn enable(firmware: &mut Firmware, _: &mut Command<'_>) -> Done {
    if firmware.phase != Phase::Disabled {
        return Err(Refusal::wrong_state("ENABLE_HCA on an enabled adapter"));
    }
    firmware.phase = Phase::Enabled;
    Ok(())
}

pub(super) fn disable(firmware: &mut Firmware, _: &mut Command<'_>) -> Done {
    if firmware.phase == Phase::Initialized {
        return Err(Refusal::wrong_state("DISABLE_HCA before TEARDOWN_HCA"));
    }
    if firmware.pages.held() > 0 {
        firmware.warn(format_args!(
            "DISABLE_HCA while the firmware holds {} pages",
            firmware.pages.held()
        ));
    }
    firmware.phase = Phase::Disabled;
    Ok(())
}

pub(super) fn init(firmware: &mut Firmware, _: &mut Command<'_>) -> Done {
    if firmware.phase != Phase::Enabled {
        return Err(Refusal::wrong_state("INIT_HCA on an initialized adapter"));
    }
    firmware.phase = Phase::Initialized;
    Ok(())
}

pub(super) fn teardown(firmware: &mut Firmware, _: &mut Command<'_>) -> Done {
    let left = firmware.objects_left();
    if !left.is_empty() {
        firmware.warn(format_args!("TEARDOWN_HCA with objects left: {left}"));
    }
    firmware.drop_objects();
    firmware.phase = Phase::Enabled;
    Ok(())
}

pub(super) fn query_issi(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    command.reply.set(query_issi_out::CURRENT_ISSI, u64::from(firmware.issi));
    command.reply.set(query_issi_out::SUPPORTED_ISSI_DW0, 1 << ISSI | 1);
    Ok(())
}

pub(super) fn set_issi(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let wanted = command.get(set_issi_in::CURRENT_ISSI);
    if wanted > u64::from(ISSI) {
        return Err(Refusal::parameter("ISSI", wanted));
    }
    firmware.issi = wanted as u16;
    Ok(())
}

/// The output's adapter block begins at bit 0x80.
pub(super) fn query_adapter(_: &mut Firmware, command: &mut Command<'_>) -> Done {
    command.reply.set(field(0x80 + 0xc8, 24), IEEE_VENDOR);
    command.reply.put(0x80 + 0x780, PSID);
    Ok(())
}

pub(super) fn set_driver_version(_: &mut Firmware, command: &mut Command<'_>) -> Done {
    let version = command.structure(0x80);
    let text = version.split(|byte| *byte == 0).next().unwrap_or_default();
    tracing::info!(driver = %String::from_utf8_lossy(text), "driver");
    Ok(())
}

pub(super) fn nop(_: &mut Firmware, _: &mut Command<'_>) -> Done {
    Ok(())
}
