//! Creates, changes and destroys completion queues. Polling is in `poll.rs`.

use std::cell::UnsafeCell;
use std::ffi::{OsStr, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uverbs::Error;
use uverbs::completion_channel::DetachedCqEvent;
use uverbs::cq::Compression;
use uverbs::events::DetachedEvent;
use uverbs::raw::{CompletionQueue, CqHandle, CqLayout};
use uverbs_mlx5::completion_queue as provider;

use crate::abi::*;
use crate::channel::Channel;
use crate::context::{Context, Object};
use crate::environment::variable;
use crate::forms::pick;
use crate::grown::{self, grown};
use crate::held::{self, Held};
use crate::lock::{Lock, Shared};
use crate::observe;
use crate::pd::Pd;
use crate::poll;
use crate::result::{code, null, pointer, refused};

/// `enum ibv_cq_init_attr_mask` and `enum ibv_create_cq_attr_flags`.
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 1 << 1;
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 1 << 1;
/// `IBV_CREATE_CQ_SUP_WC_FLAGS`.
const KNOWN_FIELDS: u64 = 0xfff;
/// `IBV_WC_EX_WITH_TM_INFO`.
const WITH_TM_INFO: u64 = 1 << 10;
/// `IBV_CQ_ATTR_MODERATE`.
const MODERATE: u32 = 1;
/// Largest `cqe` that libmlx5 accepts. Rings here have at most 2^23 entries.
const MOST: u32 = (1 << 24) - 1;

/// A completion queue. Programs hold a pointer to it as `ibv_cq` or `ibv_cq_ex`; the first is a
/// prefix of the second.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) ex: UnsafeCell<ibv_cq_ex>,
    pub(crate) lock: Lock,
    pub(crate) is_soft: bool,
    /// Whether programs read completions field by field.
    pub(crate) is_extended: bool,
    /// Whether the program may poll the ring itself.
    pub(crate) is_shown: AtomicBool,
    pub(crate) queue: UnsafeCell<CompletionQueue>,
    /// The current completion of an extended poll. It belongs to `queue`, and is used only between
    /// start and end of the poll.
    pub(crate) current: UnsafeCell<MaybeUninit<provider::LentCqe<'static>>>,
    /// `None` once it is destroyed.
    handle: Shared<Option<CqHandle>>,
    pub(crate) events: Held<DetachedCqEvent>,
    pub(crate) async_events: Held<DetachedEvent>,
    #[allow(dead_code, reason = "held for its lifetime")]
    domain: Option<Arc<()>>,
}

impl Cq {
    /// The queue behind a program's pointer.
    ///
    /// # Safety
    /// `cq` was made by this module, and is not destroyed.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: `ex` is at offset 0.
        unsafe { &*cq.cast() }
    }

    /// The part that programs see.
    pub(crate) fn ex(&self) -> &ibv_cq_ex {
        // SAFETY: the fields that are read through this reference do not change after creation.
        unsafe { &*self.ex.get() }
    }

    /// The queue, for polls.
    ///
    /// # Safety
    /// The lock is held, or the program polls in one thread at a time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the lock is what makes it the only one")]
    pub(crate) unsafe fn provider(&self) -> &mut provider::CompletionQueue {
        // SAFETY: the caller's promise; polls do not replace the queue.
        unsafe { (*self.queue.get()).provider() }
    }

    /// The handle with which queue pairs are created.
    pub(crate) fn handle(&self) -> Option<CqHandle> {
        self.handle.lock()?.clone()
    }

    /// The context it belongs to.
    pub(crate) fn context(&self) -> &Context {
        // SAFETY: a context outlives its objects, as libibverbs requires.
        unsafe { Context::of(self.ex().context) }
    }

    /// The memory layout and number of the queue, for a program that polls it itself. From now on
    /// the verbs that arm it follow the program's consumer index.
    pub(crate) fn show(&self) -> Option<(CqLayout, u32)> {
        let _guard = self.lock.guard_unless_kept();
        // SAFETY: the lock is held.
        let library = unsafe { &*self.queue.get() };
        let layout = library.layout()?;
        self.is_shown.store(true, Ordering::Relaxed);
        Some((layout, library.number()))
    }

    /// Removes the completions of queue pairs that were reset or destroyed, as libmlx5 does
    /// (`mlx5_cq_clean`). Does nothing while this thread is between `ibv_start_poll` and
    /// `ibv_end_poll`, or if the program polls the ring itself: such completions are dropped when
    /// they are polled.
    ///
    /// # Safety
    /// `cq` is null or a program's.
    pub(crate) unsafe fn remove_closed(cq: *mut ibv_cq) {
        if cq.is_null() {
            return;
        }
        // SAFETY: the caller's queue.
        let queue = unsafe { Self::of(cq) };
        if queue.lock.is_kept_here() || queue.is_shown.load(Ordering::Relaxed) {
            return;
        }
        let _guard = queue.lock.guard();
        // SAFETY: the lock is held, or the program uses the queue in one thread at a time.
        unsafe { &mut *queue.queue.get() }.remove_closed();
    }

    fn channel(&self) -> Option<&Channel> {
        let channel = self.ex().channel;
        // SAFETY: a channel cannot be destroyed while a queue uses it.
        (!channel.is_null()).then(|| unsafe { Channel::of(channel) })
    }
}

/// The attributes of a completion queue to create.
struct CqRequest {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    ignore_overrun: bool,
    one_thread: bool,
    extended: bool,
    /// Whether the program reads the tag fields of completions.
    tags: bool,
    /// Entries of 128 bytes.
    wide: bool,
    compression: Option<Compression>,
    domain: *mut ibv_pd,
}

grown! {
    ibv_cq_init_attr_ex until flags by comp_mask {
        MASK_FLAGS => flags,
        MASK_PD => parent_domain,
    }
    ibv_modify_cq_attr {}
}

/// Whether `MLX5_CQE_SIZE` asks for entries of 128 bytes. `None` for any other size, with which
/// libmlx5 creates no CQ (`get_cqe_size`).
pub(crate) fn is_wide_by_default() -> Option<bool> {
    match variable("MLX5_CQE_SIZE").as_deref().map(OsStr::to_str) {
        None | Some(Some("64")) => Some(false),
        Some(Some("128")) => Some(true),
        Some(_) => None,
    }
}

/// Creates a completion queue; null, with errno, if that fails.
///
/// # Safety
/// Its context, channel and domain are a program's.
unsafe fn create(context: *mut ibv_context, wanted: &CqRequest) -> *mut Cq {
    if wanted.cqe == 0 || wanted.cqe > MOST {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's context.
    let owner = unsafe { Context::of(context) };
    let mut builder = owner.library.create_raw_cq(wanted.cqe).vector(wanted.vector);
    if !wanted.channel.is_null() {
        // SAFETY: the caller's channel.
        builder = builder.channel(&unsafe { Channel::of(wanted.channel) }.library);
    }
    if wanted.ignore_overrun {
        // SAFETY: what a program promises by the flag.
        builder = unsafe { builder.ignore_overrun() };
    }
    if wanted.wide {
        builder = builder.wide_entries();
    }
    if let Some(compression) = wanted.compression {
        builder = builder.compressed(compression);
    }
    if !wanted.domain.is_null() {
        // SAFETY: the caller's parent domain.
        if let Some(memory) = unsafe { Pd::of(wanted.domain) }.memory() {
            builder = builder.queue_memory(memory);
        }
    }
    let made = builder.build().map(|queue| object(context, wanted, queue));
    let made: *mut Cq = pointer(made);
    // SAFETY: null, or just made.
    if let Some(queue) = unsafe { made.as_ref() } {
        enlist(owner, queue);
    }
    made
}

/// Registers the queue, so that events find it.
fn enlist(context: &Context, queue: &Cq) {
    let Some(handle) = queue.handle() else { return };
    if let Some(mut objects) = context.objects() {
        objects.insert(handle.id(), Object::Cq(queue));
    }
    if let Some(channel) = queue.channel() {
        channel.add(handle.id(), queue);
    }
}

fn object(context: *mut ibv_context, wanted: &CqRequest, queue: CompletionQueue) -> Box<Cq> {
    let handle = queue.handle().clone();
    // SAFETY: null, or the caller's parent domain.
    let domain = (!wanted.domain.is_null()).then(|| unsafe { Pd::of(wanted.domain) }.users.clone());
    let lock = Lock::new(!wanted.one_thread && !crate::qp::is_single_threaded());
    let mut ex = ibv_cq_ex {
        context,
        channel: wanted.channel,
        cq_context: wanted.cq_context,
        handle: handle.kernel_handle(),
        cqe: queue.capacity() as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: poll::start_poll_of(&lock),
        next_poll: pick(poll::next_poll, poll::next_poll_newer),
        end_poll: poll::end_poll,
        read_opcode: pick(poll::read_opcode, poll::read_opcode_newer),
        read_vendor_err: pick(poll::read_vendor_err, poll::read_vendor_err_newer),
        read_byte_len: pick(poll::read_byte_len, poll::read_byte_len_newer),
        read_imm_data: pick(poll::read_imm_data, poll::read_imm_data_newer),
        read_qp_num: pick(poll::read_qp_num, poll::read_qp_num_newer),
        read_src_qp: pick(poll::read_src_qp, poll::read_src_qp_newer),
        read_wc_flags: pick(poll::read_wc_flags, poll::read_wc_flags_newer),
        read_slid: pick(poll::read_slid, poll::read_slid_newer),
        read_sl: pick(poll::read_sl, poll::read_sl_newer),
        read_dlid_path_bits: pick(poll::read_dlid_path_bits, poll::read_dlid_path_bits_newer),
        read_completion_ts: pick(poll::read_completion_ts, poll::read_completion_ts_newer),
        read_cvlan: pick(poll::read_cvlan, poll::read_cvlan_newer),
        read_flow_tag: pick(poll::read_flow_tag, poll::read_flow_tag_newer),
        read_tm_info: poll::read_tm_info,
        read_completion_wallclock_ns: poll::read_completion_wallclock_ns,
    };
    if wanted.tags {
        ex.read_wc_flags = poll::read_wc_flags_with_tags;
    }
    observe::polling(&mut ex);
    Box::new(Cq {
        ex: UnsafeCell::new(ex),
        lock,
        is_shown: AtomicBool::new(false),
        is_soft: queue.context().kind() == uverbs::DeviceKind::Software,
        is_extended: wanted.extended,
        queue: UnsafeCell::new(queue),
        current: UnsafeCell::new(MaybeUninit::zeroed()),
        handle: Shared::new(Some(handle)),
        events: Held::default(),
        async_events: Held::default(),
        domain,
    })
}

/// `ibv_create_cq`.
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let Some(wide) = is_wide_by_default() else { return null(libc::EINVAL) };
    let wanted = CqRequest {
        cqe: cqe.max(0) as u32,
        cq_context,
        channel,
        vector: comp_vector as u32,
        ignore_overrun: false,
        one_thread: false,
        extended: false,
        tags: false,
        wide,
        compression: None,
        domain: std::ptr::null_mut(),
    };
    // SAFETY: the caller's objects.
    unsafe { create(context, &wanted) }.cast()
}

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let Some(wide) = is_wide_by_default() else { return null(libc::EINVAL) };
    // SAFETY: the caller's objects.
    unsafe { create_cq_of_mlx5(context, attributes, wide, None) }
}

/// `ibv_create_cq_ex`, with entries of 128 bytes if `wide`, and with this compression.
///
/// # Safety
/// The caller's objects.
pub(crate) unsafe fn create_cq_of_mlx5(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    wide: bool,
    compression: Option<Compression>,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's struct.
    let attributes = unsafe { grown::read(attributes) };
    if attributes.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
        return null(libc::EINVAL);
    }
    if attributes.wc_flags & !KNOWN_FIELDS != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let (flags, domain) = (attributes.flags, attributes.parent_domain);
    if flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: null, or the caller's domain.
    let parent = (!domain.is_null()).then(|| unsafe { Pd::of(domain) });
    if attributes.comp_mask & MASK_PD != 0 && !parent.is_some_and(Pd::is_parent) {
        return null(libc::EINVAL);
    }
    let of_one = parent.is_some_and(Pd::is_of_one_thread);
    let wanted = CqRequest {
        cqe: attributes.cqe,
        cq_context: attributes.cq_context,
        channel: attributes.channel,
        vector: attributes.comp_vector,
        ignore_overrun: flags & IGNORE_OVERRUN != 0,
        one_thread: flags & SINGLE_THREADED != 0 || of_one,
        extended: true,
        tags: attributes.wc_flags & WITH_TM_INFO != 0,
        wide,
        compression,
        domain,
    };
    // SAFETY: the caller's objects.
    unsafe { create(context, &wanted) }.cast()
}

/// `ibv_destroy_cq`: waits until its events are acknowledged. Other threads may poll it until then.
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Cq::of(cq) };
    let Some(id) = queue.handle().map(|handle| handle.id()) else { return refused(libc::EINVAL) };
    let errno = held::destroy(
        || queue.try_destroy(),
        || {
            queue.events.wait();
            queue.async_events.wait();
        },
    );
    if errno != 0 {
        return errno;
    }
    if let Some(mut objects) = queue.context().objects() {
        objects.remove(&id);
    }
    // SAFETY: the queue was added to its channel when it was made; from `create`, and freed once.
    unsafe {
        if let Some(channel) = queue.channel() {
            Channel::remove(channel, id);
        }
        crate::observe::free(cq.cast::<Cq>());
    }
    0
}

impl Cq {
    /// Destroys the queue in place, if the program holds no event of it; `TimedOut` otherwise.
    fn try_destroy(&self) -> Result<(), Error> {
        let mut handle = self.handle.lock();
        let _guard = self.lock.guard_unless_kept();
        // SAFETY: the lock is held, or the program polls in one thread at a time.
        let library = unsafe { &mut *self.queue.get() };
        // The library destroys the queue only if no other handle exists.
        if let Some(handle) = &mut handle {
            **handle = None;
        }
        // SAFETY: after a success it is dropped only.
        let destroyed = unsafe { library.destroy_in_place_within(Duration::ZERO) };
        if let (Err(_), Some(handle)) = (&destroyed, &mut handle) {
            **handle = Some(library.handle().clone());
        }
        destroyed
    }
}

/// `ibv_resize_cq`.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let Ok(wanted @ 1..=MOST) = u32::try_from(cqe) else { return refused(libc::EINVAL) };
    // SAFETY: the caller's queue; the lock excludes pollers.
    let queue = unsafe { Cq::of(cq) };
    let _guard = queue.lock.guard();
    // SAFETY: the lock is held.
    let library = unsafe { &mut *queue.queue.get() };
    code(library.resize(wanted).map(|()| {
        // SAFETY: the lock is held.
        unsafe { (*queue.ex.get()).cqe = library.capacity() as c_int };
    }))
}

/// `ibv_modify_cq`: moderates events.
pub(crate) unsafe extern "C" fn modify_cq(
    cq: *mut ibv_cq,
    attributes: *mut ibv_modify_cq_attr,
) -> c_int {
    // SAFETY: the caller's queue and struct.
    let (queue, attributes) = unsafe { (Cq::of(cq), &*attributes) };
    if attributes.attr_mask != MODERATE {
        return refused(libc::EINVAL);
    }
    let Some(handle) = queue.handle() else { return refused(libc::EINVAL) };
    let [count, period] = attributes.moderate;
    code(handle.moderate(count, Duration::from_micros(period.into())))
}

/// `enum ibv_wc_status` as the header has it.
pub(crate) fn status(status: uverbs::cq::Status) -> c_uint {
    status as c_uint
}
