//! Queue pairs and other queues of libmlx5, with access to their memory.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::abi::*;
use crate::{Libmlx5, hooks, made};

/// The type of a queue pair, numbered as `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Raw Ethernet packets.
    RawPacket = 8,
    /// The sending end of an extended reliable connection.
    XrcSend = 9,
    /// The initiator of dynamically connected messages.
    Dci = 0xff,
}

/// Most header bytes of a packet to be segmented.
pub const MAX_TSO_HEADER: u16 = 128;

/// Attributes of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSpec {
    /// Its type.
    pub service: Service,
    /// Send requests, receives, entries per send, entries per receive, inline bytes:
    /// `struct ibv_qp_cap`.
    pub capacities: [u32; 5],
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// The operations of the `ibv_wr_*` functions (`enum ibv_qp_create_send_ops_flags`); 0 for a
    /// queue pair without these functions.
    pub operations: u64,
}

impl QueuePairSpec {
    /// The fields that are set, as `enum ibv_qp_init_attr_mask`: the protection domain, the longest
    /// header for segmentation and, if there are any, the operations.
    fn mask(&self) -> u32 {
        let header = if self.service == Service::RawPacket { 1 << 3 } else { 0 };
        1 | header | if self.operations == 0 { 0 } else { 1 << 6 }
    }
}

/// A queue pair of libmlx5, which exists until the process ends.
pub struct QueuePair {
    /// The object.
    pub qp: *mut Qp,
    /// The same for the `ibv_wr_*` functions, if operations were requested.
    pub extended: *mut QpEx,
    /// The same for the `mlx5dv_wr_*` functions.
    pub direct_extended: *mut DirectQpEx,
    /// The completion queue of both directions.
    pub cq: *mut Cq,
    /// Its rings, doorbell record and doorbell register.
    pub direct: DirectQp,
    /// The completion queue's ring and doorbell record.
    pub direct_cq: DirectCq,
    /// The `struct ibv_qp_cap` that the library returned.
    pub capacities: [u32; 5],
    /// The index of the queue pair in CQEs.
    pub user_index: u32,
    service: Service,
    polled: u32,
}

// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Send for QueuePair {}

/// `enum ibv_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
/// `enum ibv_qp_attr_mask`.
const STATE: c_int = 1;
/// `enum mlx5dv_dc_type`.
const DCI: u64 = 2;

/// A path to the device itself: the last of its four GIDs is its IPv4 address for RoCE v2.
fn path() -> AhAttr {
    let mut destination_gid = [0; 16];
    destination_gid[10..].copy_from_slice(&[0xff, 0xff, 127, 18, 0, 1]);
    AhAttr {
        destination_gid,
        source_gid_index: 3,
        hop_limit: 64,
        is_global: 1,
        port: 1,
        ..AhAttr::default()
    }
}

impl Libmlx5 {
    /// Creates a queue pair, in the state RESET, with a completion queue of its own.
    ///
    /// # Errors
    /// libmlx5 or the device refuses it.
    pub fn create_qp(&self, spec: &QueuePairSpec) -> Result<QueuePair, String> {
        let entries = (spec.capacities[0] + spec.capacities[1]).max(1) as c_int;
        // SAFETY: libibverbs' contract; no channel, no user's pointer.
        let cq =
            unsafe { (self.functions.create_cq)(self.context, entries, null_mut(), null_mut(), 0) };
        let cq = made(cq, "no completion queue")?;
        let mut attributes = QpAttrEx {
            user: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            capacities: spec.capacities,
            kind: spec.service as u32,
            signal_all: spec.signal_all.into(),
            mask: spec.mask(),
            pd: self.pd.cast(),
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: MAX_TSO_HEADER,
            rest: [0; 5],
            send_operations: spec.operations,
        };
        // The second bit of the mask is for the type.
        let mut direct = DirectQpAttr { mask: 1 << 1, dc_type: DCI, ..DirectQpAttr::default() };
        // SAFETY: the context is at the end of a `struct verbs_context`, and the attributes are
        // whole.
        let qp = unsafe {
            match spec.service {
                Service::Dci => (self.functions.create_direct_qp)(
                    self.context,
                    &raw mut attributes,
                    &raw mut direct,
                ),
                _ => (self.verbs_context().create_qp_ex)(self.context, &raw mut attributes),
            }
        };
        let qp = made(qp, "no queue pair")?;
        let user_index = hooks::created().uidx;
        // SAFETY: their kinds, fields and structs.
        let (direct, direct_cq) = unsafe {
            (
                self.direct(qp, DIRECT_QP, |objects| &mut objects.qp)?,
                self.direct(cq, DIRECT_CQ, |objects| &mut objects.cq)?,
            )
        };
        let (extended, direct_extended) = if spec.operations == 0 {
            (null_mut(), null_mut())
        } else {
            // SAFETY: a queue pair that was created with operations is an extended one.
            unsafe {
                let extended = (self.functions.qp_to_qp_ex)(qp);
                (extended, (self.functions.direct_qp_ex)(extended))
            }
        };
        let (service, capacities) = (spec.service, attributes.capacities);
        Ok(QueuePair {
            qp,
            extended,
            direct_extended,
            cq,
            direct,
            direct_cq,
            capacities,
            user_index,
            service,
            polled: 0,
        })
    }

    /// The operations of the context that are inline functions in `verbs.h`.
    pub fn verbs_context(&self) -> &VerbsContext {
        let start = self.context.cast::<u8>().wrapping_sub(size_of::<VerbsContext>());
        // SAFETY: libmlx5's contexts are the end of a `struct verbs_context`, and are never freed.
        unsafe { &*start.cast::<VerbsContext>() }
    }

    /// The struct in which libmlx5 describes an object's memory (`mlx5dv_init_obj`).
    ///
    /// # Safety
    /// `kind` is the object's `DIRECT_*`, `field` is its field, and `D` is its struct.
    pub unsafe fn direct<T, D: Default>(
        &self,
        object: *mut T,
        kind: u64,
        field: fn(&mut DirectObjects) -> &mut [usize; 2],
    ) -> Result<D, String> {
        let (mut direct, mut objects) = (D::default(), DirectObjects::default());
        *field(&mut objects) = [object as usize, &raw mut direct as usize];
        // SAFETY: the object exists, and there is space for the answer.
        match unsafe { (self.functions.init_obj)(&raw mut objects, kind) } {
            0 => Ok(direct),
            errno => Err(format!("mlx5dv_init_obj: errno {errno}")),
        }
    }

    /// An address handle, and its address vector of 48 bytes in libmlx5's memory.
    ///
    /// # Errors
    /// libmlx5 or the device refuses it.
    pub fn create_ah(&self) -> Result<(*mut Ah, *mut [u8; 48]), String> {
        let attributes = path();
        // SAFETY: libibverbs' contract.
        let ah = unsafe { (self.functions.create_ah)(self.pd, &raw const attributes) };
        let ah = made(ah, "no address handle")?;
        // SAFETY: its kind, field and struct.
        let direct: DirectAh = unsafe { self.direct(ah, DIRECT_AH, |objects| &mut objects.ah)? };
        Ok((ah, direct.av as *mut [u8; 48]))
    }

    /// Moves a queue pair from any state to RESET and then to RTS. Its queues are empty then, and
    /// its counters are 0.
    ///
    /// # Panics
    /// If the device refuses a step.
    pub fn restart(&self, pair: &mut QueuePair) {
        let steps =
            [(0, STATE), (INIT, pair.to_init()), (RTR, pair.to_rtr()), (RTS, pair.to_rts())];
        for (state, mask) in steps {
            let attributes = QpAttr {
                state,
                // 1024 bytes.
                mtu: 3,
                qkey: 0x1111,
                peer: 1,
                path: path(),
                reads: 1,
                peer_reads: 1,
                rnr_timer: 12,
                port: 1,
                timeout: 14,
                retries: 7,
                rnr_retries: 7,
                ..QpAttr::default()
            };
            // SAFETY: libibverbs' contract.
            let errno = unsafe { (self.functions.modify_qp)(pair.qp, &raw const attributes, mask) };
            assert_eq!(errno, 0, "state {state} of {:?}", pair.service);
        }
    }
}

/// A shared receive queue of libmlx5.
pub struct SharedQueue {
    /// The object.
    pub srq: *mut Srq,
    /// Its ring and doorbell record.
    pub direct: DirectSrq,
}

impl SharedQueue {
    /// Entries of the initial list of free WQEs, a power of two. The ring has more if libmlx5
    /// reserves some.
    pub fn entries(&self) -> u32 {
        self.direct.tail + 1
    }
}

impl Libmlx5 {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// libmlx5 or the device refuses it.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedQueue, String> {
        let mut attributes = SrqAttr { user: null_mut(), max_wr, max_sge, limit: 0 };
        // SAFETY: libibverbs' contract.
        let srq = unsafe { (self.functions.create_srq)(self.pd, &raw mut attributes) };
        let srq = made(srq, "no shared receive queue")?;
        // SAFETY: its kind, field and struct.
        let direct = unsafe { self.direct(srq, DIRECT_SRQ, |objects| &mut objects.srq)? };
        Ok(SharedQueue { srq, direct })
    }

    /// Destroys a shared receive queue.
    pub fn destroy_srq(&self, queue: SharedQueue) {
        // SAFETY: the caller gives the object up.
        let errno = unsafe { (self.functions.destroy_srq)(queue.srq) };
        assert_eq!(errno, 0, "no queue pair uses it");
    }
}

/// A tag matching SRQ of libmlx5, and the command QP inside it that changes its list. It exists
/// until the process ends.
pub struct TagQueue {
    /// The object.
    pub srq: *mut Srq,
    /// Blocks of 64 bytes in the ring of changes.
    pub blocks: u32,
    ring: usize,
    record: usize,
    cq: *mut CqEx,
    direct_cq: DirectCq,
    user_index: u32,
    polled: u32,
}

/// A completion of a tag matching SRQ, as libmlx5 reports it (`ibv_start_poll`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagCompletion {
    /// The request's id.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// `enum ibv_wc_flags`.
    pub flags: u32,
}

impl Libmlx5 {
    /// Creates an SRQ with a list of at most `tags` entries, of which at most `changes` may be in
    /// flight. The device has an InfiniBand port.
    ///
    /// # Errors
    /// libmlx5 or the device refuses it.
    pub fn create_tag_queue(&self, tags: u32, changes: u32) -> Result<TagQueue, String> {
        /// `IBV_WC_EX_WITH_BYTE_LEN`: any field makes the completion queue extended.
        const FIELDS: u64 = 1;
        /// `IBV_SRQT_TM`.
        const TAG_MATCHING: u32 = 2;
        /// `IBV_SRQ_INIT_ATTR_*`: the type, the domain, the completion queue, the list.
        const MASK: u32 = 1 | 2 | 8 | 16;
        let verbs = self.verbs_context();
        let mut fields = CqAttrEx {
            entries: 64,
            before: [0; 5],
            vector: 0,
            wc_flags: FIELDS,
            mask: 0,
            flags: 0,
            parent_domain: 0,
        };
        // SAFETY: libibverbs' contract.
        let cq = unsafe { (verbs.create_cq_ex)(self.context, &raw mut fields) };
        let cq = made(cq, "no completion queue")?;
        let mut attributes = SrqAttrEx {
            user: null_mut(),
            max_wr: 8,
            max_sge: 1,
            limit: 0,
            mask: MASK,
            kind: TAG_MATCHING,
            pd: self.pd,
            xrcd: null_mut(),
            cq,
            max_tags: tags,
            max_ops: changes,
        };
        // SAFETY: libibverbs' contract.
        let srq = unsafe { (verbs.create_srq_ex)(self.context, &raw mut attributes) };
        let srq = made(srq, "no tag matching queue")?;
        // The queue pair inside was created last. Its buffer is only the send ring, because it
        // receives through the SRQ.
        let created = hooks::created();
        let (ring, record) = (created.buf_addr as usize, created.db_addr as usize);
        // SAFETY: its kind, field and struct.
        let direct_cq = unsafe { self.direct(cq, DIRECT_CQ, |objects| &mut objects.cq)? };
        let (blocks, user_index) = (created.sq_wqe_count, hooks::srq_index());
        Ok(TagQueue { srq, blocks, ring, record, cq, direct_cq, user_index, polled: 0 })
    }
}

impl TagQueue {
    /// The ring's bytes.
    pub fn ring(&self) -> Vec<u8> {
        bytes(self.ring, self.blocks as usize * 64)
    }

    /// Writes a CQE into the next entry of the completion queue, with the SRQ's user index and the
    /// right owner bit, and polls it.
    ///
    /// # Errors
    /// The result of `ibv_start_poll`, if it is not 0.
    pub fn complete(&mut self, mut cqe: [u8; 64]) -> Result<TagCompletion, c_int> {
        let entries = self.direct_cq.entries;
        assert_eq!(self.direct_cq.cqe_size, 64);
        cqe[33..36].copy_from_slice(&self.user_index.to_be_bytes()[1..]);
        cqe[63] |= u8::from(self.polled & entries != 0);
        let place = self.direct_cq.buffer + (self.polled & (entries - 1)) as usize * 64;
        self.polled = self.polled.wrapping_add(1);
        // SAFETY: within the ring, which only libmlx5 reads, in the calls below; fields are read
        // only if there is a completion.
        unsafe {
            (place as *mut [u8; 64]).write(cqe);
            let (cq, attributes) = (self.cq, 0);
            match ((*cq).start_poll)(cq, &raw const attributes) {
                0 => {}
                failed => return Err(failed),
            }
            let (wr_id, status) = ((*cq).wr_id, (*cq).status);
            let (opcode, flags) = (((*cq).read_opcode)(cq), ((*cq).read_wc_flags)(cq));
            ((*cq).end_poll)(cq);
            Ok(TagCompletion { wr_id, status, opcode, flags })
        }
    }

    /// The counter of changes in the doorbell record.
    pub fn counter(&self) -> u32 {
        // SAFETY: the record has eight bytes, of which the last four count sends.
        u32::from_be(unsafe { ((self.record + 4) as *const u32).read() })
    }
}

/// A receive work queue of libmlx5, with a completion queue of its own.
pub struct WorkQueue {
    /// The object.
    pub wq: *mut Wq,
    /// Its ring and doorbell record.
    pub direct: DirectWq,
    cq: *mut Cq,
}

/// The smallest strides that the device has: 512 of 64 bytes (`MLX5_MIN_SINGLE_*` in mlx5_ib).
const STRIDES: DirectWqAttr =
    DirectWqAttr { mask: 1, log_stride: 6, log_strides: 9, two_byte_shift: 0 };

impl Libmlx5 {
    /// Creates a receive work queue. If it is striding, many frames share a WQE.
    ///
    /// # Errors
    /// libmlx5 or the device refuses it.
    pub fn create_wq(
        &self,
        max_wr: u32,
        max_sge: u32,
        striding: bool,
    ) -> Result<WorkQueue, String> {
        // SAFETY: libibverbs' contract; no channel, no user's pointer.
        let cq = unsafe {
            (self.functions.create_cq)(self.context, max_wr as c_int, null_mut(), null_mut(), 0)
        };
        let cq = made(cq, "no completion queue")?;
        let (user, pd) = (null_mut(), self.pd);
        let mut attributes =
            WqAttr { user, kind: 0, max_wr, max_sge, pd, cq, mask: 0, create_flags: 0 };
        let mut strides = if striding { STRIDES } else { DirectWqAttr::default() };
        // SAFETY: whole attributes.
        let wq = unsafe {
            let create = self.functions.create_direct_wq;
            create(self.context, &raw mut attributes, &raw mut strides)
        };
        let wq = made(wq, "no work queue")?;
        // SAFETY: its kind, field and struct.
        let direct = unsafe { self.direct(wq, DIRECT_RWQ, |objects| &mut objects.rwq)? };
        Ok(WorkQueue { wq, direct, cq })
    }

    /// Destroys a receive work queue and its completion queue.
    pub fn destroy_wq(&self, queue: WorkQueue) {
        // SAFETY: the caller gives both objects up. The work queue uses the completion queue, so it
        // is destroyed first.
        let errno = unsafe {
            [(self.verbs_context().destroy_wq)(queue.wq), (self.functions.destroy_cq)(queue.cq)]
        };
        assert_eq!(errno, [0, 0], "no queue pair uses them");
    }
}

impl QueuePair {
    /// Its type.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: a queue pair of libibverbs, which is never freed.
        unsafe { (*self.qp).number }
    }

    /// Mask of the attributes for the change to INIT: state, port, P_Key index, and access rights
    /// or the Q_Key.
    fn to_init(&self) -> c_int {
        match self.service {
            Service::RawPacket => STATE | 1 << 5,
            Service::Ud => STATE | 1 << 4 | 1 << 5 | 1 << 6,
            Service::Dci => STATE | 1 << 4 | 1 << 5,
            _ => STATE | 1 << 4 | 1 << 5 | 1 << 3,
        }
    }

    /// The same for RTR: path, MTU, first PSN and peer; for types that answer reads also reads in
    /// flight and the RNR timer.
    fn to_rtr(&self) -> c_int {
        let connected = STATE | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
        match self.service {
            Service::Ud | Service::RawPacket => STATE,
            Service::Dci => STATE | 1 << 8,
            Service::Uc | Service::XrcSend => connected,
            Service::Rc => connected | 1 << 15 | 1 << 17,
        }
    }

    /// The same for RTS: first PSN; for types with acknowledgements also timeout, retries and reads
    /// in flight.
    fn to_rts(&self) -> c_int {
        let any = STATE | 1 << 16;
        match self.service {
            Service::RawPacket => STATE,
            Service::Ud | Service::Uc => any,
            Service::Rc | Service::XrcSend | Service::Dci => {
                any | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13
            }
        }
    }

    /// Writes a CQE into the next entry of the completion queue, with this queue pair's user index
    /// and the right owner bit, polls once (`ibv_poll_cq`) and returns the completion.
    ///
    /// # Errors
    /// The function's result: 0 if libmlx5 sees no completion, a negative number if it fails.
    pub fn complete(&mut self, mut cqe: [u8; 64]) -> Result<WorkCompletion, c_int> {
        let entries = self.direct_cq.entries;
        assert_eq!(self.direct_cq.cqe_size, 64);
        let lap = u8::from(self.polled & entries != 0);
        cqe[33..36].copy_from_slice(&self.user_index.to_be_bytes()[1..]);
        cqe[63] = cqe[63] & !1 | lap;
        let place = self.direct_cq.buffer + (self.polled & (entries - 1)) as usize * 64;
        self.polled = self.polled.wrapping_add(1);
        let mut completion = WorkCompletion::default();
        // SAFETY: within the ring, which only libmlx5 reads, in the call below; the context's
        // operations are libmlx5's.
        let count = unsafe {
            (place as *mut [u8; 64]).write(cqe);
            ((*self.context()).poll_cq)(self.cq, 1, &raw mut completion)
        };
        if count == 1 { Ok(completion) } else { Err(count) }
    }

    /// The context, with the functions that post and poll.
    pub fn context(&self) -> *mut Context {
        // SAFETY: a queue pair of libibverbs, which is never freed.
        unsafe { (*self.qp).context }
    }

    /// The send ring's bytes.
    pub fn send_ring(&self) -> Vec<u8> {
        bytes(self.direct.send.buffer, self.direct.send.entries as usize * 64)
    }

    /// Fills the send ring and the doorbell register with `byte`, so that later writes can be
    /// detected. No request may be in flight.
    pub fn fill(&self, byte: u8) {
        let ring = (self.direct.send.buffer, self.direct.send.entries as usize * 64);
        for (start, length) in [ring, (self.direct.register, self.register_length())] {
            // SAFETY: the ring, or the register's two halves, which are plain memory that only
            // libmlx5 writes.
            unsafe { (start as *mut u8).write_bytes(byte, length) };
        }
    }

    /// The doorbell register's bytes, both halves.
    pub fn register(&self) -> Vec<u8> {
        let length = self.register_length();
        bytes(self.direct.register & !(length - 1), length)
    }

    fn register_length(&self) -> usize {
        2 * (self.direct.register_size as usize).max(8)
    }

    /// The doorbell record: the receive counter, the send counter.
    pub fn record(&self) -> [u8; 8] {
        // SAFETY: the record has eight bytes.
        unsafe { (self.direct.record as *const [u8; 8]).read() }
    }
}

fn bytes(start: usize, length: usize) -> Vec<u8> {
    // SAFETY: the callers name whole rings and registers, which exist until the process ends, and
    // which no code writes during the copy.
    unsafe { std::slice::from_raw_parts(start as *const u8, length) }.to_vec()
}
