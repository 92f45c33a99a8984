//! Receive work queues and their indirection tables.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use uverbs::ethernet::Striding;
use uverbs::events::{DetachedEvent, ObjectId};
use uverbs::raw::{CqHandle, RingLayout, WorkQueue};
use uverbs::{IndirectionTable, ProtectionDomain, WqHandle, WqState};

use crate::abi::*;
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::create::CHECKS_IP;
use crate::grown::{self, grown};
use crate::held::{self, Held};
use crate::lock::Lock;
use crate::observe;
use crate::pd::Pd;
use crate::qp::is_single_threaded;
use crate::receive;
use crate::result::{code, destroy_and_free, null, pointer, refused};

/// `IBV_WQT_RQ`.
const RECEIVES: u32 = 0;
/// `IBV_WQ_INIT_ATTR_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// `enum ibv_wq_flags`.
const CVLAN_STRIPPING: u32 = 1;
const SCATTER_FCS: u32 = 1 << 1;
/// `IBV_WQ_FLAGS_RESERVED` less one.
const FLAGS_KNOWN: u32 = 0xf;
/// `enum ibv_wq_attr_mask`.
const ATTR_STATE: u32 = 1;
const ATTR_CURRENT: u32 = 1 << 1;
const ATTR_FLAGS: u32 = 1 << 2;
const ATTR_KNOWN: u32 = ATTR_STATE | ATTR_CURRENT | ATTR_FLAGS;
/// `IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE`.
const MAX_LOG_PLACES: u32 = 13;

grown! {
    ibv_wq_init_attr until create_flags by comp_mask {
        MASK_FLAGS => create_flags,
    }
    ibv_wq_attr until flags by attr_mask {
        ATTR_FLAGS => flags,
        ATTR_FLAGS => flags_mask,
    }
}

/// A work queue.
#[repr(C)]
pub(crate) struct Wq {
    base: UnsafeCell<ibv_wq>,
    lock: Lock,
    queue: UnsafeCell<WorkQueue>,
    id: ObjectId,
    pub(crate) async_events: Held<DetachedEvent>,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Arc<()>,
}

impl Wq {
    /// The queue behind a program's pointer.
    ///
    /// # Safety
    /// `wq` is from this module, and not destroyed.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(wq: *mut ibv_wq) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*wq.cast() }
    }

    /// Runs `change` on the library's queue while no other thread posts.
    fn with<R>(&self, change: impl FnOnce(&mut WorkQueue) -> R) -> R {
        let _guard = self.lock.guard();
        // SAFETY: the lock is held, or the program uses the queue in one thread at a time.
        change(unsafe { &mut *self.queue.get() })
    }

    fn handle(&self) -> WqHandle {
        self.with(|library| library.handle().clone())
    }

    /// The location of its ring and its doorbell record.
    pub(crate) fn layout(&self) -> (Option<RingLayout>, *mut u8) {
        self.with(|library| library.layout())
    }
}

/// `ibv_create_wq`.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: the caller's promise is the same.
    unsafe { create(context, attr, None) }
}

/// `ibv_create_wq`, or that of a striding queue.
///
/// # Safety
/// The caller's struct and objects.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    striding: Option<Striding>,
) -> *mut ibv_wq {
    // SAFETY: the caller's struct.
    let given = unsafe { grown::read(attr) };
    let lacks_objects = given.pd.is_null() || given.cq.is_null();
    if given.wq_type != RECEIVES || lacks_objects || given.comp_mask & !MASK_FLAGS != 0 {
        return null(libc::EINVAL);
    }
    if given.create_flags & !(CVLAN_STRIPPING | SCATTER_FCS) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's objects.
    let (domain, cq) = unsafe { (Pd::of(given.pd), Cq::of(given.cq)) };
    let (Some(library), Some(cq)) = (domain.domain(), cq.handle()) else {
        return null(libc::EINVAL);
    };
    let made: *mut Wq = pointer(build(library, &cq, &given, striding).map(|queue| {
        // SAFETY: the caller's struct.
        unsafe { ((*attr).max_wr, (*attr).max_sge) = (queue.capacity(), queue.max_sge()) };
        object(context, domain, &given, queue)
    }));
    // SAFETY: null, or just made; the caller's context.
    unsafe {
        if let Some(queue) = made.as_ref() {
            if let Some(mut objects) = Context::of(context).objects() {
                objects.insert(queue.id, Object::Wq(made));
            }
        }
    }
    made.cast()
}

fn build(
    domain: &ProtectionDomain,
    cq: &CqHandle,
    attr: &ibv_wq_init_attr,
    striding: Option<Striding>,
) -> uverbs::Result<WorkQueue> {
    let builder = domain.create_raw_wq(cq, attr.max_wr).max_sge(attr.max_sge.max(1));
    let mut builder = builder.user_context(CHECKS_IP);
    if attr.create_flags & CVLAN_STRIPPING != 0 {
        builder = builder.strip_vlan();
    }
    if attr.create_flags & SCATTER_FCS != 0 {
        builder = builder.keep_check_sequence();
    }
    if let Some(striding) = striding {
        builder = builder.striding(striding);
    }
    builder.build_in_reset()
}

fn object(
    context: *mut ibv_context,
    domain: &Pd,
    attr: &ibv_wq_init_attr,
    queue: WorkQueue,
) -> Box<Wq> {
    let base = ibv_wq {
        context,
        wq_context: attr.wq_context,
        pd: attr.pd,
        cq: attr.cq,
        wq_num: queue.number(),
        handle: queue.kernel_handle(),
        state: WqState::Reset as u32,
        wq_type: RECEIVES,
        post_recv: observe::work_queue_receives(post_wq_recv),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
        comp_mask: 0,
    };
    Box::new(Wq {
        base: UnsafeCell::new(base),
        lock: Lock::new(!domain.is_of_one_thread() && !is_single_threaded()),
        id: queue.id(),
        queue: UnsafeCell::new(queue),
        async_events: Held::default(),
        user: domain.users.clone(),
    })
}

/// `ibv_modify_wq`.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    // SAFETY: the caller's queue and struct.
    let (queue, attr) = unsafe { (Wq::of(wq), grown::read(attr)) };
    let has = |bit| attr.attr_mask & bit != 0;
    if attr.attr_mask == 0 || has(!ATTR_KNOWN) {
        return refused(libc::EINVAL);
    }
    let [flags, mask] = if has(ATTR_FLAGS) { [attr.flags, attr.flags_mask] } else { [0; 2] };
    if mask & !FLAGS_KNOWN != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let (wanted, current) = (state(attr.wq_state), state(attr.curr_wq_state));
    if has(ATTR_STATE) && wanted.is_none()
        || has(ATTR_CURRENT) && current != Some(queue.handle().state())
    {
        return refused(libc::EINVAL);
    }
    let wanted = wanted.filter(|_| has(ATTR_STATE));
    let changed = queue.with(|library| library.modify_flags(wanted, flags, mask));
    code(changed.map(|()| {
        // SAFETY: the caller's queue, whose CQ lives as long as it; libibverbs writes the state
        // there too.
        unsafe {
            if let Some(state) = wanted {
                (*wq).state = state as u32;
            }
            if wanted == Some(WqState::Reset) {
                Cq::remove_closed((*wq).cq);
            }
        }
    }))
}

/// `enum ibv_wq_state`.
fn state(code: u32) -> Option<WqState> {
    [WqState::Reset, WqState::Rdy, WqState::Err].get(code as usize).copied()
}

/// `ibv_destroy_wq`: waits until its events are acknowledged. Other threads may post until then.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Wq::of(wq) };
    // SAFETY: after a success it is dropped only.
    let attempt =
        || queue.with(|library| unsafe { library.destroy_in_place_within(Duration::ZERO) });
    let errno = held::destroy(attempt, || queue.async_events.wait());
    if errno != 0 {
        return errno;
    }
    // SAFETY: context and CQ outlive the queue; from `create_wq`, and freed once.
    unsafe {
        if let Some(mut objects) = Context::of((*wq).context).objects() {
            objects.remove(&queue.id);
        }
        Cq::remove_closed((*wq).cq);
        crate::observe::free(wq.cast::<Wq>());
    }
    0
}

/// `ibv_post_wq_recv`.
pub(crate) unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Wq::of(wq) };
    let _guard = queue.lock.guard();
    // SAFETY: the lock is held, or the program posts in one thread at a time.
    let library = unsafe { &mut *queue.queue.get() };
    // SAFETY: the caller's list, whose memory the program keeps for the queue.
    unsafe { receive::post_list(library, receive::post_rest, first, bad) }
}

/// An indirection table.
#[repr(C)]
pub(crate) struct Table {
    base: ibv_rwq_ind_table,
    library: Option<IndirectionTable>,
}

impl Table {
    /// The table behind a program's pointer.
    ///
    /// # Safety
    /// `table` is from [`create_rwq_ind_table`], and not destroyed.
    pub(crate) unsafe fn of<'a>(table: *mut ibv_rwq_ind_table) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*table.cast() }
    }

    /// The library's handle.
    pub(crate) fn library(&self) -> Option<&IndirectionTable> {
        self.library.as_ref()
    }
}

/// `ibv_create_rwq_ind_table`.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    // SAFETY: the caller's struct and context.
    let (attr, owner) = unsafe { (&*attr, Context::of(context)) };
    if attr.comp_mask != 0 || attr.log_ind_tbl_size > MAX_LOG_PLACES || attr.ind_tbl.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's array of that many queues.
    let queues = unsafe {
        std::slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size)
            .iter()
            .map(|queue| (!queue.is_null()).then(|| Wq::of(*queue).handle()))
            .collect::<Option<Vec<_>>>()
    };
    let Some(queues) = queues else { return null(libc::EINVAL) };
    let places: Vec<_> = queues.iter().collect();
    pointer(owner.library.create_indirection_table(&places).map(|library| {
        let base = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: library.kernel_handle() as c_int,
            ind_tbl_num: library.number() as c_int,
            comp_mask: 0,
        };
        Box::new(Table { base, library: Some(library) })
    }))
}

/// `ibv_destroy_rwq_ind_table`.
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe {
        destroy_and_free(
            table.cast::<Table>(),
            |table| &mut table.library,
            IndirectionTable::destroy,
        )
    }
}
