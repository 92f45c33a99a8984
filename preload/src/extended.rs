//! Extended completion queues: `ibv_start_poll` is an inline function that calls the provider
//! through the queue's own table.
//!
//! The provider has one such function for each set of features of a queue. Each of them is replaced
//! by its own function of this library, which calls it, so that no state per queue is needed.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, transmute};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::contexts::{self, Context, Slot};
use crate::polling;

/// `struct ibv_cq_ex` of `<infiniband/verbs.h>`, as far as it is used here.
#[repr(C)]
pub struct ExtendedQueue {
    context: *mut Context,
    between: [*mut c_void; 17],
    start_poll: *mut c_void,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(offset_of!(ExtendedQueue, start_poll) == 144);

type StartPoll = unsafe extern "C" fn(*mut ExtendedQueue, *mut c_void) -> c_int;
type Create = unsafe extern "C" fn(*mut Context, *mut c_void) -> *mut ExtendedQueue;

/// More than libmlx5 has (`poll_ops` of its cq.c). If there are more, the queues with them keep the
/// provider's functions.
const KINDS: usize = 48;

/// The provider's functions.
static PROVIDERS: [AtomicPtr<c_void>; KINDS] = [const { AtomicPtr::new(ptr::null_mut()) }; KINDS];

macro_rules! start_polls {
    ($($tens:literal)*) => {
        [$(
            start_poll::<{ $tens * 8 }>, start_poll::<{ $tens * 8 + 1 }>,
            start_poll::<{ $tens * 8 + 2 }>, start_poll::<{ $tens * 8 + 3 }>,
            start_poll::<{ $tens * 8 + 4 }>, start_poll::<{ $tens * 8 + 5 }>,
            start_poll::<{ $tens * 8 + 6 }>, start_poll::<{ $tens * 8 + 7 }>,
        )*]
    };
}

/// This library's replacements for them.
static FUNCTIONS: [StartPoll; KINDS] = start_polls!(0 1 2 3 4 5);

/// Replaces the provider's function number `N`.
///
/// # Safety
/// As `ibv_start_poll(3)`.
unsafe extern "C" fn start_poll<const N: usize>(
    queue: *mut ExtendedQueue,
    attributes: *mut c_void,
) -> c_int {
    // SAFETY: a queue's table had this function of the same type, before this one replaced it.
    let provider: StartPoll = unsafe { transmute(PROVIDERS[N].load(Ordering::Acquire)) };
    // SAFETY: the caller polls a completion queue, so its context is open.
    unsafe {
        let context = (*queue).context;
        let result = provider(queue, attributes);
        polling::polled(context, result == libc::ENOENT);
        result
    }
}

/// This library's replacement for a function of the provider.
fn in_place_of(provider: *mut c_void) -> Option<StartPoll> {
    let is_own = FUNCTIONS.iter().any(|function| *function as *mut c_void == provider);
    if provider.is_null() || is_own {
        return None;
    }
    let index = PROVIDERS.iter().position(|place| {
        let null = ptr::null_mut();
        let taken = place.compare_exchange(null, provider, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(provider)
    });
    index.map(|index| FUNCTIONS[index])
}

/// Makes polls of a queue call this library's function.
///
/// # Safety
/// `queue` is null, or a queue that no other thread uses yet.
unsafe fn watch(queue: *mut ExtendedQueue) -> *mut ExtendedQueue {
    // SAFETY: the caller's.
    if let Some(queue) = unsafe { queue.as_mut() } {
        if let Some(function) = in_place_of(queue.start_poll) {
            queue.start_poll = function as *mut c_void;
        }
    }
    queue
}

/// Replaces the provider's function.
///
/// # Safety
/// As `ibv_create_cq_ex(3)`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    attributes: *mut c_void,
) -> *mut ExtendedQueue {
    let Some(slot) = Slot::find(context) else { return ptr::null_mut() };
    // SAFETY: the context's table had this function, before this one replaced it.
    let provider: Create = unsafe { transmute(slot.create_cq_ex()) };
    // SAFETY: the program's own call, which has just created the queue.
    unsafe { watch(provider(context, attributes)) }
}

/// `mlx5dv_create_cq(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_cq(
    context: *mut Context,
    attributes: *mut c_void,
    of_mlx5: *mut c_void,
) -> *mut ExtendedQueue {
    type Create =
        unsafe extern "C" fn(*mut Context, *mut c_void, *mut c_void) -> *mut ExtendedQueue;
    let function = contexts::next(contexts::MLX5, c"mlx5dv_create_cq");
    if function.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: libmlx5's function of this name has this type.
    let create: Create = unsafe { transmute(function) };
    // SAFETY: the program's own call.
    let queue = unsafe { create(context, attributes, of_mlx5) };
    if Slot::find(context).is_none() {
        return queue;
    }
    // SAFETY: just created.
    unsafe { watch(queue) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_provider_has_one_in_its_place() {
        let provider = |n: usize| ptr::without_provenance_mut::<c_void>(n);
        let first = in_place_of(provider(16)).unwrap();
        assert_ne!(in_place_of(provider(32)).unwrap() as usize, first as usize);
        assert_eq!(in_place_of(provider(16)).unwrap() as usize, first as usize);
        assert!(in_place_of(first as *mut c_void).is_none());
        assert!(in_place_of(ptr::null_mut()).is_none());
        for n in 3..=KINDS {
            assert!(in_place_of(provider(16 * n)).is_some(), "{n}");
        }
        assert!(in_place_of(provider(16 * (KINDS + 1))).is_none());
    }
}
