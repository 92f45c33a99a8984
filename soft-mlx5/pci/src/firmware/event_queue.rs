//! Event queues: rings in guest memory through which the device reports events to the driver, each
//! with an MSI-X vector.

use std::collections::BTreeMap;

use uverbs_mlx5_format::{EQE_SIZE, EventType};

use super::Firmware;
use super::command::Command;
use super::page_list::{PAGES, QueuePages};
use super::refusal::{Done, Refusal};
use crate::bits::field;
use crate::layout::command::create_eq_out;
use crate::layout::context::eqc;
use uverbs_soft::memory::{HostMemory, PageMap};
use uverbs_soft_adapter::firmware::event::Report;

/// Offsets of the context and the event mask in CREATE_EQ, in bits.
const CONTEXT: usize = 0x80;
const EVENT_MASK: usize = 0x2c0;

const STATUS_OK: u64 = 0;
const STATE_ARMED: u64 = 0x9;
const STATE_FIRED: u64 = 0xa;

/// Numbers of event queues. A doorbell has 8 bits for them.
const NUMBERS: std::ops::Range<u8> = 1..64;

#[derive(Debug)]
struct EventQueue {
    context: Vec<u8>,
    mask: [u64; 4],
    ring: PageMap,
    log_size: u32,
    vector: u32,
    producer: u32,
    consumer: u32,
    armed: bool,
}

impl EventQueue {
    fn wants(&self, kind: EventType) -> bool {
        self.mask[usize::from(kind.0 >> 6)] >> (kind.0 & 63) & 1 == 1
    }

    fn is_full(&self) -> bool {
        self.producer.wrapping_sub(self.consumer) & 0xff_ffff >= 1 << self.log_size
    }

    /// Writes an entry. The last word, with the owner byte, is written last, so that the driver
    /// never sees an incomplete entry.
    fn write(&mut self, memory: &dyn HostMemory, report: &Report) -> bool {
        let mut entry = report.entry();
        entry[63] = (self.producer >> self.log_size) as u8 & 1;
        let offset = u64::from(self.producer & ((1 << self.log_size) - 1)) * EQE_SIZE as u64;
        self.producer = self.producer.wrapping_add(1);
        let body = self.ring.write(memory, offset, &entry[..56]);
        let Ok(last) = <[u8; 8]>::try_from(&entry[56..]) else { return false };
        let Some((address, _)) = self.ring.locate(offset + 56, 8) else { return false };
        body.is_ok() && memory.store_release_u64(address, u64::from_ne_bytes(last)).is_ok()
    }
}

/// All event queues.
#[derive(Debug, Default)]
pub(super) struct EventQueues {
    queues: BTreeMap<u8, EventQueue>,
}

impl EventQueues {
    pub(super) fn exists(&self, number: u32) -> bool {
        u8::try_from(number).is_ok_and(|number| self.queues.contains_key(&number))
    }

    /// Numbers of the queues that are subscribed to events of this kind.
    pub(super) fn listeners(&self, kind: EventType) -> Vec<u32> {
        self.queues
            .iter()
            .filter(|(_, queue)| queue.wants(kind))
            .map(|(number, _)| u32::from(*number))
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn clear(&mut self) {
        self.queues.clear();
    }
}

impl Firmware {
    /// Writes an event to queue `number` and raises an interrupt if the driver has armed the queue.
    pub(super) fn post_event(&mut self, number: u32, report: &Report) {
        let kind = report.kind;
        let queue = u8::try_from(number)
            .ok()
            .and_then(|number| self.doorbells.event_queues.queues.get_mut(&number));
        let Some(queue) = queue else {
            self.warn(format_args!(
                "event {kind:?} for event queue {number}, which does not exist"
            ));
            return;
        };
        if queue.is_full() {
            self.warn(format_args!("event queue {number} overrun: event {kind:?} lost"));
            return;
        }
        let written = queue.write(&self.memory, report);
        let vector = std::mem::take(&mut queue.armed).then_some(queue.vector);
        if !written {
            self.warn(format_args!("event queue {number}: its ring is not guest memory"));
        }
        if let Some(vector) = vector {
            self.interrupts.raise(vector);
        }
    }

    /// Writes an event to every queue that is subscribed to its kind.
    pub(super) fn announce(&mut self, report: &Report) {
        for number in self.doorbells.event_queues.listeners(report.kind) {
            self.post_event(number, report);
        }
    }

    /// Handles a store to an event queue doorbell: the queue's number is in the top byte, its
    /// consumer counter in the others. With `arm`, the next event raises an interrupt, or at once
    /// if one is unread.
    pub(crate) fn event_queue_doorbell(&mut self, value: u32, arm: bool) {
        let number = (value >> 24) as u8;
        let Some(queue) = self.doorbells.event_queues.queues.get_mut(&number) else {
            self.warn(format_args!("doorbell for event queue {number}, which does not exist"));
            return;
        };
        queue.consumer = value & 0xff_ffff;
        if !arm {
            return;
        }
        queue.armed = queue.producer & 0xff_ffff == queue.consumer;
        if !queue.armed {
            let vector = queue.vector;
            self.interrupts.raise(vector);
        }
    }
}

/// CREATE_EQ.
pub(super) fn create(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let context = command.structure(CONTEXT);
    let log_size = eqc::LOG_EQ_SIZE.get32(context);
    let vector = eqc::INTR.get32(context);
    if log_size > 20 {
        return Err(Refusal::parameter("log_eq_size", u64::from(log_size)));
    }
    if vector >= firmware.interrupts.count() {
        return Err(Refusal::parameter("intr", u64::from(vector)));
    }
    firmware.doorbells.uars.check(eqc::UAR_PAGE.get32(context))?;
    let pages = QueuePages {
        log_page_size: eqc::LOG_PAGE_SIZE.get32(context),
        page_offset: eqc::PAGE_OFFSET.get(context),
        length: (EQE_SIZE as u64) << log_size,
    };
    let ring = pages.read(command, PAGES)?;
    let mask = [0, 1, 2, 3].map(|index| command.get(field(EVENT_MASK, 64).element(index, 64)));
    let free = NUMBERS
        .into_iter()
        .find(|number| !firmware.doorbells.event_queues.queues.contains_key(number));
    let number = free.ok_or_else(|| Refusal::limit("event queue"))?;
    let context = context.get(..64).unwrap_or_default().to_vec();
    let queue = EventQueue {
        context,
        mask,
        ring,
        log_size,
        vector,
        producer: 0,
        consumer: 0,
        armed: false,
    };
    firmware.doorbells.event_queues.queues.insert(number, queue);
    command.reply.set(create_eq_out::EQ_NUMBER, u64::from(number));
    Ok(())
}

fn number(command: &Command<'_>) -> u8 {
    command.get(create_eq_out::EQ_NUMBER) as u8
}

/// DESTROY_EQ.
pub(super) fn destroy(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let number = number(command);
    if firmware.objects.uses_event_queue(number.into()) {
        return Err(Refusal::busy("event queue", u32::from(number)));
    }
    let removed = firmware.doorbells.event_queues.queues.remove(&number);
    removed.map(|_| ()).ok_or_else(|| Refusal::no_such("event queue", u32::from(number)))
}

/// QUERY_EQ.
pub(super) fn query(firmware: &mut Firmware, command: &mut Command<'_>) -> Done {
    let number = number(command);
    let queue = firmware.doorbells.event_queues.queues.get(&number);
    let queue = queue.ok_or_else(|| Refusal::no_such("event queue", u32::from(number)))?;
    let mut context = queue.context.clone();
    eqc::STATUS.set(&mut context, STATUS_OK);
    eqc::ST.set(&mut context, if queue.armed { STATE_ARMED } else { STATE_FIRED });
    eqc::CONSUMER_COUNTER.set(&mut context, u64::from(queue.consumer));
    eqc::PRODUCER_COUNTER.set(&mut context, u64::from(queue.producer));
    command.reply.put(CONTEXT, &context);
    Ok(())
}
