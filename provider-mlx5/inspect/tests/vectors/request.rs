//! Reads work requests from JSON.

use serde_json::Value;
use uverbs_mlx5::format::AddressVector;
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::{
    BindWindow, CompareSwap, FetchAdd, RunTimeDestination, RunTimeOperation, UnbindWindow,
    WindowAccess, WindowType,
};
use uverbs_mlx5_inspect::{Buffer, SendQueueSpec, Service, Work};

use crate::json::{bytes, hex, number, sge, word};

/// The queue to which a vector's requests are posted.
pub(crate) fn queue(vector: &Value) -> SendQueueSpec {
    let qp = &vector["qp"];
    SendQueueSpec {
        service: Service::from_name(qp["type"].as_str().expect("a name")).expect("a service"),
        number: word(&qp["qpn"]),
        blocks: word(&qp["sq_wqebbs"]),
        start: word(&vector["start"]),
        small_fence: vector["pending_small_fence"] == true,
        signal_all: qp["sq_sig_all"] == true,
        max_sge: word(&qp["max_send_sge"]),
        max_inline: word(&qp["max_inline_data"]),
        min_inline_header: 0,
    }
}

/// A work request, with the data that [`Work`] borrows.
pub(crate) struct Request {
    operation: RunTimeOperation<'static>,
    address: AddressVector,
    remote_srqn: u32,
    flags: u64,
    data: Vec<(Sge, Vec<u8>)>,
}

impl Request {
    pub(crate) fn of(wr: &Value) -> Self {
        let entries = wr["sge"].as_array().expect("a list");
        let data = |entry: &Value| hex(entry["data"].as_str().unwrap_or_default());
        let address = match &wr["av"] {
            Value::Null => AddressVector::default(),
            av => zerocopy::transmute!(bytes::<48>(av)),
        };
        Self {
            operation: operation(wr),
            address: address.for_datagram(word(&wr["remote_qpn"]), word(&wr["remote_qkey"])),
            remote_srqn: word(&wr["remote_srqn"]),
            flags: number(&wr["flags"]),
            data: entries.iter().map(|entry| (sge(entry), data(entry))).collect(),
        }
    }

    pub(crate) fn buffers(&self) -> Vec<Buffer<'_>> {
        self.data.iter().map(|(sge, bytes)| Buffer { sge: *sge, bytes }).collect()
    }

    pub(crate) fn work<'a>(&'a self, service: Service, data: &'a [Buffer<'a>]) -> Work<'a> {
        let flag = |bit: u64, flag: PostFlags| {
            if self.flags & bit != 0 { flag } else { PostFlags::empty() }
        };
        let destination = match service {
            Service::Ud => RunTimeDestination::Datagram(&self.address),
            Service::Xrc if !self.is_local() => RunTimeDestination::Xrc(self.remote_srqn),
            _ => RunTimeDestination::Connected,
        };
        Work {
            operation: self.operation,
            destination,
            flags: flag(1, PostFlags::FENCE)
                | flag(2, PostFlags::SIGNALED)
                | flag(4, PostFlags::SOLICITED),
            inline: self.flags & 8 != 0,
            data,
        }
    }

    /// Whether the request only changes a local key, and so has no destination.
    fn is_local(&self) -> bool {
        use RunTimeOperation as O;
        matches!(self.operation, O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_))
    }
}

fn operation(wr: &Value) -> RunTimeOperation<'static> {
    use RunTimeOperation as O;
    let remote = Remote::new(number(&wr["raddr"]), word(&wr["rkey"]));
    let immediate = || Immediate(bytes(&wr["imm_be"]));
    let (compare_add, swap) = (number(&wr["compare_add"]), number(&wr["swap"]));
    match wr["opcode"].as_str().expect("a name") {
        "SEND" => O::Send,
        "SEND_WITH_IMM" => O::SendImmediate(immediate()),
        "SEND_WITH_INV" => O::SendInvalidate(word(&wr["inv_rkey"])),
        "RDMA_WRITE" => O::Write(remote),
        "RDMA_WRITE_WITH_IMM" => O::WriteImmediate(remote, immediate()),
        "RDMA_READ" => O::Read(remote),
        "ATOMIC_CMP_AND_SWP" => O::CompareSwap(CompareSwap { remote, compare: compare_add, swap }),
        "ATOMIC_FETCH_AND_ADD" => O::FetchAdd(FetchAdd { remote, add: compare_add }),
        "LOCAL_INV" => O::LocalInvalidate(word(&wr["inv_rkey"])),
        "BIND_MW" => bind(wr),
        "TSO" => O::Segmented { offload: Default::default(), mss: 0, header: &[] },
        other => panic!("opcode {other}"),
    }
}

fn bind(wr: &Value) -> RunTimeOperation<'static> {
    let (window, new_rkey) = (word(&wr["mw_rkey"]), word(&wr["new_rkey"]));
    let window_type = match number(&wr["mw_type"]) {
        1 => WindowType::Type1,
        _ => WindowType::Type2,
    };
    let length = number(&wr["bind_len"]);
    if length == 0 {
        return RunTimeOperation::UnbindWindow(UnbindWindow { window, window_type, new_rkey });
    }
    // `enum ibv_access_flags`
    let flags = number(&wr["bind_flags"]);
    let access = [
        (1, WindowAccess::LOCAL_WRITE),
        (2, WindowAccess::REMOTE_WRITE),
        (4, WindowAccess::REMOTE_READ),
        (8, WindowAccess::REMOTE_ATOMIC),
    ];
    let access = access.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, access)| *access);
    RunTimeOperation::BindWindow(BindWindow {
        window,
        window_type,
        new_rkey,
        lkey: word(&wr["bind_lkey"]),
        address: number(&wr["bind_addr"]),
        length,
        access: access.collect(),
        zero_based: flags & 32 != 0,
    })
}
