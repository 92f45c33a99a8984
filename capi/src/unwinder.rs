//! The functions of `libgcc_s.so.1` that a panic calls, loaded by the first call.
//!
//! Rust's standard library needs them, so the shared object would name libgcc_s as a library that
//! every program loads when it starts, and could not be loaded in an image that has only the C
//! library. `build.rs` makes the linker use the functions below instead. They load the real ones
//! with `dlopen(3)` when a stack is unwound, as glibc does for `pthread_cancel(3)`. Both get the
//! same copy of libgcc_s, so a context that one copy made never reaches another.

use std::arch::global_asm;
use std::ffi::{CStr, c_int, c_void};
use std::io::Write;
use std::process::abort;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

const LIBRARY: &CStr = c"libgcc_s.so.1";

/// What `dlopen` returned for [`LIBRARY`], which is never closed.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The address of a function of libgcc_s. The process ends if there is none: the caller cannot go
/// on without. The name ends with a zero.
fn address(name: &'static str) -> *mut c_void {
    // SAFETY: the name is a C string, and `handle` returns a library that is never closed.
    let address = unsafe { libc::dlsym(handle(), name.as_ptr().cast()) };
    if address.is_null() {
        give_up();
    }
    address
}

fn handle() -> *mut c_void {
    let known = HANDLE.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a C string; libgcc_s runs no code of this program when it is loaded.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        give_up();
    }
    // Two threads may both get here: `dlopen` gives both the same handle.
    HANDLE.store(handle, Ordering::Relaxed);
    handle
}

fn give_up() -> ! {
    let message = "uverbs: a panic cannot be handled, because libgcc_s.so.1 cannot be loaded\n";
    let _ = std::io::stderr().write_all(message.as_bytes());
    abort()
}

/// Jumps to a function, in the assembler.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}
#[cfg(not(target_arch = "aarch64"))]
macro_rules! jump {
    () => {
        "jmp"
    };
}

/// A function for each of libgcc_s, and a symbol for the linker, `uverbs` and the name, that the
/// shared object does not export. Types are those of `unwind.h`; pointers to its structs are only
/// passed on.
macro_rules! passed_on {
    ($($name:literal $function:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        unsafe extern "C-unwind" fn $function($($argument: $type),*) -> $result {
            type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
            const NAME: &str = concat!("_Unwind_", $name, "\0");
            // SAFETY: the function of this name has this type in libgcc_s.
            let real = unsafe { mem::transmute::<*mut c_void, Real>(address(NAME)) };
            // SAFETY: the caller keeps to the contract of the function that it meant to call.
            unsafe { real($($argument),*) }
        }

        global_asm!(
            ".text",
            concat!(".globl uverbs_Unwind_", $name),
            concat!(".hidden uverbs_Unwind_", $name),
            concat!(".type uverbs_Unwind_", $name, ", @function"),
            concat!("uverbs_Unwind_", $name, ": ", jump!(), " {function}"),
            concat!(".size uverbs_Unwind_", $name, ", . - uverbs_Unwind_", $name),
            function = sym $function
        );
    )*};
}

passed_on! {
    "Backtrace" backtrace(each: *mut c_void, argument: *mut c_void) -> c_int;
    "DeleteException" delete_exception(exception: *mut c_void) -> ();
    "FindEnclosingFunction" enclosing_function(instruction: *mut c_void) -> *mut c_void;
    "GetCFA" frame_address(context: *mut c_void) -> usize;
    "GetDataRelBase" data_base(context: *mut c_void) -> usize;
    "GetIP" instruction(context: *mut c_void) -> usize;
    "GetIPInfo" instruction_info(context: *mut c_void, before: *mut c_int) -> usize;
    "GetLanguageSpecificData" language_data(context: *mut c_void) -> *mut c_void;
    "GetRegionStart" region_start(context: *mut c_void) -> usize;
    "GetTextRelBase" text_base(context: *mut c_void) -> usize;
    "RaiseException" raise_exception(exception: *mut c_void) -> c_int;
    "Resume" resume(exception: *mut c_void) -> !;
    "SetGR" set_register(context: *mut c_void, register: c_int, value: usize) -> ();
    "SetIP" set_instruction(context: *mut c_void, value: usize) -> ();
}
