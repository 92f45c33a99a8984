//! Builds a request: header and attributes in one fixed-size buffer, without allocations.
//!
//! ```
//! use uverbs_uapi::enums::DriverId;
//! use uverbs_uapi::objects::cq::create;
//! use uverbs_uapi::request::Request;
//!
//! let mut entries = 0u32;
//! let mut request = Request::<create::Call>::new(DriverId::MLX5);
//! request.new_handle(create::HANDLE);
//! request.value(create::CQE, 256u32);
//! request.value(create::USER_HANDLE, 7u64);
//! request.value(create::COMP_VECTOR, 0u32);
//! request.output(create::RESP_CQE, &mut entries);
//! assert!(request.missing().next().is_none());
//! // ioctl(fd, RDMA_VERBS_IOCTL, request.as_mut_ptr()) goes here; if it succeeds:
//! request.mark_executed();
//! let handle = request.created(create::HANDLE);
//! # assert_eq!(handle, Some(0));
//! ```
//!
//! # Why safe code cannot make the kernel write to arbitrary memory
//!
//! The request contains an attribute's number, and the kernel's own table decides what it means. If
//! a request stored an input under the number of an output, the kernel would use the input's
//! *value* as the output's *address*. Therefore:
//!
//! 1. attribute constants are typed by method and kind ([`Attr`]), only this crate
//!    makes them, and the method that stores outputs takes `Attr<M, kind::Out>` alone;
//! 2. every address in the buffer comes from a reference that the request borrows for its whole
//!    life `'a` — shared for inputs, exclusive for outputs — with the reference's own length, so
//!    that it is valid, and unaliased by anything else, whenever the request can still be executed;
//! 3. outputs are plain bytes to the kernel, hence only types for which all bytes are valid
//!    (`FromBytes`) are accepted;
//! 4. the buffer's bytes cannot be changed by safe code except through these methods.
//!
//! An output has to outlive its request, and cannot be read before the request is gone:
//!
//! ```compile_fail,E0597
//! # use uverbs_uapi::{enums::DriverId, objects::cq::create, request::Request};
//! let mut request = Request::<create::Call>::new(DriverId::MLX5);
//! {
//!     let mut entries = 0u32;
//!     request.output(create::RESP_CQE, &mut entries);
//! }
//! request.as_mut_ptr();
//! ```
//!
//! An output of another method, or an input where the kernel writes, is refused:
//!
//! ```compile_fail,E0308
//! # use uverbs_uapi::{enums::DriverId, objects::cq::create, request::Request};
//! let mut request = Request::<create::Call>::new(DriverId::MLX5);
//! request.value(create::RESP_CQE, 0xdead_beef_u64);
//! ```
//!
//! This does not cover addresses that are input *data*: those of a memory region, a queue's buffer,
//! a doorbell record. The device accesses such memory as long as the object exists, so the code
//! that executes these commands must keep the memory alive. Therefore this crate executes no
//! requests, and the channel of `uverbs` that does is not public.

use core::marker::PhantomData;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::enums::DriverId;
use crate::ioctl::{AttrFlags, IoctlAttr, IoctlHdr};
use crate::objects::device::invoke_write;
use crate::objects::{Attr, AttrId, AttrInfo, Method, kind};
use crate::write::WriteCommand;

/// How many attributes a request can hold.
pub const CAPACITY: usize = 32;

// A request stores each attribute of its method at most once, so that it cannot overflow.
const _: () = assert!(crate::objects::MAX_ATTRIBUTES <= CAPACITY);

/// The most bytes that an attribute contains inline.
const INLINE: usize = size_of::<u64>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    hdr: IoctlHdr,
    attrs: [IoctlAttr; CAPACITY],
}

/// More bytes than the 16-bit length of an attribute can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The number of bytes.
    pub length: usize,
}

impl core::fmt::Display for TooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "an attribute of {} bytes: the most that an ioctl can carry is 65535",
            self.length
        )
    }
}

impl core::error::Error for TooLong {}

/// A request to the method `M`. Storing an attribute twice replaces it.
pub struct Request<'a, M> {
    raw: Raw,
    executed: bool,
    borrows: PhantomData<&'a mut ()>,
    method: PhantomData<fn() -> M>,
}

/// An attribute that was just stored. It is mandatory, unless [`Stored::optional`] is called.
pub struct Stored<'r>(&'r mut IoctlAttr);

impl Stored<'_> {
    /// Lets a kernel that does not know the attribute ignore it (instead of EPROTONOSUPPORT).
    pub fn optional(self) {
        self.0.flags.remove(AttrFlags::MANDATORY);
    }
}

impl<M: Method> Request<'_, M> {
    /// A request without attributes, for a device of this driver.
    pub fn new(driver: DriverId) -> Self {
        let mut raw = Raw::new_zeroed();
        raw.hdr = IoctlHdr {
            length: size_of::<IoctlHdr>() as u16,
            object_id: M::OBJECT,
            method_id: M::METHOD,
            driver_id: driver,
            ..IoctlHdr::default()
        };
        Self { raw, executed: false, borrows: PhantomData, method: PhantomData }
    }

    /// Required generic attributes that have not been stored; the kernel would answer EINVAL.
    pub fn missing(&self) -> impl Iterator<Item = &'static AttrInfo> {
        M::ATTRIBUTES.iter().filter(|info| info.required && self.find(info.id).is_none())
    }
}

impl<'a, M> Request<'a, M> {
    /// Stores an input of at most eight bytes.
    pub fn value<T>(&mut self, attr: Attr<M, kind::In>, value: T) -> Stored<'_>
    where
        T: IntoBytes + Immutable,
    {
        const { assert!(size_of::<T>() <= INLINE, "larger inputs are borrowed: see `input`") }
        self.store(attr.id(), size_of::<T>() as u16, inline(value.as_bytes()))
    }

    /// Stores a number, which the kernel always reads as eight bytes.
    pub fn constant(&mut self, attr: Attr<M, kind::Const>, value: impl Into<u64>) -> Stored<'_> {
        self.store(attr.id(), INLINE as u16, value.into())
    }

    /// Stores flags, as eight bytes. libmlx5 stores most of them as four. The kernel takes both
    /// (`uverbs_get_flags64` of core/uverbs_ioctl.c).
    pub fn flags(&mut self, attr: Attr<M, kind::Flags>, bits: impl Into<u64>) -> Stored<'_> {
        self.store(attr.id(), INLINE as u16, bits.into())
    }

    /// Stores an input: inline if it fits, else as a pointer.
    pub fn input<T>(&mut self, attr: Attr<M, kind::In>, value: &'a T) -> Stored<'_>
    where
        T: IntoBytes + Immutable,
    {
        const { assert!(size_of::<T>() <= u16::MAX as usize) }
        let (len, data) = source(value.as_bytes());
        self.store(attr.id(), len, data)
    }

    /// Stores an input of any length: a prefix of a struct for an older kernel, or an array.
    pub fn input_bytes(
        &mut self,
        attr: Attr<M, kind::In>,
        bytes: &'a [u8],
    ) -> Result<Stored<'_>, TooLong> {
        check(bytes.len())?;
        let (len, data) = source(bytes);
        Ok(self.store(attr.id(), len, data))
    }

    /// Stores a selector, with the input that belongs to it.
    pub fn select<T>(&mut self, attr: Attr<M, kind::Enum>, element: u8, value: &'a T) -> Stored<'_>
    where
        T: IntoBytes + Immutable,
    {
        const { assert!(size_of::<T>() <= u16::MAX as usize) }
        let (len, data) = source(value.as_bytes());
        let stored = self.store(attr.id(), len, data);
        stored.0.enum_id = u16::from_ne_bytes([element, 0]);
        stored
    }

    /// Stores the address of an output.
    pub fn output<T>(&mut self, attr: Attr<M, kind::Out>, out: &'a mut T) -> Stored<'_>
    where
        T: FromBytes + IntoBytes,
    {
        const { assert!(size_of::<T>() <= u16::MAX as usize) }
        let (len, data) = sink(out.as_mut_bytes());
        self.store(attr.id(), len, data)
    }

    /// Stores the address of an output of any length.
    pub fn output_bytes(
        &mut self,
        attr: Attr<M, kind::Out>,
        out: &'a mut [u8],
    ) -> Result<Stored<'_>, TooLong> {
        check(out.len())?;
        let (len, data) = sink(out);
        Ok(self.store(attr.id(), len, data))
    }

    /// Stores the handle of an existing object.
    pub fn handle(&mut self, attr: Attr<M, kind::Handle>, handle: u32) -> Stored<'_> {
        self.store(attr.id(), 0, u64::from(handle))
    }

    /// Asks for the handle of the object that the method creates: see [`Self::created`].
    pub fn new_handle(&mut self, attr: Attr<M, kind::NewHandle>) -> Stored<'_> {
        self.store(attr.id(), 0, 0)
    }

    /// Stores an array of handles.
    pub fn handles(
        &mut self,
        attr: Attr<M, kind::Handles>,
        handles: &'a [u32],
    ) -> Result<Stored<'_>, TooLong> {
        check(size_of_val(handles))?;
        let (len, data) = source(handles.as_bytes());
        Ok(self.store(attr.id(), len, data))
    }

    /// Stores the file descriptor of an existing object.
    pub fn fd(&mut self, attr: Attr<M, kind::Fd>, fd: i32) -> Stored<'_> {
        self.store(attr.id(), 0, sign_extend(fd))
    }

    /// Asks for the file descriptor that the method opens: see [`Self::opened`].
    pub fn new_fd(&mut self, attr: Attr<M, kind::NewFd>) -> Stored<'_> {
        self.store(attr.id(), 0, 0)
    }

    /// Stores a file descriptor that is not one of the device's objects.
    pub fn raw_fd(&mut self, attr: Attr<M, kind::RawFd>, fd: i32) -> Stored<'_> {
        self.store(attr.id(), 0, sign_extend(fd))
    }

    /// Records that the ioctl succeeded, so that the request now contains answers. The code that
    /// executes the request calls this.
    pub fn mark_executed(&mut self) {
        self.executed = true;
    }

    /// The handle that the kernel has stored; `None` before [`Self::mark_executed`], or if it was
    /// not asked for.
    pub fn created(&self, attr: Attr<M, kind::NewHandle>) -> Option<u32> {
        self.answered(attr.id()).map(|attr| attr.data as u32)
    }

    /// The file descriptor that the kernel has stored; the caller owns it. `None` as for
    /// [`Self::created`].
    pub fn opened(&self, attr: Attr<M, kind::NewFd>) -> Option<i32> {
        self.answered(attr.id()).map(|attr| attr.data as i32)
    }

    /// The bytes of the request for the kernel.
    pub fn as_bytes(&self) -> &[u8] {
        let length = usize::from(self.raw.hdr.length);
        self.raw.as_bytes().get(..length).unwrap_or_default()
    }

    /// The address to pass to the ioctl. It is valid for reads and writes of the whole request
    /// while the request is neither moved nor used otherwise. Only what the kernel writes may be
    /// written through it: flags, new handles and new file descriptors.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        (&raw mut self.raw).cast()
    }

    fn answered(&self, id: AttrId) -> Option<&IoctlAttr> {
        self.find(id).filter(|_| self.executed)
    }

    fn find(&self, id: AttrId) -> Option<&IoctlAttr> {
        self.raw.attrs.iter().take(self.count()).find(|attr| attr.attr_id == id)
    }

    fn count(&self) -> usize {
        usize::from(self.raw.hdr.num_attrs)
    }
}

impl<M> Request<'_, M> {
    fn store(&mut self, id: AttrId, len: u16, data: u64) -> Stored<'_> {
        let slot = self.slot(id);
        let attr = &mut self.raw.attrs[slot];
        *attr = IoctlAttr { attr_id: id, len, flags: AttrFlags::MANDATORY, enum_id: 0, data };
        Stored(attr)
    }

    /// The index of the attribute: that of its earlier value if it has one, else a new one at the
    /// end.
    fn slot(&mut self, id: AttrId) -> usize {
        let count = self.count();
        let old = self.raw.attrs.iter().take(count).position(|attr| attr.attr_id == id);
        old.unwrap_or_else(|| {
            self.raw.hdr.num_attrs += 1;
            self.raw.hdr.length += size_of::<IoctlAttr>() as u16;
            count
        })
    }
}

/// A method to which drivers add private data.
pub trait DriverData: Method + Sized {
    /// The driver's part of the request.
    const UHW_IN: Attr<Self, kind::In>;
    /// The driver's part of the answer.
    const UHW_OUT: Attr<Self, kind::Out>;
}

macro_rules! driver_data {
    ($($object:ident::$method:ident)*) => { $(
        impl DriverData for crate::objects::$object::$method::Call {
            const UHW_IN: Attr<Self, kind::In> = crate::objects::$object::$method::UHW_IN;
            const UHW_OUT: Attr<Self, kind::Out> = crate::objects::$object::$method::UHW_OUT;
        }
    )* };
}

driver_data!(device::invoke_write device::get_context cq::create qp::create srq::create wq::create);

impl<'a, M: DriverData> Request<'a, M> {
    /// Stores the driver's parts of request and answer; an empty part is left out.
    pub fn driver_data(&mut self, input: &'a [u8], output: &'a mut [u8]) -> Result<(), TooLong> {
        if !input.is_empty() {
            self.input_bytes(M::UHW_IN, input)?;
        }
        if !output.is_empty() {
            self.output_bytes(M::UHW_OUT, output)?;
        }
        Ok(())
    }
}

impl<'a> Request<'a, invoke_write::Call> {
    /// Wraps a write command.
    pub fn write<W: WriteCommand>(
        driver: DriverId,
        command: &'a W,
        response: &'a mut W::Response,
    ) -> Self {
        let mut request = Self::new(driver);
        request.constant(invoke_write::WRITE_CMD, W::COMMAND.0);
        request.input(invoke_write::CORE_IN, command);
        if size_of::<W::Response>() != 0 {
            request.output(invoke_write::CORE_OUT, response);
        }
        request
    }
}

fn check(length: usize) -> Result<(), TooLong> {
    if length > usize::from(u16::MAX) { Err(TooLong { length }) } else { Ok(()) }
}

/// Length and data of an input; at most 65535 bytes.
fn source(bytes: &[u8]) -> (u16, u64) {
    let len = bytes.len() as u16;
    if bytes.len() <= INLINE { (len, inline(bytes)) } else { (len, address(bytes.as_ptr())) }
}

/// Length and address of an output; at most 65535 bytes.
fn sink(bytes: &mut [u8]) -> (u16, u64) {
    (bytes.len() as u16, address(bytes.as_mut_ptr()))
}

/// Up to eight bytes in their order in memory, zeros after them.
fn inline(bytes: &[u8]) -> u64 {
    let mut data = [0; INLINE];
    for (to, from) in data.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(data)
}

/// The address as a number for the kernel. Exposes the provenance, so that the code that executes
/// the request may access the memory through that number.
fn address(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

fn sign_extend(fd: i32) -> u64 {
    i64::from(fd) as u64
}
