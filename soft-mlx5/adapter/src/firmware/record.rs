//! Objects that the firmware only stores: transport interfaces and receive queue tables. A front
//! end that steers frames itself applies them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Firmware;
use super::command::Command;
use super::refusal::{Done, Refusal};
use crate::firmware::bits::{Field, field};
use crate::firmware::layout::ethernet::rqtc;

/// A part of a context that MODIFY may change: its bit in the mask, its first bit, and its number
/// of bits.
type Change = (u64, usize, usize);

/// log2 of the most receive queues that a table lists.
pub(super) const LOG_LIST: u32 = 11;

/// Where a receive queue table's context has its list, in bits.
pub(super) const LIST: usize = 0x780;

/// A kind of stored object.
pub(super) trait Kind {
    /// Its name in refusals.
    const NAME: &'static str;
    /// Offset of the context in CREATE in bits, and its size in bytes.
    const CONTEXT: (usize, usize);
    /// Offset of the context in QUERY, in bits.
    const QUERY: usize;
    /// What MODIFY may change.
    const CHANGES: &'static [Change];
    /// Refuses an invalid context, of which the command gave so many bytes.
    fn check(_context: &[u8], _given: usize) -> Done {
        Ok(())
    }
    /// The firmware's objects of this kind.
    fn records<'a>(firmware: &'a mut Firmware<'_>) -> &'a mut Records;
}

/// The first free number of 24 bits after `last`, not 0. Freed ones are reused as late as possible.
pub(super) fn next_number(last: u32, is_used: impl Fn(u32) -> bool) -> u32 {
    let mut all = (1..).map(|step| last.wrapping_add(step) & 0xff_ffff);
    all.find(|number| *number != 0 && !is_used(*number)).unwrap_or_default()
}

/// All stored objects of one kind, by number.
#[derive(Debug, Default)]
pub struct Records {
    contexts: BTreeMap<u32, Vec<u8>>,
    last: u32,
}

impl Records {
    /// Adds an object under a fresh number.
    pub(super) fn insert(&mut self, context: Vec<u8>) -> u32 {
        self.last = next_number(self.last, |number| self.contexts.contains_key(&number));
        self.contexts.insert(self.last, context);
        self.last
    }

    /// The context of an object.
    ///
    /// # Errors
    /// A refusal if there is none of this number.
    pub fn get(&self, name: &str, number: u32) -> Result<&Vec<u8>, Refusal> {
        self.contexts.get(&number).ok_or_else(|| Refusal::no_such(name, number))
    }

    pub(super) fn remove(&mut self, name: &str, number: u32) -> Done {
        self.contexts.remove(&number).map(|_| ()).ok_or_else(|| Refusal::no_such(name, number))
    }

    pub(super) fn len(&self) -> usize {
        self.contexts.len()
    }
}

fn context<K: Kind>(command: &Command<'_>) -> Vec<u8> {
    let (bit, bytes) = K::CONTEXT;
    let all = command.structure(bit);
    all[..bytes.min(all.len())].to_vec()
}

pub(super) fn create<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = context::<K>(command);
    K::check(&context, context.len())?;
    let number = K::records(firmware).insert(context);
    command.reply.set_number(number);
    Ok(())
}

/// Changes the parts that the command's mask selects.
pub(super) fn modify<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let mask = command.get(BITMASK);
    let known = K::CHANGES.iter().fold(0, |known, (bit, ..)| known | bit);
    if mask & !known != 0 {
        return Err(Refusal::parameter("bitmask", mask));
    }
    let number = command.number();
    let wanted = context::<K>(command);
    let records = K::records(firmware);
    let kept = records.contexts.get_mut(&number);
    let kept = kept.ok_or_else(|| Refusal::no_such(K::NAME, number))?;
    let mut changed = kept.clone();
    changed.resize(kept.len().max(wanted.len()), 0);
    for (_, first, bits) in K::CHANGES.iter().filter(|(bit, ..)| mask & bit != 0) {
        copy_bits(&mut changed, &wanted, *first..first + bits);
    }
    let given = if mask == 0 { changed.len() } else { wanted.len() };
    K::check(&changed, given)?;
    *kept = changed;
    Ok(())
}

/// Where MODIFY commands have their mask.
const BITMASK: Field = field(0x80, 64);

fn copy_bits(to: &mut [u8], from: &[u8], range: Range<usize>) {
    for bit in range.start..range.end.min(from.len() * 8) {
        let bit = field(bit, 1);
        bit.set(to, bit.get(from));
    }
}

pub(super) fn query<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = K::records(firmware).get(K::NAME, command.number())?.clone();
    command.reply.put(K::QUERY, &context);
    Ok(())
}

pub(super) fn destroy<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    K::records(firmware).remove(K::NAME, command.number())
}

/// Transport interface, sending.
pub(super) struct Tis;

impl Kind for Tis {
    const NAME: &'static str = "TIS";
    const CONTEXT: (usize, usize) = (0x100, 160);
    const QUERY: usize = 0x80;
    /// `modify_tis_bitmask`: priority.
    const CHANGES: &'static [Change] = &[(1, 0xc, 4)];
    fn records<'a>(firmware: &'a mut Firmware<'_>) -> &'a mut Records {
        &mut firmware.objects.tis
    }
}

/// Transport interface, receiving.
pub(super) struct Tir;

impl Kind for Tir {
    const NAME: &'static str = "TIR";
    const CONTEXT: (usize, usize) = (0x100, 240);
    const QUERY: usize = 0x100;
    /// `modify_tir_bitmask`: loopback; hash function, key and fields; merging of packets.
    const CHANGES: &'static [Change] = &[
        (1 << 4, 0x126, 2),
        (1 << 2, 0x100, 1),
        (1 << 2, 0x120, 4),
        (1 << 2, 0x140, 0x180),
        (1, 0x84, 28),
    ];
    fn records<'a>(firmware: &'a mut Firmware<'_>) -> &'a mut Records {
        &mut firmware.objects.tir
    }
}

/// Receive queue table.
pub(super) struct Rqt;

impl Kind for Rqt {
    const NAME: &'static str = "RQT";
    const CONTEXT: (usize, usize) = (0x100, 1 << 16);
    const QUERY: usize = 0x100;
    /// `rqt_bitmask`: the list and its length.
    const CHANGES: &'static [Change] = &[(1, 0xd0, 16), (1, LIST, (1 << 19) - LIST)];
    fn check(context: &[u8], given: usize) -> Done {
        let (most, actual) = (rqtc::RQT_MAX_SIZE.get(context), rqtc::RQT_ACTUAL_SIZE.get(context));
        if most > 1 << LOG_LIST {
            return Err(Refusal::parameter("rqt_max_size", most));
        }
        if actual > most {
            return Err(Refusal::parameter("rqt_actual_size", actual));
        }
        let need = LIST / 8 + actual as usize * size_of::<u32>();
        if given < need { Err(Refusal::short_input(given, need)) } else { Ok(()) }
    }
    fn records<'a>(firmware: &'a mut Firmware<'_>) -> &'a mut Records {
        &mut firmware.objects.rqt
    }
}
