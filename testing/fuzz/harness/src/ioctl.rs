//! Sequences of arbitrary requests to the character device, with mmap(2), doorbells and event files
//! between them, then close. Checks that nothing panics and that no object and no file descriptor
//! is left.
//!
//! A program's request may contain any address, but here the device would overwrite this process's
//! memory at a wrong one. So every address is in an arena at a fixed address, or is not mapped.
//!
//! All calls run one after the other, because the file descriptors of the process are counted.

use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use arbitrary::{Result, Unstructured};
use uverbs_soft::chardev::{Errno, Kernel, OpenFile, SoftDevice};
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr};
use uverbs_uapi::mlx5::{self, LibCaps};
use uverbs_uapi::objects::device;
use uverbs_uapi::objects::{self, AttrId, AttrInfo, AttrKind, MethodId, ObjectId};
use uverbs_uapi::write::WriteCmd;
use zerocopy::IntoBytes;

use crate::arena::{ARENA, Arena, QUEUES, SIZE};
use crate::requests;

/// The input chooses a device and what a program does with it.
pub fn run(data: &[u8]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut u = Unstructured::new(data);
    let devices = devices();
    let device = &devices[u.choose_index(devices.len()).unwrap_or(0)];
    let before = (counts(device), descriptors());
    let mut program = Program::new(device);
    if u.ratio(7, 8).unwrap_or(true) {
        program.get_context();
    }
    for _ in 0..60 {
        if u.is_empty() || program.turn(&mut u).is_err() {
            break;
        }
    }
    let granted = program.granted;
    drop(program);
    assert_eq!(counts(device), before.0, "objects are left");
    close_granted(&before.1, granted);
}

/// One device of each kind, created once, because starting a thread per input would take most of
/// the time.
fn devices() -> &'static [SoftDevice] {
    static DEVICES: OnceLock<Vec<SoftDevice>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let builder = || SoftDevice::builder("fuzz0").without_wire().locked_memory(1 << 24);
        let devices = [
            builder(),
            builder().infiniband().srq_resize(true).send_queue_drain(true),
            builder().kernel(Kernel::STATIC_UAR),
            builder().kernel(Kernel { devx: false, ..Kernel::CURRENT }),
        ];
        devices.map(|builder| builder.build().expect("the device starts")).into()
    })
}

fn counts(device: &SoftDevice) -> uverbs_soft::core::Counts {
    device.inspect(|core| core.counts()).expect("the device runs here")
}

/// Descriptors below 256 that are open.
fn descriptors() -> Vec<i32> {
    // SAFETY: queries flags; the descriptor need not be open.
    (0..256).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

/// Closes the descriptors that the program has got; there must be no other new ones.
fn close_granted(before: &[i32], granted: usize) {
    let new: Vec<i32> = descriptors().into_iter().filter(|fd| !before.contains(fd)).collect();
    assert!(new.len() <= granted, "{} descriptors for {granted} event files", new.len());
    for fd in new {
        // SAFETY: queries flags, and closes a descriptor that only this run uses.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY, "a descriptor of the device's own");
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

/// A program with the device open.
struct Program {
    file: OpenFile,
    arena: &'static Arena,
    /// Event files that calls have opened, if their numbers are known.
    events: Vec<i32>,
    /// Calls that may have opened an event file.
    granted: usize,
    /// Pages mapped, and whether they can be written.
    mappings: Vec<(*mut libc::c_void, usize, bool)>,
    /// Offsets for mmap(2) that calls have returned.
    offsets: Vec<u64>,
}

impl Program {
    fn new(device: &SoftDevice) -> Self {
        let arena = Arena::get();
        arena.clear();
        Self {
            file: device.open(),
            arena,
            events: Vec::new(),
            granted: 0,
            mappings: Vec::new(),
            offsets: Vec::new(),
        }
    }

    fn get_context(&mut self) {
        let request = mlx5::AllocUcontextReqV2 {
            total_num_bfregs: 16,
            num_low_latency_bfregs: 4,
            max_cqe_version: 1,
            lib_caps: LibCaps::UAR_4K | LibCaps::DYN_UAR,
            ..mlx5::AllocUcontextReqV2::default()
        };
        let mut call = Call::new(device::OBJECT, device::get_context::METHOD, self.arena);
        call.output(device::get_context::NUM_COMP_VECTORS.id(), 4);
        call.output(device::get_context::CORE_SUPPORT.id(), 8);
        call.input(device::get_context::UHW_IN.id(), request.as_bytes());
        call.output(device::get_context::UHW_OUT.id(), 72);
        self.issue(call).expect("every device gives a context");
    }

    fn turn(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15)? {
            0..=3 => self.native(u)?,
            4..=5 => self.write(u)?,
            6..=11 => self.sensible(u)?,
            12 => self.map(u)?,
            13 => self.ring(u)?,
            14 => self.read_event(u)?,
            _ => {
                let at = u.int_in_range(0..=QUEUES - 256)?;
                let bytes = u.bytes(u.len().min(256))?;
                self.arena.put(at, bytes);
            }
        }
        Ok(())
    }

    /// Runs a call and remembers what it returned.
    fn issue(&mut self, call: Call) -> std::result::Result<(), Errno> {
        // Read these from the final request, which `spoil` may have changed.
        let (object, method) = (call.header.object_id, call.header.method_id);
        let command = call.write_command();
        let outputs = call.outputs.clone();
        let opened = call.new_file();
        let header = call.place();
        // SAFETY: the request's pointers are into the arena, which is never unmapped and to which
        // no reference exists, or are not mapped (`Arena::harmless`).
        unsafe { self.file.ioctl(header) }?;
        let writes = object == device::OBJECT && method == device::invoke_write::METHOD;
        if let Some(place) = opened {
            self.granted += 1;
            self.events.push(self.arena.word(header.addr() - ARENA + 24 + 16 * place + 8) as i32);
        }
        if writes && matches!(command, WriteCmd::GET_CONTEXT | WriteCmd::CREATE_COMP_CHANNEL) {
            self.granted += 1;
            self.events.extend(outputs.first().map(|at| self.arena.word(*at) as i32));
        }
        self.offsets.extend(outputs.iter().map(|at| self.arena.word(*at)));
        self.offsets.truncate(64);
        Ok(())
    }

    /// Calls a method of the tables with arbitrary attributes.
    fn native(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let all: Vec<_> = objects::all(DriverId::MLX5).collect();
        let object = u.choose(&all)?;
        if object.methods.is_empty() {
            return Ok(());
        }
        let method = u.choose(object.methods)?.id;
        let mut call = Call::new(object.id, method, self.arena);
        for info in objects::attributes(DriverId::MLX5, object.id, method) {
            if u.ratio(if info.required { 15 } else { 6 }, 16)? {
                self.attribute(u, &mut call, info)?;
            }
        }
        call.spoil(u)?;
        let _ = self.issue(call);
        Ok(())
    }

    fn attribute(&self, u: &mut Unstructured<'_>, call: &mut Call, info: &AttrInfo) -> Result<()> {
        match info.kind {
            AttrKind::Out => {
                let length = *u.choose(&[4, 8, 8, 16, 40, 72, 300, 0, 4096])?;
                call.output(info.id, length);
            }
            AttrKind::Const | AttrKind::Flags => {
                let value: u64 = requests::number(u)?.into();
                call.input(info.id, value.as_bytes());
            }
            AttrKind::Handle => call.attribute(info.id, 0, u.int_in_range(0..=12)?),
            AttrKind::NewHandle | AttrKind::NewFd => call.attribute(info.id, 0, 0),
            AttrKind::Fd | AttrKind::RawFd => {
                let known = if self.events.is_empty() { -1 } else { *u.choose(&self.events)? };
                call.attribute(info.id, 0, known as i64 as u64);
            }
            AttrKind::In | AttrKind::Enum | AttrKind::Handles => {
                let length = *u.choose(&[4, 4, 8, 8, 20, 32, 24, 0, 56, 112, 200])?;
                let bytes = requests::bytes(u, length)?;
                call.input(info.id, &bytes);
            }
        }
        Ok(())
    }

    /// Calls a write command with an arbitrary request.
    fn write(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (command, request, driver) = requests::any_write(u)?;
        let answer = *u.choose(&[64, 64, 8, 256, 0, 4])?;
        let mut call = Call::write(command, &request, &driver, answer, self.arena);
        call.spoil(u)?;
        let _ = self.issue(call);
        Ok(())
    }

    /// Makes a valid request, with at most one change.
    fn sensible(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let channel = self.events.last().copied();
        let mut call = requests::sensible(u, self.arena, channel)?;
        if u.ratio(1, 4)? {
            call.spoil(u)?;
        }
        let _ = self.issue(call);
        Ok(())
    }

    fn map(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let offset = match (u.arbitrary()?, self.offsets.is_empty()) {
            (true, false) => *u.choose(&self.offsets)?,
            _ => {
                let (command, index): (u8, u8) = (u.int_in_range(0..=9)?, u.arbitrary()?);
                let more: u8 = if u.ratio(1, 8)? { u.arbitrary()? } else { 0 };
                (u64::from(more) << 16 | u64::from(command) << 8 | u64::from(index)) << 12
            }
        };
        let length = *u.choose(&[4096, 4096, 4096, 8192, 1, 0, 1 << 20])?;
        let protection = *u.choose(&[1, 2, 3, 3, 0, 7])?;
        let flags = *u.choose(&[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE, 0])?;
        // SAFETY: without `MAP_FIXED`, so no mapping is replaced.
        let mapped =
            unsafe { self.file.mmap(null_mut(), length, protection, flags, offset as i64) };
        if let Ok(address) = mapped {
            self.mappings.push((address, length, protection & libc::PROT_WRITE != 0));
        }
        Ok(())
    }

    /// Stores to a doorbell register.
    fn ring(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let pages: Vec<_> =
            self.mappings.iter().filter(|(_, length, w)| *w && *length >= 4096).collect();
        if pages.is_empty() {
            return Ok(());
        }
        let (address, ..) = **u.choose(&pages)?;
        let register = *u.choose(&[0x800, 0x900, 0x20, 0xa00, 0xb00])?;
        let value: u64 = u.arbitrary()?;
        // SAFETY: inside a page that this program has mapped for writing; the device reads it
        // atomically.
        unsafe { address.cast::<u8>().add(register).cast::<u64>().write_volatile(value | 1) };
        Ok(())
    }

    /// Reads an event without waiting.
    fn read_event(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        let fd = *u.choose(&self.events)?;
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut record = [0u8; 16];
        // SAFETY: one pollfd, a buffer of 16 bytes.
        unsafe {
            if libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 {
                libc::read(fd, record.as_mut_ptr().cast(), record.len());
            }
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for (address, length, _) in self.mappings.drain(..) {
            // SAFETY: mapped by this program and not used any more.
            unsafe { libc::munmap(address, length) };
        }
    }
}

/// Offsets of addresses in the structs of requests: queue buffers, doorbell records, regions.
const POINTERS: [usize; 3] = [0, 8, 40];

/// A request under construction. Payloads are copied into the arena at once.
pub(crate) struct Call {
    object: ObjectId,
    method: MethodId,
    command: WriteCmd,
    header: IoctlHdr,
    attributes: Vec<IoctlAttr>,
    outputs: Vec<usize>,
    arena: &'static Arena,
    /// Offset of the next payload.
    next: usize,
}

impl Call {
    /// Which attribute, if any, gets the descriptor of a file that the call opens.
    fn new_file(&self) -> Option<usize> {
        let (object, method) = (self.header.object_id, self.header.method_id);
        let infos = objects::attributes(DriverId::MLX5, object, method);
        let new: Vec<_> =
            infos.filter(|info| info.kind == AttrKind::NewFd).map(|info| info.id).collect();
        self.attributes.iter().position(|attribute| new.contains(&attribute.attr_id))
    }

    pub(crate) fn new(object: ObjectId, method: MethodId, arena: &'static Arena) -> Self {
        let header = IoctlHdr {
            object_id: object,
            method_id: method,
            driver_id: DriverId::MLX5,
            ..IoctlHdr::default()
        };
        Self {
            object,
            method,
            command: WriteCmd(u32::MAX),
            header,
            attributes: Vec::new(),
            outputs: Vec::new(),
            arena,
            next: QUEUES,
        }
    }

    pub(crate) fn write(
        command: WriteCmd,
        request: &[u8],
        driver: &[u8],
        answer: usize,
        arena: &'static Arena,
    ) -> Self {
        use device::invoke_write as w;
        let mut call = Self::new(device::OBJECT, w::METHOD, arena);
        call.command = command;
        call.output(w::CORE_OUT.id(), answer);
        call.input(w::WRITE_CMD.id(), u64::from(command.0).as_bytes());
        call.input(w::CORE_IN.id(), request);
        if !driver.is_empty() {
            call.input(w::UHW_IN.id(), driver);
            call.output(w::UHW_OUT.id(), 72);
        }
        call
    }

    pub(crate) fn attribute(&mut self, id: AttrId, len: u16, data: u64) {
        let flags = AttrFlags::MANDATORY;
        self.attributes.push(IoctlAttr { attr_id: id, len, flags, enum_id: 0, data });
    }

    /// Up to eight bytes are in the attribute, more in the arena.
    pub(crate) fn input(&mut self, id: AttrId, bytes: &[u8]) {
        let pointers: &[usize] = match (bytes.len(), self.command) {
            (0..=8, _) => &[],
            (_, WriteCmd::REREG_MR) => &[0, 8, 16],
            _ if self.asks_for_a_context() => &[],
            _ => &POINTERS,
        };
        let bytes = self.arena.harmless(bytes, pointers);
        let mut data = [0; 8];
        match data.get_mut(..bytes.len()) {
            Some(short) => short.copy_from_slice(&bytes),
            None => {
                let at = self.take(bytes.len());
                self.arena.put(at, &bytes);
                data = ((ARENA + at) as u64).to_ne_bytes();
            }
        }
        self.attribute(id, bytes.len() as u16, u64::from_ne_bytes(data));
    }

    /// Whether the request opens a context. Its driver part contains no address.
    fn asks_for_a_context(&self) -> bool {
        self.object == device::OBJECT && self.method == device::get_context::METHOD
    }

    pub(crate) fn output(&mut self, id: AttrId, length: usize) {
        let at = self.take(length);
        self.outputs.push(at);
        self.attribute(id, length as u16, (ARENA + at) as u64);
    }

    fn take(&mut self, length: usize) -> usize {
        let at = self.next;
        // Leave a page for the request itself.
        self.next = (at + length.next_multiple_of(8)).min(SIZE - 3 * 4096);
        at.min(SIZE - 3 * 4096)
    }

    /// Changes one thing, mostly.
    pub(crate) fn spoil(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let count = self.attributes.len();
        let at = if count == 0 { 0 } else { u.choose_index(count)? };
        match (u.int_in_range(0..=15)?, self.attributes.get_mut(at)) {
            (0, Some(attribute)) => attribute.len = u.arbitrary()?,
            (1, Some(attribute)) => attribute.data = self.arena.harmless_word(u.arbitrary()?),
            (2, Some(attribute)) => attribute.data = *u.choose(&[0, 8, u64::MAX, 1 << 63])?,
            (3, Some(attribute)) => attribute.attr_id = AttrId(u.arbitrary()?),
            (4, Some(attribute)) => attribute.enum_id = u.arbitrary()?,
            (5, Some(_)) => drop(self.attributes.remove(at)),
            (6, Some(attribute)) => {
                let again = *attribute;
                self.attributes.push(again);
            }
            (7, _) => self.header.reserved1 = u.arbitrary()?,
            (8, _) => self.header.method_id = MethodId(u.arbitrary()?),
            (9, _) => self.header.driver_id = DriverId(u.arbitrary()?),
            (10, Some(attribute)) => attribute.data = (ARENA + SIZE - 4100) as u64,
            _ => {}
        }
        Ok(())
    }

    /// The write command of the request, if it is one.
    fn write_command(&self) -> WriteCmd {
        let id = device::invoke_write::WRITE_CMD.id();
        let named = self.attributes.iter().find(|attribute| attribute.attr_id == id);
        named.map_or(WriteCmd(u32::MAX), |attribute| WriteCmd(attribute.data as u32))
    }

    /// Writes header and attributes into the arena.
    fn place(mut self) -> *mut u8 {
        self.attributes.truncate(100);
        self.header.num_attrs = self.attributes.len() as u16;
        self.header.length = (24 + 16 * self.attributes.len()) as u16;
        let at = SIZE - 3 * 4096;
        self.arena.put(at, self.header.as_bytes());
        self.arena.put(at + 24, self.attributes.as_bytes());
        self.arena.at(at)
    }
}
