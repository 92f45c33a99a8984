//! Queue pairs: the part that all types share, and the verbs that change, query and destroy them.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use uverbs::events::{DetachedEvent, ObjectId};
use uverbs::flow::{FlowBuilder, MatchedFlowBuilder, Matcher};
use uverbs::qp::{Capacities, Ece, QpAttrMask, QpAttributes, QpInfo, RateLimit, State};
use uverbs::qp_type::QpType;
use uverbs::raw::QpLayout;
use uverbs::{Error, ErrorKind, Gid};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::send_queue::Common;

use crate::abi::*;
use crate::attributes;
use crate::context::Context;
use crate::cq::Cq;
use crate::dv::DirectQp;
use crate::environment::variable;
use crate::fields::with_fields_of;
use crate::grown;
use crate::held::{self, Held};
use crate::lazy::Lazy;
use crate::lock::{Guard, Lock, Shared};
use crate::post::{self, SendTable};
use crate::result::{self, code, failed, refused};
use crate::wr::{self, Building};

/// `IBV_QP_RATE_LIMIT`: this attribute and later ones cannot be queried. As in libibverbs, it
/// accepts lower bits without a meaning (`ibv_cmd_query_qp` of rdma-core 44 and 65).
const FIRST_NOT_QUERIED: c_int = 1 << 25;

/// ECE without options. The vendor is `PCI_VENDOR_ID_MELLANOX`.
pub(crate) const NO_ECE: Ece = Ece { vendor_id: 0x15b3, options: 0 };

/// The attributes that a query of a DC target may ask for (`mlx5_ib_dct_query_qp` in
/// drivers/infiniband/hw/mlx5/qp.c).
const DC_TARGET_ATTRIBUTES: c_int = QpAttrMask::STATE
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::PKEY_INDEX)
    .bits() as c_int;

pub(crate) use crate::create::{create_qp, create_qp_ex, create_qp_of_mlx5};

/// Whether `MLX5_SINGLE_THREADED` declares that the program has one thread, with libmlx5's meaning.
pub(crate) fn is_single_threaded() -> bool {
    static SINGLE: Lazy<bool> = Lazy::new();
    *SINGLE.get_or(|| variable("MLX5_SINGLE_THREADED").is_some_and(|value| value == "1"))
}

/// A queue pair. Programs hold a pointer to it as `ibv_qp` or `ibv_qp_ex`, of which the first is a
/// prefix.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) ex: UnsafeCell<ibv_qp_ex>,
    /// The functions of its transport's send queue.
    pub(crate) send: &'static SendTable,
    /// The receive queue, which exists as long as the queue pair; null if it has none.
    pub(crate) receive: Cell<*mut RecvQueue>,
    pub(crate) send_lock: Lock,
    /// No thread can take it if there is no receive queue.
    pub(crate) recv_lock: Lock,
    /// Requests of `ibv_wr_…` that are being built.
    pub(crate) building: UnsafeCell<Building>,
    /// The object that this is a part of.
    whole: Cell<*const Whole>,
    /// Held by verbs that change the queue pair.
    changing: Shared<()>,
    pub(crate) capacities: Capacities,
    pub(crate) signal_all: bool,
    /// Whether it was made with `send_ops_flags`, so that `ibv_qp_to_qp_ex` knows it.
    pub(crate) is_extended: bool,
    pub(crate) async_events: Held<DetachedEvent>,
    /// The struct that programs hold a pointer to as `mlx5dv_qp_ex`.
    pub(crate) direct: UnsafeCell<DirectQp>,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Option<Arc<()>>,
}

/// A queue pair with the library's queue pair, so that both have one address: the functions in
/// [`Qp::send`], which know the type, find the queues without a load.
#[repr(C)]
pub(crate) struct Whole<C: ?Sized = dyn Control> {
    qp: Qp,
    library: UnsafeCell<C>,
}

/// A queue pair of the library, whatever its type.
pub(crate) trait Control {
    /// The id by which events name it.
    fn id(&self) -> ObjectId;
    /// Its number.
    fn number(&self) -> u32;
    /// The kernel's handle.
    fn kernel_handle(&self) -> u32;
    /// The granted capacities, if it has queues.
    fn capacities(&self) -> Option<Capacities> {
        None
    }
    /// The receive queue, without a reference to the queue pair; null if it cannot have one.
    ///
    /// # Safety
    /// `this` is alive.
    unsafe fn receive(_: *mut Self) -> *mut Option<RecvQueue>
    where
        Self: Sized,
    {
        std::ptr::null_mut()
    }
    /// The fields that all requests of its send queue share; `None` if it has no send queue.
    ///
    /// # Safety
    /// `this` is alive.
    unsafe fn common(_: *mut Self) -> Option<Common>
    where
        Self: Sized,
    {
        None
    }
    /// Where its parts are, if it has any.
    fn layout(&self) -> Option<QpLayout> {
        None
    }
    /// `ibv_query_ece`.
    fn query_ece(&self) -> Result<Ece, c_int> {
        Ok(NO_ECE)
    }
    /// `ibv_set_ece`.
    fn set_ece(&mut self, _: Ece) -> Result<(), c_int> {
        Err(libc::EOPNOTSUPP)
    }
    /// `ibv_attach_mcast`, or `ibv_detach_mcast`.
    fn multicast(&mut self, _: Gid, _: u16, _attach: bool) -> Result<(), c_int> {
        Err(libc::EINVAL)
    }
    /// `ibv_modify_qp_rate_limit`.
    fn rate_limit(&mut self, _: RateLimit) -> Result<(), c_int> {
        Err(libc::EOPNOTSUPP)
    }
    /// Records that a DEVX command of the program has changed its state.
    ///
    /// # Safety
    /// The device has it in that state.
    unsafe fn changed_to(&mut self, _: State) -> Result<(), Error> {
        Ok(())
    }
    /// Starts building a steering rule that leads to it, if rules can.
    fn create_flow(&mut self) -> Option<FlowBuilder<'_>> {
        None
    }
    /// Starts building a rule of a matcher that leads to it, if rules can.
    fn create_flow_by(&mut self, _: &Matcher, _value: &[u8]) -> Option<MatchedFlowBuilder<'_>> {
        None
    }
    /// `ibv_destroy_qp`: `TimedOut` while events are held. After a success it may only be dropped.
    fn try_destroy(&mut self) -> Result<(), Error>;
}

impl Qp {
    /// The queue pair behind a program's pointer.
    ///
    /// # Safety
    /// `qp` is from this module, and not destroyed.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: `ex` is at offset 0.
        unsafe { &*qp.cast() }
    }

    /// Wraps the library's queue pair for the program.
    pub(crate) fn new<C: Control + 'static>(
        mut library: C,
        send: &'static SendTable,
        extras: QpExtras,
    ) -> *mut Self {
        // SAFETY: the queue pair is alive.
        let receives = unsafe { C::receive(&raw mut library).as_ref() };
        let receives = receives.is_some_and(Option::is_some);
        let granted = library.capacities().unwrap_or(extras.capacities);
        let qp = Self {
            ex: UnsafeCell::new(extras.ex),
            direct: UnsafeCell::new(send.direct),
            send,
            receive: Cell::new(null_mut()),
            send_lock: Lock::new(!extras.one_thread),
            recv_lock: match receives {
                true => Lock::new(!extras.one_thread),
                false => Lock::unavailable(),
            },
            building: UnsafeCell::default(),
            whole: Cell::new(null::<Whole<C>>()),
            changing: Shared::default(),
            capacities: granted,
            signal_all: extras.signal_all,
            is_extended: extras.is_extended,
            async_events: Held::default(),
            user: extras.user,
        };
        let whole = Box::into_raw(Box::new(Whole { qp, library: UnsafeCell::new(library) }));
        // SAFETY: just made, so nothing else uses it.
        unsafe { find_queues(whole) };
        whole.cast()
    }

    /// The library's queue pair, which is of type `C`.
    ///
    /// # Safety
    /// `qp` is from this module, not destroyed, and made of a `C`.
    #[inline(always)]
    pub(crate) unsafe fn library<C>(qp: *mut ibv_qp) -> *mut C {
        // SAFETY: the caller's promise.
        UnsafeCell::raw_get(unsafe { &raw const (*qp.cast::<Whole<C>>()).library })
    }

    /// The pointer that programs hold.
    pub(crate) fn pointer(&self) -> *mut ibv_qp {
        self.whole.get().cast_mut().cast()
    }

    /// The object that it is a part of.
    pub(crate) fn whole(&self) -> *mut Whole {
        self.whole.get().cast_mut()
    }

    /// The library's queue pair.
    fn control(&self) -> *mut dyn Control {
        // SAFETY: this is a part of it.
        UnsafeCell::raw_get(unsafe { &raw const (*self.whole.get()).library })
    }

    /// Runs `change` on the library's queue pair, while the locks keep other threads from posting.
    /// This thread may be building requests.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut dyn Control) -> R) -> R {
        let _changing = self.changing.lock();
        let _guards = self.exclude();
        // SAFETY: the pointer is valid until the queue pair is destroyed, and both locks are held,
        // by this call or by this thread's `ibv_wr_start`: no other thread uses the posting sides.
        // Only this thread's next call uses a batch that is being built, and a change that replaces
        // the queues abandons the batch first.
        change(unsafe { &mut *self.control() })
    }

    /// Whether it is a DC target, which has few attributes and gets its number late.
    fn is_dc_target(&self) -> bool {
        std::ptr::eq(self.send, &raw const post::DCT)
    }

    /// Keeps other threads from posting.
    pub(crate) fn exclude(&self) -> (Option<Guard<'_>>, Option<Guard<'_>>) {
        let sends = self.send_lock.guard_unless_kept();
        if sends.is_none() {
            // SAFETY: this thread keeps the lock, so it is between start and complete.
            unsafe { wr::leave_fast_path(self) };
        }
        (sends, (!self.receive.get().is_null()).then(|| self.recv_lock.guard()))
    }

    /// Changes attributes. Other threads may post meanwhile, except while a reset empties the
    /// queues.
    fn modify(&self, attributes: &QpAttributes) -> Result<(), Error> {
        let _changing = self.changing.lock();
        // SAFETY: the queue pair is of the table's type; verbs that change it wait for each other.
        unsafe { (self.send.modify)(self, attributes) }
    }

    /// Queries attributes. Other threads may post meanwhile.
    fn query(&self) -> Result<QpInfo, Error> {
        let _changing = self.changing.lock();
        // SAFETY: as for `modify`.
        unsafe { (self.send.query)(self.pointer()) }
    }

    /// The id by which events name it.
    pub(crate) fn id(&self) -> ObjectId {
        let _changing = self.changing.lock();
        // SAFETY: the pointer is good until the queue pair is destroyed; nothing changes it now,
        // and the posting sides are not looked at.
        unsafe { (*self.control()).id() }
    }

    /// Records that a command of the program has changed its state.
    ///
    /// # Safety
    /// The program's queue pair, which the device has in that state.
    pub(crate) unsafe fn changed_to(qp: *mut ibv_qp, state: State) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let queue_pair = unsafe { Self::of(qp) };
        // SAFETY: the caller's promise.
        queue_pair.with(|library| unsafe { library.changed_to(state) })?;
        // SAFETY: as above; its CQs live as long as it.
        unsafe {
            (*qp).state = state as u32;
            if state == State::Reset {
                queue_pair.remove_completions();
            }
        }
        Ok(())
    }

    /// Removes its completions from its CQs, after a reset or a destroy.
    ///
    /// # Safety
    /// The CQs are there.
    unsafe fn remove_completions(&self) {
        let (send_cq, recv_cq) = (self.base().send_cq, self.base().recv_cq);
        // SAFETY: the caller's promise.
        unsafe {
            Cq::remove_closed(send_cq);
            if recv_cq != send_cq {
                Cq::remove_closed(recv_cq);
            }
        }
    }

    /// The part that programs see.
    pub(crate) fn base(&self) -> &ibv_qp {
        // SAFETY: the fields that are read through this reference do not change after creation.
        unsafe { &(*self.ex.get()).qp_base }
    }
}

/// Stores in a queue pair its own address, that of its receive queue, and the common fields of its
/// sends.
///
/// # Safety
/// It was just made, and stays where it is.
unsafe fn find_queues<C: Control + 'static>(whole: *mut Whole<C>) {
    // SAFETY: the caller's promise. The receive queue is there as long as the queue pair.
    unsafe {
        let (qp, library) = (&(*whole).qp, (*whole).library.get());
        qp.whole.set(whole);
        if let Some(queue) = C::receive(library).as_mut().and_then(Option::as_mut) {
            qp.receive.set(queue);
        }
        if let Some(common) = C::common(library) {
            (*qp.building.get()).common = common;
        }
    }
}

/// The fields of a [`Qp`] besides the library's queue pair.
pub(crate) struct QpExtras {
    pub(crate) ex: ibv_qp_ex,
    pub(crate) capacities: Capacities,
    pub(crate) signal_all: bool,
    pub(crate) one_thread: bool,
    pub(crate) is_extended: bool,
    pub(crate) user: Option<Arc<()>>,
}

fn is_unsupported(error: &Error) -> bool {
    error.kind() == ErrorKind::Unsupported
}

/// `ibv_modify_qp`.
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's queue pair.
    let queue_pair = unsafe { Qp::of(qp) };
    let mask = attributes::of_type(queue_pair.base().qp_type, mask as u32);
    if attributes::are_unknown(mask) {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's struct, with the fields that the mask names.
    let attr = unsafe { grown::read_masked(attr, mask.into()) };
    let Some(wanted) = attributes::from_c(&attr, mask) else { return refused(libc::EINVAL) };
    if wanted.state == Some(State::Reset) && queue_pair.send_lock.is_kept_here() {
        // SAFETY: this thread is between start and complete.
        unsafe { wr::give_up_for_reset(queue_pair) };
    }
    let changed = queue_pair.modify(&wanted);
    if attributes::fail_as_invalid(queue_pair.base().qp_type, mask) {
        if let Some(error) = changed.as_ref().err().filter(|error| is_unsupported(error)) {
            failed(error);
            return refused(libc::EINVAL);
        }
    }
    code(changed.map(|()| {
        if let Some(state) = wanted.state {
            // SAFETY: the caller's struct; libibverbs writes the state there too.
            unsafe { (*qp).state = state as u32 };
            if state == State::Rtr && queue_pair.is_dc_target() {
                let number = queue_pair.with(|library| library.number());
                // SAFETY: as above. The device has chosen the number now.
                unsafe { (*qp).qp_num = number };
            }
            if state == State::Reset {
                // SAFETY: its CQs live as long as it.
                unsafe { queue_pair.remove_completions() };
            }
        }
    }))
}

/// `ibv_query_qp`.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if mask & !(FIRST_NOT_QUERIED - 1) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's queue pair.
    let queue_pair = unsafe { Qp::of(qp) };
    if queue_pair.is_dc_target() && mask & !DC_TARGET_ATTRIBUTES != 0 {
        return refused(libc::EINVAL);
    }
    let asked = queue_pair.query();
    code(asked.map(|info| {
        let base = queue_pair.base();
        let cap = attributes::capacities(queue_pair.capacities);
        let filled = attributes::to_c(&info, cap);
        let made_with = with_fields_of! {
            base: qp_context send_cq recv_cq srq qp_type;
            ibv_qp_init_attr { cap, sq_sig_all: queue_pair.signal_all.into() }
        };
        // SAFETY: the caller's structs, to be written.
        unsafe {
            (*qp).state = info.state as u32;
            grown::write(&filled, attr);
            write_padded(&made_with, init);
        }
    }))
}

/// `ibv_destroy_qp`: waits until its events are acknowledged. Other threads may post until then.
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's queue pair.
    let queue_pair = unsafe { Qp::of(qp) };
    let id = queue_pair.id();
    let errno = held::destroy(
        || queue_pair.with(|library| library.try_destroy()),
        || queue_pair.async_events.wait(),
    );
    if errno != 0 {
        return errno;
    }
    // SAFETY: context and CQs outlive the queue pair; from `Qp::new`, and freed once.
    unsafe {
        if let Some(mut objects) = Context::of((*qp).context).objects() {
            objects.remove(&id);
        }
        queue_pair.remove_completions();
        crate::observe::free_queue_pair(qp.cast::<Qp>());
    }
    0
}

/// `ibv_modify_qp_rate_limit`.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: the caller's queue pair and struct.
    let (queue_pair, attr) = unsafe { (Qp::of(qp), &*attr) };
    if attr.comp_mask != 0 {
        return refused(libc::EINVAL);
    }
    let limit = RateLimit {
        kbits_per_second: attr.rate_limit,
        max_burst: attr.max_burst_sz,
        typical_packet: attr.typical_pkt_sz,
    };
    // Other types than raw packet have no limit, and not each device has bursts: both are EINVAL.
    let has_bursts = (limit.max_burst, limit.typical_packet) != (0, 0);
    let is_raw = queue_pair.base().qp_type == QpType::RawPacket as u32;
    match queue_pair.with(|library| library.rate_limit(limit)) {
        Ok(()) => 0,
        Err(libc::EOPNOTSUPP) if has_bursts || !is_raw => refused(libc::EINVAL),
        Err(errno) => refused(errno),
    }
}

/// `ibv_attach_mcast`.
pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    lid: u16,
) -> c_int {
    // SAFETY: the caller's queue pair and union.
    let (queue_pair, gid) = unsafe { (Qp::of(qp), Gid(*gid)) };
    queue_pair.with(|library| library.multicast(gid, lid, true)).map_or_else(refused, |()| 0)
}

/// `ibv_detach_mcast`.
pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    lid: u16,
) -> c_int {
    // SAFETY: the caller's queue pair and union.
    let (queue_pair, gid) = unsafe { (Qp::of(qp), Gid(*gid)) };
    queue_pair.with(|library| library.multicast(gid, lid, false)).map_or_else(refused, |()| 0)
}

/// `ibv_query_ece`.
pub(crate) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, into: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's queue pair.
    let asked = unsafe { Qp::of(qp) }.with(|library| library.query_ece());
    asked.map_or_else(refused, |ece| {
        let (vendor_id, options) = (ece.vendor_id, ece.options);
        // SAFETY: the caller's struct, to be written.
        unsafe { into.write(ibv_ece { vendor_id, options, comp_mask: 0 }) };
        0
    })
}

/// `ibv_set_ece`.
pub(crate) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's queue pair and struct.
    let (queue_pair, ece) = unsafe { (Qp::of(qp), &*ece) };
    if ece.vendor_id == 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if ece.comp_mask != 0 || ece.vendor_id != NO_ECE.vendor_id {
        return refused(libc::EINVAL);
    }
    let wanted = Ece { vendor_id: ece.vendor_id, options: ece.options };
    queue_pair.with(|library| library.set_ece(wanted)).map_or_else(refused, |()| 0)
}

/// `ibv_qp_to_qp_ex`: null unless the queue pair was made with `send_ops_flags`.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's queue pair.
    if unsafe { Qp::of(qp) }.is_extended { qp.cast() } else { result::null(libc::EINVAL) }
}

/// `ibv_query_qp_data_in_order`: the device promises nothing.
pub(crate) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}

#[cfg(test)]
mod tests;
