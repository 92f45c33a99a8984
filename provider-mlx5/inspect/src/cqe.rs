//! A CQE as a value.

use core::fmt::{self, Display, Formatter};

use zerocopy::IntoBytes;

use super::{ErrorText, TooShort, show::Hex};
use uverbs_mlx5::format::{
    self, CQE_SIZE, CqeFormat, CqeOpcode, ErrorCqe, OpOwn, SignatureErrorCqe,
};

/// A CQE: 64 bytes in the layout of its opcode, and in a queue of 128-byte CQEs the 64 bytes before
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// The lower half of a 128-byte CQE.
    pub lower: Option<[u8; 64]>,
    /// The CQE proper.
    pub body: CqeBody,
}

/// The layouts of a CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeBody {
    /// A completion, a resize marker, or an unwritten entry.
    Completion(format::Cqe),
    /// An error.
    Error(ErrorCqe),
    /// A failed signature check.
    SignatureError(SignatureErrorCqe),
}

impl Cqe {
    /// Reads a CQE of 64 bytes. [`Cqe::encode`] returns the same bytes, whatever they are.
    ///
    /// # Errors
    /// There are fewer than 64 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, TooShort> {
        let short = TooShort { needed: CQE_SIZE, got: bytes.len() };
        let (bytes, _) = bytes.split_first_chunk::<CQE_SIZE>().ok_or(short)?;
        Ok(Self { lower: None, body: CqeBody::from_bytes(*bytes) })
    }

    /// Reads a CQE of 128 bytes.
    ///
    /// # Errors
    /// There are fewer than 128 bytes.
    pub fn decode_128(bytes: &[u8]) -> Result<Self, TooShort> {
        let short = TooShort { needed: 2 * CQE_SIZE, got: bytes.len() };
        let (lower, rest) = bytes.split_first_chunk::<CQE_SIZE>().ok_or(short)?;
        let (upper, _) = rest.split_first_chunk::<CQE_SIZE>().ok_or(short)?;
        Ok(Self { lower: Some(*lower), body: CqeBody::from_bytes(*upper) })
    }

    /// The bytes, 64 or 128.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.lower.map(Vec::from).unwrap_or_default();
        bytes.extend(self.body.as_bytes());
        bytes
    }

    /// Opcode, format, solicited and owner bits.
    pub fn op_own(&self) -> OpOwn {
        match &self.body {
            CqeBody::Completion(cqe) => cqe.op_own,
            CqeBody::Error(cqe) => cqe.op_own,
            CqeBody::SignatureError(cqe) => cqe.op_own,
        }
    }

    /// The received data that is in the CQE instead of in the buffers of the WQE: as many bytes as
    /// the byte count specifies, or as the CQE has.
    pub fn inline_data(&self) -> Option<&[u8]> {
        let CqeBody::Completion(cqe) = &self.body else { return None };
        let place = match cqe.op_own.format() {
            CqeFormat::INLINE_32 => &cqe.as_bytes()[..32],
            CqeFormat::INLINE_64 => self.lower.as_ref()?.as_slice(),
            _ => return None,
        };
        Some(&place[..place.len().min(cqe.byte_count.get() as usize)])
    }

    /// Describes the CQE in sentences; for an error with its likely causes and what to check.
    pub fn explain(&self) -> String {
        match &self.body {
            CqeBody::Completion(cqe) => explain_completion(cqe),
            CqeBody::Error(cqe) => ErrorText::of(cqe).to_string(),
            CqeBody::SignatureError(cqe) => format!(
                "A signature check failed on key {:#010x} at offset {}: expected {:#x}, found {:#x}.",
                cqe.mkey.get(),
                cqe.error_offset.get(),
                cqe.expected_signature.get(),
                cqe.actual_signature.get()
            ),
        }
    }
}

impl CqeBody {
    fn from_bytes(bytes: [u8; CQE_SIZE]) -> Self {
        match OpOwn(bytes[CQE_SIZE - 1]).opcode() {
            CqeOpcode::REQUESTER_ERROR | CqeOpcode::RESPONDER_ERROR => {
                Self::Error(zerocopy::transmute!(bytes))
            }
            CqeOpcode::SIGNATURE_ERROR => Self::SignatureError(zerocopy::transmute!(bytes)),
            _ => Self::Completion(zerocopy::transmute!(bytes)),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Completion(cqe) => cqe.as_bytes(),
            Self::Error(cqe) => cqe.as_bytes(),
            Self::SignatureError(cqe) => cqe.as_bytes(),
        }
    }
}

fn explain_completion(cqe: &format::Cqe) -> String {
    let op_own = cqe.op_own;
    let counter = cqe.wqe_counter;
    match op_own.opcode() {
        _ if op_own.format() == CqeFormat::COMPRESSED => format!(
            "The title of {} compressed completions: mini-CQEs follow in the next slots.",
            cqe.byte_count
        ),
        CqeOpcode::REQUESTER => format!(
            "Send WQE {counter} of QP {:#x} ({}) succeeded, and all before it that had no CQE of \
             their own.",
            cqe.qpn(),
            cqe.wqe_opcode()
        ),
        CqeOpcode::RESIZE => "The CQ was resized: what follows is in the new buffer.".into(),
        CqeOpcode::INVALID => "Nothing was written here yet.".into(),
        opcode if opcode.is_responder() => explain_receive(cqe),
        opcode => format!("Opcode {opcode}, which is outside of what is explained here."),
    }
}

fn explain_receive(cqe: &format::Cqe) -> String {
    let what = match cqe.op_own.opcode() {
        CqeOpcode::RESPONDER_WRITE_IMMEDIATE => {
            format!("an RDMA write with immediate {:#010x}", cqe.immediate.get())
        }
        CqeOpcode::RESPONDER_SEND_IMMEDIATE => {
            format!("a send with immediate {:#010x}", cqe.immediate.get())
        }
        CqeOpcode::RESPONDER_SEND_INVALIDATE => {
            format!("a send that invalidated rkey {:#010x}", cqe.immediate.get())
        }
        _ => "a send".into(),
    };
    let place = match cqe.op_own.format() {
        CqeFormat::INLINE_32 => " The data is in the CQE's first 32 bytes.",
        CqeFormat::INLINE_64 => " The data is in the 64 bytes before the CQE.",
        _ => "",
    };
    let solicited = if cqe.op_own.is_solicited() { " It was solicited." } else { "" };
    format!(
        "Receive WQE {} took {what}, {} bytes, from QP {:#x}.{place}{solicited}",
        cqe.wqe_counter,
        cqe.byte_count,
        cqe.flags_remote_qpn.remote_qpn()
    )
}

impl Display for Cqe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let op_own = self.op_own();
        write!(
            f,
            "cqe: opcode={} ({}) format={} solicited={} owner={}",
            op_own.opcode(),
            op_own.opcode().0,
            op_own.format(),
            u8::from(op_own.is_solicited()),
            u8::from(op_own.owner())
        )?;
        match &self.body {
            CqeBody::Completion(cqe) => completion(f, cqe)?,
            CqeBody::Error(cqe) => error(f, cqe)?,
            CqeBody::SignatureError(cqe) => signature(f, cqe)?,
        }
        match self.inline_data() {
            Some(data) => write!(f, "\n       inline data={}", Hex(data)),
            None => Ok(()),
        }
    }
}

fn completion(f: &mut Formatter<'_>, cqe: &format::Cqe) -> fmt::Result {
    write!(f, "\n0x0002 wqe_id={} rss_hash={:#x}", cqe.wqe_id, cqe.rss_hash.get())?;
    write!(f, " rss_hash_type={:#04x} path_bits={:#04x}", cqe.rss_hash_type, cqe.path_bits)?;
    write!(f, " checksum={:#06x} slid={:#x}", cqe.checksum.get(), cqe.slid.get())?;
    let flags = cqe.flags_remote_qpn;
    write!(
        f,
        "\n0x0018 remote_qpn={:#x} sl={} grh={} checks={:#04x} l3={} l4={} vlan_stripped={} \
         vlan={:#06x}",
        flags.remote_qpn(),
        flags.service_level(),
        flags.grh(),
        cqe.checks.0,
        cqe.header_types.l3(),
        cqe.header_types.l4(),
        u8::from(cqe.header_types.vlan_stripped()),
        cqe.vlan_info.get()
    )?;
    write!(
        f,
        "\n0x0020 user_index={:#x} immediate={:#010x} app={} app_op={} byte_count={}",
        cqe.user_index(),
        cqe.immediate.get(),
        cqe.app,
        cqe.app_op,
        cqe.byte_count
    )?;
    write!(
        f,
        "\n0x0030 timestamp={:#018x} wqe_opcode={} qpn_or_flow_tag={:#x} wqe_counter={} \
         signature={:#04x}",
        cqe.timestamp.get(),
        cqe.wqe_opcode(),
        cqe.qpn(),
        cqe.wqe_counter,
        cqe.signature
    )
}

fn error(f: &mut Formatter<'_>, cqe: &ErrorCqe) -> fmt::Result {
    write!(
        f,
        "\n0x0020 user_index={:#x}\n0x0034 hardware_syndrome={:#04x} type={:#04x} \
         vendor_syndrome={:#04x} ({}) syndrome={:#04x} ({})\n0x0038 wqe_opcode={} qpn={:#x} \
         wqe_counter={} signature={:#04x}",
        cqe.user_index(),
        cqe.hardware_syndrome,
        cqe.hardware_syndrome_type,
        cqe.vendor_syndrome.0,
        cqe.vendor_syndrome,
        cqe.syndrome.0,
        cqe.syndrome,
        cqe.wqe_opcode(),
        cqe.qpn(),
        cqe.wqe_counter,
        cqe.signature
    )
}

fn signature(f: &mut Formatter<'_>, cqe: &SignatureErrorCqe) -> fmt::Result {
    write!(
        f,
        "\n0x0010 expected={:#x} actual={:#x} expected_ref_tag={:#x} actual_ref_tag={:#x} \
         syndrome={:#06x} type={} domain={} mkey={:#010x} offset={}",
        cqe.expected_signature.get(),
        cqe.actual_signature.get(),
        cqe.expected_reference_tag.get(),
        cqe.actual_reference_tag.get(),
        cqe.syndrome.get(),
        cqe.signature_type,
        cqe.domain,
        cqe.mkey.get(),
        cqe.error_offset.get()
    )
}
