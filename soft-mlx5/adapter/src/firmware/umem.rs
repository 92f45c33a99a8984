//! Memory that user contexts have registered (umems): the rings and doorbell records of the objects
//! that their commands create are parts of it.

use std::collections::{BTreeMap, HashMap};

use super::bits::{Field, field};
use super::command::Command;
use super::layout::context::wq;
use super::numbers::Numbers;
use super::page_list::{QueuePages, page_list};
use super::refusal::{Done, Refusal};
use super::{Firmware, Objects};
use crate::core::ObjectId;
use crate::memory::PageMap;

/// Fields of CREATE_UMEM, whose `umem` begins at bit 0x80 (`mlx5_ifc_umem_bits`).
const LOG_PAGE_SIZE: Field = field(0x80 + 0x9b, 5);
const PAGE_OFFSET: Field = field(0x80 + 0xa0, 32);
const NUM_OF_MTT: Field = field(0x80 + 0xc0, 64);
/// Offset of its page list, in bits, and the write permission in an entry of the list.
const PAGES: usize = 0x80 + 0x100;
const WRITABLE: u64 = 1 << 1;

#[derive(Debug)]
struct Umem {
    owner: u16,
    memory: PageMap,
    length: u64,
    writable: bool,
}

/// All umems and their users.
#[derive(Debug)]
pub(super) struct Umems {
    numbers: Numbers,
    known: BTreeMap<u32, Umem>,
    /// The umems of an object, each with the place that names it.
    users: HashMap<ObjectId, Vec<(Field, u32)>>,
}

impl Default for Umems {
    fn default() -> Self {
        let numbers = Numbers::new("umem", 1..1 << 24);
        Self { numbers, known: BTreeMap::new(), users: HashMap::new() }
    }
}

impl Umems {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether a user context has memory.
    pub(super) fn has_owner(&self, uid: u16) -> bool {
        self.known.values().any(|umem| umem.owner == uid)
    }

    /// Records that a command has put an object, or a part of it, in these places.
    pub(super) fn hold(&mut self, command: &Command<'_>, object: ObjectId, places: &[&Place]) {
        let used = self.users.entry(object).or_default();
        for place in places {
            used.retain(|(before, _)| *before != place.id);
            if is_in_umem(command, place) {
                used.push((place.id, command.get32(place.id)));
            }
        }
        if used.is_empty() {
            self.users.remove(&object);
        }
    }

    pub(super) fn release(&mut self, object: ObjectId) {
        self.users.remove(&object);
    }
}

/// The fields of a command with the place of a ring or doorbell record: in the umem `id`, `offset`
/// bytes from its start, if `valid` is set. The driver sets that bit in commands of programs. In
/// the driver's own commands, for verbs, `offset` of a record is an address, and rings are lists of
/// pages.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Whether the place is in a umem.
    pub valid: Field,
    /// Its number.
    pub id: Field,
    /// Bytes from its start.
    pub offset: Field,
}

impl Place {
    /// The ring of a work queue, in its description.
    pub(super) const RING: Self =
        Self { valid: wq::WQ_UMEM_VALID, id: wq::WQ_UMEM_ID, offset: wq::WQ_UMEM_OFFSET };
    /// The doorbell record of a work queue, in its description.
    pub(super) const RECORD: Self =
        Self { valid: wq::DBR_UMEM_VALID, id: wq::DBR_UMEM_ID, offset: wq::DBR_ADDR };

    /// The same place in a context that begins `bit` bits into the command.
    pub const fn at(self, bit: usize) -> Self {
        Self { valid: self.valid.at(bit), id: self.id.at(bit), offset: self.offset.at(bit) }
    }
}

impl Objects {
    /// Registers memory for a user context.
    ///
    /// # Errors
    /// A refusal if there are too many.
    pub fn register_umem(
        &mut self,
        owner: u16,
        memory: PageMap,
        length: u64,
        writable: bool,
    ) -> Result<u32, Refusal> {
        let number = self.umems.numbers.allocate()?;
        self.umems.known.insert(number, Umem { owner, memory, length, writable });
        Ok(number)
    }

    /// Removes registered memory.
    ///
    /// # Errors
    /// A refusal if an object uses it, or if there is none of this number.
    pub fn release_umem(&mut self, number: u32) -> Done {
        if self.umems.users.values().flatten().any(|(_, used)| *used == number) {
            return Err(Refusal::busy("umem", number));
        }
        self.umems.numbers.free(number)?;
        self.umems.known.remove(&number);
        Ok(())
    }
}

impl Firmware<'_> {
    /// A ring: in a umem, or in the pages that the driver lists at `list` bits into the command.
    ///
    /// # Errors
    /// A refusal of any other place.
    pub fn ring(
        &self,
        command: &Command<'_>,
        place: &Place,
        pages: QueuePages,
        list: usize,
        written: bool,
    ) -> Result<PageMap, Refusal> {
        if is_in_umem(command, place) {
            // Whether a page offset is added to the umem's offset is unconfirmed.
            if pages.page_offset != 0 {
                return Err(Refusal::parameter("page_offset of a umem", pages.page_offset));
            }
            let ring = self.part(command, place, pages.length, written)?;
            return aligned(ring, RING, "umem offset", command.get(place.offset));
        }
        pages.read(command, list)
    }

    /// Address of a doorbell record.
    ///
    /// # Errors
    /// A refusal of one outside of its umem.
    pub fn doorbell_record(&self, command: &Command<'_>, place: &Place) -> Result<u64, Refusal> {
        if !is_in_umem(command, place) {
            return Ok(command.get(place.offset));
        }
        let offset = command.get(place.offset);
        let record = self.part(command, place, RECORD, false)?;
        match aligned(record, RECORD, "dbr_addr", offset)?.locate(0, RECORD) {
            Some((address, RECORD)) => Ok(address),
            _ => Err(Refusal::parameter("dbr_addr", offset)),
        }
    }

    /// A part of the umem that a command names.
    pub(super) fn part(
        &self,
        command: &Command<'_>,
        place: &Place,
        length: u64,
        written: bool,
    ) -> Result<PageMap, Refusal> {
        let (number, offset) = (command.get32(place.id), command.get(place.offset));
        let umem = self.objects.umems.known.get(&number);
        let umem = umem.filter(|umem| umem.owner == command.user_context());
        let umem = umem.ok_or_else(|| Refusal::no_such("umem", number))?;
        if offset.checked_add(length).is_none_or(|end| end > umem.length) {
            return Err(Refusal::parameter("umem offset", offset));
        }
        if written && !umem.writable {
            return Err(Refusal::parameter("umem without write permission", number.into()));
        }
        Ok(umem.memory.skip(offset))
    }
}

/// Alignment of a ring, as the unit of page offsets, and alignment and size of a doorbell record.
const RING: u64 = 64;
const RECORD: u64 = 8;

fn aligned(part: PageMap, to: u64, what: &str, offset: u64) -> Result<PageMap, Refusal> {
    match part.locate(0, 1) {
        Some((address, _)) if address % to == 0 => Ok(part),
        _ => Err(Refusal::parameter(what, offset)),
    }
}

/// Refuses parameters that only the driver may use, because they reach beyond the memory of a user
/// context.
pub(super) fn only_driver(command: &Command<'_>, what: &str) -> Done {
    match command.user_context() {
        0 => Ok(()),
        uid => Err(Refusal::parameter(&format!("{what} of a user context"), uid.into())),
    }
}

/// CREATE_UMEM.
pub(super) fn create(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let count = command.get(NUM_OF_MTT);
    let shift = command.get32(LOG_PAGE_SIZE) + 12;
    let first = command.get(PAGE_OFFSET);
    let length = count.checked_shl(shift).filter(|all| all >> shift == count);
    let length = length.and_then(|all| all.checked_sub(first)).filter(|length| *length > 0);
    let length = length.ok_or_else(|| Refusal::parameter("num_of_mtt", count))?;
    let memory = page_list(command, PAGES, shift, first, length)?;
    let writable = command.get(field(PAGES, 64)) & WRITABLE != 0;
    let number =
        firmware.objects.register_umem(command.user_context(), memory, length, writable)?;
    command.reply.set_number(number);
    Ok(())
}

/// DESTROY_UMEM.
pub(super) fn destroy(firmware: &mut Firmware<'_>, command: &mut Command<'_>) -> Done {
    let owner = firmware.objects.umems.known.get(&command.number()).map(|umem| umem.owner);
    if owner.is_some_and(|owner| ![0, owner].contains(&command.user_context())) {
        return Err(Refusal::no_such("umem", command.number()));
    }
    firmware.objects.release_umem(command.number())
}

/// Whether a command has its memory in a umem. UCX creates receive memory pools from a user context
/// without the bit that says so (`uct_rc_mlx5_devx_init_rx_common` in rc_mlx5_devx.c). The kernel
/// also creates queues for user contexts, with lists of pages and without a umem number. How a
/// ConnectX distinguishes the two is unconfirmed.
fn is_in_umem(command: &Command<'_>, place: &Place) -> bool {
    let is_named = command.user_context() != 0 && command.get32(place.id) != 0;
    command.is_set(place.valid) || is_named
}
