//! Objects that the firmware only has to remember: transport interfaces, receive queue tables, counters. What they mean
//! to packets is up to whoever moves packets.

use std::collections::BTreeMap;

use super::Firmware;
use super::command::{Command, Reply};
use super::refusal::Refusal;

/// A kind of remembered object.
pub(super) trait Kind {
    /// Its name in refusals.
    const NAME: &'static str;
    /// Where CREATE has the context, and its bytes.
    const CONTEXT: (usize, usize);
    /// Where QUERY has it, in bits.
    const QUERY: usize;
    /// Where the firmware keeps them.
    fn records(firmware: &mut Firmware) -> &mut Records;
}

/// All remembered objects of one kind, by number.
#[derive(Debug, Default)]
pub(super) struct Records {
    contexts: BTreeMap<u32, Vec<u8>>,
    last: u32,
}

impl Records {
    /// Adds an object under a fresh number.
    pub(super) fn insert(&mut self, context: Vec<u8>) -> u32 {
        self.last = (self.last + 1) & 0xff_ffff;
        while self.last == 0 || self.contexts.contains_key(&self.last) {
            self.last = (self.last + 1) & 0xff_ffff;
        }
        self.contexts.insert(self.last, context);
        self.last
    }

    pub(super) fn get(&self, name: &str, number: u32) -> Result<&Vec<u8>, Refusal> {
        self.contexts.get(&number).ok_or_else(|| Refusal::no_such(name, number))
    }

    pub(super) fn remove(&mut self, name: &str, number: u32) -> Result<(), Refusal> {
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

pub(super) fn create<K: Kind>(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    let number = K::records(firmware).insert(context::<K>(command));
    reply.set_number(number);
    Ok(())
}

/// Takes the whole new context: the bit masks of these commands name what a driver has filled in, and what it has not
/// filled in is never asked for again.
pub(super) fn modify<K: Kind>(
    firmware: &mut Firmware,
    command: &Command<'_>,
    _: &mut Reply,
) -> Result<(), Refusal> {
    let number = command.number();
    let records = K::records(firmware);
    records.get(K::NAME, number)?;
    records.contexts.insert(number, context::<K>(command));
    Ok(())
}

pub(super) fn query<K: Kind>(
    firmware: &mut Firmware,
    command: &Command<'_>,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    let context = K::records(firmware).get(K::NAME, command.number())?.clone();
    reply.put(K::QUERY, &context);
    Ok(())
}

pub(super) fn destroy<K: Kind>(
    firmware: &mut Firmware,
    command: &Command<'_>,
    _: &mut Reply,
) -> Result<(), Refusal> {
    K::records(firmware).remove(K::NAME, command.number())
}

/// Transport interface, sending.
pub(super) struct Tis;

impl Kind for Tis {
    const NAME: &'static str = "TIS";
    const CONTEXT: (usize, usize) = (0x100, 160);
    const QUERY: usize = 0x80;
    fn records(firmware: &mut Firmware) -> &mut Records {
        &mut firmware.ethernet.tis
    }
}

/// Transport interface, receiving.
pub(super) struct Tir;

impl Kind for Tir {
    const NAME: &'static str = "TIR";
    const CONTEXT: (usize, usize) = (0x100, 240);
    const QUERY: usize = 0x100;
    fn records(firmware: &mut Firmware) -> &mut Records {
        &mut firmware.ethernet.tir
    }
}

/// Receive queue table.
pub(super) struct Rqt;

impl Kind for Rqt {
    const NAME: &'static str = "RQT";
    const CONTEXT: (usize, usize) = (0x100, 1 << 16);
    const QUERY: usize = 0x100;
    fn records(firmware: &mut Firmware) -> &mut Records {
        &mut firmware.ethernet.rqt
    }
}
