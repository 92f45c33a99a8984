//! `uverbs cqe encode`, and the JSON lines of `uverbs cqe decode`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uverbs_mlx5::completion_queue::Status;
use uverbs_mlx5::format::{
    self, CQE_SIZE, CqeFormat, CqeOpcode, ErrorCqe, OpOwn, Opcode, RemoteQpFlags, Syndrome, U16,
    U32, U64, VendorSyndrome,
};
use uverbs_mlx5_inspect::{Cqe, CqeBody, Polled, poll_cqe};

use super::fields::{Hex, HexArray, Number};
use super::{Answer, answer_lines, hexadecimal, members, number as shown};
use crate::failure::Outcome;

/// `enum ibv_wc_opcode` of a receive, and of one that an RDMA write with immediate consumed.
const RECV: u32 = 128;
const RECV_RDMA_WITH_IMM: u32 = 129;
/// `enum ibv_wc_flags`.
const WITH_GRH: u32 = 1;
const WITH_IMM: u32 = 2;
const WITH_INV: u32 = 8;

#[derive(Debug, Deserialize)]
struct Bytes {
    cqe: Hex,
}

pub(super) fn decode_line(line: &Value) -> Answer {
    let Bytes { cqe } = Bytes::deserialize(line).map_err(|error| error.to_string())?;
    let cqe = decoded(&cqe.0)?;
    let completion = poll_cqe(&cqe)
        .ok_or_else(|| format!("this CQE reports no work request: {}", cqe.op_own().opcode()))?;
    Ok(of_completion(&completion))
}

pub(super) fn decoded(bytes: &[u8]) -> Result<Cqe, String> {
    match bytes.len() {
        CQE_SIZE => Cqe::decode(bytes),
        length if length == 2 * CQE_SIZE => Cqe::decode_128(bytes),
        length => return Err(format!("a CQE has 64 or 128 bytes, not {length}")),
    }
    .map_err(|error| error.to_string())
}

fn of_completion(completion: &Polled) -> Map<String, Value> {
    let mut answer = members(
        json!({"status": completion.status as u32, "status_str": completion.status.text()}),
    );
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            answer.insert(name.to_owned(), value);
        }
    };
    add("opcode", completion.opcode.map(Value::from));
    add("byte_len", completion.byte_len.map(Value::from));
    add("imm_be", immediate(completion));
    add("vendor_err", completion.vendor_err.map(Value::from));
    add("qp_num", Some(shown(completion.qp_num.into())));
    add("src_qp", completion.src_qp.map(|number| shown(number.into())));
    add("wc_flags", Some(shown(completion.wc_flags.into())));
    add("pkey_index", completion.pkey_index.map(Value::from));
    add("slid", completion.slid.map(Value::from));
    add("sl", completion.sl.map(Value::from));
    add("dlid_path_bits", completion.dlid_path_bits.map(Value::from));
    answer
}

/// Immediate data or invalidated key, as the union is in the memory of a little-endian program.
fn immediate(completion: &Polled) -> Option<Value> {
    let key = completion.invalidated_rkey.map(u32::to_le_bytes);
    let bytes = completion.immediate.map(|immediate| immediate.0).or(key)?;
    Some(hexadecimal(&bytes).into())
}

/// Runs `uverbs cqe encode`.
pub(crate) fn run_encode() -> Outcome {
    answer_lines(encode_line)
}

/// A completion: the members that `cqe decode` prints, and more fields of the CQE.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Completion {
    status: Number<u32>,
    opcode: Number<u32>,
    byte_len: Number<u32>,
    imm_be: Option<HexArray<4>>,
    vendor_err: Number<u8>,
    qp_num: Number<u32>,
    src_qp: Number<u32>,
    wc_flags: Number<u32>,
    pkey_index: Number<u16>,
    slid: Number<u16>,
    sl: Number<u8>,
    dlid_path_bits: Number<u8>,
    user_index: Number<u32>,
    wqe_counter: Number<u16>,
    timestamp: Number<u64>,
    solicited: bool,
    owner: bool,
    /// Data inside the CQE, at most 32 bytes.
    inline: Hex,
}

fn encode_line(line: &Value) -> Answer {
    if line.get("qp_num").is_none() {
        return Err("a completion needs a qp_num (cqe encode --help has examples)".to_owned());
    }
    let completion = Completion::deserialize(line).map_err(|error| error.to_string())?;
    let body =
        if completion.status.0 == 0 { completion.success()? } else { completion.failure()? };
    let mut bytes = Cqe { lower: None, body }.encode();
    bytes[..completion.inline.0.len()].copy_from_slice(&completion.inline.0);
    Ok(members(json!({"cqe": hexadecimal(&bytes)})))
}

impl Completion {
    fn success(&self) -> Result<CqeBody, String> {
        let (kind, wqe_opcode) = self.kinds()?;
        let inline = match self.inline.0.len() {
            0 => CqeFormat::NO_INLINE,
            1..=32 => CqeFormat::INLINE_32,
            length => return Err(format!("{length} bytes do not fit the 32 that a CQE holds")),
        };
        let grh = u8::from(self.wc_flags.0 & WITH_GRH != 0);
        Ok(CqeBody::Completion(format::Cqe {
            path_bits: self.dlid_path_bits.0 & 0x7f,
            slid: U16::new(self.slid.0),
            flags_remote_qpn: RemoteQpFlags::new(grh, self.sl.0, self.src_qp.0),
            srqn_user_index: U32::new(self.user_index.0 & 0xff_ffff),
            immediate: self.immediate(),
            byte_count: U32::new(self.byte_len.0),
            timestamp: U64::new(self.timestamp.0),
            opcode_qpn_flow_tag: U32::new(
                u32::from(wqe_opcode.0) << 24 | self.qp_num.0 & 0xff_ffff,
            ),
            wqe_counter: U16::new(self.wqe_counter.0),
            op_own: OpOwn::new(kind, inline, self.solicited, self.owner),
            ..format::Cqe::default()
        }))
    }

    /// Opcodes of the CQE and of its WQE; the CQE has both.
    fn kinds(&self) -> Result<(CqeOpcode, Opcode), String> {
        let request = |opcode| Ok((CqeOpcode::REQUESTER, opcode));
        match self.opcode.0 {
            0 if self.wc_flags.0 & WITH_IMM != 0 => request(Opcode::SEND_IMMEDIATE),
            0 => request(Opcode::SEND),
            1 if self.wc_flags.0 & WITH_IMM != 0 => request(Opcode::RDMA_WRITE_IMMEDIATE),
            1 => request(Opcode::RDMA_WRITE),
            2 => request(Opcode::RDMA_READ),
            3 => request(Opcode::ATOMIC_COMPARE_SWAP),
            4 => request(Opcode::ATOMIC_FETCH_ADD),
            5 | 6 => request(Opcode::UMR),
            7 => request(Opcode::TSO),
            RECV if self.wc_flags.0 & WITH_IMM != 0 => {
                Ok((CqeOpcode::RESPONDER_SEND_IMMEDIATE, Opcode(0)))
            }
            RECV if self.wc_flags.0 & WITH_INV != 0 => {
                Ok((CqeOpcode::RESPONDER_SEND_INVALIDATE, Opcode(0)))
            }
            RECV => Ok((CqeOpcode::RESPONDER_SEND, Opcode(0))),
            RECV_RDMA_WITH_IMM => Ok((CqeOpcode::RESPONDER_WRITE_IMMEDIATE, Opcode(0))),
            other => Err(format!("there is no CQE for completion opcode {other}")),
        }
    }

    /// The CQE's word for immediate data, whose byte order is kept, or for an invalidated key,
    /// which is big-endian. Without either it is the P_Key index.
    fn immediate(&self) -> U32 {
        match self.imm_be {
            Some(HexArray(bytes)) if self.wc_flags.0 & WITH_INV != 0 => {
                U32::new(u32::from_le_bytes(bytes))
            }
            Some(HexArray(bytes)) => U32::from_bytes(bytes),
            None => U32::new(self.pkey_index.0.into()),
        }
    }

    fn failure(&self) -> Result<CqeBody, String> {
        let syndrome = (0..=u8::MAX)
            .map(Syndrome)
            .find(|syndrome| Status::from(*syndrome) as u32 == self.status.0);
        let syndrome =
            syndrome.ok_or_else(|| format!("no syndrome gives status {}", self.status.0))?;
        let (kind, wqe_opcode) = match self.opcode.0 {
            RECV | RECV_RDMA_WITH_IMM => (CqeOpcode::RESPONDER_ERROR, Opcode(0)),
            _ => (CqeOpcode::REQUESTER_ERROR, self.kinds()?.1),
        };
        Ok(CqeBody::Error(ErrorCqe {
            srqn_user_index: U32::new(self.user_index.0 & 0xff_ffff),
            vendor_syndrome: VendorSyndrome(self.vendor_err.0),
            syndrome,
            opcode_qpn: U32::new(u32::from(wqe_opcode.0) << 24 | self.qp_num.0 & 0xff_ffff),
            wqe_counter: U16::new(self.wqe_counter.0),
            op_own: OpOwn::new(kind, CqeFormat::NO_INLINE, self.solicited, self.owner),
            ..ErrorCqe::default()
        }))
    }
}
