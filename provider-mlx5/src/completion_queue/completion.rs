//! A completion, borrowed from the queue: fields are read from the CQE when the program asks for
//! them.

use core::marker::PhantomData;
use core::mem::offset_of;

use super::ring::CqeView;
use super::{CompletionOpcode, Status};
use crate::format::{
    CQE_SIZE, Cqe, CqeChecksum, CqeFormat, CqeHeaderTypes, CqeOpcode, ErrorCqe, L3Type, OpOwn,
    Opcode, RemoteQpFlags, Syndrome, TagEvent, TagHeader, U32, VendorSyndrome,
};
use crate::queue_state::{Kind, Side};
use crate::request::Immediate;

/// The opcode in completions of requests that the caller has encoded, for queues that mark such
/// requests. No real request has it.
#[doc(hidden)]
pub const ENCODED: Opcode = Opcode(0xff);

/// The poller's result, without the borrow of the queue.
///
/// The order of the fields matters. In a `Result`, an error is marked by an otherwise unused value
/// of `status`, and the error itself is stored in the byte after it. That byte must not be part of
/// a pointer, because the compiler would split and reassemble the pointer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Raw {
    pub(super) status: Status,
    /// The format with which the poller checked that the inline data fits the entry.
    pub(super) format: CqeFormat,
    pub(super) cqe: CqeView,
    /// The side of the queue, sends or receives, according to the CQE's opcode.
    pub(super) side: *const Side,
    pub(super) wr_id: u64,
}

/// The source of a completion's fields: its CQE, and the queue of its request.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct LentCqe<'c> {
    cqe: CqeView,
    side: *const Side,
    queue: PhantomData<&'c mut super::CompletionQueue>,
}

impl<'c> LentCqe<'c> {
    /// Restores the completion from the id and status that the caller has kept. Its format is lost:
    /// [`Completion::format`] returns `NO_INLINE`.
    #[inline(always)]
    pub fn completion(self, wr_id: u64, status: Status) -> Completion<'c> {
        let Self { cqe, side, .. } = self;
        Completion::new(Raw { status, format: CqeFormat::NO_INLINE, cqe, side, wr_id })
    }
}

/// A completion, borrowed from the queue until the next poll.
///
/// In an error completion only `wr_id`, `status`, `qp_num`, `user_context`, the syndromes and the
/// send opcode are valid (ibv_poll_cq(3)).
#[repr(transparent)]
pub struct Completion<'c> {
    pub(super) raw: Raw,
    queue: PhantomData<&'c mut super::CompletionQueue>,
}

/// A completion, copied out of the queue. It has everything that a [`Completion`] has, except data
/// inside the CQE and the queue's state.
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    /// The id of the request.
    pub wr_id: u64,
    /// The value that the QP (for XRC, the SRQ) was registered with.
    pub user_context: u64,
    cqe: Copied,
    /// How the request ended.
    pub status: Status,
    /// Which UMR request it was: the CQE does not tell them apart.
    kind: Kind,
}

/// The bytes of a CQE.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
struct Copied([u8; CQE_SIZE]);

macro_rules! field {
    ($name:ident) => {
        #[inline(always)]
        fn $name(self, offset: usize) -> $name {
            let mut bytes = [0; size_of::<$name>()];
            bytes.copy_from_slice(&self.0[offset..offset + size_of::<$name>()]);
            $name::from_be_bytes(bytes)
        }
    };
}

impl Copied {
    field!(u8);
    field!(u16);
    field!(u32);
    field!(u64);

    fn bytes(self) -> [u8; CQE_SIZE] {
        self.0
    }
}

impl Default for WorkCompletion {
    /// A completion of no request, for arrays that `CompletionQueue::poll_into` fills.
    fn default() -> Self {
        Self {
            wr_id: 0,
            user_context: 0,
            cqe: Copied([0; CQE_SIZE]),
            status: Status::General,
            kind: Kind::Plain,
        }
    }
}

impl WorkCompletion {
    #[inline(always)]
    fn cqe(&self) -> Copied {
        self.cqe
    }

    #[inline(always)]
    fn kind(&self) -> Kind {
        self.kind
    }

    /// Always true, because [`Completion::to_work_completion`] has removed the mark from others.
    fn is_of_tag_list(&self) -> bool {
        true
    }

    /// The id of the request.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// How the request ended.
    #[inline(always)]
    pub fn status(&self) -> Status {
        self.status
    }

    /// The value that the QP (for XRC, the SRQ) was registered with.
    #[inline(always)]
    pub fn user_context(&self) -> u64 {
        self.user_context
    }
}

impl<'c> Completion<'c> {
    #[inline(always)]
    pub(super) fn new(raw: Raw) -> Self {
        Self { raw, queue: PhantomData }
    }

    #[inline(always)]
    fn cqe(&self) -> CqeView {
        self.raw.cqe
    }

    /// The pointer from which [`Completion::side`] is made.
    #[inline(always)]
    pub(crate) fn raw_side(&self) -> *const Side {
        self.raw.side
    }

    /// Which UMR request it was.
    fn kind(&self) -> Kind {
        self.state().send_kind(self.wqe_index())
    }

    /// Whether the queue receives through a tag matching SRQ. Only then may a CQE be one of tag
    /// matching.
    fn is_of_tag_list(&self) -> bool {
        self.state().receives().matches_tags()
    }

    /// The id of the request.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.raw.wr_id
    }

    /// How the request ended.
    #[inline(always)]
    pub fn status(&self) -> Status {
        self.raw.status
    }

    /// The value that the QP (for XRC, the SRQ) was registered with.
    #[inline(always)]
    pub fn user_context(&self) -> u64 {
        self.state().user_context()
    }

    /// The value of the queue's sends or receives that
    /// [`set_side_contexts`](crate::queue_state::QueueState::set_side_contexts) set.
    #[inline(always)]
    pub fn side_context(&self) -> u64 {
        self.side().context()
    }

    /// Its CQE, for a caller that reads the fields later.
    #[doc(hidden)]
    #[inline(always)]
    pub fn lent_cqe(&self) -> LentCqe<'c> {
        LentCqe { cqe: self.raw.cqe, side: self.raw.side, queue: PhantomData }
    }

    /// An equal value made field by field. Passed to functions that are not inlined, it lets the
    /// compiler keep the original in registers.
    #[doc(hidden)]
    #[inline(always)]
    pub fn again(self) -> Self {
        let Raw { status, format, cqe, side, wr_id } = self.raw;
        Self::new(Raw { status, format, cqe, side, wr_id })
    }

    /// Whether a receive may have a GRH or good checksums, found in one comparison.
    #[doc(hidden)]
    #[inline(always)]
    pub fn may_have_receive_flags(&self) -> bool {
        const GRH: u64 = 0x3000_0000 << 32;
        const CHECKS: u64 = 6 << 24;
        const { assert!(offset_of!(Cqe, checks) == offset_of!(Cqe, flags_remote_qpn) + 4) };
        self.cqe().u64(offset_of!(Cqe, flags_remote_qpn)) & (GRH | CHECKS) != 0
    }

    /// Whether, and in which format, the CQE contains data.
    pub fn format(&self) -> CqeFormat {
        self.raw.format
    }

    /// An owned copy.
    #[inline(always)]
    pub fn to_work_completion(&self) -> WorkCompletion {
        let mut cqe = Copied(self.raw.cqe.bytes());
        if self.may_match_tags() && !self.is_of_tag_list() {
            cqe.0[offset_of!(Cqe, app)] = 0;
        }
        WorkCompletion {
            wr_id: self.wr_id(),
            user_context: self.user_context(),
            cqe,
            status: self.status(),
            kind: match self.sent() == Opcode::UMR && self.is_send() {
                true => self.kind(),
                false => Kind::Plain,
            },
        }
    }
}

/// The accessors of both types. A macro instead of a trait, so that callers need no import.
macro_rules! accessors {
    ($completion:ident $(<$lifetime:lifetime>)?) => {
        impl core::fmt::Debug for $completion $(<$lifetime>)? {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($completion))
                    .field("wr_id", &self.wr_id())
                    .field("status", &self.status())
                    .field("opcode", &self.opcode())
                    .field("qp_num", &self.qp_num())
                    .field("byte_len", &self.byte_len())
                    .finish_non_exhaustive()
            }
        }

        impl $completion $(<$lifetime>)? {
            /// Whether the request succeeded.
            #[inline(always)]
            pub fn is_success(&self) -> bool {
                self.status() == Status::Success
            }

            /// The operation that completed; [`CompletionOpcode::Recv`] for an error of a receive.
            #[doc(alias = "ibv_wc_read_opcode")]
            pub fn opcode(&self) -> CompletionOpcode {
                match self.cqe_opcode() {
                    CqeOpcode::REQUESTER | CqeOpcode::REQUESTER_ERROR => self.send_opcode(),
                    CqeOpcode::RESPONDER_WRITE_IMMEDIATE => CompletionOpcode::RecvWriteImmediate,
                    _ => self.tag_event().map_or(CompletionOpcode::Recv, CompletionOpcode::of_tag),
                }
            }

            /// What a completion of a tag matching SRQ reports; `None` for all others.
            pub fn tag_event(&self) -> Option<TagEvent> {
                let is_tagged = self.may_match_tags()
                    && self.cqe_opcode().may_match_tags()
                    && self.is_of_tag_list();
                is_tagged.then(|| TagEvent(self.cqe().u8(offset_of!(Cqe, app_op))))
            }

            /// Whether [`Self::tag_event`] may return an event, found in one comparison.
            #[doc(hidden)]
            #[inline(always)]
            pub fn may_match_tags(&self) -> bool {
                self.cqe().u8(offset_of!(Cqe, app)) == Cqe::TAG_MATCHING
            }

            /// Whether the program must tell the tag matching SRQ the number of unexpected messages
            /// that it has handled (`IBV_WC_TM_SYNC_REQ`).
            pub fn asks_for_tag_sync(&self) -> bool {
                // The poller stores the answer in the signature.
                self.tag_event().is_some() && self.cqe().u8(offset_of!(Cqe, signature)) != 0
            }

            /// Tag and context of a message that matched an entry of a list of tags
            /// (`ibv_wc_read_tm_info`).
            #[doc(alias = "ibv_wc_read_tm_info")]
            pub fn tag_info(&self) -> (u64, u32) {
                let tag = self.cqe().u64(offset_of!(TagHeader, tag));
                (tag, self.u32(offset_of!(TagHeader, context)))
            }

            fn send_opcode(&self) -> CompletionOpcode {
                match self.sent() {
                    Opcode::SEND | Opcode::SEND_IMMEDIATE | Opcode::SEND_INVALIDATE => {
                        CompletionOpcode::Send
                    }
                    Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMMEDIATE => CompletionOpcode::Write,
                    Opcode::RDMA_READ => CompletionOpcode::Read,
                    Opcode::ATOMIC_COMPARE_SWAP | Opcode::ATOMIC_MASKED_COMPARE_SWAP => {
                        CompletionOpcode::CompareSwap
                    }
                    Opcode::ATOMIC_FETCH_ADD | Opcode::ATOMIC_MASKED_FETCH_ADD => {
                        CompletionOpcode::FetchAdd
                    }
                    Opcode::TSO => CompletionOpcode::Segmented,
                    Opcode::NOP => CompletionOpcode::Nop,
                    Opcode::UMR => match self.kind() {
                        Kind::LocalInvalidate => CompletionOpcode::LocalInvalidate,
                        Kind::Key => CompletionOpcode::Other(Opcode::UMR),
                        Kind::Bind | Kind::Plain => CompletionOpcode::BindWindow,
                    },
                    other => CompletionOpcode::Other(other),
                }
            }

            /// Whether this is a completion of the send queue; otherwise it is a receive.
            #[inline(always)]
            pub fn is_send(&self) -> bool {
                self.cqe_opcode().is_requester()
            }

            /// Bytes received or read; 8 for an atomic. For a striding queue see
            /// `format::StrideByteCount`. Undefined for other sends.
            #[doc(alias = "ibv_wc_read_byte_len")]
            #[inline(always)]
            pub fn byte_len(&self) -> u32 {
                self.u32(offset_of!(Cqe, byte_count))
            }

            /// Immediate data, if the received message has some.
            #[doc(alias = "ibv_wc_read_imm_data")]
            #[inline(always)]
            pub fn immediate(&self) -> Option<Immediate> {
                // The two opcodes with immediate data differ in one bit, so one comparison finds
                // both.
                const SEND: u8 = CqeOpcode::RESPONDER_SEND_IMMEDIATE.0 << 4;
                const WRITE: u8 = CqeOpcode::RESPONDER_WRITE_IMMEDIATE.0 << 4;
                const { assert!((SEND ^ WRITE).count_ones() == 1) };
                (self.op_own().0 & 0xf0 & !(SEND ^ WRITE) == SEND & WRITE)
                    .then(|| Immediate::from_u32(self.u32(offset_of!(Cqe, immediate))))
            }

            /// The rkey of this side's memory that a received send with invalidate invalidated.
            #[doc(alias = "ibv_wc_read_invalidated_rkey")]
            #[inline(always)]
            pub fn invalidated_rkey(&self) -> Option<u32> {
                (self.cqe_opcode() == CqeOpcode::RESPONDER_SEND_INVALIDATE)
                    .then(|| self.u32(offset_of!(Cqe, immediate)))
            }

            /// The local QP's number.
            #[doc(alias = "ibv_wc_read_qp_num")]
            #[inline(always)]
            pub fn qp_num(&self) -> u32 {
                self.u32(offset_of!(Cqe, opcode_qpn_flow_tag)) & 0xff_ffff
            }

            /// The tag of the steering rule that delivered a raw Ethernet packet.
            #[doc(alias = "ibv_wc_read_flow_tag")]
            #[inline(always)]
            pub fn flow_tag(&self) -> u32 {
                self.qp_num()
            }

            /// The WQE's index in its queue, modulo 2^16. For a striding queue see the device's
            /// format.
            #[inline(always)]
            pub fn wqe_index(&self) -> u16 {
                self.cqe().u16(offset_of!(Cqe, wqe_counter))
            }

            /// The device's clock when it wrote the completion. The context's clock defines the
            /// unit.
            #[doc(alias = "ibv_wc_read_completion_ts")]
            #[inline(always)]
            pub fn timestamp(&self) -> u64 {
                self.cqe().u64(offset_of!(Cqe, timestamp))
            }

            /// The remote QP's number, service level and GRH bits (UD and InfiniBand receives).
            #[doc(alias = "ibv_wc_read_src_qp")]
            #[doc(alias = "ibv_wc_read_sl")]
            #[inline(always)]
            pub fn remote(&self) -> RemoteQpFlags {
                RemoteQpFlags(U32::new(self.u32(offset_of!(Cqe, flags_remote_qpn))))
            }

            /// Whether the message had a global routing header, which is in the first 40 bytes of a
            /// UD receive buffer.
            #[inline(always)]
            pub fn has_grh(&self) -> bool {
                self.remote().grh() != 0
            }

            /// Source LID (InfiniBand).
            #[doc(alias = "ibv_wc_read_slid")]
            #[inline(always)]
            pub fn slid(&self) -> u16 {
                self.cqe().u16(offset_of!(Cqe, slid))
            }

            /// Path bits of the destination LID (InfiniBand).
            #[doc(alias = "ibv_wc_read_dlid_path_bits")]
            #[inline(always)]
            pub fn dlid_path_bits(&self) -> u8 {
                self.cqe().u8(offset_of!(Cqe, path_bits)) & 0x7f
            }

            /// Index of the P_Key that the message carried (receives without immediate).
            #[inline(always)]
            pub fn pkey_index(&self) -> u16 {
                self.u32(offset_of!(Cqe, immediate)) as u16
            }

            /// Results of the device's checks of a raw Ethernet packet.
            #[inline(always)]
            pub fn checks(&self) -> CqeChecksum {
                CqeChecksum(self.cqe().u8(offset_of!(Cqe, checks)))
            }

            /// Header types of a raw Ethernet packet, and whether a VLAN tag was stripped.
            #[inline(always)]
            pub fn header_types(&self) -> CqeHeaderTypes {
                CqeHeaderTypes(self.cqe().u8(offset_of!(Cqe, header_types)))
            }

            /// Whether IP and TCP/UDP checksums of an IPv4 packet are good (`IBV_WC_IP_CSUM_OK`).
            #[inline(always)]
            pub fn ip_checksum_ok(&self) -> bool {
                self.checks().l3_l4_ok() && self.header_types().l3() == L3Type::IPV4
            }

            /// The VLAN tag control information that the device stripped.
            #[doc(alias = "ibv_wc_read_cvlan")]
            #[inline(always)]
            pub fn vlan(&self) -> Option<u16> {
                let is_stripped = self.header_types().vlan_stripped();
                is_stripped.then(|| self.cqe().u16(offset_of!(Cqe, vlan_info)))
            }

            /// The receive hash, and which fields were hashed.
            #[inline(always)]
            pub fn receive_hash(&self) -> (u32, u8) {
                (self.u32(offset_of!(Cqe, rss_hash)), self.cqe().u8(offset_of!(Cqe, rss_hash_type)))
            }

            /// Whether the sender asked for a solicited event.
            #[inline(always)]
            pub fn is_solicited(&self) -> bool {
                self.op_own().is_solicited()
            }

            /// The syndrome of an error completion.
            pub fn syndrome(&self) -> Syndrome {
                Syndrome(self.cqe().u8(offset_of!(ErrorCqe, syndrome)))
            }

            /// The vendor syndrome of an error completion.
            #[doc(alias = "ibv_wc_read_vendor_err")]
            pub fn vendor_syndrome(&self) -> VendorSyndrome {
                VendorSyndrome(self.cqe().u8(offset_of!(ErrorCqe, vendor_syndrome)))
            }

            /// The whole CQE, copied.
            pub fn to_bytes(&self) -> [u8; 64] {
                self.cqe().bytes()
            }

            /// The kind of event that the CQE reports.
            #[inline(always)]
            pub fn cqe_opcode(&self) -> CqeOpcode {
                self.op_own().opcode()
            }

            /// The opcode of a send's work request.
            #[inline(always)]
            pub fn wqe_opcode(&self) -> Opcode {
                self.sent()
            }

            #[inline(always)]
            fn sent(&self) -> Opcode {
                Opcode(self.cqe().u8(offset_of!(Cqe, opcode_qpn_flow_tag)))
            }

            #[inline(always)]
            fn op_own(&self) -> OpOwn {
                OpOwn(self.cqe().u8(offset_of!(Cqe, op_own)))
            }

            #[inline(always)]
            fn u32(&self, offset: usize) -> u32 {
                self.cqe().u32(offset)
            }
        }
    };
}

accessors!(Completion<'_>);
accessors!(WorkCompletion);
