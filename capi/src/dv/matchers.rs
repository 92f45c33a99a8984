//! Steering rules in the device's own format, and their header actions.

use std::ffi::{c_int, c_void};
use std::slice;

use uverbs::flow::{
    self, FlowAction, FlowFlags, FlowTableType, MatchedFlowBuilder, MatcherOptions,
    PacketReformatType,
};

use super::devx::Object;
use crate::abi::*;
use crate::context::Context;
use crate::flow::Rule;
use crate::grown::{self, grown};
use crate::post::bytes;
use crate::qp::Qp;
use crate::result::{destroy_and_free, failed, null, pointer};

/// `struct mlx5dv_flow_matcher`, whose fields programs do not see.
pub(crate) struct Matcher {
    context: *mut ibv_context,
    library: Option<flow::Matcher>,
}

/// `struct mlx5dv_flow_match_parameters`; the bytes follow.
#[repr(C)]
pub(crate) struct Parameters {
    match_sz: usize,
    match_buf: [u64; 0],
}

/// `struct mlx5dv_flow_matcher_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MatcherAttr {
    r#type: u32,
    flags: u32,
    priority: u16,
    match_criteria_enable: u8,
    match_mask: *const Parameters,
    comp_mask: u64,
    ft_type: u32,
    ib_port: u32,
}

grown! {
    MatcherAttr until ft_type by comp_mask {
        MASK_TABLE => ft_type,
        MASK_PORT => ib_port,
    }
}

/// `enum mlx5dv_flow_matcher_attr_mask`.
const MASK_TABLE: u64 = 1;
const MASK_PORT: u64 = 1 << 1;
/// `IBV_FLOW_ATTR_NORMAL`.
const NORMAL: u32 = 0;
/// `MLX5DV_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX` and `_TX`, the tables that are per port.
const TABLES_OF_PORTS: [u32; 2] = [5, 6];

/// `enum mlx5dv_flow_action_type`.
mod action {
    pub(super) const DEST_IBV_QP: u32 = 0;
    pub(super) const DROP: u32 = 1;
    pub(super) const IBV_FLOW_ACTION: u32 = 3;
    pub(super) const TAG: u32 = 4;
    pub(super) const DEST_DEVX: u32 = 5;
    pub(super) const COUNTERS_DEVX: u32 = 6;
    pub(super) const DEFAULT_MISS: u32 = 7;
    pub(super) const COUNTERS_DEVX_WITH_OFFSET: u32 = 8;
}

/// `struct mlx5dv_flow_action_attr`. In programs that call `__mlx5dv_create_flow` more fields
/// follow.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Action {
    r#type: u32,
    is: Union,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Union {
    qp: *mut ibv_qp,
    action: *mut ibv_flow_action,
    tag: u32,
    object: *const Object,
}

/// `struct ibv_flow_action`, followed by the library's handle.
#[repr(C)]
pub(crate) struct HeaderAction {
    base: ibv_flow_action,
    library: Option<FlowAction>,
}

/// Most flow actions of a rule, as libmlx5 has it.
const MAX_ACTIONS: usize = 8;

/// The bytes of a match.
///
/// # Safety
/// A program's parameters, with the number of bytes that they specify.
unsafe fn parameters<'a>(of: *const Parameters) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { bytes((&raw const (*of).match_buf).cast(), (*of).match_sz) }
}

/// `mlx5dv_create_flow_matcher`.
pub(crate) unsafe extern "C" fn create_flow_matcher(
    context: *mut ibv_context,
    attr: *const MatcherAttr,
) -> *mut Matcher {
    // SAFETY: the caller's struct.
    let (options, known) = unsafe { options(attr) };
    if !known {
        return null(libc::EOPNOTSUPP);
    }
    let needs_port = options.table.is_some_and(|table| TABLES_OF_PORTS.contains(&table.0));
    match (needs_port, options.port) {
        (true, None) => return null(libc::EINVAL),
        (false, Some(_)) => return null(libc::EOPNOTSUPP),
        _ => {}
    }
    // SAFETY: the caller's context.
    let made = unsafe { Context::of(context) }.library.create_flow_matcher(&options);
    pointer(made.map(|library| Box::new(Matcher { context, library: Some(library) })))
}

/// The options in the program's struct, and whether this library knows all of them.
///
/// # Safety
/// The caller's struct, with the fields that its mask names.
unsafe fn options<'a>(attr: *const MatcherAttr) -> (MatcherOptions<'a>, bool) {
    // SAFETY: the caller's promise.
    let (attr, parameters) = unsafe {
        let attr = grown::read(attr);
        (attr, parameters(attr.match_mask))
    };
    let mask = attr.comp_mask;
    let options = MatcherOptions {
        mask: parameters,
        criteria: attr.match_criteria_enable,
        priority: attr.priority,
        table: (mask & MASK_TABLE != 0).then_some(FlowTableType(attr.ft_type)),
        port: (mask & MASK_PORT != 0).then_some(attr.ib_port),
        flags: FlowFlags::from_bits_retain(attr.flags),
    };
    (options, mask & !(MASK_TABLE | MASK_PORT) == 0 && attr.r#type == NORMAL)
}

/// `mlx5dv_destroy_flow_matcher`.
pub(crate) unsafe extern "C" fn destroy_flow_matcher(matcher: *mut Matcher) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(matcher, |matcher| &mut matcher.library, flow::Matcher::destroy) }
}

/// `mlx5dv_create_flow`, for programs built with headers that call this symbol.
pub(crate) unsafe extern "C" fn create_flow(
    matcher: *mut Matcher,
    value: *const Parameters,
    count: usize,
    actions: *const Action,
) -> *mut ibv_flow {
    // SAFETY: the caller's promises.
    unsafe { __mlx5dv_create_flow(matcher, value, count, actions, size_of::<Action>()) }
}

/// `mlx5dv_create_flow`, for programs that pass the size of each action.
pub(crate) unsafe extern "C" fn __mlx5dv_create_flow(
    matcher: *mut Matcher,
    value: *const Parameters,
    count: usize,
    actions: *const Action,
    size: usize,
) -> *mut ibv_flow {
    // SAFETY: the caller's matcher and actions.
    let (context, wanted) = unsafe {
        let Some(library) = &(*matcher).library else { return null(libc::EINVAL) };
        let list = (0..count).map(|at| actions.wrapping_byte_add(at * size));
        let has_offset = size > size_of::<Action>();
        ((*matcher).context, Wanted::read(list, has_offset, library, parameters(value)))
    };
    let made = wanted.and_then(Wanted::build);
    match made {
        Ok(flow) => Rule::for_program(context, flow),
        Err(errno) => null(errno),
    }
}

/// The destination of the frames.
#[derive(Clone, Copy)]
enum Way {
    Unsaid,
    To(*mut ibv_qp),
    Object(*const Object),
    Drop,
    DefaultMiss,
}

/// The rule that a program requests.
struct Wanted<'a> {
    matcher: &'a flow::Matcher,
    value: &'a [u8],
    way: Way,
    tag: Option<u32>,
    counter: Option<(*const Object, Option<u32>)>,
    actions: Vec<FlowAction>,
}

impl<'a> Wanted<'a> {
    /// Reads the actions; errors are libmlx5's.
    ///
    /// # Safety
    /// A program's actions, and the objects that they name.
    unsafe fn read(
        list: impl Iterator<Item = *const Action>,
        has_offset: bool,
        matcher: &'a flow::Matcher,
        value: &'a [u8],
    ) -> Result<Self, c_int> {
        let (way, actions) = (Way::Unsaid, Vec::new());
        let mut wanted = Self { matcher, value, way, tag: None, counter: None, actions };
        for at in list {
            // SAFETY: the caller's promise.
            unsafe { wanted.add(at, has_offset)? };
        }
        Ok(wanted)
    }

    /// # Safety
    /// A program's action, and the object that it names.
    unsafe fn add(&mut self, at: *const Action, has_offset: bool) -> Result<(), c_int> {
        // SAFETY: the caller's promise; the type says which part of the union is filled.
        unsafe {
            let Action { r#type, is } = *at;
            match r#type {
                action::DEST_IBV_QP => self.go(Way::To(is.qp)),
                action::DEST_DEVX => self.go(Way::Object(is.object)),
                action::DROP => self.go(Way::Drop),
                action::DEFAULT_MISS => self.go(Way::DefaultMiss),
                action::TAG => match self.tag.replace(is.tag) {
                    Some(_) => Err(libc::EINVAL),
                    None => Ok(()),
                },
                action::COUNTERS_DEVX => self.count(is.object, None),
                action::COUNTERS_DEVX_WITH_OFFSET if has_offset => {
                    self.count(is.object, Some(at.add(1).cast::<u32>().read()))
                }
                action::IBV_FLOW_ACTION if self.actions.len() < MAX_ACTIONS => {
                    let action = &*is.action.cast::<HeaderAction>();
                    self.actions.push(action.library.clone().ok_or(libc::EINVAL)?);
                    Ok(())
                }
                _ => Err(libc::EOPNOTSUPP),
            }
        }
    }

    fn go(&mut self, way: Way) -> Result<(), c_int> {
        match std::mem::replace(&mut self.way, way) {
            Way::Unsaid => Ok(()),
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    fn count(&mut self, object: *const Object, offset: Option<u32>) -> Result<(), c_int> {
        match self.counter.replace((object, offset)) {
            Some(_) => Err(libc::EOPNOTSUPP),
            None => Ok(()),
        }
    }

    fn build(self) -> Result<uverbs::Flow, c_int> {
        let (matcher, value) = (self.matcher, self.value);
        match self.way {
            Way::Unsaid => self.finish(matcher.create_flow(value)),
            Way::Drop => self.finish(matcher.create_flow(value).drop_frames()),
            Way::DefaultMiss => self.finish(matcher.create_flow(value).default_miss()),
            Way::Object(object) => {
                // SAFETY: the caller's object.
                let object = unsafe { Object::of(object) }.ok_or(libc::EINVAL)?;
                self.finish(matcher.create_flow(value).to_object(object))
            }
            // SAFETY: the caller's queue pair.
            Way::To(qp) => unsafe { Qp::of(qp) }.with(|library| {
                let builder = library.create_flow_by(matcher, value).ok_or(libc::EINVAL)?;
                self.finish(builder)
            }),
        }
    }

    fn finish(self, mut rule: MatchedFlowBuilder<'_>) -> Result<uverbs::Flow, c_int> {
        if let Some(tag) = self.tag {
            rule = rule.tag(tag);
        }
        if let Some((object, offset)) = self.counter {
            // SAFETY: the caller's object.
            let object = unsafe { Object::of(object) }.ok_or(libc::EINVAL)?;
            rule = rule.count(object, offset);
        }
        for action in &self.actions {
            rule = rule.action(action);
        }
        rule.build().map_err(|error| failed(&error))
    }
}

/// `mlx5dv_create_flow_action_modify_header`.
pub(crate) unsafe extern "C" fn create_flow_action_modify_header(
    context: *mut ibv_context,
    length: usize,
    actions: *const c_void,
    table: u32,
) -> *mut ibv_flow_action {
    // SAFETY: the caller's context and memory.
    let made = unsafe {
        let actions = bytes(actions.cast(), length);
        Context::of(context).library.create_modify_header(actions, FlowTableType(table))
    };
    header_action(context, made)
}

/// `mlx5dv_create_flow_action_packet_reformat`.
pub(crate) unsafe extern "C" fn create_flow_action_packet_reformat(
    context: *mut ibv_context,
    length: usize,
    data: *const c_void,
    kind: u32,
    table: u32,
) -> *mut ibv_flow_action {
    if data.is_null() != (length == 0) {
        return null(libc::EINVAL);
    }
    let (kind, table) = (PacketReformatType(kind), FlowTableType(table));
    // SAFETY: the caller's memory, of this length.
    let header = (length > 0).then(|| unsafe { slice::from_raw_parts(data.cast(), length) });
    // SAFETY: the caller's context.
    let library = unsafe { &Context::of(context).library };
    header_action(context, library.create_packet_reformat(kind, header, table))
}

fn header_action(
    context: *mut ibv_context,
    made: uverbs::Result<FlowAction>,
) -> *mut ibv_flow_action {
    pointer(made.map(|library| {
        Box::new(HeaderAction { base: ibv_flow_action { context }, library: Some(library) })
    }))
}

/// `ibv_destroy_flow_action`.
pub(crate) unsafe extern "C" fn destroy_flow_action(action: *mut ibv_flow_action) -> c_int {
    let action = action.cast::<HeaderAction>();
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(action, |action| &mut action.library, FlowAction::destroy) }
}
