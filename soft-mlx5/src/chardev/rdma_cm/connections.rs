//! The commands of connections and of multicast groups.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::cm::connect::{
    Accept, ConnParam, Connect, Disconnect, Ece, InitQpAttr, Listen, Notify, Reject,
};
use uverbs_uapi::cm::id::{CreateIdResp, DestroyIdResp};
use uverbs_uapi::cm::multicast::{JoinIpMcast, JoinMcast, LeaveMcast};
use uverbs_uapi::cm::{JoinFlags, RejectReason};
use uverbs_uapi::enums::QpState;
use uverbs_uapi::write::qp::QpAttr;
use zerocopy::{FromZeros, IntoBytes};

use super::commands::{Call, errno, ip, sized};
use super::context::Member;
use super::host::State;
use uverbs_soft_cm::cma::{Address, Cma, CmaState};

/// Longest queue of requests (the sysctl `net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;

impl Call<'_> {
    /// A body of at least `least` bytes; fields after its end are zero.
    fn read_partly<T: FromZeros + IntoBytes + zerocopy::FromBytes>(
        &self,
        least: usize,
    ) -> Result<(T, usize), Errno> {
        if self.input < least {
            return Err(Errno::EINVAL);
        }
        let mut body = T::new_zeroed();
        let length = self.input.min(size_of::<T>());
        self.memory.read(self.body, &mut body.as_mut_bytes()[..length])?;
        Ok((body, length))
    }

    pub(super) fn connect(&mut self) -> Result<(), Errno> {
        let (request, length): (Connect, usize) = self.read_partly(Connect::LENGTHS[1])?;
        if request.conn_param.valid == 0 {
            return Err(Errno::EINVAL);
        }
        let id = self.bound_id(request.id)?;
        let ece = covered(request.ece, length == size_of::<Connect>());
        let State { cma, stack, .. } = &mut *self.state;
        cma.connect(self.now, id, &request.conn_param, ece, stack).map_err(errno)
    }

    pub(super) fn listen(&mut self) -> Result<(), Errno> {
        let Listen { id: number, backlog } = self.read()?;
        let context = self.context(number)?;
        let is_given = (1..=MAX_BACKLOG).contains(&backlog);
        context.backlog = if is_given { backlog } else { MAX_BACKLOG };
        let id = context.id;
        if self.state.cma.state(id) == Some(CmaState::Idle) {
            self.bind_to(number, Address::Ip(([0, 0, 0, 0], 0).into()))?;
        }
        self.claim_port(number)?;
        let State { cma, stack, .. } = &mut *self.state;
        let listing = stack.publish(cma, id).map_err(errno)?;
        cma.listen(id, stack).map_err(errno)?;
        self.context(number)?.listing = listing;
        Ok(())
    }

    pub(super) fn accept(&mut self) -> Result<(), Errno> {
        let (request, length): (Accept, usize) = self.read_partly(Accept::LENGTHS[1])?;
        let id = self.bound_id(request.id)?;
        let ece = covered(request.ece, length == size_of::<Accept>());
        let param: Option<&ConnParam> =
            (request.conn_param.valid != 0).then_some(&request.conn_param);
        let (now, cma) = (self.now, &mut self.state.cma);
        cma.accept(now, id, param, ece).map_err(errno)?;
        if param.is_some() {
            self.context(request.id)?.uid = request.uid;
        }
        Ok(())
    }

    pub(super) fn reject(&mut self) -> Result<(), Errno> {
        let Reject { id, private_data_len, reason, private_data, .. } = self.read()?;
        let reason = match reason {
            RejectReason(0) => RejectReason::CONSUMER_DEFINED,
            RejectReason::CONSUMER_DEFINED | RejectReason::VENDOR_OPTION_NOT_SUPPORTED => reason,
            _ => return Err(Errno::EINVAL),
        };
        let id = self.bound_id(id)?;
        let data = &private_data[..usize::from(private_data_len)];
        self.state.cma.reject(self.now, id, reason.0, data).map_err(errno)
    }

    pub(super) fn disconnect(&mut self) -> Result<(), Errno> {
        let Disconnect { id } = self.read()?;
        let id = self.bound_id(id)?;
        self.state.cma.disconnect(self.now, id).map_err(errno)
    }

    pub(super) fn init_qp_attr(&mut self) -> Result<(), Errno> {
        self.need(size_of::<QpAttr>())?;
        let InitQpAttr { response, id, qp_state } = self.read()?;
        if qp_state > u32::from(QpState::ERR.0) {
            return Err(Errno::EINVAL);
        }
        let id = self.bound_id(id)?;
        let attributes = self.state.cma.init_qp_attr(id, qp_state).map_err(errno)?;
        self.answer(response, &attributes)
    }

    pub(super) fn notify(&mut self) -> Result<(), Errno> {
        let Notify { id, event } = self.read()?;
        let id = self.bound_id(id)?;
        self.state.cma.notify(self.now, id, event).map_err(errno)
    }

    pub(super) fn join_ip(&mut self) -> Result<(), Errno> {
        self.need(size_of::<CreateIdResp>())?;
        let JoinIpMcast { response, uid, addr, id } = self.read()?;
        let group = ip(&addr)?.ok_or(Errno::EINVAL)?;
        self.join_group(id, group, JoinFlags::FULL_MEMBER, (response, uid))
    }

    pub(super) fn join(&mut self) -> Result<(), Errno> {
        self.need(size_of::<CreateIdResp>())?;
        let JoinMcast { response, uid, id, addr_size, join_flags, addr } = self.read()?;
        let group = sized(&addr, addr_size)?;
        // Checked before the id is looked up (`ucma_process_join`).
        if !Cma::can_join_with(join_flags) {
            return Err(Errno::EINVAL);
        }
        self.join_group(id, group, join_flags, (response, uid))
    }

    fn join_group(
        &mut self,
        number: u32,
        group: Address,
        flags: JoinFlags,
        (response, uid): (u64, u64),
    ) -> Result<(), Errno> {
        let id = self.bound_id(number)?;
        let membership = self.state.cma.join(id, group, flags).map_err(errno)?;
        let member = Member { context: number, id: membership, uid, reported: 0 };
        let joined = self.state.contexts.add_member(member);
        self.answer(response, &CreateIdResp { id: joined }).inspect_err(|_| {
            self.state.contexts.remove_member(joined);
            self.state.cma.leave(id, membership);
        })
    }

    pub(super) fn leave(&mut self) -> Result<(), Errno> {
        self.need(size_of::<DestroyIdResp>())?;
        let LeaveMcast { response, id: number, .. } = self.read()?;
        let member = self.state.contexts.member(number).ok_or(Errno::ENOENT)?;
        let context = member.context;
        let id = self.state.contexts.find(self.file, context)?.id;
        let Some(member) = self.state.contexts.remove_member(number) else {
            return Err(Errno::ENOENT);
        };
        self.state.cma.leave(id, member.id);
        if let Some(queue) = self.state.queues.get_mut(&self.file) {
            queue.extract(context, |event| event.membership == Some(number));
        }
        self.answer(response, &DestroyIdResp { events_reported: member.reported })
    }
}

/// ECE options, or the default if an older caller's struct does not have them.
fn covered(ece: Ece, is_covered: bool) -> Ece {
    if is_covered { ece } else { Ece::default() }
}
