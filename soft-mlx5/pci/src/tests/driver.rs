//! The lowest layer of a driver: guest memory, commands, queues.

use std::os::fd::{AsFd, OwnedFd};

use uverbs_mlx5_format::{Cqe, CqeOpcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::bits::{Field, field};
use crate::layout::command::{header, object, result};
use crate::layout::context::{cqc, eqc, mkc};
use crate::{Cable, DmaRegion, Function, GuestMemory, PciDevice, Region, Settings, Trace};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::memory::HostMemory;
use uverbs_soft::sealed::sealed_memory;

const BASE: u64 = 0x1000_0000;
const SIZE: u64 = 16 << 20;
const PAGE: u64 = 4096;
/// Offset of the page list in creation commands, in bits.
const PAGES: usize = 0x880;
/// Bytes of a mailbox's data, and the offset of the fields after them.
const BLOCK: usize = 512;
const BLOCK_TAIL: u64 = 560;

/// A command's input.
#[derive(Clone)]
pub(super) struct Input(Vec<u8>);

impl Input {
    pub(super) fn new(opcode: u64, length: usize) -> Self {
        Self(vec![0; length]).set(header::OPCODE, opcode)
    }

    pub(super) fn set(mut self, field: Field, value: u64) -> Self {
        field.set(&mut self.0, value);
        self
    }

    pub(super) fn number(self, number: u32) -> Self {
        self.set(object::NUMBER, u64::from(number))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends an entry of a page list at the end of the fields.
    pub(super) fn page(mut self, address: u64) -> Self {
        self.0.extend_from_slice(&address.to_be_bytes());
        self
    }

    /// Appends the page list of a creation command.
    pub(super) fn pages(mut self, first: u64, bytes: u64) -> Self {
        self.0.resize(PAGES / 8, 0);
        for page in 0..bytes.div_ceil(PAGE) {
            self.0.extend_from_slice(&(first + page * PAGE).to_be_bytes());
        }
        self
    }
}

/// Status and syndrome of a refused command.
pub(super) type Refused = (u64, u64);

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) number: u32,
    pub(super) ring: u64,
    record: u64,
    consumer: u32,
}

const LOG_CQES: u32 = 6;

/// A driver and its device.
pub(super) struct Driver {
    pub(super) device: PciDevice,
    pub(super) memory: GuestMemory,
    next: u64,
    commands: u64,
    mailboxes: u64,
    pub(super) uar: u32,
    pub(super) eq: u32,
    pub(super) pd: u32,
    /// A key over all of guest memory.
    pub(super) lkey: u32,
}

impl Driver {
    /// A device that the driver has discovered on the bus.
    pub(super) fn found(settings: Settings) -> Self {
        Self::plugged(settings, Cable::default())
    }

    pub(super) fn plugged(settings: Settings, cable: Cable) -> Self {
        let file = sealed_memory(c"guest", SIZE as usize).unwrap();
        let region = || DmaRegion { address: BASE, size: SIZE, offset: 0, writable: true };
        let memory = GuestMemory::default();
        memory.map(&region(), &file).unwrap();
        let mut device = PciDevice::new(settings, Trace::default()).plug(cable);
        let shared: OwnedFd = file.as_fd().try_clone_to_owned().unwrap();
        device.dma_map(&region(), Some(shared)).unwrap();
        let mut driver = Self {
            device,
            memory,
            next: BASE,
            commands: 0,
            mailboxes: 0,
            uar: 0,
            eq: 0,
            pd: 0,
            lkey: 0,
        };
        driver.commands = driver.alloc(PAGE);
        driver.mailboxes = driver.alloc(16 * PAGE);
        driver.device.write(Region::Config, 4, &[6, 0]);
        driver.store(0x10, ((driver.commands >> 32) as u32).to_be_bytes());
        driver.store(0x14, (driver.commands as u32).to_be_bytes());
        driver
    }

    /// A device ready for objects, with a UAR, an event queue, a protection domain and a key over
    /// all memory.
    pub(super) fn ready(settings: Settings, cable: Cable) -> Self {
        let mut driver = Self::plugged(settings, cable);
        driver.done(Input::new(0x104, 16), 8);
        driver.done(Input::new(0x10b, 16).set(field(0x50, 16), 1), 8);
        driver.done(Input::new(0x102, 8), 8);
        driver.uar = driver.create(Input::new(0x802, 8));
        driver.eq = driver.create_eq();
        driver.pd = driver.create(Input::new(0x800, 8));
        driver.lkey = driver.create_key() << 8;
        driver
    }

    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(PAGE);
        assert!(self.next <= BASE + SIZE);
        at
    }

    fn store(&mut self, offset: u64, word: [u8; 4]) {
        self.device.write(Region::Bar0, offset, &word);
    }

    /// Executes a command through the command queue, with an output of `output` bytes.
    pub(super) fn command(&mut self, input: Input, output: usize) -> Result<Vec<u8>, Refused> {
        let input = input.0;
        let (head, rest) = input.split_at(input.len().min(16));
        let first = self.mailboxes;
        let second = first + self.chain(first, rest.len(), rest);
        let back = output.saturating_sub(16);
        self.chain(second, back, &[]);
        let mut descriptor = vec![0; 64];
        descriptor[0] = 7;
        descriptor[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        descriptor[8..16].copy_from_slice(&first.to_be_bytes());
        descriptor[16..16 + head.len()].copy_from_slice(head);
        descriptor[48..56].copy_from_slice(&second.to_be_bytes());
        descriptor[56..60].copy_from_slice(&(output as u32).to_be_bytes());
        descriptor[60] = TOKEN;
        descriptor[63] = 1;
        self.memory.write(self.commands, &descriptor).unwrap();
        self.store(0x18, 1u32.to_be_bytes());
        let descriptor = self.bytes(self.commands, 64);
        assert_eq!(descriptor[63], 0, "delivered, and handed back");
        let mut reply = descriptor[32..48].to_vec();
        for block in 0..back.div_ceil(BLOCK) {
            reply.extend(self.bytes(second + block as u64 * 1024, BLOCK as u64));
        }
        reply.truncate(output);
        match result::STATUS.get(&reply) {
            0 => Ok(reply),
            status => Err((status, result::SYNDROME.get(&reply))),
        }
    }

    /// Writes a chain of mailboxes with `data`, and returns the chain's length in bytes.
    fn chain(&mut self, at: u64, length: usize, data: &[u8]) -> u64 {
        let count = length.div_ceil(BLOCK) as u64;
        for number in 0..count {
            let address = at + number * 1024;
            let mut tail = [0; 16];
            tail[..8].copy_from_slice(&(address + 1024).to_be_bytes());
            tail[8..12].copy_from_slice(&(number as u32).to_be_bytes());
            tail[13] = TOKEN;
            self.memory.write(address + BLOCK_TAIL, &tail).unwrap();
        }
        for (number, block) in data.chunks(BLOCK).enumerate() {
            self.memory.write(at + number as u64 * 1024, block).unwrap();
        }
        count * 1024
    }

    /// Executes a command that must succeed.
    pub(super) fn done(&mut self, input: Input, output: usize) -> Vec<u8> {
        let opcode = header::OPCODE.get(&input.0);
        let result = self.command(input, output);
        result.unwrap_or_else(|refused| panic!("{opcode:#x}: {refused:x?}"))
    }

    /// Executes a creation. Returns the object's number.
    pub(super) fn create(&mut self, input: Input) -> u32 {
        object::NUMBER.get32(&self.done(input, 16))
    }

    fn create_eq(&mut self) -> u32 {
        let ring = self.alloc(PAGE);
        (0..64).for_each(|slot| self.memory.write(ring + slot * 64 + 63, &[1]).unwrap());
        let input = Input::new(0x301, 272)
            .set(eqc::LOG_EQ_SIZE.at(0x80), 6)
            .set(eqc::UAR_PAGE.at(0x80), self.uar.into())
            .pages(ring, PAGE);
        self.create(input) & 0xff
    }

    fn create_key(&mut self) -> u32 {
        let rights = [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A, mkc::LENGTH64];
        let input = Input::new(0x200, 272)
            .set(mkc::PD.at(0x80), self.pd.into())
            .set(mkc::QPN.at(0x80), 0xff_ffff);
        let input = rights.into_iter().fold(input, |input, right| input.set(right.at(0x80), 1));
        self.create(input)
    }

    pub(super) fn create_cq(&mut self) -> Cq {
        self.create_cq_with(|input| input)
    }

    /// A CQ with the context fields that `change` sets.
    pub(super) fn create_cq_with(&mut self, change: impl FnOnce(Input) -> Input) -> Cq {
        let ring = self.alloc(64 << LOG_CQES);
        for slot in 0..1 << LOG_CQES {
            self.memory.write(ring + slot * 64, Cqe::unwritten().as_bytes()).unwrap();
        }
        let record = self.alloc(8);
        let input = Input::new(0x400, 272)
            .set(cqc::LOG_CQ_SIZE.at(0x80), LOG_CQES.into())
            .set(cqc::UAR_PAGE.at(0x80), self.uar.into())
            .set(cqc::C_EQN_OR_APU_ELEMENT.at(0x80), self.eq.into())
            .set(cqc::DBR_ADDR.at(0x80), record)
            .pages(ring, 64 << LOG_CQES);
        Cq { number: self.create(change(input)), ring, record, consumer: 0 }
    }

    pub(super) fn poll(&self, cq: &mut Cq) -> Option<Cqe> {
        let slot = u64::from(cq.consumer & ((1 << LOG_CQES) - 1));
        let cqe = Cqe::read_from_bytes(&self.bytes(cq.ring + slot * 64, 64)).unwrap();
        if !cqe.op_own.is_software(cq.consumer, LOG_CQES) {
            return None;
        }
        cq.consumer += 1;
        self.memory.write(cq.record, &cq.consumer.to_be_bytes()).unwrap();
        assert_ne!(cqe.op_own.opcode(), CqeOpcode::REQUESTER_ERROR);
        assert_ne!(cqe.op_own.opcode(), CqeOpcode::RESPONDER_ERROR);
        Some(cqe)
    }

    /// A doorbell: the first eight bytes of a WQE into the BlueFlame register.
    pub(super) fn doorbell(&mut self, wqe: &[u8]) {
        self.device.write(Region::Bar0, u64::from(self.uar) * PAGE + 0x800, &wqe[..8]);
    }

    pub(super) fn bytes(&self, address: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.memory.read(address, &mut bytes).unwrap();
        bytes
    }
}

const TOKEN: u8 = 0x5a;

/// Steps the devices until `done` returns true. The number of steps is bounded, not the time.
pub(super) fn run(drivers: &mut [Driver], mut done: impl FnMut(&mut [Driver]) -> bool) {
    for _ in 0..10_000 {
        for driver in drivers.iter_mut() {
            let _ = driver.device.step();
        }
        if done(drivers) {
            return;
        }
    }
    panic!("nothing happened");
}

pub(super) fn settings(link: LinkLayer) -> Settings {
    match link {
        LinkLayer::InfiniBand => Settings::infiniband(0x0002_c903_0000_0100, 1),
        LinkLayer::Ethernet => Settings::ethernet(0x0002_c903_0000_0100),
    }
}
