//! Work requests for libmlx5's two interfaces.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use uverbs_libmlx5_harness::QueuePair;
use uverbs_libmlx5_harness::abi::{BindInfo, BindWr, Buffer, QpEx, SendWr, SendWrTail, Sge, TsoWr};
use uverbs_mlx5::format::EthChecksum;
use uverbs_mlx5::request::{PostFlags, Remote};
use uverbs_mlx5::send_queue::{
    BindWindow, EthernetOffload, RunTimeDestination, RunTimeOperation, WindowAccess, WindowType,
};
use uverbs_mlx5_inspect::Work;

use super::{Libmlx5Queues, Own};

/// A request with the memory that it refers to.
pub(super) struct Request<'a> {
    work: &'a Work<'a>,
    /// The address handle and the window for it.
    own: &'a Own,
    sges: Vec<Sge>,
    buffers: Vec<Buffer>,
}

impl<'a> Request<'a> {
    /// `None` for operations that libmlx5's interfaces don't have.
    pub(super) fn of(work: &'a Work<'a>, own: &'a Own) -> Option<Self> {
        opcode(&work.operation)?;
        if let RunTimeOperation::Packet(offload) | RunTimeOperation::Segmented { offload, .. } =
            work.operation
        {
            checksums(&offload)?;
        }
        let sge = |buffer: &uverbs_mlx5_inspect::Buffer<'_>| Sge {
            address: if work.inline { buffer.bytes.as_ptr() as u64 } else { buffer.sge.address() },
            length: buffer.sge.length(),
            lkey: buffer.sge.lkey(),
        };
        // A change of keys has no data, but libmlx5 checks the amount anyway.
        let data = if changes_keys(work) { &[] } else { work.data };
        let sges: Vec<Sge> = data.iter().map(sge).collect();
        let buffer =
            |sge: &Sge| Buffer { address: sge.address as *const u8, length: sge.length as usize };
        let buffers = if work.inline { sges.iter().map(buffer).collect() } else { Vec::new() };
        Some(Self { work, own, sges, buffers })
    }

    /// `enum ibv_send_flags`.
    fn flags(&self) -> u32 {
        let flag = |flag, bit| if self.work.flags.contains(flag) { bit } else { 0 };
        let inline = if self.work.inline { 8 } else { 0 };
        let checksums = match self.work.operation {
            RunTimeOperation::Packet(offload) | RunTimeOperation::Segmented { offload, .. } => {
                checksums(&offload).unwrap_or_default()
            }
            _ => 0,
        };
        flag(PostFlags::FENCE, 1)
            | checksums
            | flag(PostFlags::SIGNALED, 2)
            | flag(PostFlags::SOLICITED, 4)
            | inline
    }

    /// The request for `ibv_post_send`.
    fn write_out(&mut self) -> SendWr {
        use RunTimeOperation as O;
        let nothing = TsoWr { header: null(), header_length: 0, mss: 0 };
        let rdma = |at: Remote| [at.address, at.rkey.into(), 0, 0];
        let mut wr = SendWr {
            wr_id: 0,
            next: null_mut(),
            sges: self.sges.as_mut_ptr(),
            sge_count: self.sges.len() as i32,
            opcode: opcode(&self.work.operation).unwrap_or_default(),
            flags: self.flags(),
            immediate: 0,
            target: [0; 4],
            remote_srqn: 0,
            tail: SendWrTail { tso: nothing },
        };
        match self.work.operation {
            O::SendImmediate(immediate) => wr.immediate = u32::from_ne_bytes(immediate.0),
            O::SendInvalidate(key) | O::LocalInvalidate(key) => wr.immediate = key,
            O::Write(at) | O::Read(at) => wr.target = rdma(at),
            O::WriteImmediate(at, immediate) => {
                wr.target = rdma(at);
                wr.immediate = u32::from_ne_bytes(immediate.0);
            }
            O::CompareSwap(op) => {
                wr.target = [op.remote.address, op.compare, op.swap, op.remote.rkey.into()]
            }
            O::FetchAdd(op) => wr.target = [op.remote.address, op.add, 0, op.remote.rkey.into()],
            O::BindWindow(_) | O::UnbindWindow(_) => {
                let (rkey, info) = self.own.prepare_window(&self.work.operation);
                wr.tail = SendWrTail { bind: BindWr { mw: self.own.mw, rkey, info } };
            }
            O::Segmented { mss, header, .. } => {
                let (header, header_length) = (header.as_ptr(), header.len() as u16);
                wr.tail = SendWrTail { tso: TsoWr { header, header_length, mss } };
            }
            _ => {}
        }
        match self.work.destination {
            RunTimeDestination::Datagram(_) => {
                let (qpn, qkey) = self.own.prepare_address(&self.work.destination);
                wr.target = [self.own.ah as u64, u64::from(qkey) << 32 | u64::from(qpn), 0, 0];
            }
            RunTimeDestination::Xrc(srqn) => wr.remote_srqn = srqn,
            _ => {}
        }
        wr
    }

    /// Builds the request by `ibv_wr_*` calls.
    ///
    /// # Safety
    /// Between `start` and `complete` of this queue pair, which has the operation.
    unsafe fn build(&self, pair: &QueuePair) {
        let qp = pair.extended;
        // SAFETY: the caller's contract; the pointers are those of this request.
        unsafe {
            (*qp).wr_flags = self.flags();
            self.operation(qp);
            self.destination(pair, qp);
            self.data(qp);
        }
    }

    /// # Safety
    /// As [`Request::build`].
    unsafe fn operation(&self, qp: *mut QpEx) {
        use RunTimeOperation as O;
        // SAFETY: the caller's contract.
        unsafe {
            match self.work.operation {
                O::Send | O::Packet(_) => ((*qp).send)(qp),
                O::Segmented { mss, header, .. } => {
                    ((*qp).send_tso)(qp, header.as_ptr(), header.len() as u16, mss)
                }
                O::SendImmediate(immediate) => {
                    ((*qp).send_imm)(qp, u32::from_ne_bytes(immediate.0))
                }
                O::SendInvalidate(key) => ((*qp).send_inv)(qp, key),
                O::Write(at) => ((*qp).rdma_write)(qp, at.rkey, at.address),
                O::WriteImmediate(at, immediate) => {
                    let immediate = u32::from_ne_bytes(immediate.0);
                    ((*qp).rdma_write_imm)(qp, at.rkey, at.address, immediate)
                }
                O::Read(at) => ((*qp).rdma_read)(qp, at.rkey, at.address),
                O::CompareSwap(op) => {
                    ((*qp).compare_swap)(qp, op.remote.rkey, op.remote.address, op.compare, op.swap)
                }
                O::FetchAdd(op) => ((*qp).fetch_add)(qp, op.remote.rkey, op.remote.address, op.add),
                O::LocalInvalidate(key) => ((*qp).local_inv)(qp, key),
                _ => {
                    let (rkey, info) = self.own.prepare_window(&self.work.operation);
                    ((*qp).bind_mw)(qp, self.own.mw, rkey, &raw const info)
                }
            }
        }
    }

    /// # Safety
    /// As [`Request::build`].
    unsafe fn destination(&self, pair: &QueuePair, qp: *mut QpEx) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.work.destination {
                RunTimeDestination::Datagram(_) => {
                    let (qpn, qkey) = self.own.prepare_address(&self.work.destination);
                    ((*qp).set_ud_addr)(qp, self.own.ah, qpn, qkey);
                }
                RunTimeDestination::Xrc(srqn) if !changes_keys(self.work) => {
                    ((*qp).set_xrc_srqn)(qp, srqn);
                }
                RunTimeDestination::Dc(av) => {
                    let (number, _) = self.own.prepare_address(&self.work.destination);
                    let direct = pair.direct_extended;
                    ((*direct).set_dc_addr)(direct, self.own.ah, number, av.key.get());
                }
                _ => {}
            }
        }
    }

    /// # Safety
    /// As [`Request::build`].
    unsafe fn data(&self, qp: *mut QpEx) {
        if changes_keys(self.work) {
            return;
        }
        // SAFETY: the caller's contract; the lists are as long as said.
        unsafe {
            match (self.work.inline, &self.sges[..], &self.buffers[..]) {
                (true, _, [one]) => ((*qp).set_inline_data)(qp, one.address, one.length),
                (true, _, list) => ((*qp).set_inline_data_list)(qp, list.len(), list.as_ptr()),
                (false, [one], _) => ((*qp).set_sge)(qp, one.lkey, one.address, one.length),
                (false, list, _) => ((*qp).set_sge_list)(qp, list.len(), list.as_ptr()),
            }
        }
    }
}

pub(super) fn changes_keys(work: &Work<'_>) -> bool {
    use RunTimeOperation as O;
    matches!(work.operation, O::BindWindow(_) | O::UnbindWindow(_) | O::LocalInvalidate(_))
}

/// `enum ibv_wr_opcode`.
fn opcode(operation: &RunTimeOperation<'_>) -> Option<u32> {
    use RunTimeOperation as O;
    Some(match operation {
        O::Write(_) => 0,
        O::WriteImmediate(..) => 1,
        O::Send | O::Packet(_) => 2,
        O::SendImmediate(_) => 3,
        O::Read(_) => 4,
        O::CompareSwap(_) => 5,
        O::FetchAdd(_) => 6,
        O::LocalInvalidate(_) => 7,
        O::BindWindow(_) | O::UnbindWindow(_) => 8,
        O::SendInvalidate(_) => 9,
        O::Segmented { .. } => 10,
        _ => return None,
    })
}

/// `IBV_SEND_IP_CSUM`, or nothing. `None` for offloads that libmlx5's interfaces don't have.
fn checksums(offload: &EthernetOffload) -> Option<u32> {
    let plain = EthernetOffload { checksum: EthChecksum::NONE, ..*offload };
    match offload.checksum {
        _ if plain != EthernetOffload::default() => None,
        EthChecksum::IP_CSUM => Some(1 << 4),
        EthChecksum::NONE => Some(0),
        _ => None,
    }
}

impl Libmlx5Queues {
    /// Posts a list (`ibv_post_send`): errno, and the index of the request that was refused.
    pub(super) fn post_list(pair: &QueuePair, requests: &mut [Request<'_>]) -> (i32, usize) {
        if requests.is_empty() {
            return (0, 0);
        }
        let mut list: Vec<SendWr> = requests.iter_mut().map(Request::write_out).collect();
        let first = list.as_mut_ptr();
        for index in 1..list.len() {
            list[index - 1].next = first.wrapping_add(index);
        }
        let mut bad = MaybeUninit::new(null_mut());
        // SAFETY: a list of whole requests with valid entries and inline data; the device is not
        // notified.
        let (errno, bad) = unsafe {
            let errno = ((*pair.context()).post_send)(pair.qp, first, bad.as_mut_ptr());
            (errno, bad.assume_init())
        };
        let index = if bad.is_null() {
            list.len()
        } else {
            (bad as usize - first as usize) / size_of::<SendWr>()
        };
        (errno, index)
    }

    /// Posts by `ibv_wr_*` calls: the errno of `ibv_wr_complete`.
    pub(super) fn post_built(pair: &QueuePair, requests: &[Request<'_>]) -> i32 {
        let qp = pair.extended;
        // SAFETY: an extended queue pair that has the operations; the requests' memory is valid.
        unsafe {
            ((*qp).start)(qp);
            requests.iter().for_each(|request| request.build(pair));
            ((*qp).complete)(qp)
        }
    }
}

impl Own {
    /// Stores the destination's address vector in the address handle.
    fn prepare_address(&self, destination: &RunTimeDestination<'_>) -> (u32, u32) {
        let (RunTimeDestination::Datagram(av) | RunTimeDestination::Dc(av)) = destination else {
            return (0, 0);
        };
        // SAFETY: libmlx5's own copy, which is never freed, and which only this thread uses now.
        unsafe { self.av.write(zerocopy::transmute!(**av)) };
        (av.remote_qpn(), av.qkey())
    }

    /// Stores the keys of a request in window and region. Returns the request's own fields: the new
    /// key and the binding.
    fn prepare_window(&self, operation: &RunTimeOperation<'_>) -> (u32, BindInfo) {
        let nothing = BindInfo { mr: self.mr, address: 0, length: 0, access: 0 };
        let (window, kind, new_rkey, info) = match operation {
            RunTimeOperation::BindWindow(bind) => {
                (bind.window, bind.window_type, bind.new_rkey, self.bind_info(bind))
            }
            RunTimeOperation::UnbindWindow(unbind) => {
                (unbind.window, unbind.window_type, unbind.new_rkey, nothing)
            }
            _ => (0, WindowType::Type2, 0, nothing),
        };
        // SAFETY: libmlx5's objects, which are never freed, and which only this thread uses now.
        unsafe {
            (*self.mw).rkey = window;
            (*self.mw).kind = if kind == WindowType::Type1 { 1 } else { 2 };
        }
        (new_rkey, info)
    }

    fn bind_info(&self, bind: &BindWindow) -> BindInfo {
        // `enum ibv_access_flags`
        let access = [
            (1, WindowAccess::LOCAL_WRITE),
            (2, WindowAccess::REMOTE_WRITE),
            (4, WindowAccess::REMOTE_READ),
            (8, WindowAccess::REMOTE_ATOMIC),
        ];
        let granted = access.iter().filter(|(_, right)| bind.access.contains(*right));
        let zero_based = if bind.zero_based { 32 } else { 0 };
        // SAFETY: as in `prepare_window`.
        unsafe { (*self.mr).lkey = bind.lkey };
        BindInfo {
            mr: self.mr,
            address: bind.address,
            length: bind.length,
            access: granted.map(|(bit, _)| bit).sum::<u32>() | zero_based,
        }
    }
}
