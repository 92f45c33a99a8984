//! Firmware commands, memory for their queues, and completion queues that they create.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use crate::common::PATIENCE;
use uverbs::devx::{Devx, DevxObject, DevxUar, Umem, UmemOptions};
use uverbs::{AccessFlags, Context, MemoryRegion};
use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::command::{
    create_cq_in, create_mkey_in, header, object,
};
use uverbs_soft_adapter::firmware::layout::context::{cqc, mkc};

/// Offset in bits of the context in commands about CQs and keys.
pub(crate) const CONTEXT: usize = 0x80;

/// The DEVX commands of a context.
pub(crate) fn commands(context: &Context) -> Devx {
    // SAFETY: the tests' objects use registered memory, which outlives them.
    unsafe { context.devx() }
}

pub(crate) struct Input(pub(crate) Vec<u8>);

impl Input {
    pub(crate) fn new(opcode: u64, length: usize) -> Self {
        Self(vec![0; length]).set(header::OPCODE, opcode)
    }

    pub(crate) fn set(mut self, field: Field, value: impl Into<u64>) -> Self {
        field.set(&mut self.0, value.into());
        self
    }
}

/// Page-aligned memory that the device writes: it is only accessed through raw pointers.
pub(crate) struct Memory {
    pub(crate) base: NonNull<u8>,
    pub(crate) umem: Umem,
}

const PAGE: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

impl Memory {
    pub(crate) fn new(devx: &Devx) -> Self {
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(PAGE) }).unwrap();
        let umem = devx.register_umem(&UmemOptions {
            start: base.as_ptr() as u64,
            length: PAGE.size(),
            access: AccessFlags::LOCAL_WRITE,
            page_sizes: None,
            dma_buf: None,
        });
        Self { base, umem: umem.unwrap() }
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAGE.size());
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: inside the allocation; there are no references into it.
            unsafe { self.base.as_ptr().add(at).write_volatile(*byte) };
        }
    }

    pub(crate) fn byte(&self, offset: usize) -> u8 {
        assert!(offset < PAGE.size());
        // SAFETY: as in `put`.
        unsafe { self.base.as_ptr().add(offset).read_volatile() }
    }

    /// Stores a big-endian word in one access, as the device reads doorbell records.
    pub(crate) fn record(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= PAGE.size() && offset % 4 == 0);
        // SAFETY: as in `put`, and aligned.
        unsafe { self.base.as_ptr().add(offset).cast::<u32>().write_volatile(value.to_be()) };
    }

    /// Publishes the first `count` receives.
    pub(crate) fn publish_receives(&self, count: usize) {
        fence(Ordering::SeqCst);
        self.record(RECORD, count as u32);
    }

    /// Publishes the first `count` sends; the last one begins with `control`.
    pub(crate) fn publish_sends(&self, count: usize, control: [u8; 8], uar: &DevxUar) {
        fence(Ordering::SeqCst);
        self.record(RECORD + 4, count as u32);
        fence(Ordering::SeqCst);
        let register = uar.register().cast::<u64>();
        // SAFETY: the register is mapped as long as the page exists.
        unsafe { register.write_volatile(u64::from_ne_bytes(control)) };
    }
}

/// Creates an object, and returns it with its number.
pub(crate) fn create(devx: &Devx, input: &Input) -> (DevxObject, u32) {
    let mut answer = [0; 16];
    let object = devx.create(&input.0, &mut answer).unwrap();
    (object, object::NUMBER.get32(&answer))
}

/// CREATE_MKEY for the first `length` bytes of the memory.
pub(crate) fn key_input(memory: &Memory, pd: u32, length: u64) -> Input {
    Input::new(0x200, 272)
        .set(create_mkey_in::PG_ACCESS, 1u64)
        .set(create_mkey_in::MKEY_UMEM_ID, memory.umem.id())
        .set(create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 1u64)
        .set(mkc::ACCESS_MODE_1_0.at(CONTEXT), 1u64)
        .set(mkc::LR.at(CONTEXT), 1u64)
        .set(mkc::LW.at(CONTEXT), 1u64)
        .set(mkc::QPN.at(CONTEXT), 0xff_ffffu64)
        .set(mkc::MKEY_7_0.at(CONTEXT), KEY_VARIANT)
        .set(mkc::PD.at(CONTEXT), pd)
        .set(mkc::START_ADDR.at(CONTEXT), memory.base.as_ptr() as u64)
        .set(mkc::LEN.at(CONTEXT), length)
        .set(mkc::TRANSLATIONS_OCTWORD_SIZE.at(CONTEXT), 1u64)
}

/// The low byte of keys.
pub(crate) const KEY_VARIANT: u32 = 0x5a;

/// Deregisters the memory, then frees it.
pub(crate) fn free(memory: Memory) {
    let Memory { base, umem } = memory;
    umem.destroy().unwrap();
    // SAFETY: allocated with this layout, and no longer registered.
    unsafe { dealloc(base.as_ptr(), PAGE) };
}

/// Offset of the doorbell of completion queues in a page of registers.
const CQ_DOORBELL: usize = 0x20;
pub(crate) const LOG_CQES: u64 = 4;
pub(crate) const RECORD: usize = 2048;

/// A completion queue: its ring, and the doorbell record in the same page.
pub(crate) struct Cq {
    pub(crate) object: DevxObject,
    pub(crate) number: u32,
    pub(crate) memory: Memory,
    pub(crate) consumed: usize,
}

impl Cq {
    pub(crate) fn input(devx: &Devx, uar: &DevxUar, memory: &Memory) -> Input {
        Input::new(0x400, 272)
            .set(create_cq_in::CQ_UMEM_ID, memory.umem.id())
            .set(cqc::DBR_UMEM_ID.at(CONTEXT), memory.umem.id())
            .set(cqc::DBR_ADDR.at(CONTEXT), RECORD as u64)
            .set(cqc::LOG_CQ_SIZE.at(CONTEXT), LOG_CQES)
            .set(cqc::UAR_PAGE.at(CONTEXT), uar.id())
            .set(cqc::C_EQN_OR_APU_ELEMENT.at(CONTEXT), devx.event_queue(0).unwrap())
    }

    pub(crate) fn new(devx: &Devx, uar: &DevxUar) -> Self {
        let memory = Memory::new(devx);
        (0..1 << LOG_CQES).for_each(|slot| memory.put(slot * 64 + 63, &[0xf1]));
        let (object, number) = create(devx, &Self::input(devx, uar, &memory));
        Self { object, number, memory, consumed: 0 }
    }

    /// Requests an event at the next completion: writes the record's second word, then the
    /// doorbell.
    pub(crate) fn arm(&self, sequence: usize, uar: &DevxUar) {
        let word = (sequence as u32 & 3) << 28 | self.consumed as u32;
        self.memory.record(RECORD + 4, word);
        fence(Ordering::SeqCst);
        let doorbell = u64::from(word) << 32 | u64::from(self.number);
        let register = uar.base().wrapping_add(CQ_DOORBELL).cast::<u64>();
        // SAFETY: the register is mapped as long as the page exists.
        unsafe { register.write_volatile(doorbell.to_be()) };
    }

    /// Destroys the queue, and frees its memory.
    pub(crate) fn close(self) {
        self.object.destroy().unwrap();
        free(self.memory);
    }

    /// Waits for the next completion and returns its opcode.
    pub(crate) fn opcode(&mut self) -> u8 {
        let start = Instant::now();
        loop {
            if let Some(opcode) = self.poll() {
                return opcode;
            }
            assert!(start.elapsed() < PATIENCE, "no completion came");
            std::thread::yield_now();
        }
    }

    /// The opcode of the next completion, if there is one.
    pub(crate) fn poll(&mut self) -> Option<u8> {
        let slot = self.consumed & ((1 << LOG_CQES) - 1);
        let owner = (self.consumed >> LOG_CQES & 1) as u8;
        let op_own = self.memory.byte(slot * 64 + 63);
        if op_own >> 4 == 0xf || op_own & 1 != owner {
            return None;
        }
        self.consumed += 1;
        self.memory.record(RECORD, self.consumed as u32);
        Some(op_own >> 4)
    }
}

/// The data segment of a whole region.
pub(crate) fn segment(region: &MemoryRegion) -> [u8; 16] {
    let sge = region.sge(0, region.len()).unwrap();
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&(region.len() as u32).to_be_bytes());
    bytes[4..8].copy_from_slice(&sge.lkey().to_be_bytes());
    bytes[8..].copy_from_slice(&sge.address().to_be_bytes());
    bytes
}
