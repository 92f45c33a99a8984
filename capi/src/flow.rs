//! Counter sets, and steering rules.

use std::ffi::c_int;

use uverbs::counters::CounterPoint;
use uverbs::qp_type::QpType;
use uverbs::{Counters, Flow};

use crate::abi::*;
use crate::context::Context;
use crate::qp::Qp;
use crate::result::{code, destroy_and_free, failed, null, pointer, refused};
use crate::steering;

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`.
const PREFER_CACHED: u32 = 1;

/// A set of counters.
#[repr(C)]
pub(crate) struct CounterSet {
    base: ibv_counters,
    library: Option<Counters>,
}

impl CounterSet {
    /// The library's counters behind a program's pointer.
    ///
    /// # Safety
    /// `counters` is null, or from [`create_counters`] and not destroyed.
    pub(crate) unsafe fn library(counters: *const ibv_counters) -> Option<Counters> {
        // SAFETY: the caller's promise.
        unsafe { counters.cast::<Self>().as_ref() }?.library.clone()
    }
}

/// `ibv_create_counters`.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    // SAFETY: the caller's struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's context.
    let made = unsafe { Context::of(context) }.library.create_counters();
    pointer(made.map(|library| {
        Box::new(CounterSet { base: ibv_counters { context }, library: Some(library) })
    }))
}

/// `ibv_destroy_counters`.
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe {
        destroy_and_free(
            counters.cast::<CounterSet>(),
            |counters| &mut counters.library,
            Counters::destroy,
        )
    }
}

/// `ibv_attach_counters_point_flow`. As in libmlx5, counters cannot be attached to an existing
/// rule.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    // SAFETY: the caller's set and struct.
    let (set, attr) = unsafe { (&*counters.cast::<CounterSet>(), &*attr) };
    if !flow.is_null() || attr.comp_mask != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let point = match attr.counter_desc {
        0 => CounterPoint::Packets,
        1 => CounterPoint::Bytes,
        _ => return refused(libc::EOPNOTSUPP),
    };
    let Some(library) = &set.library else { return refused(libc::EINVAL) };
    code(library.attach(point, attr.index))
}

/// `ibv_read_counters`.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    into: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    if flags & !PREFER_CACHED != 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's set.
    let set = unsafe { &*counters.cast::<CounterSet>() };
    let values = if count == 0 {
        &mut [] // the pointer may be null then
    } else {
        // SAFETY: `count` numbers of the caller's, to be written.
        unsafe { std::slice::from_raw_parts_mut(into, count as usize) }
    };
    let Some(library) = &set.library else { return refused(libc::EINVAL) };
    code(library.read(values))
}

/// A steering rule.
#[repr(C)]
pub(crate) struct Rule {
    base: ibv_flow,
    library: Option<Flow>,
}

impl Rule {
    /// Wraps the library's rule for the program.
    pub(crate) fn for_program(context: *mut ibv_context, flow: Flow) -> *mut ibv_flow {
        let base = ibv_flow { comp_mask: 0, context, handle: 0 };
        Box::into_raw(Box::new(Self { base, library: Some(flow) })).cast()
    }
}

/// The kernel's errno for a queue pair that cannot be a rule's target. Its
/// `ib_uverbs_ex_create_flow` (core/uverbs_cmd.c) accepts type UD, for IPoIB.
fn without_rules(queue_pair: &Qp) -> c_int {
    let is_ud = queue_pair.base().qp_type == QpType::Ud as u32;
    if is_ud { libc::EOPNOTSUPP } else { libc::EINVAL }
}

/// `ibv_create_flow`: steers packets to a raw packet queue pair.
pub(crate) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    // SAFETY: the caller's queue pair.
    let (context, queue_pair) = unsafe { ((*qp).context, Qp::of(qp)) };
    let made = queue_pair.with(|library| {
        let builder = library.create_flow().ok_or(without_rules(queue_pair))?;
        // SAFETY: the caller's struct, which its specifications follow.
        let builder = unsafe { steering::describe(attr, builder) }?;
        builder.build().map_err(|error| failed(&error))
    });
    match made {
        Ok(flow) => Rule::for_program(context, flow),
        Err(errno) => null(errno),
    }
}

/// `ibv_destroy_flow`.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(flow.cast::<Rule>(), |flow| &mut flow.library, Flow::destroy) }
}
