//! The command that creates a queue pair: as an ioctl, and as the write command of older kernels.

use uverbs_uapi::enums::QpType as KernelQpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::mlx5::{CreateQp as DriverRequest, CreateQpResp as DriverAnswer};
use uverbs_uapi::objects::qp::create;
use uverbs_uapi::write::qp::{CreateQp, QpCap};
use zerocopy::IntoBytes;

use super::sizes::Capacities;
use crate::device::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::host::command::or_older;
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
}

/// The parameters of the command.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) id: ObjectId,
    pub(super) kind: KernelQpType,
    pub(super) parents: Parents,
    pub(super) capacities: Capacities,
    pub(super) signal_all: bool,
    pub(super) flags: QpCreateFlags,
    pub(super) driver: DriverRequest,
}

/// What the kernel answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Created {
    pub(super) handle: u32,
    pub(super) number: u32,
    /// Register that an older kernel chose.
    pub(super) bfreg: u32,
    /// Options of connection establishment (ECE) that the device has.
    pub(super) ece: u32,
}

impl Creation {
    pub(super) fn send(&self, context: &Context) -> Result<Created> {
        let created = if self.flags.is_empty() {
            or_older(|| self.send_native(context), || self.send_write(context))
        } else {
            // The write command has no field for flags.
            self.send_native(context)
        };
        created.map_err(|error| {
            let asked = format!("{:?}", self.capacities);
            explain(error.pinning(self.pinned_bytes()), self.kind).asked(asked)
        })
    }

    fn send_native(&self, context: &Context) -> Result<Created> {
        let (mut caps, mut number) = (QpCap::default(), 0u32);
        let wanted = self.caps();
        let mut answer = DriverAnswer::default();
        let mut request = context.commands().request::<create::Call>();
        request.new_handle(create::HANDLE);
        let parents = [
            (create::PD_HANDLE, self.parents.pd),
            (create::SEND_CQ_HANDLE, self.parents.send_cq),
            (create::RECV_CQ_HANDLE, self.parents.receive_cq),
            (create::SRQ_HANDLE, self.parents.srq),
            (create::XRCD_HANDLE, self.parents.xrcd),
        ];
        for (attribute, handle) in parents {
            if let Some(handle) = handle {
                request.handle(attribute, handle);
            }
        }
        request.value(create::USER_HANDLE, self.id.0);
        request.input(create::CAP, &wanted);
        request.constant(create::TYPE, self.kind.0);
        let mut flags = self.flags;
        flags.set(QpCreateFlags::SQ_SIG_ALL, self.signal_all);
        if !flags.is_empty() {
            request.flags(create::FLAGS, flags.bits());
        }
        request.output(create::RESP_CAP, &mut caps);
        request.output(create::RESP_QP_NUM, &mut number);
        let stored = request.driver_data(self.driver.as_bytes(), answer.as_mut_bytes());
        stored.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        context.commands().send(VERB, &mut request)?;
        let handle = request.created(create::HANDLE).unwrap_or_default();
        let (bfreg, ece) = (answer.bfreg_index, answer.ece_options);
        Ok(Created { handle, number, bfreg, ece })
    }

    /// For kernels before 5.8, where queue pairs are created by a write command.
    fn send_write(&self, context: &Context) -> Result<Created> {
        let caps = self.caps();
        let command = CreateQp {
            user_handle: self.id.0,
            pd_handle: self.parents.pd.or(self.parents.xrcd).unwrap_or_default(),
            send_cq_handle: self.parents.send_cq.unwrap_or_default(),
            recv_cq_handle: self.parents.receive_cq.unwrap_or_default(),
            srq_handle: self.parents.srq.unwrap_or_default(),
            max_send_wr: caps.max_send_wr,
            max_recv_wr: caps.max_recv_wr,
            max_send_sge: caps.max_send_sge,
            max_recv_sge: caps.max_recv_sge,
            max_inline_data: caps.max_inline_data,
            sq_sig_all: self.signal_all.into(),
            qp_type: self.kind,
            is_srq: self.parents.srq.is_some().into(),
            ..CreateQp::default()
        };
        let (sent, answer): (_, DriverAnswer) =
            context.commands().write_driver(VERB, &command, &self.driver)?;
        let (bfreg, ece) = (answer.bfreg_index, answer.ece_options);
        Ok(Created { handle: sent.qp_handle, number: sent.qpn, bfreg, ece })
    }

    fn caps(&self) -> QpCap {
        QpCap {
            max_send_wr: self.capacities.max_send_wr,
            max_recv_wr: self.capacities.max_recv_wr,
            max_send_sge: self.capacities.max_send_sge,
            max_recv_sge: self.capacities.max_recv_sge,
            max_inline_data: self.capacities.max_inline_data,
        }
    }

    fn pinned_bytes(&self) -> u64 {
        let send = u64::from(self.driver.sq_wqe_count) * 64;
        send + (u64::from(self.driver.rq_wqe_count) << self.driver.rq_wqe_shift)
    }
}

/// Adds the cause. `UVERBS_METHOD_QP_CREATE` refuses raw packets without CAP_NET_RAW. mlx5_ib
/// refuses its driver's types (DC) if the firmware does not have them (`check_qp_type` in
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
