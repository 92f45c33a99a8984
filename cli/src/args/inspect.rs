//! The options of `uverbs wqe` and `uverbs cqe`.

use clap::{Args, Subcommand, ValueEnum};

/// The meaning of `decode`'s exit status.
const DECODE_STATUS: &str = "Exit status: 0 if the bytes have the size of entries, even if a NIC would refuse them (the \
    output says so). 2 if they do not, or are not hexadecimal. JSON lines: always 0; the answer to a line that cannot be \
    decoded is its \"error\".";

const ENCODE_WQE: &str = r#"A line is a queue and the list that is posted to it. A write, a send with inline data, a receive:

{"qp": {"type": "rc", "qpn": "0x100", "sq_wqebbs": 64, "max_send_sge": 2, "max_inline_data": 64}, "wrs": [{"opcode": "RDMA_WRITE", "flags": 2, "raddr": "0x1000", "rkey": "0x1234", "sge": [{"addr": "0x2000", "len": 64, "lkey": 7}]}]}
{"qp": {"type": "rc", "qpn": "0x100", "sq_wqebbs": 64, "max_send_sge": 2, "max_inline_data": 64}, "wrs": [{"opcode": "SEND", "flags": 10, "sge": [{"addr": 0, "len": 4, "lkey": 0, "data": "01020304"}]}]}
{"stride": 32, "start": 0, "wrs": [{"sge": [{"addr": "0x2000", "len": 64, "lkey": 7}]}]}

Members are named as those of struct ibv_send_wr and ibv_sge; flags are enum ibv_send_flags
(2 signaled, 8 inline). Others: imm_be, inv_rkey, compare_add, swap, av (48 bytes), remote_qpn,
remote_qkey, remote_srqn, mw_rkey, mw_type, new_rkey, bind_addr, bind_len, bind_flags, bind_lkey,
mss, hdr; of the queue sq_sig_all and min_inline_header; of the line start. A line that cannot be
read is answered by one with an error, and the status stays 0."#;

const ENCODE_CQE: &str = r#"A line is a completion. A receive of 64 bytes, and an error:

{"opcode": 128, "qp_num": "0x100", "user_index": 5, "wqe_counter": 3, "byte_len": 64}
{"status": 12, "vendor_err": 129, "qp_num": "0x100", "user_index": 5, "wqe_counter": 3}

opcode is enum ibv_wc_opcode, status enum ibv_wc_status. Others: imm_be, src_qp, wc_flags,
pkey_index, slid, sl, dlid_path_bits, timestamp, solicited, owner, inline (32 bytes at most). A line
that cannot be read is answered by one with an error, and the status stays 0."#;

#[derive(Debug, Subcommand)]
pub(crate) enum Wqe {
    /// Convert work requests (JSON lines on standard input) to work-queue bytes (JSON lines)
    #[command(after_long_help = ENCODE_WQE, term_width = 0)]
    Encode,
    /// Describe work-queue bytes; JSON lines are converted to JSON lines
    Decode(DecodeWqe),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cqe {
    /// Convert completions (JSON lines on standard input) to completion-queue bytes (JSON lines)
    #[command(after_long_help = ENCODE_CQE, term_width = 0)]
    Encode,
    /// Describe completion-queue bytes; JSON lines are converted to JSON lines
    Decode(DecodeCqe),
}

#[derive(Debug, Args)]
#[command(after_help = DECODE_STATUS)]
pub(crate) struct DecodeWqe {
    /// The bytes: plain hex, or a dump of xxd, hexdump -C or gdb's x [default: standard input, also
    /// JSON lines]
    pub(crate) hex: Vec<String>,
    /// The queue that they are from
    #[arg(long, value_enum, default_value_t = Queue::Send)]
    pub(crate) queue: Queue,
    /// Kind of send queue: rc, uc, ud, xrc_send, dci, raw_packet [default: the one that fits the
    /// bytes best]
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) service: Option<String>,
    /// The bytes are a whole send queue, so that each WQE must be where its index says
    #[arg(long)]
    pub(crate) ring: bool,
    /// Bytes per entry of a receive queue [default: all bytes are one entry]
    #[arg(long, value_name = "BYTES")]
    pub(crate) stride: Option<usize>,
    /// Also explain what the NIC would do
    #[arg(long)]
    pub(crate) explain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Queue {
    /// A send queue
    Send,
    /// A receive queue
    Recv,
    /// A shared receive queue
    Srq,
}

#[derive(Debug, Args)]
#[command(after_help = DECODE_STATUS)]
pub(crate) struct DecodeCqe {
    /// The bytes: plain hex, or a dump of xxd, hexdump -C or gdb's x [default: standard input, also
    /// JSON lines]
    pub(crate) hex: Vec<String>,
    /// Bytes per CQE
    #[arg(long, value_enum, default_value_t = CqeSize::B64)]
    pub(crate) size: CqeSize,
    /// The bytes are a whole completion queue, from which COUNT CQEs have been polled: also mark
    /// the new ones
    #[arg(long, value_name = "COUNT")]
    pub(crate) consumed: Option<u32>,
    /// What the compressed completions of a receive queue carry
    #[arg(long, value_enum, default_value_t = Mini::Hash)]
    pub(crate) mini: Mini,
    /// Also explain what happened, and the likely causes of an error
    #[arg(long)]
    pub(crate) explain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CqeSize {
    /// 64 bytes
    #[value(name = "64")]
    B64,
    /// 128 bytes
    #[value(name = "128")]
    B128,
}

/// The format of mini-CQEs, which the queue was created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mini {
    /// The receive hash
    Hash,
    /// The checksum
    Checksum,
    /// The checksum and the stride index
    StrideIndex,
}

impl CqeSize {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}
