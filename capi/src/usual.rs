//! The usual requests: messages, and accesses to remote memory, with one SGE or inline data.
//!
//! A table gives the device's opcode of such a request, and which of two forms its WQE has. The
//! provider writes each form with the opcode as a value, so no code branches on the operation.

use std::slice;

use uverbs::DatagramAddress;
use uverbs::qp::{PostFlags, RunTimeOperation};
use uverbs::qp_type::{Dci, QpType, QueuePairType, RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::raw::Batch;
use uverbs::{Remote, Sge};
use uverbs_mlx5::format::{AtomicSegment, Opcode, U32};
use uverbs_mlx5::mmio::BlueFlame;
use uverbs_mlx5::send_queue::{
    AnyAccess, AnySend, Common, Datagram, DcTarget, Destination, Entries, Header, Inline,
    Operation, Payload, SendQueue, To, XrcTarget,
};

use crate::abi::{ibv_send_wr, ibv_sge, send_flags, wr_opcode};
use crate::ah::Ah;
use crate::post::{self, immediate};

/// The properties of an opcode's requests. The lowest byte is the device's opcode, the second byte
/// has the flags below, the third byte the header's octowords, and the upper half is a mask of the
/// immediate field. All are in one number, so that one store writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u64);

/// Flag of a [`Kind`]: this file builds requests of this opcode.
const USUAL: u64 = 1 << 8;
/// The WQE has a remote address segment before the data.
const ACCESS: u64 = 1 << 9;
/// The data may be inline.
const INLINE: u64 = 1 << 10;
/// The flags of messages, writes, and reads.
const MESSAGE: u64 = USUAL | INLINE;
const WRITE: u64 = USUAL | INLINE | ACCESS;
const READ: u64 = USUAL | ACCESS;
/// The lowest bit of the header's number of octowords.
const OCTOWORDS: u32 = 16;

/// An atomic: not usual, because its header has its operands, too.
const ATOMIC: u64 = 1 << 11;

/// Opcodes of `enum ibv_wr_opcode` in the table: from `IBV_WR_RDMA_WRITE` to
/// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
const KINDS: usize = 7;
/// Those that may be usual: to `IBV_WR_RDMA_READ`.
const USUAL_KINDS: usize = 5;

impl Kind {
    /// Requests that this file does not build.
    pub(crate) const UNUSUAL: Self = Self(0);

    /// The kind of an opcode of `enum ibv_wr_opcode` on a queue pair of type `T`.
    pub(crate) const fn of<T: QueuePairType>(opcode: u32) -> Self {
        let has_messages = !matches!(T::TYPE, QpType::RawPacket);
        let has_writes = has_messages && !matches!(T::TYPE, QpType::Ud);
        let has_reads = has_writes && !matches!(T::TYPE, QpType::Uc);
        let (form, opcode, immediate) = match opcode {
            wr_opcode::SEND if has_messages => (MESSAGE, Opcode::SEND, 0_u32),
            wr_opcode::SEND_WITH_IMM if has_messages => (MESSAGE, Opcode::SEND_IMMEDIATE, u32::MAX),
            wr_opcode::RDMA_WRITE if has_writes => (WRITE, Opcode::RDMA_WRITE, 0),
            wr_opcode::RDMA_WRITE_WITH_IMM if has_writes => {
                (WRITE, Opcode::RDMA_WRITE_IMMEDIATE, u32::MAX)
            }
            wr_opcode::RDMA_READ if has_reads => (READ, Opcode::RDMA_READ, 0),
            wr_opcode::ATOMIC_CMP_AND_SWP if has_reads => {
                (ATOMIC | ACCESS, Opcode::ATOMIC_COMPARE_SWAP, 0)
            }
            wr_opcode::ATOMIC_FETCH_AND_ADD if has_reads => {
                (ATOMIC | ACCESS, Opcode::ATOMIC_FETCH_ADD, 0)
            }
            _ => return Self::UNUSUAL,
        };
        let octowords = 1 + (form & ACCESS != 0) as u64 + (form & ATOMIC != 0) as u64;
        Self(form | opcode.0 as u64 | octowords << OCTOWORDS | (immediate as u64) << 32)
    }

    const fn table<T: QueuePairType>() -> [Self; KINDS] {
        let mut table = [Self::UNUSUAL; KINDS];
        let mut opcode = 0;
        while opcode < KINDS {
            table[opcode] = Self::of::<T>(opcode as u32);
            opcode += 1;
        }
        table
    }

    /// Whether this file builds requests of this kind.
    #[inline(always)]
    pub(crate) fn is_usual(self) -> bool {
        self.0 & USUAL != 0
    }

    /// Whether requests of this kind are atomics.
    #[inline(always)]
    pub(crate) const fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }

    /// Whether this file builds them with inline data.
    #[inline(always)]
    pub(crate) fn takes_inline(self) -> bool {
        self.0 & INLINE != 0
    }

    /// Whether the WQE has a remote address before the data.
    #[inline(always)]
    pub(crate) fn is_access(self) -> bool {
        self.0 & ACCESS != 0
    }

    /// Octowords of the header.
    #[inline(always)]
    pub(crate) const fn octowords(self) -> usize {
        (self.0 >> OCTOWORDS) as usize & 3
    }

    /// The device's opcode.
    #[inline(always)]
    pub(crate) const fn opcode(self) -> Opcode {
        Opcode(self.0 as u8)
    }

    /// The kind with this opcode of the device.
    pub(crate) fn named<T: Posts>(opcode: Opcode) -> Self {
        let named = T::KINDS.iter().find(|kind| kind.is_usual() && kind.opcode() == opcode);
        named.copied().unwrap_or(Self::UNUSUAL)
    }

    /// The immediate field, from data in network byte order.
    #[inline(always)]
    pub(crate) fn immediate(self, data: u32) -> U32 {
        U32::from_bytes((data & (self.0 >> 32) as u32).to_ne_bytes())
    }
}

/// The types of queue pairs, and how `ibv_send_wr` names the peer on each.
pub(crate) trait Posts: QueuePairType {
    /// Whether requests name no peer, because the queue pair is connected or needs none.
    const IS_CONNECTED: bool;
    /// [`Kind`] by `enum ibv_wr_opcode`.
    const KINDS: &'static [Kind; KINDS];
    /// The peer that a request goes to.
    type Peer<'a>: Peer;
    /// The peer that an `ibv_send_wr` names; its address is stored in `address`. `None` if it names
    /// none.
    ///
    /// # Safety
    /// The request is a program's, for a queue pair of this type.
    unsafe fn of_request<'a>(
        wr: *const ibv_send_wr,
        address: &'a mut Option<DatagramAddress>,
    ) -> Option<Self::Peer<'a>>;
}

macro_rules! connected {
    ($($type:ty),*) => {$(
        impl Posts for $type {
            const IS_CONNECTED: bool = true;
            const KINDS: &'static [Kind; KINDS] = &Kind::table::<$type>();
            type Peer<'a> = Connected;
            #[inline(always)]
            unsafe fn of_request(
                _: *const ibv_send_wr,
                _: &mut Option<DatagramAddress>,
            ) -> Option<Connected> {
                Some(Connected)
            }
        }
    )*};
}

connected!(Rc, Uc, RawPacket);

impl Posts for Ud {
    const IS_CONNECTED: bool = false;
    const KINDS: &'static [Kind; KINDS] = &Kind::table::<Self>();
    type Peer<'a> = Datagram<'a>;
    #[inline(always)]
    unsafe fn of_request<'a>(
        wr: *const ibv_send_wr,
        address: &'a mut Option<DatagramAddress>,
    ) -> Option<Datagram<'a>> {
        // SAFETY: requests of datagram queue pairs have this part of the union filled.
        let ud = unsafe { (*wr).wr.ud };
        // SAFETY: the caller's address handle.
        let named = unsafe { Ah::datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) }?;
        Some(Datagram(address.insert(named)))
    }
}

impl Posts for Xrc {
    const IS_CONNECTED: bool = false;
    const KINDS: &'static [Kind; KINDS] = &Kind::table::<Self>();
    type Peer<'a> = XrcTarget;
    #[inline(always)]
    unsafe fn of_request(
        wr: *const ibv_send_wr,
        _: &mut Option<DatagramAddress>,
    ) -> Option<XrcTarget> {
        // SAFETY: the caller's promise.
        Some(XrcTarget(unsafe { (*wr).qp_type }))
    }
}

impl Posts for Dci {
    const IS_CONNECTED: bool = false;
    const KINDS: &'static [Kind; KINDS] = &Kind::table::<Self>();
    type Peer<'a> = DcTarget<'a>;
    #[inline(always)]
    unsafe fn of_request<'a>(
        _: *const ibv_send_wr,
        _: &'a mut Option<DatagramAddress>,
    ) -> Option<DcTarget<'a>> {
        None
    }
}

/// The value for "no SRQ was named": numbers have 24 bits.
pub(crate) const NO_SRQ: u32 = u32::MAX;

/// Adds the peer to an operation.
pub(crate) trait Peer: Copy {
    /// The operation with its peer.
    type Of<O: Operation>: Operation;
    /// `operation`, for this peer.
    fn with<O: Operation>(self, operation: O) -> Self::Of<O>;
    /// What a request has of it.
    type To: Destination;
    /// What a request has of it.
    fn destination(self) -> Self::To;
}

/// The peer that the queue pair is connected to.
#[derive(Clone, Copy)]
pub(crate) struct Connected;

impl Peer for Connected {
    type Of<O: Operation> = O;
    #[inline(always)]
    fn with<O: Operation>(self, operation: O) -> O {
        operation
    }
    type To = ();
    #[inline(always)]
    fn destination(self) {}
}

macro_rules! named {
    ($($type:ty),*) => {$(
        impl Peer for $type {
            type Of<O: Operation> = To<Self, O>;
            #[inline(always)]
            fn with<O: Operation>(self, operation: O) -> To<Self, O> {
                To(self, operation)
            }
            type To = Self;
            #[inline(always)]
            fn destination(self) -> Self {
                self
            }
        }
    )*};
}

named!(Datagram<'_>, XrcTarget, DcTarget<'_>);

/// Where requests are built: in a send queue, which rings the doorbell for each, or in a batch.
pub(crate) trait Target {
    /// Builds one request on the fast path. Returns `false`, with nothing changed, if it cannot;
    /// the caller then uses the run-time entry point.
    ///
    /// # Safety
    /// As for `ibv_post_send`; the queue's service has the operation.
    unsafe fn put<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool;
}

impl<T: Posts> Target for SendQueue<T, BlueFlame> {
    #[inline(always)]
    unsafe fn put<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.post_fast(wr_id, operation, payload, flags) }
    }
}

impl<T: Posts> Target for Batch<'_, T, BlueFlame> {
    #[inline(always)]
    unsafe fn put<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: PostFlags,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.build_fast(wr_id, operation, payload, flags) }
    }
}

/// A request without its peer and its data.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Usual {
    pub(crate) kind: Kind,
    pub(crate) wr_id: u64,
    pub(crate) remote: Remote,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) flags: PostFlags,
}

/// A usual request as `ibv_send_wr`. It holds a pointer, because a reference would promise a whole
/// struct: the struct of NCCL, or of a program that was built for an older libibverbs, ends before
/// the fields of XRC and windows.
pub(crate) struct InC {
    wr: *const ibv_send_wr,
    kind: Kind,
}

impl InC {
    /// The request, if it has one buffer and is usual on a queue pair of type `T`. `inline`, a
    /// constant, says whether its data is inline.
    ///
    /// # Safety
    /// The request is a program's, and outlives the result.
    #[inline(always)]
    unsafe fn of<T: Posts>(wr: *const ibv_send_wr, inline: bool) -> Option<Self> {
        // Reads are last in the table, and have no inline data.
        let kinds = if inline { USUAL_KINDS - 1 } else { USUAL_KINDS };
        // SAFETY: the caller's promise.
        let opcode = unsafe { (*wr).opcode as usize };
        // SAFETY: as above. `num_sge` is read here, so that one instruction reads and compares it.
        if opcode >= kinds || unsafe { (*wr).num_sge } != 1 {
            return None;
        }
        let kind = T::KINDS[opcode];
        let is_usual = if inline { kind.takes_inline() } else { kind.is_usual() };
        is_usual.then_some(Self { wr, kind })
    }
}

impl Header for InC {
    #[inline(always)]
    fn octowords(&self) -> usize {
        self.kind.octowords()
    }
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.kind.opcode()
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        // SAFETY: a program's request.
        self.kind.immediate(unsafe { (*self.wr).imm_data })
    }
    #[inline(always)]
    fn remote(&self) -> Remote {
        // SAFETY: every value is valid for these; messages do not use them.
        let rdma = unsafe { &(*self.wr).wr.rdma };
        Remote::new(rdma.remote_addr, rdma.rkey)
    }
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        // SAFETY: a program's request.
        unsafe { (*self.wr).wr_id }
    }
    #[inline(always)]
    fn mode(&self) -> u32 {
        // SAFETY: a program's request.
        unsafe { (*self.wr).send_flags }
    }
}

/// A usual request or an atomic as `ibv_send_wr`.
struct AnyInC(InC);

impl Header for AnyInC {
    #[inline(always)]
    fn octowords(&self) -> usize {
        self.0.octowords()
    }
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }
    #[inline(always)]
    fn immediate(&self) -> U32 {
        self.0.immediate()
    }
    #[inline(always)]
    fn remote(&self) -> Remote {
        if !self.0.kind.is_atomic() {
            return self.0.remote();
        }
        // SAFETY: the opcode says that this part of the union is filled.
        let atomic = unsafe { &(*self.0.wr).wr.atomic };
        Remote::new(atomic.remote_addr, atomic.rkey)
    }
    #[inline(always)]
    fn operands(&self) -> Option<AtomicSegment> {
        if !self.0.kind.is_atomic() {
            return None;
        }
        // SAFETY: the opcode says that this part of the union is filled.
        let atomic = unsafe { &(*self.0.wr).wr.atomic };
        Some(match self.0.opcode() {
            Opcode::ATOMIC_FETCH_ADD => AtomicSegment::fetch_add(atomic.compare_add),
            _ => AtomicSegment::compare_swap(atomic.compare_add, atomic.swap),
        })
    }
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.0.wr_id()
    }
    #[inline(always)]
    fn mode(&self) -> u32 {
        self.0.mode()
    }
}

/// The data of an `ibv_send_wr`.
struct DataInC(*const ibv_send_wr);

impl DataInC {
    /// The SGE at a place.
    #[inline(always)]
    fn at(&self, place: usize) -> *const ibv_sge {
        // SAFETY: a program's request.
        unsafe { (*self.0).sg_list }.wrapping_add(place)
    }
}

impl Entries for DataInC {
    /// A negative number is more than any request can have.
    #[inline(always)]
    fn count(&self) -> usize {
        // SAFETY: a program's request.
        unsafe { (*self.0).num_sge as u32 as usize }
    }
    #[inline(always)]
    fn sge(&self, place: usize) -> (u64, u32, u32) {
        // SAFETY: an entry of the program's list.
        unsafe { ibv_sge::parts(self.at(place)) }
    }
    #[inline(always)]
    fn buffer(&self, place: usize) -> (*const u8, usize) {
        // SAFETY: an entry of the program's list.
        let sge = unsafe { &*self.at(place) };
        (std::ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize)
    }
}

impl Usual {
    /// No request.
    pub(crate) const NONE: Self = Self {
        kind: Kind::UNUSUAL,
        wr_id: 0,
        remote: Remote::new(0, 0),
        immediate: 0,
        flags: PostFlags::empty(),
    };

    /// Builds an `ibv_send_wr` on the fast path, if it is usual. Its data is inline if `inline`.
    ///
    /// # Safety
    ///
    /// The request is the program's, for a queue pair of type `T`.
    #[inline(always)]
    pub(crate) unsafe fn post<T: Posts>(
        to: &mut impl Target,
        wr: *const ibv_send_wr,
        inline: bool,
    ) -> bool {
        // SAFETY: every value is valid for the remote address, which messages do not use. The
        // program's promise covers what building requires.
        unsafe {
            let Some(kind) = T::KINDS.get((*wr).opcode as usize) else { return false };
            let is_usual = if inline { kind.takes_inline() } else { kind.is_usual() };
            if (*wr).num_sge != 1 || !is_usual {
                return false;
            }
            let flags = post::flags((*wr).send_flags);
            let remote = Remote::new((*wr).wr.rdma.remote_addr, (*wr).wr.rdma.rkey);
            let (wr_id, immediate) = ((*wr).wr_id, (*wr).imm_data);
            let usual = Self { kind: *kind, wr_id, remote, immediate, flags };
            usual.build_request::<T>(to, wr, inline)
        }
    }

    /// Builds an `ibv_send_wr` in the ring after those before it, if it is usual and the fast path
    /// has space. Its data is inline if `inline`. Returns `false`, with nothing changed, if it
    /// cannot.
    ///
    /// # Safety
    ///
    /// The request is the program's, for a queue pair of type `T`, which is connected; `common`
    /// belongs to its queue.
    #[inline(always)]
    pub(crate) unsafe fn build_ring<T: Posts>(
        queue: &mut SendQueue<T, BlueFlame>,
        common: &Common,
        wr: *const ibv_send_wr,
        inline: bool,
    ) -> bool {
        // SAFETY: the caller's request, and its list of one. The program's promise covers what
        // building requires.
        unsafe {
            let Some(header) = InC::of::<T>(wr, inline) else { return false };
            let sge = &*(*wr).sg_list;
            if !inline {
                let rest = || (sge.addr, sge.lkey);
                return queue.build_sge(common, header, sge.length, rest);
            }
            let start = || std::ptr::with_exposed_provenance(sge.addr as usize);
            queue.build_inline(common, header, sge.length as usize, start)
        }
    }

    /// Builds an `ibv_send_wr` in the ring after those before it, if it is usual and there is
    /// space. If it `RINGS`, nothing was built before, and the device is told. Returns `false`,
    /// with nothing changed that counts, if it cannot.
    ///
    /// # Safety
    /// As for [`Usual::build_ring`], on a queue pair of any type.
    #[inline(always)]
    pub(crate) unsafe fn whole<T: Posts, const RINGS: bool>(
        queue: &mut SendQueue<T, BlueFlame>,
        common: &Common,
        wr: *const ibv_send_wr,
    ) -> bool {
        // SAFETY: the caller's request, and its list. The program's promise covers what posting
        // requires.
        unsafe {
            let Some(&kind) = T::KINDS.get((*wr).opcode as usize) else { return false };
            if !kind.is_usual() && !kind.is_atomic() {
                return false;
            }
            let mut address = None;
            let Some(peer) = T::of_request(wr, &mut address) else { return false };
            let inline = (*wr).send_flags & send_flags::INLINE != 0;
            let header = AnyInC(InC { wr, kind });
            let (to, data) = (peer.destination(), DataInC(wr));
            match RINGS {
                true => queue.post_whole(common, header, to, inline, data),
                false => queue.build_whole(common, header, to, inline, data),
            }
        }
    }

    /// Posts an `ibv_send_wr` by way of the ring, if it is usual and the fast path has space. Its
    /// data is inline if `inline`, in at most `BLOCKS` blocks.
    ///
    /// # Safety
    ///
    /// The request is the program's, for a queue pair of type `T`, which is connected; `common`
    /// belongs to its queue.
    #[inline(always)]
    pub(crate) unsafe fn post_ring<T: Posts, const BLOCKS: usize>(
        queue: &mut SendQueue<T, BlueFlame>,
        common: &Common,
        wr: *const ibv_send_wr,
        inline: bool,
    ) -> bool {
        // SAFETY: the caller's request, and its list of one. The program's promise covers what
        // posting requires.
        unsafe {
            let Some(header) = InC::of::<T>(wr, inline) else { return false };
            let sge = &*(*wr).sg_list;
            if !inline {
                let rest = || (sge.addr, sge.lkey);
                return queue.post_sge(common, header, sge.length, rest);
            }
            let start = || std::ptr::with_exposed_provenance(sge.addr as usize);
            queue.post_inline::<BLOCKS>(common, header, sge.length as usize, start)
        }
    }

    /// Posts an `ibv_send_wr` with inline data by way of the ring, if it is usual, has two blocks,
    /// and the fast path has space.
    ///
    /// # Safety
    ///
    /// As for [`Usual::post_ring`].
    #[inline(always)]
    pub(crate) unsafe fn post_two_blocks<T: Posts>(
        queue: &mut SendQueue<T, BlueFlame>,
        common: &Common,
        wr: *const ibv_send_wr,
    ) -> bool {
        // SAFETY: the caller's request, and its list of one. The program's promise covers what
        // posting requires.
        unsafe {
            let Some(header) = InC::of::<T>(wr, true) else { return false };
            let sge = &*(*wr).sg_list;
            let start = || std::ptr::with_exposed_provenance(sge.addr as usize);
            queue.post_two_blocks(common, header, sge.length as usize, start)
        }
    }

    /// Builds the request if the fast path can.
    ///
    /// # Safety
    /// As for `ibv_post_send`; `to` is of the type for which the kind was looked up.
    #[inline(always)]
    unsafe fn build(self, to: &mut impl Target, peer: impl Peer, payload: impl Payload) -> bool {
        let (opcode, immediate) = (self.kind.opcode(), self.kind.immediate(self.immediate));
        // SAFETY: the caller's promise.
        unsafe {
            if self.kind.0 & ACCESS == 0 {
                let operation = peer.with(AnySend { opcode, immediate });
                return to.put(self.wr_id, operation, payload, self.flags);
            }
            let operation = peer.with(AnyAccess { opcode, immediate, remote: self.remote });
            to.put(self.wr_id, operation, payload, self.flags)
        }
    }

    /// Builds the `ibv_send_wr` of which `self` is the header, if the fast path can.
    ///
    /// # Safety
    ///
    /// As for [`Usual::build`]; `wr` is the program's, for a queue pair of type `T`.
    #[inline(always)]
    unsafe fn build_request<T: Posts>(
        self,
        to: &mut impl Target,
        wr: *const ibv_send_wr,
        inline: bool,
    ) -> bool {
        let mut address = None;
        // SAFETY: the caller's promise.
        unsafe {
            let Some(peer) = T::of_request(wr, &mut address) else { return false };
            let sge = *(*wr).sg_list;
            if !inline {
                // The run-time entry point handles an empty or too long SGE.
                let is_usual = sge.length as i32 > 0;
                return is_usual && self.build(to, peer, Sge::new(sge.addr, sge.length, sge.lkey));
            }
            if sge.addr == 0 || sge.length as usize > MAX_INLINE {
                return false;
            }
            let start = std::ptr::with_exposed_provenance(sge.addr as usize);
            self.build(to, peer, Inline(slice::from_raw_parts(start, sge.length as usize)))
        }
    }

    /// The same request as an operation of the library.
    pub(crate) fn operation(&self) -> RunTimeOperation<'static> {
        use RunTimeOperation as O;
        let immediate = immediate(self.immediate);
        match self.kind.opcode() {
            Opcode::SEND_IMMEDIATE => O::SendImmediate(immediate),
            Opcode::RDMA_WRITE => O::Write(self.remote),
            Opcode::RDMA_WRITE_IMMEDIATE => O::WriteImmediate(self.remote, immediate),
            Opcode::RDMA_READ => O::Read(self.remote),
            _ => O::Send,
        }
    }
}

/// Bytes of a buffer for the inline data of any request, which are fewer: the length in a WQE has
/// ten bits (`INLINE_LENGTH_MASK`).
pub(crate) const MAX_INLINE: usize = 1024;
