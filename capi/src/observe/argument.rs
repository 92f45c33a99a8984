//! How a trace shows the arguments and results of verbs, and the objects to which they refer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;

use super::misuse::{Kind, Seen};
use super::names::named as with_names;
use crate::abi::*;
use crate::dv;
use crate::grown::{self, grown};

/// An argument of a verb.
pub(crate) trait Argument {
    /// Writes its value.
    fn show(&self, to: &mut String);
    /// Names the objects in it.
    fn objects(&self, _see: &mut dyn FnMut(Seen)) {}
}

/// The result of a verb.
pub(crate) trait Answer: Argument {
    /// The result of a call that is refused with EINVAL.
    fn refused() -> Self;
    /// Why the call failed; `None` if it did not.
    fn errno(&self) -> Option<c_int>;
    /// The object that the verb created.
    fn object(&self) -> Option<Seen> {
        None
    }
}

/// `errno` of the calling thread.
fn last() -> c_int {
    // SAFETY: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn refuse() {
    crate::result::set_errno(libc::EINVAL);
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn show(&self, to: &mut String) {
                let _ = write!(to, "{self}");
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, usize, isize, c_int, &str);

/// Verbs that return an `int`: 0, an errno, or −1 with `errno` set.
impl Answer for c_int {
    fn refused() -> Self {
        refuse();
        libc::EINVAL
    }
    fn errno(&self) -> Option<c_int> {
        match *self {
            0 => None,
            code if code < 0 => Some(last()),
            code => Some(code),
        }
    }
}

/// Verbs that return nothing.
impl Argument for () {
    fn show(&self, to: &mut String) {
        to.push_str("()");
    }
}

impl Answer for () {
    fn refused() {
        refuse();
    }
    fn errno(&self) -> Option<c_int> {
        None
    }
}

/// Results that are negative after a failure, with `errno` set.
macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$meta])*
        pub(crate) struct $name(pub(crate) $type);

        impl Argument for $name {
            fn show(&self, to: &mut String) {
                self.0.show(to);
            }
        }

        impl Answer for $name {
            fn refused() -> Self {
                refuse();
                Self(-1)
            }
            fn errno(&self) -> Option<c_int> {
                (self.0 < 0).then(last)
            }
        }
    )*};
}

counts! {
    /// A count or a length.
    Count: isize;
    /// 0, or an index in a table.
    MinusOne: c_int;
}

fn address<T>(pointer: *const T, to: &mut String) {
    if pointer.is_null() {
        to.push_str("NULL");
    } else {
        let _ = write!(to, "{pointer:p}");
    }
}

macro_rules! objects {
    ($($type:ty: $kind:ident;)*) => {$(
        impl Argument for *mut $type {
            fn show(&self, to: &mut String) {
                address(*self, to);
            }
            fn objects(&self, see: &mut dyn FnMut(Seen)) {
                if !self.is_null() {
                    see(Seen { address: self.expose_provenance(), kind: Kind::$kind });
                }
            }
        }
        impl Answer for *mut $type {
            fn refused() -> Self {
                refuse();
                std::ptr::null_mut()
            }
            fn errno(&self) -> Option<c_int> {
                self.is_null().then(last)
            }
            fn object(&self) -> Option<Seen> {
                (!self.is_null()).then(|| Seen { address: self.expose_provenance(), kind: Kind::$kind })
            }
        }
    )*};
}

objects! {
    ibv_context: Context;
    ibv_pd: Pd;
    ibv_mr: Mr;
    ibv_mw: Mw;
    ibv_ah: Ah;
    ibv_cq: Cq;
    ibv_cq_ex: Cq;
    ibv_qp: Qp;
    ibv_qp_ex: Qp;
    ibv_srq: Srq;
    ibv_wq: Wq;
    ibv_rwq_ind_table: IndirectionTable;
    ibv_comp_channel: Channel;
    ibv_td: ThreadDomain;
    ibv_xrcd: Xrcd;
    ibv_dm: DeviceMemory;
    ibv_counters: Counters;
    ibv_flow: Flow;
    ibv_flow_action: FlowAction;
    ibv_device: Device;
    dv::Matcher: FlowMatcher;
    dv::Anchor: SteeringAnchor;
    dv::DirectQp: DirectQp;
    dv::Key: Mkey;
    dv::Object: FirmwareObject;
    dv::Memory: FirmwareMemory;
    dv::Uar: DoorbellPage;
    dv::Var: VirtioDoorbell;
    dv::Pacing: PacingEntry;
    dv::Answers: AnswerChannel;
    dv::Events: EventChannel;
}

/// Pointers of which only the address is shown.
macro_rules! addresses {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn show(&self, to: &mut String) {
                address(*self, to);
            }
        }
    )*};
}

addresses!(
    *mut c_void,
    *const c_void,
    *mut ibv_device_attr_ex,
    *mut ibv_td_init_attr,
    *mut ibv_alloc_dm_attr,
    *mut ibv_xrcd_init_attr,
    *mut ibv_counters_init_attr,
    *mut ibv_flow_attr,
    *mut ibv_values_ex,
    *mut ibv_wc,
    *mut ibv_grh,
    *mut ibv_sge
);

/// Addresses of memory that the library does not track.
impl Answer for *mut c_void {
    fn refused() -> Self {
        refuse();
        std::ptr::null_mut()
    }
    fn errno(&self) -> Option<c_int> {
        self.is_null().then(last)
    }
}

impl Argument for *const c_char {
    fn show(&self, to: &mut String) {
        if self.is_null() {
            return to.push_str("NULL");
        }
        // SAFETY: the program passes a string that ends with zero.
        let _ = write!(to, "{:?}", unsafe { CStr::from_ptr(*self) });
    }
}

/// Shows the struct that a pointer points to.
///
/// # Safety
/// It is null, or points to a `T` of the program or of the verb.
unsafe fn pointee<T: std::fmt::Debug>(pointer: *const T, to: &mut String) {
    // SAFETY: the caller's promise.
    match unsafe { pointer.as_ref() } {
        Some(value) => to.push_str(&with_names(&format!("{value:?}"))),
        None => to.push_str("NULL"),
    }
}

macro_rules! structs {
    ($($type:ty $(: |$given:ident| [$($object:expr),*])?;)*) => {$(
        impl Argument for *mut $type {
            fn show(&self, to: &mut String) {
                // SAFETY: the verb's argument or result is a struct of this type.
                unsafe { pointee(*self, to) };
            }
            $(fn objects(&self, see: &mut dyn FnMut(Seen)) {
                // SAFETY: as above.
                if let Some($given) = unsafe { self.as_ref() } {
                    $($object.objects(see);)*
                }
            })?
        }
    )*};
}

structs! {
    c_int;
    u16;
    u32;
    u64;
    [u8; 16];
    ibv_device_attr;
    ibv_gid_entry;
    ibv_srq_attr;
    ibv_ah_attr;
    ibv_ece;
    ibv_qp_rate_limit_attr;
    ibv_srq_init_attr;
    ibv_rwq_ind_table_init_attr;
    ibv_async_event;
    *mut ibv_cq;
    *mut c_void;
    ibv_qp_init_attr: |given| [given.send_cq, given.recv_cq, given.srq];
}

impl Argument for *const [u8; 16] {
    fn show(&self, to: &mut String) {
        // SAFETY: verbs take addresses of ports as pointers.
        unsafe { pointee(*self, to) };
    }
}

/// `enum ibv_srq_init_attr_mask`: which objects a struct names.
const SRQ_PD: u32 = 1 << 1;
const SRQ_XRCD: u32 = 1 << 2;
const SRQ_CQ: u32 = 1 << 3;

/// The object in `field` if the mask has `bit`. Otherwise the field is not read, and the result is
/// null.
fn named<T>(mask: u32, bit: u32, field: impl FnOnce() -> *mut T) -> *mut T {
    if mask & bit != 0 { field() } else { std::ptr::null_mut() }
}

/// Structs that a program fills only in part: older programs know shorter ones, and a mask may
/// leave fields out. Only the filled part is shown, without fields that the mask leaves out.
macro_rules! parts {
    ($($type:ty: |$given:ident| $show:expr, [$($object:expr),*];)*) => {$(
        impl Argument for *mut $type {
            fn show(&self, to: &mut String) {
                if self.is_null() {
                    return to.push_str("NULL");
                }
                // SAFETY: the verb's argument or result is a struct of this type.
                let $given = unsafe { grown::read(*self) };
                to.push_str(&with_names(&$show));
            }
            fn objects(&self, see: &mut dyn FnMut(Seen)) {
                let _ = &see;
                if !self.is_null() {
                    // SAFETY: as above.
                    let $given = unsafe { grown::read(*self) };
                    let _ = &$given;
                    $($object.objects(see);)*
                }
            }
        }
    )*};
}

grown! {
    ibv_port_attr until flags {}
    ibv_qp_open_attr {}
    ibv_counter_attach_attr {}
}

parts! {
    ibv_port_attr: |port| format!(
        "{{state: {}, max_mtu: {}, active_mtu: {}, lid: {}}}",
        port.state, port.max_mtu, port.active_mtu, port.lid
    ), [];
    ibv_qp_init_attr_ex: |attr| format!(
        "{{qp_type: {}, comp_mask: {:#x}, send_cq: {:p}, recv_cq: {:p}, srq: {:p}, cap: {:?}}}",
        attr.qp_type, attr.comp_mask, attr.send_cq, attr.recv_cq, attr.srq, attr.cap
    ), [
        attr.send_cq, attr.recv_cq, attr.srq, attr.pd, attr.xrcd, attr.rwq_ind_tbl
    ];
    ibv_qp_attr: |attr| format!("{attr:?}"), [];
    ibv_wq_attr: |attr| format!("{attr:?}"), [];
    ibv_wq_init_attr: |attr| format!("{attr:?}"), [attr.pd, attr.cq];
    ibv_cq_init_attr_ex: |attr| format!(
        "{{cqe: {}, channel: {:p}, comp_vector: {}, wc_flags: {:#x}}}",
        attr.cqe, attr.channel, attr.comp_vector, attr.wc_flags
    ), [attr.channel];
    ibv_qp_open_attr: |attr| format!(
        "{{comp_mask: {:#x}, qp_num: {:#x}, xrcd: {:p}, qp_type: {}}}",
        attr.comp_mask, attr.qp_num, attr.xrcd, attr.qp_type
    ), [attr.xrcd];
    ibv_counter_attach_attr: |attr| format!(
        "{{counter_desc: {}, index: {}}}", attr.counter_desc, attr.index
    ), [];
    ibv_modify_cq_attr: |attr| format!(
        "{{attr_mask: {:#x}, moderate: {:?}}}", attr.attr_mask, attr.moderate
    ), [];
    ibv_srq_init_attr_ex: |attr| format!(
        "{{attr: {:?}, comp_mask: {:#x}}}", attr.attr, attr.comp_mask
    ), [
        named(attr.comp_mask, SRQ_PD, || attr.pd), named(attr.comp_mask, SRQ_XRCD, || attr.xrcd),
        named(attr.comp_mask, SRQ_CQ, || attr.cq)
    ];
    ibv_parent_domain_init_attr: |attr| format!(
        "{{pd: {:p}, td: {:p}, comp_mask: {:#x}}}", attr.pd, attr.td, attr.comp_mask
    ), [attr.pd, attr.td];
}
