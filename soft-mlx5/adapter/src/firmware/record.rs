//! Objects that the firmware only stores: transport interfaces and receive queue tables. A front
//! end that steers frames itself applies them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::command::Command;
use super::references::no_such;
use super::refusal::{Done, Refusal};
use super::{Firmware, Objects};
use crate::core::{ObjectId, ObjectKind, Qpn};
use crate::firmware::bits::{Field, field};
use crate::firmware::layout::context::tisc;
use crate::firmware::layout::ethernet::{rqtc, tirc};

/// A part of a context that MODIFY may change: its bit in the mask, its first bit, and its number
/// of bits.
type Change = (u64, usize, usize);

/// log2 of the most objects of each kind.
pub(super) const LOG_RECORDS: u32 = 16;

/// log2 of the most receive queues that a table lists.
pub(super) const LOG_LIST: u32 = 11;

/// Offset of the list in a receive queue table's context, in bits.
const LIST: usize = 0x780;

/// How a TIR chooses its receive queue, `MLX5_TIRC_DISP_TYPE_*`: from a table.
pub(super) const INDIRECT: u64 = 1;

/// A receive queue of a table's context.
pub(super) fn queue(table: &[u8], place: usize) -> Qpn {
    Qpn(field(LIST + 8, 24).element(place, 32).get32(table))
}

/// A kind of stored object.
pub(super) trait Kind {
    /// The kind of its objects.
    const OBJECT: ObjectKind;
    /// Offset of the context in CREATE in bits, and its size in bytes.
    const CONTEXT: (usize, usize);
    /// Offset of the context in QUERY, in bits.
    const QUERY: usize;
    /// The parts that MODIFY may change.
    const CHANGES: &'static [Change];
    /// Refuses an invalid context. `given` is the number of its bytes in the command.
    fn check(_context: &[u8], _given: usize) -> Done {
        Ok(())
    }
    /// The objects that a context refers to.
    fn uses(context: &[u8]) -> Vec<ObjectId>;
    /// The firmware's objects of this kind.
    fn records(objects: &mut Objects) -> &mut Records;
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
    pub(super) fn insert(&mut self, kind: ObjectKind, context: Vec<u8>) -> Result<u32, Refusal> {
        if self.contexts.len() >> LOG_RECORDS != 0 {
            return Err(Refusal::limit(&kind.to_string()));
        }
        self.last = next_number(self.last, |number| self.contexts.contains_key(&number));
        self.contexts.insert(self.last, context);
        Ok(self.last)
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.contexts.contains_key(&number)
    }

    /// The context of an object.
    ///
    /// # Errors
    /// A refusal if there is none of this number.
    pub fn get(&self, kind: ObjectKind, number: u32) -> Result<&Vec<u8>, Refusal> {
        self.contexts.get(&number).ok_or_else(|| no_such((kind, number)))
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
    let used = K::uses(&context);
    firmware.check_references(command, &used)?;
    let number = K::records(firmware.objects).insert(K::OBJECT, context)?;
    firmware.objects.references.add(used);
    firmware.created(command, (K::OBJECT, number), &[]);
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
    let kept = K::records(firmware.objects).get(K::OBJECT, number)?.clone();
    let mut changed = kept.clone();
    changed.resize(kept.len().max(wanted.len()), 0);
    for (_, first, bits) in K::CHANGES.iter().filter(|(bit, ..)| mask & bit != 0) {
        copy_bits(&mut changed, &wanted, *first..first + bits);
    }
    let given = if mask == 0 { changed.len() } else { wanted.len() };
    K::check(&changed, given)?;
    let used = K::uses(&changed);
    firmware.check_references(command, &used)?;
    firmware.objects.references.remove(K::uses(&kept));
    firmware.objects.references.add(used);
    K::records(firmware.objects).contexts.insert(number, changed);
    Ok(())
}

/// The mask in MODIFY commands.
const BITMASK: Field = field(0x80, 64);

fn copy_bits(to: &mut [u8], from: &[u8], range: Range<usize>) {
    for bit in range.start..range.end.min(from.len() * 8) {
        let bit = field(bit, 1);
        bit.set(to, bit.get(from));
    }
}

pub(super) fn query<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let context = K::records(firmware.objects).get(K::OBJECT, command.number())?.clone();
    command.reply.put(K::QUERY, &context);
    Ok(())
}

pub(super) fn destroy<K: Kind>(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let object = (K::OBJECT, command.number());
    firmware.objects.references.check_unused(object)?;
    let removed = K::records(firmware.objects).contexts.remove(&object.1);
    let context = removed.ok_or_else(|| no_such(object))?;
    firmware.objects.references.remove(K::uses(&context));
    firmware.objects.release(object);
    Ok(())
}

/// The transport domain of a context. That number 0 means none is unconfirmed.
fn domain(number: u32) -> Option<ObjectId> {
    (number != 0).then_some((ObjectKind::TransportDomain, number))
}

/// Transport interface, sending.
pub(super) struct Tis;

impl Kind for Tis {
    const OBJECT: ObjectKind = ObjectKind::Tis;
    const CONTEXT: (usize, usize) = (0x100, 160);
    const QUERY: usize = 0x80;
    /// `modify_tis_bitmask`: priority.
    const CHANGES: &'static [Change] = &[(1, 0xc, 4)];
    fn uses(context: &[u8]) -> Vec<ObjectId> {
        domain(tisc::TRANSPORT_DOMAIN.get32(context)).into_iter().collect()
    }
    fn records(objects: &mut Objects) -> &mut Records {
        &mut objects.tis
    }
}

/// Transport interface, receiving.
pub(super) struct Tir;

impl Kind for Tir {
    const OBJECT: ObjectKind = ObjectKind::Tir;
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
    fn uses(context: &[u8]) -> Vec<ObjectId> {
        let receives = match tirc::DISP_TYPE.get(context) {
            INDIRECT => (ObjectKind::Rqt, tirc::INDIRECT_TABLE.get32(context)),
            _ => Qpn(tirc::INLINE_RQN.get32(context)).object(),
        };
        let domain = domain(tirc::TRANSPORT_DOMAIN.get32(context));
        domain.into_iter().chain([receives]).collect()
    }
    fn records(objects: &mut Objects) -> &mut Records {
        &mut objects.tir
    }
}

/// Receive queue table.
pub(super) struct Rqt;

impl Kind for Rqt {
    const OBJECT: ObjectKind = ObjectKind::Rqt;
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
    fn uses(context: &[u8]) -> Vec<ObjectId> {
        let count = rqtc::RQT_ACTUAL_SIZE.get(context) as usize;
        (0..count).map(|place| queue(context, place).object()).collect()
    }
    fn records(objects: &mut Objects) -> &mut Records {
        &mut objects.rqt
    }
}
