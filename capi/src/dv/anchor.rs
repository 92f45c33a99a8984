//! Steering anchors: flow table ids, for rules that a program creates by firmware commands (DEVX).

use std::ffi::c_int;

use uverbs::flow::{FlowTableType, SteeringAnchor};

use crate::abi::*;
use crate::context::Context;
use crate::result::{destroy_and_free, null, pointer};

/// `struct mlx5dv_steering_anchor_attr`.
#[repr(C)]
pub(crate) struct AnchorAttr {
    ft_type: u32,
    priority: u16,
    comp_mask: u64,
}

/// `struct mlx5dv_steering_anchor`, followed by the library's handle.
#[repr(C)]
pub(crate) struct Anchor {
    id: u32,
    library: Option<SteeringAnchor>,
}

/// `mlx5dv_create_steering_anchor`.
pub(crate) unsafe extern "C" fn create_steering_anchor(
    context: *mut ibv_context,
    attr: *mut AnchorAttr,
) -> *mut Anchor {
    // SAFETY: the caller's struct and context.
    let (attr, context) = unsafe { (&*attr, Context::of(context)) };
    if attr.comp_mask != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let table = FlowTableType(attr.ft_type);
    let made = context.library.create_steering_anchor(table, attr.priority);
    pointer(made.map(|library| Box::new(Anchor { id: library.id(), library: Some(library) })))
}

/// `mlx5dv_destroy_steering_anchor`.
pub(crate) unsafe extern "C" fn destroy_steering_anchor(anchor: *mut Anchor) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(anchor, |anchor| &mut anchor.library, SteeringAnchor::destroy) }
}
