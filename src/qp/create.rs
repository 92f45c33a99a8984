//! The command that creates a queue pair.

use uverbs_uapi::enums::QpType as KernelQpType;
use uverbs_uapi::flags::{CreateQpMask, QpCreateFlags};
use uverbs_uapi::mlx5::{CreateQp as DriverRequest, CreateQpResp as DriverAnswer};
use uverbs_uapi::write::qp::ExCreateQp;
use zerocopy::{Immutable, IntoBytes};

use super::sizes::Capacities;
use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::ObjectId;
use crate::host::privilege;

const VERB: &str = "create_qp";

/// Handles of a queue pair's parents.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parents {
    pub(super) pd: Option<u32>,
    pub(super) send_cq: Option<u32>,
    pub(super) receive_cq: Option<u32>,
    pub(super) srq: Option<u32>,
    pub(super) xrcd: Option<u32>,
    /// The indirection table of an RSS queue pair, which has no queues of its own.
    pub(super) table: Option<u32>,
}

/// The parameters of the command, with those of the driver.
#[derive(Debug)]
pub(super) struct Creation<D = DriverRequest> {
    pub(super) id: ObjectId,
    pub(super) kind: KernelQpType,
    pub(super) parents: Parents,
    pub(super) capacities: Capacities,
    pub(super) signal_all: bool,
    pub(super) flags: QpCreateFlags,
    pub(super) driver: D,
}

/// The kernel's answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Created {
    pub(super) handle: u32,
    pub(super) number: u32,
    /// Doorbell register, if the kernel chose it (older kernels do).
    pub(super) bfreg: u32,
    /// The device's options of enhanced connection establishment (ECE).
    pub(super) ece: u32,
}

impl<D: IntoBytes + Immutable> Creation<D> {
    /// A queue pair that posts nothing itself.
    pub(super) fn without_queues(
        id: ObjectId,
        kind: KernelQpType,
        parents: Parents,
        driver: D,
    ) -> Self {
        let (capacities, flags) = (Capacities::default(), QpCreateFlags::empty());
        Self { id, kind, parents, capacities, signal_all: false, flags, driver }
    }

    pub(super) fn command(&self, context: &Context) -> Result<Created> {
        let mut comp_mask = CreateQpMask::empty();
        comp_mask.set(CreateQpMask::IND_TABLE, self.parents.table.is_some());
        let command = ExCreateQp {
            user_handle: self.id.0,
            // For an XRC target this field holds the XRC domain.
            pd_handle: self.parents.pd.or(self.parents.xrcd).unwrap_or_default(),
            send_cq_handle: self.parents.send_cq.unwrap_or_default(),
            recv_cq_handle: self.parents.receive_cq.unwrap_or_default(),
            srq_handle: self.parents.srq.unwrap_or_default(),
            max_send_wr: self.capacities.max_send_wr,
            max_recv_wr: self.capacities.max_recv_wr,
            max_send_sge: self.capacities.max_send_sge,
            max_recv_sge: self.capacities.max_recv_sge,
            max_inline_data: self.capacities.max_inline_data,
            sq_sig_all: self.signal_all.into(),
            qp_type: self.kind,
            is_srq: self.parents.srq.is_some().into(),
            create_flags: self.flags,
            comp_mask,
            rwq_ind_tbl_handle: self.parents.table.unwrap_or_default(),
            ..ExCreateQp::default()
        };
        let (made, answer): (_, DriverAnswer) =
            context.commands().write_driver(VERB, &command, &self.driver)?;
        let (bfreg, ece) = (answer.bfreg_index, answer.ece_options);
        Ok(Created { handle: made.base.qp_handle, number: made.base.qpn, bfreg, ece })
    }
}

impl Creation {
    pub(super) fn send(&self, context: &Context) -> Result<Created> {
        self.command(context).map_err(|error| {
            let asked = format!("{:?}", self.capacities);
            let send = u64::from(self.driver.sq_wqe_count) * 64;
            let receive = u64::from(self.driver.rq_wqe_count) << self.driver.rq_wqe_shift;
            explain(error.pinning(send + receive), self.kind).asked(asked)
        })
    }
}

/// Adds the cause. `create_qp` (core/uverbs_cmd.c) refuses raw packets without CAP_NET_RAW. mlx5_ib
/// refuses the driver's own types (DC) if the firmware does not support them (`check_qp_type` in
/// drivers/infiniband/hw/mlx5/qp.c).
pub(super) fn explain(error: Error, kind: KernelQpType) -> Error {
    if kind == KernelQpType::DRIVER && error.kind() == ErrorKind::Unsupported {
        return error.because("the device has no dynamically connected (DC) queue pairs");
    }
    if kind != KernelQpType::RAW_PACKET || error.errno() != libc::EPERM {
        return error;
    }
    error.because(privilege::lacking())
}
