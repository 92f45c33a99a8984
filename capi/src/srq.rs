//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

use uverbs::Error;
use uverbs::events::DetachedEvent;
use uverbs::qp::TagQueue;
use uverbs::raw::{RingLayout, SharedReceiveQueue, SrqHandle};
use uverbs::srq::{SrqAttrMask, SrqAttributes};

use crate::abi::*;
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::forms::{either, forms};
use crate::grown::{self, grown};
use crate::held::{self, Held};
use crate::lock::{Lock, Shared};
use crate::pd::Pd;
use crate::qp::is_single_threaded;
use crate::receive;
use crate::result::{code, null, pointer, refused};
use crate::xrc::Xrcd;

/// `enum ibv_srq_init_attr_mask`.
const MASK_TYPE: u32 = 1;
const MASK_PD: u32 = 1 << 1;
const MASK_XRCD: u32 = 1 << 2;
const MASK_CQ: u32 = 1 << 3;
const MASK_TM: u32 = 1 << 4;
const MASK_KNOWN: u32 = MASK_TYPE | MASK_PD | MASK_XRCD | MASK_CQ | MASK_TM;
/// `enum ibv_srq_type`.
const BASIC: c_uint = 0;
const XRC: c_uint = 1;
const TM: c_uint = 2;

grown! {
    ibv_srq_init_attr_ex until tm_cap by comp_mask {
        MASK_TM => tm_cap,
    }
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    base: UnsafeCell<ibv_srq>,
    pub(crate) lock: Lock,
    pub(crate) queue: UnsafeCell<SharedReceiveQueue>,
    /// Changes the list of tags of a tag matching queue.
    pub(crate) tags: UnsafeCell<Option<TagQueue>>,
    /// `None` once it is destroyed.
    handle: Shared<Option<SrqHandle>>,
    pub(crate) async_events: Held<DetachedEvent>,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Arc<()>,
}

impl Srq {
    /// The queue behind a program's pointer.
    ///
    /// # Safety
    /// `srq` is from this module, and not destroyed.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: `base` is at offset 0.
        unsafe { &*srq.cast() }
    }

    /// The handle with which queue pairs are created.
    pub(crate) fn handle(&self) -> Option<SrqHandle> {
        self.handle.lock()?.clone()
    }

    /// Its ring, its doorbell record, and the entry that is posted next.
    pub(crate) fn layout(&self) -> (RingLayout, *mut u8, u32) {
        let _guard = self.lock.guard();
        // SAFETY: the lock is held.
        unsafe { &*self.queue.get() }.layout()
    }

    /// Destroys the queue in place if it holds no event; otherwise the error is `TimedOut`.
    fn try_destroy(&self) -> Result<(), Error> {
        let mut handle = self.handle.lock();
        let _guard = self.lock.guard();
        // SAFETY: the lock is held, or the program posts in one thread at a time.
        let (library, tags) = unsafe { (&mut *self.queue.get(), &mut *self.tags.get()) };
        // It uses the queue, so it is destroyed first. As in libmlx5, it is lost if this queue is
        // then found in use.
        if let Some(queue) = tags {
            // SAFETY: after a success it is dropped.
            unsafe { queue.destroy_in_place_within(Duration::ZERO) }?;
            *tags = None;
        }
        // The library destroys an object only if it has no other handle.
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

/// `ibv_create_srq`.
pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller's struct and domain.
    let (attr, domain) = unsafe { (&mut *attr, Pd::of(pd)) };
    // SAFETY: the caller's objects.
    unsafe { create(pd, domain, attr, Type::Basic) }
}

/// A queue's type, with the attributes of that type.
enum Type<'a> {
    Basic,
    Xrc(&'a Xrcd, &'a Cq),
    /// The CQ, the entries of the list of tags, and the most outstanding changes of the list.
    Tags(&'a Cq, u16, u32),
}

/// `ibv_create_srq_ex`. The domain is used even if the mask does not name it, unless it is an XRC
/// queue, as in libmlx5.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller's struct.
    let extended = unsafe { grown::read(attr) };
    let mask = extended.comp_mask;
    let kind = if mask & MASK_TYPE != 0 { extended.srq_type } else { BASIC };
    let needed = match kind {
        XRC => MASK_PD | MASK_XRCD | MASK_CQ,
        TM => MASK_CQ | MASK_TM,
        _ => 0,
    };
    // libmlx5 checks the queue's CQ first, and libibverbs the mask. SAFETY: the caller's objects.
    if kind == TM && unsafe { extended_cq(&extended) }.is_none() {
        return null(libc::EINVAL);
    }
    if matches!(kind, XRC | TM) && mask & !MASK_KNOWN != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if kind > TM || mask & needed != needed || extended.pd.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's objects; the first fields are those of an `ibv_srq_init_attr`.
    unsafe {
        let kind = match kind {
            XRC => Type::Xrc(Xrcd::of(extended.xrcd), Cq::of(extended.cq)),
            TM => match tag_matching(&extended) {
                Some(kind) => kind,
                None => return null(libc::EINVAL),
            },
            _ => Type::Basic,
        };
        create(extended.pd, Pd::of(extended.pd), &mut *attr.cast(), kind)
    }
}

/// A tag matching queue.
///
/// # Safety
/// The completion queue is a program's.
unsafe fn tag_matching<'a>(extended: &ibv_srq_init_attr_ex) -> Option<Type<'a>> {
    let [tags, changes] = extended.tm_cap;
    let tags = u16::try_from(tags).ok().filter(|tags| *tags > 0)?;
    // SAFETY: the caller's promise.
    Some(Type::Tags(unsafe { extended_cq(extended) }?, tags, changes))
}

/// The CQ of a tag matching queue, whose completions are read field by field, as libmlx5 demands.
///
/// # Safety
/// As for [`tag_matching`].
unsafe fn extended_cq<'a>(extended: &ibv_srq_init_attr_ex) -> Option<&'a Cq> {
    // SAFETY: the caller's promise.
    let cq = (!extended.cq.is_null()).then(|| unsafe { Cq::of(extended.cq) })?;
    cq.is_extended.then_some(cq)
}

/// # Safety
/// Its objects are a program's.
unsafe fn create(
    pd: *mut ibv_pd,
    domain: &Pd,
    attr: &mut ibv_srq_init_attr,
    kind: Type<'_>,
) -> *mut ibv_srq {
    let Some(library) = domain.domain() else { return null(libc::EINVAL) };
    // libibverbs accepts queues without receives.
    let (receives, sges) = (attr.attr.max_wr.max(1), attr.attr.max_sge.max(1));
    let mut builder = library.create_raw_srq(receives).max_sge(sges);
    let cq = match kind {
        Type::Basic => None,
        Type::Xrc(_, cq) | Type::Tags(cq, ..) => match cq.handle() {
            Some(cq) => Some(cq),
            None => return null(libc::EINVAL),
        },
    };
    match (&kind, &cq) {
        (Type::Xrc(xrcd, _), Some(cq)) => match xrcd.library() {
            Some(xrcd) => builder = builder.xrc(xrcd, cq),
            None => return null(libc::EINVAL),
        },
        (Type::Tags(_, tags, _), Some(cq)) => builder = builder.match_tags(cq, *tags),
        _ => {}
    }
    let made: Result<_, Error> = builder.build().and_then(|queue| {
        let tags = match kind {
            Type::Tags(_, _, changes) => Some(queue.handle().create_tag_queue(changes.max(1))?),
            _ => None,
        };
        (attr.attr.max_wr, attr.attr.max_sge) = (queue.capacity(), queue.max_sge());
        Ok(object(pd, domain, attr, (queue, tags)))
    });
    let made: *mut Srq = pointer(made);
    // SAFETY: null, or just made; the caller's context.
    unsafe {
        if let Some(handle) = made.as_ref().and_then(Srq::handle) {
            if let Some(mut objects) = Context::of(domain.base.context).objects() {
                objects.insert(handle.id(), Object::Srq(made));
            }
        }
    }
    made.cast()
}

fn object(
    pd: *mut ibv_pd,
    domain: &Pd,
    attr: &ibv_srq_init_attr,
    (queue, tags): (SharedReceiveQueue, Option<TagQueue>),
) -> Box<Srq> {
    let handle = queue.handle().clone();
    let base = ibv_srq {
        context: domain.base.context,
        srq_context: attr.srq_context,
        pd,
        handle: handle.kernel_handle(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    Box::new(Srq {
        base: UnsafeCell::new(base),
        lock: Lock::new(!domain.is_of_one_thread() && !is_single_threaded()),
        queue: UnsafeCell::new(queue),
        tags: UnsafeCell::new(tags),
        handle: Shared::new(Some(handle)),
        async_events: Held::default(),
        user: domain.users.clone(),
    })
}

/// `ibv_destroy_srq`: waits until its events are acknowledged. Other threads may post until then.
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller's queue.
    let queue = unsafe { Srq::of(srq) };
    let Some(id) = queue.handle().map(|handle| handle.id()) else { return refused(libc::EINVAL) };
    let errno = held::destroy(|| queue.try_destroy(), || queue.async_events.wait());
    if errno != 0 {
        return errno;
    }
    // SAFETY: the context outlives its objects; from `create`, and freed once.
    unsafe {
        if let Some(mut objects) = Context::of((*srq).context).objects() {
            objects.remove(&id);
        }
        crate::observe::free(srq.cast::<Srq>());
    }
    0
}

/// `ibv_modify_srq`. No mlx5 changes the size (`mlx5_ib_modify_srq` of the kernel).
pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's queue and struct.
    let (queue, attr) = unsafe { (Srq::of(srq), &*attr) };
    let Some(handle) = queue.handle() else { return refused(libc::EINVAL) };
    let wanted =
        SrqAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit };
    let mask = SrqAttrMask::from_bits_retain(mask as u32);
    if mask.contains(SrqAttrMask::MAX_WR) {
        return refused(libc::EINVAL);
    }
    code(handle.modify(mask, wanted))
}

/// `ibv_query_srq`.
pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, into: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller's queue.
    let Some(handle) = unsafe { Srq::of(srq) }.handle() else { return refused(libc::EINVAL) };
    code(handle.query().map(|told| {
        let attr =
            ibv_srq_attr { max_wr: told.max_wr, max_sge: told.max_sge, srq_limit: told.limit };
        // SAFETY: the caller's struct, to be written.
        unsafe { into.write(attr) };
    }))
}

/// `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller's queue, and a place to be written.
    unsafe {
        let Some(handle) = Srq::of(srq).handle() else { return refused(libc::EINVAL) };
        number.write(handle.number());
    }
    0
}

forms! {
    /// `ibv_post_srq_recv`.
    pub(crate) fn post_srq_recv / post_srq_recv_newer [](
        srq: *mut ibv_srq,
        first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: the caller's queue and list; the lock is held, or the program posts in one thread
        // at a time. The program guarantees about the memory what the queue requires.
        unsafe {
            let queue = Srq::of(srq);
            let Some(lock) = queue.lock.try_acquire() else {
                return post_waiting(queue, first, bad);
            };
            let library = &mut *queue.queue.get();
            let single = receive::single_usual(first);
            let post = |(request, sge)| library.post_fast(|| receive::parts(request, sge));
            if !single.is_some_and(post) {
                return either!(post_held, post_held_newer)(queue, first, bad);
            }
            lock.release();
        }
        0
    }
}

/// [`post_srq_recv`] after waiting for the thread that posts.
///
/// # Safety
/// As for `ibv_post_srq_recv`.
#[cold]
#[inline(never)]
unsafe extern "C" fn post_waiting(
    queue: &Srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    queue.lock.wait();
    // SAFETY: the caller's promise.
    unsafe { post_held(queue, first, bad) }
}

forms! {
    beside
    /// Posts a list of any length, and releases the lock, which the caller holds.
    ///
    /// # Safety
    /// As for `ibv_post_srq_recv`.
    #[inline(never)]
    fn post_held / post_held_newer [](
        queue: &Srq,
        first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: the lock is held, or the program posts in one thread at a time. The queue stays
        // where it is.
        let library = unsafe { (*queue.queue.get()).provider() };
        let (mut batch, mut wr) = (library.batch(), first);
        // SAFETY: the caller's list, whose memory is as the queue requires.
        let errno = unsafe {
            while let Some(request) = wr.as_ref() {
                let Some(sge) = receive::usual_sge(request) else { break };
                if !batch.build_fast(|| receive::parts(request, sge)) {
                    break;
                }
                wr = request.next;
            }
            receive::post_any(wr, bad, |wr_id, data| batch.build(wr_id, data))
        };
        batch.publish();
        queue.lock.release();
        errno
    }
}
