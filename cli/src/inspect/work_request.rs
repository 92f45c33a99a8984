//! Work requests as JSON: conversion to the provider's requests, and from decoded WQEs.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uverbs_mlx5::format::{AddressVector, EthChecksum, Fence, Opcode};
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    BindWindow, CompareSwap, EthernetOffload, FetchAdd, RunTimeDestination, RunTimeOperation,
    UnbindWindow, WindowAccess, WindowType,
};
use uverbs_mlx5_inspect::{Buffer, Segment, Service, Work, Wqe};

use super::fields::{Hex, HexArray, Number};
use super::{hexadecimal, number as shown};

/// `enum ibv_send_flags`.
const FENCE: u32 = 1;
const SIGNALED: u32 = 2;
const SOLICITED: u32 = 4;
const INLINE: u32 = 8;
const IP_CSUM: u32 = 16;

const OPCODES: &str = "SEND, SEND_WITH_IMM, SEND_WITH_INV, RDMA_WRITE, RDMA_WRITE_WITH_IMM, \
    RDMA_READ, ATOMIC_CMP_AND_SWP, ATOMIC_FETCH_AND_ADD, LOCAL_INV, BIND_MW, TSO, NOP";

/// One request of a list, members as in `struct ibv_send_wr`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Request {
    /// Not in the WQE.
    #[serde(rename = "wr_id")]
    _id: Value,
    opcode: String,
    flags: Number<u32>,
    pub(super) sge: Vec<Entry>,
    imm_be: Option<HexArray<4>>,
    inv_rkey: Number<u32>,
    raddr: Number<u64>,
    rkey: Number<u32>,
    compare_add: Number<u64>,
    swap: Number<u64>,
    remote_qpn: Number<u32>,
    remote_qkey: Number<u32>,
    av: Option<HexArray<48>>,
    remote_srqn: Number<u32>,
    mw_rkey: Number<u32>,
    mw_type: Number<u32>,
    new_rkey: Number<u32>,
    bind_addr: Number<u64>,
    bind_len: Number<u64>,
    bind_flags: Number<u32>,
    bind_lkey: Number<u32>,
    mss: Number<u16>,
    hdr: Hex,
}

/// A scatter/gather entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    addr: Number<u64>,
    len: Number<u32>,
    lkey: Number<u32>,
    #[serde(default)]
    data: Hex,
}

impl Entry {
    pub(super) fn sge(&self) -> Sge {
        Sge::new(self.addr.0, self.len.0, self.lkey.0)
    }

    fn buffer(&self) -> Buffer<'_> {
        Buffer { sge: self.sge(), bytes: &self.data.0 }
    }
}

/// A request, with the data that a [`Work`] borrows from it.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    operation: RunTimeOperation<'a>,
    address: AddressVector,
    remote_srqn: u32,
    flags: u32,
    data: Vec<Buffer<'a>>,
}

impl Request {
    /// Converts the request for a queue of this service.
    pub(super) fn prepare(&self, service: Service) -> Result<Prepared<'_>, String> {
        let address: AddressVector = zerocopy::transmute!(self.av.map_or([0; 48], |av| av.0));
        if service == Service::Ud && self.av.is_none() {
            return Err("a UD request needs the address vector av".to_owned());
        }
        Ok(Prepared {
            operation: self.operation(service)?,
            address: address.for_datagram(self.remote_qpn.0, self.remote_qkey.0),
            remote_srqn: self.remote_srqn.0,
            flags: self.flags.0,
            data: self.sge.iter().map(Entry::buffer).collect(),
        })
    }

    fn operation(&self, service: Service) -> Result<RunTimeOperation<'_>, String> {
        use RunTimeOperation as O;
        let remote = Remote::new(self.raddr.0, self.rkey.0);
        let immediate = Immediate(self.imm_be.map_or([0; 4], |bytes| bytes.0));
        Ok(match self.opcode.as_str() {
            "SEND" if service == Service::RawEthernet => O::Packet(self.offload()),
            "SEND" => O::Send,
            "SEND_WITH_IMM" => O::SendImmediate(immediate),
            "SEND_WITH_INV" => O::SendInvalidate(self.inv_rkey.0),
            "RDMA_WRITE" => O::Write(remote),
            "RDMA_WRITE_WITH_IMM" => O::WriteImmediate(remote, immediate),
            "RDMA_READ" => O::Read(remote),
            "ATOMIC_CMP_AND_SWP" => O::CompareSwap(CompareSwap {
                remote,
                compare: self.compare_add.0,
                swap: self.swap.0,
            }),
            "ATOMIC_FETCH_AND_ADD" => O::FetchAdd(FetchAdd { remote, add: self.compare_add.0 }),
            "LOCAL_INV" => O::LocalInvalidate(self.inv_rkey.0),
            "BIND_MW" => self.bind()?,
            "TSO" => O::Segmented { offload: self.offload(), mss: self.mss.0, header: &self.hdr.0 },
            "NOP" => O::Nop,
            "" => return Err("a request needs an opcode".to_owned()),
            other => return Err(format!("there is no opcode {other} (there are {OPCODES})")),
        })
    }

    fn offload(&self) -> EthernetOffload {
        let checksum =
            if self.flags.0 & IP_CSUM != 0 { EthChecksum::IP_CSUM } else { EthChecksum::default() };
        EthernetOffload { checksum, ..EthernetOffload::default() }
    }

    fn bind(&self) -> Result<RunTimeOperation<'_>, String> {
        let (window, new_rkey) = (self.mw_rkey.0, self.new_rkey.0);
        let window_type = match self.mw_type.0 {
            1 => WindowType::Type1,
            2 => WindowType::Type2,
            other => return Err(format!("a memory window is of type 1 or 2, not {other}")),
        };
        if self.bind_len.0 == 0 {
            return Ok(RunTimeOperation::UnbindWindow(UnbindWindow {
                window,
                window_type,
                new_rkey,
            }));
        }
        // `enum ibv_access_flags`
        let access = [
            (1, WindowAccess::LOCAL_WRITE),
            (2, WindowAccess::REMOTE_WRITE),
            (4, WindowAccess::REMOTE_READ),
            (8, WindowAccess::REMOTE_ATOMIC),
        ];
        let granted = access.iter().filter(|(bit, _)| self.bind_flags.0 & bit != 0);
        Ok(RunTimeOperation::BindWindow(BindWindow {
            window,
            window_type,
            new_rkey,
            lkey: self.bind_lkey.0,
            address: self.bind_addr.0,
            length: self.bind_len.0,
            access: granted.map(|(_, access)| *access).collect(),
            zero_based: self.bind_flags.0 & 32 != 0,
        }))
    }
}

impl Prepared<'_> {
    pub(super) fn work(&self, service: Service) -> Work<'_> {
        let flag = |bit, flag| if self.flags & bit != 0 { flag } else { PostFlags::empty() };
        Work {
            operation: self.operation,
            destination: self.destination(service),
            flags: flag(FENCE, PostFlags::FENCE)
                | flag(SIGNALED, PostFlags::SIGNALED)
                | flag(SOLICITED, PostFlags::SOLICITED),
            inline: self.flags & INLINE != 0,
            data: &self.data,
        }
    }

    fn destination(&self, service: Service) -> RunTimeDestination<'_> {
        use RunTimeOperation as O;
        let is_local =
            matches!(self.operation, O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_));
        match service {
            Service::Ud => RunTimeDestination::Datagram(&self.address),
            Service::Xrc if !is_local => RunTimeDestination::Xrc(self.remote_srqn),
            Service::Dci if !is_local => RunTimeDestination::Dc(&self.address),
            _ => RunTimeDestination::Connected,
        }
    }
}

/// The request that produces a decoded WQE, as far as the WQE contains it. For requests on memory
/// keys, several of which produce the same WQE, it has only the opcode.
pub(super) fn of_wqe(wqe: &Wqe) -> Map<String, Value> {
    let mut request = Map::new();
    request.insert("opcode".to_owned(), opcode_name(wqe).into());
    request.insert("flags".to_owned(), flags(wqe).into());
    let immediate = wqe.control.immediate;
    match wqe.control.opcode() {
        Opcode::SEND_IMMEDIATE | Opcode::RDMA_WRITE_IMMEDIATE => {
            request.insert("imm_be".to_owned(), hexadecimal(&immediate.to_bytes()).into());
        }
        Opcode::SEND_INVALIDATE => {
            drop(request.insert("inv_rkey".to_owned(), shown(immediate.get().into())))
        }
        _ => {}
    }
    wqe.segments.iter().for_each(|segment| add_segment(&mut request, segment));
    request.insert("sge".to_owned(), wqe.segments.iter().filter_map(entry).collect());
    request
}

fn opcode_name(wqe: &Wqe) -> String {
    let opcode = wqe.control.opcode();
    match opcode {
        Opcode::SEND_IMMEDIATE => "SEND_WITH_IMM".to_owned(),
        Opcode::SEND_INVALIDATE => "SEND_WITH_INV".to_owned(),
        Opcode::RDMA_WRITE_IMMEDIATE => "RDMA_WRITE_WITH_IMM".to_owned(),
        Opcode::ATOMIC_COMPARE_SWAP => "ATOMIC_CMP_AND_SWP".to_owned(),
        Opcode::ATOMIC_FETCH_ADD => "ATOMIC_FETCH_AND_ADD".to_owned(),
        other => other.to_string(),
    }
}

fn flags(wqe: &Wqe) -> u32 {
    let control = wqe.control.flags;
    let is_fenced = matches!(control.fence(), Fence::FENCE | Fence::SMALL_AND_FENCE);
    let is_inline = wqe.segments.iter().any(|segment| matches!(segment, Segment::Inline(_)));
    let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    bit(is_fenced, FENCE)
        | bit(control.completion_mode() >= 2, SIGNALED)
        | bit(control.is_solicited(), SOLICITED)
        | bit(is_inline, INLINE)
}

fn add_segment(request: &mut Map<String, Value>, segment: &Segment) {
    let mut add = |name: &str, value: Value| drop(request.insert(name.to_owned(), value));
    match segment {
        Segment::RemoteAddress(remote) => {
            add("raddr", shown(remote.address.get()));
            add("rkey", shown(remote.rkey.get().into()));
        }
        Segment::Atomic(atomic) => {
            add("swap_add", shown(atomic.swap_add.get()));
            add("compare", shown(atomic.compare.get()));
        }
        Segment::Xrc(xrc) => add("remote_srqn", shown(xrc.srqn.get().into())),
        Segment::Address(av) => {
            add("remote_qpn", shown(av.remote_qpn().into()));
            add("remote_qkey", shown(av.qkey().into()));
            add("av", hexadecimal(zerocopy::IntoBytes::as_bytes(av)).into());
        }
        _ => {}
    }
}

fn entry(segment: &Segment) -> Option<Value> {
    match segment {
        Segment::Data(data) => Some(json!({
            "addr": shown(data.address.get()), "len": data.byte_count.get(), "lkey": shown(data.lkey.get().into()),
        })),
        Segment::Inline(inline) => Some(json!({
            "addr": "0x0", "len": inline.header.length(), "lkey": "0x0", "data": hexadecimal(inline.data()),
        })),
        _ => None,
    }
}
