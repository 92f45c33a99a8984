//! One request in progress: its checked attributes, and the objects that it has created so far.
//!
//! The accessors have the semantics of the kernel's (`uverbs_copy_from`, `uverbs_copy_to`,
//! `uverbs_get_flags32` …), so that a handler can be compared with its kernel counterpart line by
//! line.
#![forbid(unsafe_code)]

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::ioctl::AttrFlags;
use uverbs_uapi::objects::device::invoke_write;
use uverbs_uapi::objects::kind::{Const, Enum, Fd, Flags, Handle, Handles, In, Out};
use uverbs_uapi::objects::{Attr, AttrId};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::spec::{UHW_IN, UHW_OUT};
use super::user_memory::UserMemory;
use crate::chardev::device::context::Context;
use crate::chardev::device::event_queue::EventQueue;
use crate::chardev::device::file::{FileShared, FileState};
use crate::chardev::objects::memory_region::pages_of;
use crate::chardev::objects::object::{Entry, EventFile, Kind, Object};
use crate::core::{Cqn, Pdn};
use crate::packet::Gid;

/// `struct ib_uverbs_attr` starts with id, length and flags; its data follows at 8.
const ATTR_FLAGS_OFFSET: u64 = 4;
const ATTR_DATA_OFFSET: u64 = 8;

/// A request that passed the checks of its specification.
pub(crate) struct Call<'a> {
    pub(crate) file: &'a Arc<FileShared>,
    pub(crate) state: &'a mut FileState,
    pub(crate) user: UserMemory,
    given: Vec<Given>,
    created: Option<u32>,
    created_queue: Option<(EventFile, OwnedFd)>,
    destroyed: Option<Entry>,
    /// Bytes pinned for the rings of the object that this call creates.
    charged: u64,
    /// The destination whose neighbour did not answer, if the call failed for that reason.
    pub(crate) silent_neighbour: Option<Gid>,
}

/// One attribute as the program passed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) id: AttrId,
    pub(crate) length: u16,
    pub(crate) flags: AttrFlags,
    pub(crate) data: u64,
    /// Which element of an enumeration.
    pub(crate) element: u8,
    /// Address of the attribute itself.
    pub(crate) address: u64,
}

impl Given {
    fn is_inline(&self) -> bool {
        self.length <= 8
    }

    /// Address of the bytes: in the attribute itself, or in the buffer that it points at.
    pub(crate) fn bytes_at(&self) -> u64 {
        if self.is_inline() { self.address + ATTR_DATA_OFFSET } else { self.data }
    }
}

/// A request buffer and a response buffer, for the core or for the driver (`struct ib_udata`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    user: UserMemory,
    input: u64,
    input_length: usize,
    output: u64,
    output_length: usize,
}

impl Buffers {
    pub(crate) fn input_length(&self) -> usize {
        self.input_length
    }

    pub(crate) fn output_length(&self) -> usize {
        self.output_length
    }

    /// The request as a struct. A shorter request is extended with zeros, a longer one is
    /// truncated.
    pub(crate) fn read<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        let length = bytes.len().min(self.input_length);
        self.user.read(self.input, &mut bytes[..length])?;
        Ok(value)
    }

    /// The request as a struct. EINVAL for less than `required` bytes, `unknown` if bytes after the
    /// struct are not zero.
    pub(crate) fn read_known<T: FromBytes + IntoBytes>(
        &self,
        required: usize,
        unknown: Errno,
    ) -> Result<T, Errno> {
        if self.input_length < required {
            return Err(Errno::EINVAL);
        }
        if self.is_clear_from(size_of::<T>())? { self.read() } else { Err(unknown) }
    }

    /// Whether the request is zero from `offset` on.
    pub(crate) fn is_clear_from(&self, offset: usize) -> Result<bool, Errno> {
        self.user.is_clear(
            self.input.wrapping_add(offset as u64),
            self.input_length.saturating_sub(offset),
        )
    }

    /// Writes the whole response, as `ib_copy_to_udata` does: the caller checks that it fits.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.user.write(self.output, bytes)
    }

    /// Writes as much of a response as fits in the buffer.
    pub(crate) fn write_fitting(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.write(&bytes[..bytes.len().min(self.output_length)])
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        file: &'a Arc<FileShared>,
        state: &'a mut FileState,
        user: UserMemory,
    ) -> Self {
        Self {
            file,
            state,
            user,
            given: Vec::new(),
            created: None,
            created_queue: None,
            destroyed: None,
            charged: 0,
            silent_neighbour: None,
        }
    }

    pub(crate) fn add(&mut self, given: Given) {
        self.given.push(given);
    }

    pub(crate) fn has(&self, id: AttrId) -> bool {
        self.given.iter().any(|given| given.id == id)
    }

    /// An attribute; ENOENT if the program left it out.
    pub(crate) fn given(&self, id: AttrId) -> Result<Given, Errno> {
        self.given.iter().find(|given| given.id == id).copied().ok_or(Errno::ENOENT)
    }

    /// An input as a struct, extended with zeros (`uverbs_copy_from_or_zero`).
    pub(crate) fn input<M, T: FromBytes + IntoBytes>(&self, id: Attr<M, In>) -> Result<T, Errno> {
        let given = self.given(id.id())?;
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        let length = bytes.len().min(given.length.into());
        if given.is_inline() {
            bytes[..length].copy_from_slice(&given.data.to_ne_bytes()[..length]);
        } else {
            self.user.read(given.data, &mut bytes[..length])?;
        }
        Ok(value)
    }

    /// As [`input`](Self::input), for an attribute that may be left out.
    pub(crate) fn optional_input<M, T: FromBytes + IntoBytes>(
        &self,
        id: Attr<M, In>,
    ) -> Result<Option<T>, Errno> {
        self.has(id.id()).then(|| self.input(id)).transpose()
    }

    /// An input of any length.
    pub(crate) fn bytes<M>(&self, id: Attr<M, In>) -> Result<Vec<u8>, Errno> {
        let given = self.given(id.id())?;
        let mut bytes = vec![0; given.length.into()];
        self.user.read(given.bytes_at(), &mut bytes)?;
        Ok(bytes)
    }

    /// The element that an enumeration names, and its data of up to eight bytes.
    pub(crate) fn choice<M>(&self, id: Attr<M, Enum>) -> Result<(u8, u64), Errno> {
        self.given(id.id()).map(|given| (given.element, given.data))
    }

    /// A constant of at most `max`; EINVAL above (`uverbs_get_const`).
    pub(crate) fn constant<M>(&self, id: Attr<M, Const>, max: u64) -> Result<u64, Errno> {
        let data = self.given(id.id())?.data;
        if data > max { Err(Errno::EINVAL) } else { Ok(data) }
    }

    /// Flags, 0 if left out; EINVAL for any bit outside `allowed` (`uverbs_get_flags32`).
    pub(crate) fn flags<M>(&self, id: Attr<M, Flags>, allowed: u32) -> Result<u32, Errno> {
        let Ok(given) = self.given(id.id()) else { return Ok(0) };
        let flags = if given.length == 8 { given.data } else { given.data & u64::from(u32::MAX) };
        match u32::try_from(flags) {
            Ok(flags) if flags & !allowed == 0 => Ok(flags),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The handle in an attribute, whose object the dispatcher has checked; ENOENT if left out.
    pub(crate) fn handle<M>(&self, id: Attr<M, Handle>) -> Result<u32, Errno> {
        Ok(self.given(id.id())?.data as u32)
    }

    /// As [`handle`](Self::handle), for an attribute that may be left out.
    pub(crate) fn optional_handle<M>(&self, id: Attr<M, Handle>) -> Option<u32> {
        self.handle(id).ok()
    }

    /// The handles in an attribute, none if left out.
    pub(crate) fn handles<M>(&self, id: Attr<M, Handles>) -> Result<Vec<u32>, Errno> {
        self.given(id.id()).map_or(Ok(Vec::new()), |given| self.handles_at(&given))
    }

    /// The handles in an attribute that is being checked.
    pub(crate) fn handles_at(&self, given: &Given) -> Result<Vec<u32>, Errno> {
        let mut bytes = vec![0; given.length.into()];
        self.user.read(given.bytes_at(), &mut bytes)?;
        let words = bytes.chunks_exact(size_of::<u32>());
        Ok(words.filter_map(|word| word.try_into().ok().map(u32::from_ne_bytes)).collect())
    }

    /// Copies as much of a result to the program as fits (`uverbs_copy_to`); ENOENT if it gave no
    /// buffer.
    pub(crate) fn output<M, T: IntoBytes + Immutable + ?Sized>(
        &self,
        id: Attr<M, Out>,
        value: &T,
    ) -> Result<(), Errno> {
        let given = self.given(id.id())?;
        let bytes = value.as_bytes();
        self.user.write(given.data, &bytes[..bytes.len().min(given.length.into())])?;
        self.mark_valid(&given)
    }

    /// As [`output`](Self::output), for a buffer that may be left out.
    pub(crate) fn optional_output<M, T: IntoBytes + Immutable>(
        &self,
        id: Attr<M, Out>,
        value: &T,
    ) -> Result<(), Errno> {
        if self.has(id.id()) { self.output(id, value) } else { Ok(()) }
    }

    /// As [`output`](Self::output); clears the rest of the buffer
    /// (`uverbs_copy_to_struct_or_zero`).
    pub(crate) fn output_struct<M, T: IntoBytes + Immutable>(
        &self,
        id: Attr<M, Out>,
        value: &T,
    ) -> Result<(), Errno> {
        let given = self.given(id.id())?;
        let size = size_of::<T>();
        if let Some(rest) = usize::from(given.length).checked_sub(size) {
            self.user.clear(given.data.wrapping_add(size as u64), rest)?;
        }
        self.output(id, value)
    }

    /// Marks an output as written, so that the program sees it.
    pub(crate) fn mark_valid(&self, given: &Given) -> Result<(), Errno> {
        self.user.write_value(
            given.address + ATTR_FLAGS_OFFSET,
            &(given.flags | AttrFlags::VALID_OUTPUT),
        )
    }

    /// Marks the driver's response as written. The kernel does so whenever the program passes a
    /// buffer for it.
    pub(crate) fn mark_driver_output(&self) -> Result<(), Errno> {
        match self.given(UHW_OUT) {
            Ok(given) => self.mark_valid(&given),
            Err(_) => Ok(()),
        }
    }

    /// The driver's own request and response.
    pub(crate) fn driver(&self) -> Buffers {
        self.buffers(UHW_IN, UHW_OUT)
    }

    /// Two attributes as buffers. An attribute that was left out has length 0 and address 0.
    pub(crate) fn buffers(&self, input: AttrId, output: AttrId) -> Buffers {
        let (input, output) = (self.given(input).ok(), self.given(output).ok());
        Buffers {
            user: self.user,
            input: input.map_or(0, |given| given.bytes_at()),
            input_length: input.map_or(0, |given| given.length.into()),
            output: output.map_or(0, |given| given.data),
            output_length: output.map_or(0, |given| given.length.into()),
        }
    }

    /// The request of a write command (`uverbs_request`), extended with zeros. EOPNOTSUPP if bytes
    /// after the known struct are not zero.
    pub(crate) fn request<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let core = self.core();
        let request = core.read()?;
        if core.input_length() > size_of::<T>()
            && !core.is_clear_from(size_of::<T>()).unwrap_or(false)
        {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(request)
    }

    /// Answers a write command (`uverbs_response`).
    pub(crate) fn response<T: IntoBytes + Immutable>(&self, response: &T) -> Result<(), Errno> {
        if self.has(invoke_write::CORE_OUT.id()) {
            self.output_struct(invoke_write::CORE_OUT, response)
        } else {
            Ok(())
        }
    }

    /// How many bytes of this response fit in the program's buffer (`uverbs_response_length`).
    pub(crate) fn response_length<T>(&self) -> u32 {
        self.core().output_length().min(size_of::<T>()) as u32
    }

    /// Request and response of a write command.
    pub(crate) fn core(&self) -> Buffers {
        self.buffers(invoke_write::CORE_IN.id(), invoke_write::CORE_OUT.id())
    }

    /// The context. Fails with EIO after removal, and EINVAL before GET_CONTEXT
    /// (`ib_uverbs_get_ucontext_file`).
    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        if self.file.device.is_removed() {
            return Err(Errno::EIO);
        }
        self.state.context.as_ref().ok_or(Errno::EINVAL)
    }

    /// As [`context`](Self::context), to change it.
    pub(crate) fn context_mut(&mut self) -> Result<&mut Context, Errno> {
        self.context()?;
        self.state.context.as_mut().ok_or(Errno::EINVAL)
    }

    /// The object of a handle. Fails with ENOENT, EINVAL (object of another kind), or EIO after
    /// removal.
    pub(crate) fn object(&self, kind: Kind, handle: u32) -> Result<&Object, Errno> {
        self.state.lookup_live(self.file, kind, handle)?;
        self.any_object(handle)
    }

    /// As [`object`](Self::object), to change it.
    pub(crate) fn object_mut(&mut self, kind: Kind, handle: u32) -> Result<&mut Object, Errno> {
        self.state.lookup_live(self.file, kind, handle)?;
        Ok(&mut self.state.handles.get_mut(handle)?.object)
    }

    /// The object of a handle, of any kind. Fails with ENOENT.
    pub(crate) fn any_object(&self, handle: u32) -> Result<&Object, Errno> {
        Ok(&self.state.handles.get(handle)?.object)
    }

    /// Number of the protection domain behind a handle.
    pub(crate) fn pdn(&self, handle: u32) -> Result<Pdn, Errno> {
        Ok(self.object(Kind::Pd, handle)?.pd()?.pdn)
    }

    /// Number of the completion queue behind a handle.
    pub(crate) fn cqn(&self, handle: u32) -> Result<Cqn, Errno> {
        Ok(self.object(Kind::Cq, handle)?.cq()?.cqn)
    }

    /// Reserves the handle of the object that this call creates. It is freed if the call fails.
    pub(crate) fn reserve(&mut self) -> Result<u32, Errno> {
        self.context()?;
        let handle = self.state.handles.reserve();
        self.created = Some(handle);
        Ok(handle)
    }

    /// The handle reserved for the object that this call creates.
    pub(crate) fn new_handle(&self) -> Result<u32, Errno> {
        self.created.ok_or(Errno::EINVAL)
    }

    /// Stores the object under its handle. If the call fails later, the object is destroyed.
    pub(crate) fn commit(&mut self, object: Object) -> Result<u32, Errno> {
        let handle = self.new_handle()?;
        for parent in object.parents() {
            self.state.handles.get_mut(parent)?.users += 1;
        }
        let pinned = self.take_charged();
        self.state.handles.commit(handle, Entry::new(object, pinned));
        Ok(handle)
    }

    /// Charges a ring against the limit on pinned memory (`ib_umem_get`), until the object is
    /// destroyed or the call fails. Doorbell records are not charged, because many share a page.
    pub(crate) fn charge_ring(&mut self, address: u64, length: u64) -> Result<(), Errno> {
        let bytes = pages_of(address, length);
        self.state.charge(&self.file.device, bytes)?;
        self.charged += bytes;
        Ok(())
    }

    /// Takes the number of bytes charged for rings, which their object keeps.
    pub(crate) fn take_charged(&mut self) -> u64 {
        std::mem::take(&mut self.charged)
    }

    /// Creates an event file. It is registered when the call succeeds.
    pub(crate) fn new_event_file(&mut self, kind: Kind) -> Result<i32, Errno> {
        use std::os::fd::AsRawFd;
        self.context()?;
        // A forked child's call would create the descriptor in this process.
        self.user.in_reach()?;
        let (queue, fd) = EventQueue::new().or_else(|_| {
            self.state.event_files.sweep();
            EventQueue::new()
        })?;
        let number = fd.as_raw_fd();
        self.created_queue = Some((EventFile { kind, queue, omits_data: false }, fd));
        Ok(number)
    }

    /// Makes events in the file that this call creates contain only their cookie.
    pub(crate) fn omit_event_data(&mut self) {
        if let Some((file, _)) = &mut self.created_queue {
            file.omits_data = true;
        }
    }

    /// The queue of an event descriptor, which the dispatcher has checked.
    pub(crate) fn event_queue<M>(
        &self,
        id: Attr<M, Fd>,
        kind: Kind,
    ) -> Result<Option<Arc<EventQueue>>, Errno> {
        match self.given(id.id()) {
            Ok(given) => self.state.event_queue(given.data as i32, kind).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The event file that an object created by this call reports to: the one that the program
    /// names, or the first one of the device file.
    pub(crate) fn async_queue<M>(&self, id: Attr<M, Fd>) -> Result<Option<Arc<EventQueue>>, Errno> {
        Ok(self.event_queue(id, Kind::AsyncEvent)?.or_else(|| self.state.default_async()))
    }

    /// Destroys an object on the program's request. Fails with ENOENT, EINVAL (object of another
    /// kind) or EBUSY.
    pub(crate) fn destroy(&mut self, kind: Kind, handle: u32) -> Result<(), Errno> {
        self.state.lookup(kind, handle)?;
        self.destroyed = Some(self.state.destroy(self.file, handle)?);
        Ok(())
    }

    /// The object that this call has destroyed.
    pub(crate) fn destroyed(&self) -> Result<&Object, Errno> {
        self.destroyed.as_ref().map(|entry| &entry.object).ok_or(Errno::EINVAL)
    }

    /// Ends the call: registers the new event file on success, destroys what was created on
    /// failure.
    pub(crate) fn finish(mut self, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_err() {
            self.roll_back();
            let charged = self.take_charged();
            self.state.uncharge(charged);
        } else if let Some((file, fd)) = self.created_queue.take() {
            self.state.add_event_file(&self.file.device, file);
            // The program owns the number from here on.
            let _ = fd.into_raw_fd();
        }
        result
    }

    fn roll_back(&mut self) {
        let Some(handle) = self.created.take() else { return };
        if self.state.handles.get(handle).is_ok() {
            // This cannot fail with EBUSY: the object is new, so no other object uses it.
            let _ = self.state.destroy(self.file, handle);
        } else {
            self.state.handles.remove(handle);
        }
    }
}
