//! Memory that the driver gives to the firmware (MANAGE_PAGES). A real device stores its contexts
//! in it. This one only keeps track of the pages, to detect a driver that reclaims pages twice or
//! never.

use std::collections::BTreeSet;

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::{Done, Refusal};
use crate::bits::field;
use crate::layout::command::{header, manage_pages_in, manage_pages_out, query_pages_out};

/// Pages requested before and for INIT_HCA.
const BOOT_PAGES: u32 = 8;
const INIT_PAGES: u32 = 32;

/// Offset of the addresses, 64 bits each, after the fixed part of input and output.
const FIRST_ADDRESS: usize = 0x80;

/// The pages that the firmware holds.
#[derive(Debug, Default)]
pub(super) struct PageSupply {
    pages: BTreeSet<u64>,
}

impl PageSupply {
    pub(super) fn held(&self) -> usize {
        self.pages.len()
    }
}

/// QUERY_PAGES: how many pages the firmware requests; operation 1 at boot, 2 for INIT_HCA, 3 at any
/// time.
pub(super) fn query(_: &mut Firmware, command: &mut Command<'_>) -> Done {
    let wanted = match command.get(header::OP_MOD) {
        1 => BOOT_PAGES,
        2 => INIT_PAGES,
        3 => 0,
        other => return Err(Refusal::parameter("QUERY_PAGES operation", other)),
    };
    command.reply.set(query_pages_out::NUM_PAGES, u64::from(wanted));
    Ok(())
}

/// MANAGE_PAGES: operation 0 reports that the driver has no pages, 1 gives pages to the firmware, 2
/// reclaims them.
pub(super) fn manage(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let count = command.get(manage_pages_in::INPUT_NUM_ENTRIES) as usize;
    match command.get(header::OP_MOD) {
        0 => Err(Refusal::wrong_state("the driver has no pages to give")),
        1 => give(&mut firmware.pages, command, count),
        2 => take(&mut firmware.pages, count, &mut command.reply),
        other => Err(Refusal::parameter("MANAGE_PAGES operation", other)),
    }
}

fn give(supply: &mut PageSupply, command: &Command<'_>, count: usize) -> Done {
    command.need(FIRST_ADDRESS / 8 + 8 * count)?;
    let pages: Vec<u64> = (0..count).map(|index| command.get(address_field(index))).collect();
    for page in &pages {
        if page % 4096 != 0 || supply.pages.contains(page) {
            return Err(Refusal::parameter("page address", *page));
        }
    }
    supply.pages.extend(pages);
    Ok(())
}

fn take(supply: &mut PageSupply, count: usize, reply: &mut Reply) -> Done {
    let count = count.min(supply.pages.len());
    reply.need(FIRST_ADDRESS / 8 + 8 * count)?;
    for index in 0..count {
        let Some(page) = supply.pages.pop_last() else { break };
        reply.set(address_field(index), page);
    }
    reply.set(manage_pages_out::OUTPUT_NUM_ENTRIES, count as u64);
    Ok(())
}

fn address_field(index: usize) -> crate::bits::Field {
    field(FIRST_ADDRESS, 64).element(index, 64)
}
