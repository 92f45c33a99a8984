//! DEVX: firmware commands that the program sends itself, and their objects and memory.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use uverbs::devx::{Devx, DevxObject, Umem, UmemOptions};
use uverbs::memory::AccessFlags;
use uverbs::qp::State;

use crate::abi::*;
use crate::context::Context;
use crate::post::{bytes, bytes_mut};
use crate::qp::Qp;
use crate::result::{code, destroy_and_free, failed, null, pointer, refused};

/// `struct mlx5dv_devx_obj`, whose fields programs do not see.
pub(crate) struct Object {
    library: Option<DevxObject>,
}

impl Object {
    /// The kernel's handle, of the object behind a program's pointer if there is one.
    ///
    /// # Safety
    /// Null, or from [`obj_create`] and not destroyed.
    pub(super) unsafe fn handle(object: *const Self) -> Option<u32> {
        // SAFETY: the caller's promise.
        unsafe { Self::of(object) }.map(DevxObject::kernel_handle)
    }

    /// The library's object.
    ///
    /// # Safety
    /// As for [`Object::handle`].
    pub(super) unsafe fn of<'a>(object: *const Self) -> Option<&'a DevxObject> {
        // SAFETY: the caller's promise.
        unsafe { object.as_ref() }?.library.as_ref()
    }
}

/// The library's handle for firmware commands.
///
/// # Safety
/// The program keeps to what its commands do: to memory, and to objects of the verbs.
pub(super) unsafe fn devx(context: *mut ibv_context) -> Devx {
    // SAFETY: the caller's context, and promise.
    unsafe { Context::of(context).library.devx() }
}

/// A command and the buffer for its answer, as programs pass them.
#[derive(Clone, Copy)]
struct Mailboxes {
    input: *const c_void,
    input_length: usize,
    output: *mut c_void,
    output_length: usize,
}

impl Mailboxes {
    /// Calls `run` with command and answer buffer. The command is copied, because a program may
    /// pass one buffer for both.
    ///
    /// # Safety
    /// The caller's memory, of these lengths.
    unsafe fn with<R>(self, run: impl FnOnce(&[u8], &mut [u8]) -> R) -> R {
        // SAFETY: the caller's promise.
        let command = unsafe { bytes(self.input.cast(), self.input_length) }.to_vec();
        // SAFETY: the caller's promise.
        run(&command, unsafe { bytes_mut(self.output.cast(), self.output_length) })
    }
}

/// `mlx5dv_devx_obj_create`.
pub(crate) unsafe extern "C" fn obj_create(
    context: *mut ibv_context,
    input: *const c_void,
    input_length: usize,
    output: *mut c_void,
    output_length: usize,
) -> *mut Object {
    let mailboxes = Mailboxes { input, input_length, output, output_length };
    // SAFETY: the caller's context and memory.
    let made = unsafe {
        let devx = devx(context);
        mailboxes.with(|command, answer| devx.create(command, answer))
    };
    pointer(made.map(|library| Box::new(Object { library: Some(library) })))
}

/// `mlx5dv_devx_obj_destroy`.
pub(crate) unsafe extern "C" fn obj_destroy(object: *mut Object) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(object, |object| &mut object.library, DevxObject::destroy) }
}

/// `mlx5dv_devx_query_eqn`.
pub(crate) unsafe extern "C" fn query_eqn(
    context: *mut ibv_context,
    vector: u32,
    into: *mut u32,
) -> c_int {
    // SAFETY: the caller's context.
    let asked = unsafe { devx(context) }.event_queue(vector);
    // SAFETY: the caller's place, to be written.
    code(asked.map(|number| unsafe { into.write(number) }))
}

/// Verbs that forward a command about an object. Each row names the function that runs it.
macro_rules! commands {
    ($($name:ident: $type:ty, |$object:ident, $command:ident, $answer:ident| $run:expr;)*) => {$(
        /// The verb of this name.
        pub(crate) unsafe extern "C" fn $name(
            $object: *mut $type,
            input: *const c_void,
            input_length: usize,
            output: *mut c_void,
            output_length: usize,
        ) -> c_int {
            let mailboxes = Mailboxes { input, input_length, output, output_length };
            // SAFETY: the caller's object and memory.
            unsafe { mailboxes.with(|$command, $answer| $run) }
        }
    )*};
}

/// Commands about objects of the verbs, by the handles in their structs.
macro_rules! about_objects {
    ($($query:ident $modify:ident: $type:ty, $handle:ident;)*) => { commands! {$(
        $query: $type, |object, command, answer| {
            code(devx((*object).context).query((*object).$handle as u32, command, answer))
        };
        $modify: $type, |object, command, answer| {
            code(devx((*object).context).modify((*object).$handle as u32, command, answer))
        };
    )*}};
}

commands! {
    general_cmd: ibv_context, |context, command, answer| {
        code(devx(context).command(command, answer))
    };
    obj_query: Object, |object, command, answer| {
        Object::of(object).map_or_else(no_object, |object| code(object.query(command, answer)))
    };
    obj_modify: Object, |object, command, answer| {
        Object::of(object).map_or_else(no_object, |object| code(object.modify(command, answer)))
    };
}

about_objects! {
    cq_query cq_modify: ibv_cq, handle;
    srq_query srq_modify: ibv_srq, handle;
    wq_query wq_modify: ibv_wq, handle;
    ind_tbl_query ind_tbl_modify: ibv_rwq_ind_table, ind_tbl_handle;
    qp_query modify_qp_alone: ibv_qp, handle;
}

fn no_object() -> c_int {
    refused(libc::EINVAL)
}

/// `mlx5dv_devx_qp_modify`. Records the new state in the library, which allows posting in RTS.
pub(crate) unsafe extern "C" fn qp_modify(
    qp: *mut ibv_qp,
    input: *const c_void,
    input_length: usize,
    output: *mut c_void,
    output_length: usize,
) -> c_int {
    // Read first, because a program may pass one buffer for both.
    // SAFETY: the caller's memory.
    let state = state_after(unsafe { bytes(input.cast(), input_length) });
    // SAFETY: the caller's queue pair and memory.
    let errno = unsafe { modify_qp_alone(qp, input, input_length, output, output_length) };
    let Some(state) = state.filter(|_| errno == 0) else { return errno };
    // SAFETY: the caller's queue pair, whose state the device has just changed.
    code(unsafe { Qp::changed_to(qp, state) })
}

/// The state to which a command moves a queue pair (`MLX5_CMD_OP_*` of the PRM).
fn state_after(command: &[u8]) -> Option<State> {
    let opcode = u16::from_be_bytes(command.get(..2)?.try_into().ok()?);
    Some(match opcode {
        0x502 | 0x50e => State::Init,
        0x503 => State::Rtr,
        0x504..=0x506 | 0x50c => State::Rts,
        0x507 => State::Err,
        0x50a => State::Reset,
        _ => return None,
    })
}

/// `struct mlx5dv_devx_umem`, followed by the library's handle.
#[repr(C)]
pub(crate) struct Memory {
    umem_id: u32,
    library: Option<Umem>,
}

/// `struct mlx5dv_devx_umem_in`.
#[repr(C)]
pub(crate) struct MemoryIn {
    addr: *mut c_void,
    size: usize,
    access: u32,
    pgsz_bitmap: u64,
    comp_mask: u64,
    dmabuf_fd: c_int,
}

/// `MLX5DV_UMEM_MASK_DMABUF`.
const MASK_DMA_BUF: u64 = 1;

/// `mlx5dv_devx_umem_reg`.
pub(crate) unsafe extern "C" fn umem_reg(
    context: *mut ibv_context,
    addr: *mut c_void,
    size: usize,
    access: u32,
) -> *mut Memory {
    let options = UmemOptions {
        start: addr.expose_provenance() as u64,
        length: size,
        access: AccessFlags::from_bits_retain(access),
        page_sizes: None,
        dma_buf: None,
    };
    // SAFETY: the caller's context and memory.
    unsafe { register(context, &options) }
}

/// `mlx5dv_devx_umem_reg_ex`.
pub(crate) unsafe extern "C" fn umem_reg_ex(
    context: *mut ibv_context,
    input: *mut MemoryIn,
) -> *mut Memory {
    // SAFETY: the caller's struct, which ends before `dmabuf_fd` unless the mask names that.
    let (start, length, access, sizes, mask) = unsafe {
        let input = &raw const *input;
        ((*input).addr, (*input).size, (*input).access, (*input).pgsz_bitmap, (*input).comp_mask)
    };
    if mask & !MASK_DMA_BUF != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let mut options = UmemOptions {
        start: start.expose_provenance() as u64,
        length,
        access: AccessFlags::from_bits_retain(access),
        page_sizes: Some(sizes),
        dma_buf: None,
    };
    if mask & MASK_DMA_BUF != 0 {
        // SAFETY: the mask names the field.
        let fd = unsafe { (*input).dmabuf_fd };
        if fd < 0 {
            return null(libc::EBADF);
        }
        // SAFETY: the caller's descriptor, for the time of the call.
        options.dma_buf = Some(unsafe { BorrowedFd::borrow_raw(fd) });
    }
    // SAFETY: the caller's context and memory.
    unsafe { register(context, &options) }
}

/// # Safety
/// The caller's context, and memory that the device may use until it is released.
unsafe fn register(context: *mut ibv_context, options: &UmemOptions<'_>) -> *mut Memory {
    // SAFETY: the caller's promise.
    match unsafe { devx(context) }.register_umem(options) {
        Ok(library) => {
            let umem_id = library.id();
            Box::into_raw(Box::new(Memory { umem_id, library: Some(library) }))
        }
        Err(error) => null(failed(&error)),
    }
}

/// `mlx5dv_devx_umem_dereg`.
pub(crate) unsafe extern "C" fn umem_dereg(memory: *mut Memory) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(memory, |memory| &mut memory.library, Umem::destroy) }
}
