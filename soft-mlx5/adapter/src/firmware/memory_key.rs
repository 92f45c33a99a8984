//! Memory keys: of regions and of windows, and the reserved lkey.

use super::Firmware;
use super::Place;
use super::command::Command;
use super::page_list::{PAGES, page_list};
use super::refusal::{Done, Refusal};
use super::umem::only_driver;
use crate::core::{Access, KlmEntry, Mkey, MkeyParams, Pdn, Translation};
use crate::firmware::bits::field;
use crate::firmware::layout::command::{create_mkey_in, query_special_contexts_out};
use crate::firmware::layout::context::mkc;
use crate::memory::PageMap;

/// Offset of the context in inputs and outputs, in bits.
const CONTEXT: usize = 0x80;

/// Access modes, `MLX5_MKC_ACCESS_MODE_*`.
const PHYSICAL: u64 = 0;
const MTT: u64 = 1;
const KLM: u64 = 2;
const KSM: u64 = 3;

/// Bytes of one entry of a list of keys: length, key, address.
const KLM_ENTRY: usize = 16;

fn mode(context: &[u8]) -> u64 {
    mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context)
}

fn access(context: &[u8]) -> Access {
    let rights = [
        (mkc::LR, Access::LOCAL_READ),
        (mkc::LW, Access::LOCAL_WRITE),
        (mkc::RR, Access::REMOTE_READ),
        (mkc::RW, Access::REMOTE_WRITE),
        (mkc::A, Access::REMOTE_ATOMIC),
        (mkc::UMR_EN, Access::UMR),
    ];
    rights.into_iter().filter(|(field, _)| field.is_set(context)).map(|(_, right)| right).collect()
}

/// CREATE_MKEY.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    let params = MkeyParams {
        variant: mkc::MKEY_7_0.get(context) as u8,
        pd: Pdn(mkc::PD.get32(context)),
        qpn: mkc::QPN.get32(context),
        free: mkc::FREE.is_set(context),
        access: access(context),
        remote_invalidate: mkc::EN_RINVAL.is_set(context),
        start: mkc::START_ADDR.get(context),
        length: mkc::LEN.get(context),
        whole_space: mkc::LENGTH64.is_set(context),
        on_demand: false,
        translation: translation(firmware, command, context)?,
        translation_octowords: mkc::TRANSLATIONS_OCTWORD_SIZE.get32(context),
    };
    firmware.check_uses(command, &[params.pd.object()])?;
    let key = firmware.core.create_mkey(params)?;
    firmware.created(command, Mkey(key.0 & !0xff).object(), &[&MEMORY]);
    command.reply.set_number(key.0 >> 8);
    Ok(())
}

/// The fields of the umem of a region.
const MEMORY: Place = Place {
    valid: create_mkey_in::MKEY_UMEM_VALID,
    id: create_mkey_in::MKEY_UMEM_ID,
    offset: create_mkey_in::MKEY_UMEM_OFFSET,
};

fn translation(
    firmware: &Firmware<'_>,
    command: &Command<'_>,
    context: &[u8],
) -> Result<Translation, Refusal> {
    let octowords = command.get(create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize;
    match mode(context) {
        PHYSICAL => {
            only_driver(command, "physical addresses")?;
            Ok(Translation::Memory(PageMap::linear(mkc::START_ADDR.get(context))))
        }
        MTT if command.is_set(MEMORY.valid) => {
            let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let written = access(context).intersects(written);
            let map = firmware.part(command, &MEMORY, mkc::LEN.get(context), written)?;
            Ok(Translation::Memory(map))
        }
        MTT if octowords == 0 => {
            let shift = mkc::LOG_PAGE_SIZE.get(context) as u8;
            Ok(Translation::Memory(PageMap::pages(shift, Vec::new(), 0)))
        }
        MTT => region(command, context),
        // Entries without bytes are padding.
        KLM => {
            let entries = entries(command, octowords)?.into_iter();
            Ok(Translation::Klm(entries.filter(|entry| entry.len > 0).collect()))
        }
        KSM => {
            let shift = mkc::LOG_PAGE_SIZE.get(context) as u8;
            let entries = entries(command, octowords)?.into_iter();
            let entries = entries.map(|entry| (entry.mkey, entry.address)).collect();
            Ok(Translation::Ksm { shift, entries })
        }
        other => Err(Refusal::parameter("access mode", other)),
    }
}

/// A region: the list covers the pages from the one that holds the start address.
fn region(command: &Command<'_>, context: &[u8]) -> Result<Translation, Refusal> {
    let shift = mkc::LOG_PAGE_SIZE.get32(context);
    let first = mkc::START_ADDR.get(context) & ((1u64 << shift.min(40)) - 1);
    let map = page_list(command, PAGES, shift, first, mkc::LEN.get(context))?;
    Ok(Translation::Memory(map))
}

/// The list of an indirect key.
fn entries(command: &Command<'_>, octowords: usize) -> Result<Vec<KlmEntry>, Refusal> {
    command.need(octowords.saturating_mul(KLM_ENTRY).saturating_add(PAGES / 8))?;
    let entry = |index: usize| {
        let at = PAGES + 8 * KLM_ENTRY * index;
        KlmEntry {
            len: command.get(field(at, 32)),
            mkey: Mkey(command.get32(field(at + 32, 32))),
            address: command.get(field(at + 64, 64)),
        }
    };
    Ok((0..octowords).map(entry).collect())
}

fn key(command: &Command<'_>) -> Mkey {
    Mkey(command.number() << 8)
}

/// QUERY_MKEY.
pub(super) fn query(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let params = firmware.core.query_mkey(key(command))?;
    let values = [
        (mkc::FREE, u64::from(params.free)),
        (mkc::UMR_EN, u64::from(params.access.contains(Access::UMR))),
        (mkc::A, u64::from(params.access.contains(Access::REMOTE_ATOMIC))),
        (mkc::RW, u64::from(params.access.contains(Access::REMOTE_WRITE))),
        (mkc::RR, u64::from(params.access.contains(Access::REMOTE_READ))),
        (mkc::LW, u64::from(params.access.contains(Access::LOCAL_WRITE))),
        (mkc::LR, u64::from(params.access.contains(Access::LOCAL_READ))),
        (mkc::QPN, u64::from(params.qpn)),
        (mkc::MKEY_7_0, u64::from(params.variant)),
        (mkc::LENGTH64, u64::from(params.whole_space)),
        (mkc::EN_RINVAL, u64::from(params.remote_invalidate)),
        (mkc::PD, u64::from(params.pd.0)),
        (mkc::START_ADDR, params.start),
        (mkc::LEN, params.length),
        (mkc::TRANSLATIONS_OCTWORD_SIZE, u64::from(params.translation_octowords)),
    ];
    values.into_iter().for_each(|(field, value)| command.reply.set(field.at(CONTEXT), value));
    Ok(())
}

/// DESTROY_MKEY.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    firmware.core.destroy_mkey(key(command))?;
    firmware.objects.release(key(command).object());
    Ok(())
}

/// QUERY_SPECIAL_CONTEXTS.
pub(super) fn query_special_contexts(
    firmware: &mut Firmware<'_>,
    command: &mut Command<'_>,
) -> Done {
    command
        .reply
        .set(query_special_contexts_out::RESD_LKEY, u64::from(firmware.core.reserved_lkey().0));
    Ok(())
}
