//! Redirects libibverbs and libmlx5 to the software device, by replacing the calls that find, open
//! and use a device in their import tables. Nothing else in the libraries is changed, and their
//! data path makes no system call.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::slice::from_raw_parts;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use uverbs_soft::chardev::OpenFile;
use uverbs_uapi::enums::QpState;
use uverbs_uapi::flags::QpAttrMask;
use uverbs_uapi::ioctl::{IoctlAttr, IoctlHdr};
use uverbs_uapi::mlx5::{CreateQp, CreateSrq};
use uverbs_uapi::objects::device::{self, invoke_write};
use uverbs_uapi::objects::{MethodId, ObjectId, qp, srq};
use uverbs_uapi::write::WriteCmd;
use uverbs_uapi::write::qp::ModifyQp;

const NODE: &CStr = c"/dev/infiniband/uverbs0";
/// A character device that every user may open, in place of the node. libibverbs compares its
/// number with that in sysfs.
const STAND_IN: &CStr = c"/dev/null";
pub(crate) const STAND_IN_NUMBER: &str = "1:3";

static FILE: OnceLock<OpenFile> = OnceLock::new();
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// libmlx5's part of the request that created its last QP.
static CREATED: Mutex<Option<CreateQp>> = Mutex::new(None);

/// The user index of libmlx5's last SRQ.
static SRQ_INDEX: AtomicU32 = AtomicU32::new(0);

/// Libraries whose calls are replaced.
const LIBRARIES: [&str; 3] = ["libibverbs.so", "libmlx5.so", "libnl-3.so"];

const HOOKS: [(&CStr, *const c_void); 5] = [
    (c"open", open as *const c_void),
    (c"stat", stat as *const c_void),
    (c"ioctl", ioctl as *const c_void),
    (c"mmap", mmap as *const c_void),
    (c"socket", socket as *const c_void),
];

fn refuse(errno: c_int) -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

unsafe fn stand_in(path: *const c_char) -> *const c_char {
    // SAFETY: C's contract: a string.
    if unsafe { CStr::from_ptr(path) } == NODE { STAND_IN.as_ptr() } else { path }
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's contract, or a string of ours.
    let (real, fd) = unsafe {
        let real = stand_in(path);
        (real, libc::open(real, flags, mode))
    };
    if real != path {
        DESCRIPTOR.store(fd, Ordering::Relaxed);
    }
    fd
}

unsafe extern "C" fn stat(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller's contract, or a string of ours.
    unsafe { libc::stat(stand_in(path), out) }
}

fn device_file(fd: c_int) -> Option<&'static OpenFile> {
    FILE.get().filter(|_| fd >= 0 && fd == DESCRIPTOR.load(Ordering::Relaxed))
}

unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(file) = device_file(fd) else {
        // SAFETY: the caller's contract.
        return unsafe { libc::ioctl(fd, request, argument) };
    };
    // SAFETY: libibverbs sends this descriptor only RDMA_VERBS_IOCTL, whose argument is a header
    // with attributes.
    unsafe { note_creation(argument.cast()) };
    // SAFETY: as above.
    if unsafe { starts_sending(argument.cast()) } {
        return 0;
    }
    // SAFETY: as above.
    match unsafe { file.ioctl(argument.cast()) } {
        Ok(()) => 0,
        Err(errno) => refuse(errno as c_int),
    }
}

/// The request's object and method, and its attributes.
///
/// # Safety
/// `header` is that of a request with its attributes, which no other code uses meanwhile.
unsafe fn parts<'a>(header: *mut IoctlHdr) -> (ObjectId, MethodId, &'a [IoctlAttr]) {
    // SAFETY: the caller vouches for the header, and as many attributes follow it.
    unsafe {
        let IoctlHdr { object_id, method_id, num_attrs, .. } = header.read_unaligned();
        let attributes = from_raw_parts(header.add(1).cast::<IoctlAttr>(), num_attrs.into());
        (object_id, method_id, attributes)
    }
}

/// Records the request for a new queue pair, or the user index of a new SRQ.
///
/// # Safety
/// As for [`parts`].
unsafe fn note_creation(header: *mut IoctlHdr) {
    // SAFETY: the caller's promise.
    let (object, method, attributes) = unsafe { parts(header) };
    let data = |id| attributes.iter().find(|given| given.attr_id == id).map(|given| given.data);
    let Some(driver) = data(qp::create::UHW_IN.id()) else { return };
    if (object, method) == (qp::OBJECT, qp::create::METHOD) {
        // SAFETY: libmlx5 passes a pointer to a whole `struct mlx5_ib_create_qp`.
        let request = unsafe { (driver as *const CreateQp).read_unaligned() };
        *CREATED.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
    }
    if (object, method) == (srq::OBJECT, srq::create::METHOD) {
        // SAFETY: libmlx5 passes a pointer to a whole `struct mlx5_ib_create_srq`.
        let request = unsafe { (driver as *const CreateSrq).read_unaligned() };
        SRQ_INDEX.store(request.uidx, Ordering::Relaxed);
    }
}

/// Whether the request moves a queue pair to RTS. It is not passed to the device, which would then
/// read the doorbell record once, and send the requests that libmlx5 has posted by then.
///
/// # Safety
/// As for [`parts`].
unsafe fn starts_sending(header: *mut IoctlHdr) -> bool {
    // SAFETY: the caller's promise.
    let (object, method, attributes) = unsafe { parts(header) };
    let data = |id| attributes.iter().find(|given| given.attr_id == id).map(|given| given.data);
    let command = data(invoke_write::WRITE_CMD.id());
    if (object, method) != (device::OBJECT, invoke_write::METHOD)
        || command != Some(WriteCmd::MODIFY_QP.0.into())
    {
        return false;
    }
    let Some(request) = data(invoke_write::CORE_IN.id()) else { return false };
    // SAFETY: libibverbs passes a pointer to a whole `struct ib_uverbs_modify_qp`.
    let request = unsafe { (request as *const ModifyQp).read_unaligned() };
    request.attr_mask.contains(QpAttrMask::STATE) && request.qp_state == QpState::RTS
}

/// libmlx5's part of the request that created its last QP.
pub(crate) fn created() -> CreateQp {
    let created = *CREATED.lock().unwrap_or_else(PoisonError::into_inner);
    created.expect("libmlx5 has created one")
}

/// The user index of the SRQ that was created last.
pub(crate) fn srq_index() -> u32 {
    SRQ_INDEX.load(Ordering::Relaxed)
}

/// Replaces writable pages, which are doorbell registers, by plain memory, so that the device gets
/// no doorbells.
unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let Some(file) = device_file(fd) else {
        // SAFETY: the caller's contract.
        return unsafe { libc::mmap(address, length, protection, flags, fd, offset) };
    };
    if protection & libc::PROT_WRITE != 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, at an address that the kernel chooses.
        return unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    }
    // SAFETY: the caller's contract.
    unsafe { file.mmap(address, length, protection, flags, offset) }.unwrap_or_else(|errno| {
        refuse(errno as c_int);
        libc::MAP_FAILED
    })
}

/// Hides the machine's real devices.
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        return refuse(libc::EPROTONOSUPPORT);
    }
    // SAFETY: no pointers are passed.
    unsafe { libc::socket(domain, kind, protocol) }
}

/// Redirects the loaded libraries to `file`. Call it once per process.
pub(crate) fn install(file: OpenFile) {
    assert!(FILE.set(file).is_ok(), "installed once");
    // SAFETY: the callback keeps to `dl_iterate_phdr`'s contract.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
}

/// Tags of the dynamic section (elf.h).
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: [u8; 4],
    value: [u64; 2],
}

/// Relocation types that fill a table of imports (`R_*_GLOB_DAT`, `R_*_JUMP_SLOT`).
#[cfg(target_arch = "x86_64")]
const IMPORTS: [u32; 2] = [6, 7];
#[cfg(not(target_arch = "x86_64"))]
const IMPORTS: [u32; 2] = [1025, 1026];

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid entry, whose strings and headers live as long as the
    // library.
    let (info, name) = unsafe { (&*info, CStr::from_ptr((*info).dlpi_name).to_string_lossy()) };
    if LIBRARIES.iter().any(|library| name.contains(library)) {
        for i in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: within the library's headers.
            let header = unsafe { &*info.dlpi_phdr.add(i) };
            if header.p_type == libc::PT_DYNAMIC {
                let base = info.dlpi_addr as usize;
                // SAFETY: the dynamic section of a loaded library.
                unsafe { patch(base, (base + header.p_vaddr as usize) as *const Dynamic) };
            }
        }
    }
    0
}

/// # Safety
/// `dynamic` is the dynamic section of a library that is loaded at `base`.
unsafe fn patch(base: usize, mut dynamic: *const Dynamic) {
    let (mut strings, mut symbols, mut tables) = (0, 0, [(0, 0); 2]);
    // SAFETY: the section ends with a tag of 0.
    unsafe {
        while (*dynamic).tag != 0 {
            let Dynamic { tag, value } = *dynamic;
            match tag {
                DT_STRTAB => strings = value,
                DT_SYMTAB => symbols = value,
                DT_RELA => tables[0].0 = value,
                DT_RELASZ => tables[0].1 = value,
                DT_JMPREL => tables[1].0 = value,
                DT_PLTRELSZ => tables[1].1 = value,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
    }
    for (table, bytes) in tables {
        for i in 0..bytes / size_of::<Relocation>() {
            // SAFETY: within the table; the symbol's name is a string in the string table.
            unsafe {
                let relocation = &*(table as *const Relocation).add(i);
                let symbol = (symbols as *const Symbol).add((relocation.info >> 32) as usize);
                let name = CStr::from_ptr((strings + (*symbol).name as usize) as *const c_char);
                let hook = HOOKS.iter().find(|(hooked, _)| *hooked == name);
                if let (true, Some((_, hook))) = (IMPORTS.contains(&(relocation.info as u32)), hook)
                {
                    replace(base + relocation.offset, *hook);
                }
            }
        }
    }
}

/// # Safety
/// `slot` is an import of a loaded library, and `hook` a function of its type.
unsafe fn replace(slot: usize, hook: *const c_void) {
    // SAFETY: queries the page size; the page belongs to the library's data.
    unsafe {
        let size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let page = (slot & !(size - 1)) as *mut c_void;
        libc::mprotect(page, size, libc::PROT_READ | libc::PROT_WRITE);
        (slot as *mut *const c_void).write(hook);
    }
}
