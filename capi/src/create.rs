//! Creates queue pairs.

use std::convert::identity;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use uverbs::Error;
use uverbs::RssTarget;
use uverbs::qp::rss::{RSS_KEY_BYTES, RssFields, RssOptions};
use uverbs::qp::{Capacities, DcReceiver, Operations, XrcReceiver};
use uverbs::qp_type::{Dci, QpType, QueuePairType, RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::raw::{QpBuilder, QueuePair};

use crate::abi::*;
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::environment::variable;
use crate::fields::with_fields_of;
use crate::grown::{self, grown};
use crate::observe;
use crate::pd::Pd;
use crate::post::{self, SendTable};
use crate::qp::{Control, Qp, QpExtras, is_single_threaded};
use crate::result::{failed, null};
use crate::srq::Srq;
use crate::usual::Posts;
use crate::wq::Table;
use crate::xrc::Xrcd;

/// `enum ibv_qp_init_attr_mask`.
const MASK_PD: u32 = 1;
const MASK_XRCD: u32 = 1 << 1;
const MASK_CREATE_FLAGS: u32 = 1 << 2;
const MASK_TSO: u32 = 1 << 3;
const MASK_IND_TABLE: u32 = 1 << 4;
const MASK_RX_HASH: u32 = 1 << 5;
const MASK_SEND_OPS: u32 = 1 << 6;
const MASK_RSS: u32 = MASK_IND_TABLE | MASK_RX_HASH;
const KNOWN: u32 = MASK_PD | MASK_XRCD | MASK_CREATE_FLAGS | MASK_TSO | MASK_RSS | MASK_SEND_OPS;
/// `enum ibv_qp_create_flags`.
const SCATTER_FCS: u32 = 1 << 8;
const CVLAN_STRIPPING: u32 = 1 << 9;
/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`, `_SOURCE_QPN` and `_PCI_WRITE_END_PADDING`.
const NOT_IMPLEMENTED: u32 = 1 << 1 | 1 << 10 | 1 << 11;
/// `enum ibv_qp_create_send_ops_flags`.
const OPS_RDMA: u64 = 1 | 1 << 1 | 1 << 4;
const OPS_ATOMIC: u64 = 1 << 5 | 1 << 6;
const OPS_WINDOW: u64 = 1 << 7 | 1 << 8;
const OPS_KNOWN: u64 = (1 << 11) - 1;
const OPS_SEND: u64 = 1 << 2 | 1 << 3;
const OPS_SEND_INVALIDATE: u64 = 1 << 9;
const OPS_SEGMENTS: u64 = 1 << 10;
const RC: u32 = QpType::Rc as u32;
const UC: u32 = QpType::Uc as u32;
const UD: u32 = QpType::Ud as u32;
const RAW: u32 = QpType::RawPacket as u32;
const XRC_SEND: u32 = QpType::XrcSend as u32;
const XRC_RECEIVE: u32 = QpType::XrcReceive as u32;
/// `IBV_QPT_DRIVER`. `QpType::DcInitiator` has the same number; in C, DC targets also have it.
const DRIVER: u32 = QpType::DcInitiator as u32;
/// `IBV_RX_HASH_FUNC_TOEPLITZ`.
const TOEPLITZ: u8 = 1;

/// User context of raw packet queue pairs and work queues: a field of their CQEs reports good
/// checksums. In CQEs of other types that field has other data.
pub(crate) const CHECKS_IP: u64 = 1;

/// The additional attributes of `mlx5dv_create_qp`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mlx5Attributes {
    /// Never deliver short messages inside the CQE.
    pub(crate) no_scatter: bool,
    /// The program builds requests with `mlx5dv_wr_…`, of any operation.
    pub(crate) is_extended: bool,
    /// Requests configure memory keys.
    pub(crate) changes_keys: bool,
    /// The program encodes requests itself, and completions report this.
    pub(crate) encodes: bool,
    pub(crate) dynamic: Option<Dynamic>,
}

/// One end of a dynamic connection.
#[derive(Clone, Copy)]
pub(crate) enum Dynamic {
    /// Sends.
    Initiator,
    /// Receives from initiators that know the access key.
    Target {
        /// The key.
        access_key: u64,
    },
}

/// The attributes of a queue pair to create, in one form for all verbs.
struct QpRequest {
    context: *mut ibv_context,
    attributes: ibv_qp_init_attr_ex,
    /// Operations of `ibv_wr_…` that the program requests.
    operations: Option<u64>,
    /// Never deliver short messages inside the CQE.
    no_scatter: bool,
    /// Requests configure memory keys.
    changes_keys: bool,
    /// Requests are encoded by the program.
    encodes: bool,
    dynamic: Option<Dynamic>,
}

grown! {
    ibv_qp_init_attr_ex until pd by comp_mask {
        MASK_PD => pd,
        MASK_XRCD => xrcd,
        MASK_CREATE_FLAGS => create_flags,
        MASK_TSO => max_tso_header,
        MASK_IND_TABLE => rwq_ind_tbl,
        MASK_RX_HASH => rx_hash_conf,
        MASK_SEND_OPS => send_ops_flags,
    }
}

/// `ibv_create_qp`.
pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's domain, and its struct, which is the same in all releases.
    let (attr, context) = unsafe { (&mut *attr, (*pd).context) };
    let mut extended = with_fields_of! {
        attr: qp_context send_cq recv_cq srq cap qp_type sq_sig_all;
        ibv_qp_init_attr_ex {
            comp_mask: MASK_PD,
            pd,
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: 0,
                rx_hash_key_len: 0,
                rx_hash_key: ptr::null_mut(),
                rx_hash_fields_mask: 0,
            },
            source_qpn: 0,
            send_ops_flags: 0,
        }
    };
    // SAFETY: a local struct over the caller's objects.
    let made = unsafe { create_qp_ex(context, &raw mut extended) };
    if !made.is_null() {
        attr.cap = extended.cap;
    }
    made
}

/// `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's objects.
    unsafe { create_qp_of_mlx5(context, attr, Mlx5Attributes::default()) }
}

/// `ibv_create_qp_ex` with mlx5's additional attributes.
///
/// # Safety
/// The caller's objects.
pub(crate) unsafe fn create_qp_of_mlx5(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    extra: Mlx5Attributes,
) -> *mut ibv_qp {
    // SAFETY: the caller's struct.
    let attributes = unsafe { grown::read(attr) };
    let mask = attributes.comp_mask;
    if mask & !KNOWN != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let asked = if mask & MASK_SEND_OPS == 0 { 0 } else { attributes.send_ops_flags };
    if asked & !operations_of(attributes.qp_type) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let request = QpRequest {
        context,
        operations: match mask & MASK_SEND_OPS {
            0 => extra.is_extended.then_some(OPS_KNOWN),
            _ => Some(attributes.send_ops_flags),
        },
        attributes,
        no_scatter: extra.no_scatter,
        changes_keys: extra.changes_keys,
        encodes: extra.encodes,
        dynamic: extra.dynamic,
    };
    // SAFETY: the caller's objects.
    match unsafe { make(&request) } {
        Ok(made) => finish(context, attr, made),
        Err(errno) => null(errno),
    }
}

/// The operations of `ibv_wr_…` that libmlx5 accepts at creation (`mlx5_qp_fill_wr_pfns`). A type
/// may lack one of them (UC: SEND with invalidate). Then `ibv_wr_complete` refuses it.
fn operations_of(kind: u32) -> u64 {
    match kind {
        RC | XRC_SEND | DRIVER => OPS_KNOWN & !OPS_SEGMENTS,
        UC => 1 | 1 << 1 | OPS_SEND | OPS_WINDOW | OPS_SEND_INVALIDATE,
        UD => OPS_SEND,
        RAW => 1 << 2 | OPS_SEGMENTS,
        _ => 0,
    }
}

/// Registers a queue pair for events, and writes the granted capacities back to the program's
/// struct.
fn finish(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    made: Result<*mut Qp, Error>,
) -> *mut ibv_qp {
    let made = register(context, made);
    // SAFETY: null, or just made; the caller's struct.
    unsafe {
        if let Some(queue_pair) = made.as_ref() {
            (*attr).cap = crate::attributes::capacities(queue_pair.capacities);
        }
    }
    made.cast()
}

/// Registers a queue pair for events. Returns null with errno if its creation failed.
pub(crate) fn register(context: *mut ibv_context, made: Result<*mut Qp, Error>) -> *mut Qp {
    let made = made.unwrap_or_else(|error| null(failed(&error)));
    // SAFETY: null, or just made; the caller's context.
    unsafe {
        if let Some(queue_pair) = made.as_ref() {
            if let Some(mut objects) = Context::of(context).objects() {
                objects.insert(queue_pair.id(), Object::Qp(made));
            }
        }
    }
    made
}

/// Creates a queue pair of the requested type. The outer error is an errno for attributes that are
/// refused here, the inner one is the library's.
///
/// # Safety
/// The pointers in `request` are null, or lead to live objects of this library.
unsafe fn make(request: &QpRequest) -> Result<Result<*mut Qp, Error>, c_int> {
    let kind = request.attributes.qp_type;
    if request.attributes.comp_mask & MASK_RSS != 0 {
        // SAFETY: the caller's promise.
        return unsafe { rss_target(request) };
    }
    if request.dynamic.is_some() && kind != DRIVER {
        return Err(libc::EINVAL);
    }
    let (flags, header) = (request.attributes.create_flags, request.attributes.max_tso_header);
    let known = if kind == RAW { SCATTER_FCS | CVLAN_STRIPPING } else { 0 };
    if flags & !(known | NOT_IMPLEMENTED) != 0 {
        return Err(libc::EINVAL);
    }
    if flags & NOT_IMPLEMENTED != 0 || (kind != RAW && header != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise, for all of them.
    unsafe {
        match kind {
            RC => typed::<Rc>(request, &post::RC, identity),
            UC => typed::<Uc>(request, &post::UC, identity),
            UD => typed::<Ud>(request, &post::UD, identity),
            XRC_SEND => typed::<Xrc>(request, &post::XRC, identity),
            RAW => typed::<RawPacket>(request, &post::RAW, |builder| raw_packet(request, builder)),
            XRC_RECEIVE => xrc_receiver(request),
            DRIVER => match request.dynamic {
                Some(Dynamic::Initiator) => typed::<Dci>(request, &post::DCI, identity),
                Some(Dynamic::Target { access_key }) => dc_receiver(request, access_key),
                None => Err(libc::EINVAL),
            },
            _ => Err(libc::EINVAL),
        }
    }
}

fn raw_packet(request: &QpRequest, mut builder: QpBuilder<RawPacket>) -> QpBuilder<RawPacket> {
    let (flags, header) = (request.attributes.create_flags, request.attributes.max_tso_header);
    builder = builder.user_context(CHECKS_IP);
    if flags & SCATTER_FCS != 0 {
        builder = builder.keep_check_sequence();
    }
    if flags & CVLAN_STRIPPING != 0 {
        builder = builder.strip_vlan();
    }
    if header != 0 {
        builder = builder.segmentation(header.into());
    }
    builder
}

/// # Safety
/// As for [`make`].
unsafe fn typed<T>(
    request: &QpRequest,
    tables: &'static [SendTable; 3],
    options: impl FnOnce(QpBuilder<T>) -> QpBuilder<T>,
) -> Result<Result<*mut Qp, Error>, c_int>
where
    T: QueuePairType + Posts,
    QueuePair<T>: Control,
{
    let attributes = &request.attributes;
    if attributes.pd.is_null() || attributes.send_cq.is_null() {
        return Err(libc::EINVAL);
    }
    let recv_cq = if attributes.recv_cq.is_null() {
        if T::HAS_RECEIVES {
            return Err(libc::EINVAL);
        }
        attributes.send_cq
    } else {
        attributes.recv_cq
    };
    // SAFETY: the caller's objects.
    let (pd, send_cq, recv_cq) =
        unsafe { (Pd::of(attributes.pd), Cq::of(attributes.send_cq), Cq::of(recv_cq)) };
    let handles = (pd.domain(), send_cq.handle(), recv_cq.handle());
    let (Some(domain), Some(send), Some(receive)) = handles else { return Err(libc::EINVAL) };
    let mut builder = common_options(domain.create_raw_qp::<T>(&send, &receive), request);
    if !attributes.srq.is_null() && T::HAS_RECEIVES {
        // SAFETY: the caller's queue.
        let srq = unsafe { Srq::of(attributes.srq) };
        builder = builder.shared_receive_queue(&srq.handle().ok_or(libc::EINVAL)?);
    }
    let builder = options(builder);
    let one_thread = pd.is_of_one_thread() || is_single_threaded();
    let user = Some(pd.users.clone());
    Ok(builder.build_in_reset().map(|library| {
        let has_sends = library.layout().send.is_some();
        let table = &tables[post::place(has_sends)];
        let extras = extras(request, &library, table, one_thread, user);
        let made = Qp::new(library, table, extras);
        if request.encodes && has_sends {
            // SAFETY: just made of this type, so no other thread has it.
            unsafe { post::sends::<T>(made.cast()) }.tell_encoded();
        }
        made
    }))
}

fn common_options<T: QueuePairType>(builder: QpBuilder<T>, request: &QpRequest) -> QpBuilder<T> {
    let cap = &request.attributes.cap;
    let mut builder = builder
        .max_send_wr(cap.max_send_wr)
        .max_recv_wr(cap.max_recv_wr)
        .max_send_sge(cap.max_send_sge)
        .max_recv_sge(cap.max_recv_sge)
        .max_inline_data(cap.max_inline_data)
        .without_gid();
    if request.attributes.sq_sig_all != 0 {
        builder = builder.signal_all();
    }
    let is_off = variable("MLX5_SCATTER_TO_CQE").is_some_and(|value| value == "0");
    if request.no_scatter || is_off {
        builder = builder.no_scatter_to_cqe();
    }
    match request.operations {
        Some(flags) => {
            let mut operations = operations(flags);
            operations.set(Operations::KEY, request.changes_keys);
            builder.operations(operations)
        }
        None => builder,
    }
}

fn operations(flags: u64) -> Operations {
    let mut operations = Operations::empty();
    operations.set(Operations::RDMA, flags & OPS_RDMA != 0);
    operations.set(Operations::ATOMIC, flags & OPS_ATOMIC != 0);
    operations.set(Operations::WINDOW, flags & OPS_WINDOW != 0);
    operations
}

/// Creates an RSS queue pair: it has no queues, and spreads flows over the work queues of a table.
/// The hash key and fields are in the driver's part of the request, as in libmlx5. Refuses values
/// that the kernel would refuse.
///
/// # Safety
/// As for [`make`].
unsafe fn rss_target(request: &QpRequest) -> Result<Result<*mut Qp, Error>, c_int> {
    let attributes = &request.attributes;
    let hash = &attributes.rx_hash_conf;
    let has_queues = !attributes.send_cq.is_null()
        || !attributes.recv_cq.is_null()
        || !attributes.srq.is_null()
        || attributes.cap.max_recv_wr != 0
        || attributes.cap.max_send_wr != 0;
    if attributes.comp_mask & MASK_RSS != MASK_RSS
        || attributes.qp_type != QpType::RawPacket as u32
        || attributes.pd.is_null()
        || attributes.rwq_ind_tbl.is_null()
        || hash.rx_hash_key.is_null()
        || has_queues
    {
        return Err(libc::EINVAL);
    }
    if hash.rx_hash_function != TOEPLITZ {
        return Err(libc::EOPNOTSUPP);
    }
    if usize::from(hash.rx_hash_key_len) != RSS_KEY_BYTES {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's objects, and a key of that many bytes.
    let (pd, table, key) = unsafe {
        let key = hash.rx_hash_key.cast::<[u8; RSS_KEY_BYTES]>().read();
        (Pd::of(attributes.pd), Table::of(attributes.rwq_ind_tbl), key)
    };
    let (Some(domain), Some(table)) = (pd.domain(), table.library()) else {
        return Err(libc::EINVAL);
    };
    let fields = RssFields::from_bits_retain(hash.rx_hash_fields_mask);
    let options = RssOptions::with_fields(fields).key(key);
    Ok(domain.create_rss_target(table, &options).map(|library: RssTarget| {
        let extras = extras(request, &library, &post::RSS, false, Some(pd.users.clone()));
        Qp::new(library, &post::RSS, extras)
    }))
}

/// # Safety
/// As for [`make`].
unsafe fn xrc_receiver(request: &QpRequest) -> Result<Result<*mut Qp, Error>, c_int> {
    if request.attributes.xrcd.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's domain.
    let domain = unsafe { Xrcd::of(request.attributes.xrcd) };
    let Some(domain) = domain.library() else { return Err(libc::EINVAL) };
    Ok(domain.create_receiver_in_reset().map(|library| {
        let mut base = base(request, &library);
        // CQs that are not needed are not stored, because the program may destroy them before the
        // queue pair.
        (base.send_cq, base.recv_cq) = (ptr::null_mut(), ptr::null_mut());
        xrc_target(base, library)
    }))
}

/// Creates a DC target. As in the kernel's driver and libmlx5, `send_ops_flags` are refused, and a
/// shared receive queue is required.
///
/// # Safety
/// As for [`make`].
unsafe fn dc_receiver(
    request: &QpRequest,
    access_key: u64,
) -> Result<Result<*mut Qp, Error>, c_int> {
    let attributes = &request.attributes;
    let has_other_attributes = attributes.comp_mask & !MASK_PD != 0;
    let lacks_objects =
        attributes.pd.is_null() || attributes.recv_cq.is_null() || attributes.srq.is_null();
    if has_other_attributes || lacks_objects || request.operations.is_some() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's objects.
    let (pd, cq, srq) =
        unsafe { (Pd::of(attributes.pd), Cq::of(attributes.recv_cq), Srq::of(attributes.srq)) };
    let (Some(domain), Some(cq), Some(srq)) = (pd.domain(), cq.handle(), srq.handle()) else {
        return Err(libc::EINVAL);
    };
    let made = domain.create_dc_receiver_in_reset(&cq, &srq, access_key);
    Ok(made.map(|library: DcReceiver| {
        let extras = extras(request, &library, &post::DCT, false, Some(pd.users.clone()));
        Qp::new(library, &post::DCT, extras)
    }))
}

/// The receiving end of an XRC connection, created or opened.
pub(crate) fn xrc_target(base: ibv_qp, library: XrcReceiver) -> *mut Qp {
    let mut ex = (post::NONE.wr)(base, true);
    observe::building(&mut ex);
    let extras = QpExtras {
        ex,
        capacities: Capacities::default(),
        signal_all: false,
        one_thread: false,
        is_extended: false,
        user: None,
    };
    Qp::new(library, &post::NONE, extras)
}

fn extras(
    request: &QpRequest,
    library: &dyn Control,
    table: &SendTable,
    one_thread: bool,
    user: Option<Arc<()>>,
) -> QpExtras {
    let mut ex = (table.wr)(base(request, library), !one_thread);
    observe::building(&mut ex);
    QpExtras {
        ex,
        capacities: library.capacities().unwrap_or_default(),
        signal_all: request.attributes.sq_sig_all != 0,
        one_thread,
        is_extended: request.operations.is_some(),
        user,
    }
}

fn base(request: &QpRequest, library: &dyn Control) -> ibv_qp {
    let attributes = &request.attributes;
    with_fields_of! {
        attributes: qp_context pd send_cq recv_cq srq qp_type;
        ibv_qp {
            context: request.context,
            handle: library.kernel_handle(),
            qp_num: library.number(),
            state: 0,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        }
    }
}
