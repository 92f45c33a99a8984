//! DEVX: firmware commands that a program sends itself.
//!
//! The kernel writes the context's user id into a command and checks that the method accepts
//! commands of its kind; the firmware does the rest. The firmware here is the object-handling part
//! of the PCI function's firmware. Kernel: hw/mlx5/devx.c.
#![forbid(unsafe_code)]

mod capability;
pub(crate) mod channels;
pub(crate) mod destination;
mod general;
pub(crate) mod object;
mod rules;
pub(crate) mod umem;

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::command::Command;
use uverbs_soft_adapter::firmware::layout::command::header;
use uverbs_soft_adapter::firmware::layout::context::{cqc, qpc, wq};
use uverbs_soft_adapter::firmware::refusal::{Done, Refusal, Status};
use uverbs_soft_adapter::firmware::{CQ_RECORD, Firmware, FrontEnd, table};
use uverbs_uapi::mlx5::object::devx::{other, query_eqn, query_uar};
use uverbs_uapi::objects::Attr;
use uverbs_uapi::objects::kind::{In, Out};

use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::abi::user_memory::UserMemory;
use crate::chardev::device::DeviceShared;
use crate::chardev::objects::object::Object;
use crate::chardev::objects::qp::service_code;
use crate::core::{Cqn, ObjectId, ObjectKind, Qpn, Stamps};
use crate::locking::lock;
use crate::runtime::{Doorbell, Machine, UarPage};

/// Shortest command and shortest answer (`general_obj_in_cmd_hdr`, `general_obj_out_cmd_hdr`).
const HEADER: usize = 16;

pub(crate) const OTHER: &[Attribute] =
    &[Attribute::input_min(other::CMD_IN, HEADER), Attribute::output_min(other::CMD_OUT, HEADER)];

pub(crate) const QUERY_EQN: &[Attribute] =
    &[Attribute::input(query_eqn::USER_VEC, 4), Attribute::output(query_eqn::DEV_EQN, 4)];

pub(crate) const QUERY_UAR: &[Attribute] =
    &[Attribute::input(query_uar::USER_IDX, 4), Attribute::output(query_uar::DEV_IDX, 4)];

/// `MLX5_IB_METHOD_DEVX_OTHER`: a command that belongs to no object.
pub(crate) fn other(call: &mut Call<'_>) -> Result<(), Errno> {
    let request = Request::answered(call, other::CMD_IN, other::CMD_OUT)?;
    if !rules::is_general(request.opcode()) {
        return Err(Errno::EINVAL);
    }
    let mut command = request.command();
    let outcome = general::run(&call.file.device, &mut command)?;
    answer(call, other::CMD_OUT, command, outcome)
}

/// `MLX5_IB_METHOD_DEVX_QUERY_EQN`.
pub(crate) fn query_eqn(call: &mut Call<'_>) -> Result<(), Errno> {
    let vector: u32 = call.input(query_eqn::USER_VEC)?;
    call.context()?;
    if vector >= call.file.device.options().completion_vectors {
        return Err(Errno::ENOENT);
    }
    call.output(query_eqn::DEV_EQN, &event_queue(vector))
}

/// Number of the event queue of a completion vector. The first numbers belong to the kernel's own
/// event queues.
fn event_queue(vector: u32) -> u32 {
    const KERNELS: u32 = 4;
    KERNELS + vector
}

/// `MLX5_IB_METHOD_DEVX_QUERY_UAR`: the page of a register that the program allocated by mapping
/// it.
pub(crate) fn query_uar(call: &mut Call<'_>) -> Result<(), Errno> {
    let register: u32 = call.input(query_uar::USER_IDX)?;
    let page = call.context_mut()?.static_uars()?.dynamic_uar_of(register)?;
    call.output(query_uar::DEV_IDX, &page)
}

/// A command that a program sends.
struct Request {
    input: Vec<u8>,
    /// Bytes for the answer.
    output_length: usize,
}

impl Request {
    /// Reads the command, and writes the context's user id into it (`devx_get_uid`).
    fn read<M>(call: &Call<'_>, input: Attr<M, In>, output_length: usize) -> Result<Self, Errno> {
        let uid = call.context()?.devx.ok_or(Errno::EINVAL)?;
        let mut input = call.bytes(input)?;
        header::UID.set(&mut input, uid.into());
        Ok(Self { input, output_length })
    }

    /// As [`read`](Self::read), for a command whose answer goes to an attribute.
    fn answered<M>(
        call: &Call<'_>,
        input: Attr<M, In>,
        output: Attr<M, Out>,
    ) -> Result<Self, Errno> {
        Self::read(call, input, call.given(output.id())?.length.into())
    }

    fn command(&self) -> Command<'_> {
        Command::new(&self.input, self.output_length)
    }

    fn opcode(&self) -> u16 {
        header::OPCODE.get(&self.input) as u16
    }
}

/// Copies the answer to the program. If the firmware has refused the command, the errno is
/// EREMOTEIO and the answer says why.
fn answer<M>(
    call: &Call<'_>,
    to: Attr<M, Out>,
    mut command: Command<'_>,
    outcome: Done,
) -> Result<(), Errno> {
    if let Err(refusal) = &outcome {
        command.refuse(refusal);
        let opcode = command.get(header::OPCODE);
        tracing::debug!(opcode, %refusal, "command refused");
    }
    call.output(to, command.reply.output.as_slice())?;
    outcome.map_err(|_| Errno::EREMOTEIO)
}

/// The context that sends a command.
struct Sender<'a> {
    device: &'a DeviceShared,
    /// Objects that the context has created by verbs.
    objects: Vec<ObjectId>,
    /// Receive work queues that the context has created by verbs.
    work_queues: Vec<u32>,
    /// Queue pairs created by verbs, with the firmware's code of their service.
    services: Vec<(u32, u64)>,
}

impl<'a> Sender<'a> {
    fn of(call: &Call<'_>, device: &'a DeviceShared) -> Self {
        let all = || call.state.handles.iter().map(|(_, entry)| &entry.object);
        let service = |object: &Object| match object {
            Object::Qp(qp) => service_code(qp.qp_type).map(|code| (qp.qpn.0, code)),
            _ => None,
        };
        let work_queue = |object: &Object| match object {
            Object::Wq(queue) => Some(queue.qpn.0),
            _ => None,
        };
        Self {
            device,
            objects: all().filter_map(number).collect(),
            work_queues: all().filter_map(work_queue).collect(),
            services: all().filter_map(service).collect(),
        }
    }

    fn without_objects(device: &'a DeviceShared) -> Self {
        let (objects, work_queues, services) = Default::default();
        Self { device, objects, work_queues, services }
    }
}

/// The object's number in commands.
fn number(object: &Object) -> Option<ObjectId> {
    match object {
        Object::Pd(pd) => Some(pd.pdn.object()),
        Object::Cq(cq) => Some(cq.cqn.object()),
        Object::Qp(qp) => Some(qp.qpn.object()),
        Object::Srq(srq) => Some(srq.srqn.object()),
        Object::Xrcd(xrcd) => Some(xrcd.domain.xrcdn.object()),
        _ => None,
    }
}

impl FrontEnd for Sender<'_> {
    fn check_event_queue(&self, number: u32) -> Done {
        let vectors = 0..self.device.options().completion_vectors;
        let known = vectors.map(event_queue).any(|known| known == number);
        if known { Ok(()) } else { Err(Refusal::no_such("event queue", number)) }
    }

    fn check_uar(&self, number: u32) -> Done {
        self.device.uars.page(number).map(drop).map_err(|_| Refusal::no_such("UAR", number))
    }

    fn check_use(&self, kind: ObjectKind, number: u32) -> Done {
        let own = self.objects.contains(&(kind, number));
        if own { Ok(()) } else { Err(Refusal::no_such(&kind.to_string(), number)) }
    }

    fn has_work_queue(&self, number: u32) -> bool {
        self.work_queues.contains(&number)
    }

    fn service(&self, qpn: u32) -> Option<u64> {
        self.services.iter().find(|(known, _)| *known == qpn).map(|(_, code)| *code)
    }
}

/// Runs a command about an object.
///
/// # Errors
/// EIO in a child process, where the device does not run. The firmware's refusals are in the inner
/// result.
fn execute(
    sender: &Sender<'_>,
    command: &mut Command<'_>,
    then: impl FnOnce(&mut Machine, &Command<'_>) -> Result<(), Errno>,
) -> Result<Done, Errno> {
    let opcode = command.get(header::OPCODE) as u16;
    let Some(spec) = table::find(opcode) else { return Ok(Err(Refusal::unknown_opcode(opcode))) };
    sender.device.control(|machine| {
        let mut objects = lock(&sender.device.firmware);
        let core = &mut machine.core;
        let mut firmware = Firmware { core, objects: &mut objects, front: sender };
        let outcome = firmware.run(spec, command);
        if outcome.is_ok() {
            then(machine, command)?;
        }
        Ok(outcome)
    })
}

/// The errno that mlx5 core makes of a refusal (`cmd_status_to_err` in its cmd.c).
fn errno(refusal: &Refusal) -> Errno {
    match refusal.status {
        Status::Busy => Errno::EBUSY,
        Status::LimitExceeded => Errno::ENOMEM,
        Status::BadSystemState | Status::BadInputLength | Status::BadOutputLength => Errno::EIO,
        Status::BadOpcode
        | Status::BadParameter
        | Status::BadResource
        | Status::BadResourceState
        | Status::BadQpState => Errno::EINVAL,
    }
}

/// Offsets in bits of the contexts of CQs and of queue pairs in commands.
const CQ_CONTEXT: usize = 0x80;
const QP_CONTEXT: usize = 0xc0;
/// Offset in bits of the work queue in commands about send queues.
const QUEUE: usize = 0x100 + 0x180;

/// The doorbell of the queue that a command has created, and its UAR page, if it has any.
fn doorbell(
    device: &DeviceShared,
    command: &Command<'_>,
    number: u32,
) -> Option<(UarPage, Doorbell)> {
    let (page, doorbell) = match command.get(header::OPCODE) as u16 {
        rules::opcode::CREATE_CQ => (cqc::UAR_PAGE.at(CQ_CONTEXT), Doorbell::Arm(Cqn(number))),
        rules::opcode::CREATE_QP if !command.is_set(qpc::NO_SQ.at(QP_CONTEXT)) => {
            (qpc::UAR_PAGE.at(QP_CONTEXT), Doorbell::Send(Qpn(number)))
        }
        rules::opcode::CREATE_SQ => (wq::UAR_PAGE.at(QUEUE), Doorbell::Send(Qpn(number))),
        _ => return None,
    };
    Some((device.uars.page(command.get32(page)).ok()?, doorbell))
}

/// Gives a CQ created by a command the same initial state as one created by verbs: a clock, and an
/// arm word that encodes no arming (see `create` of CQs).
fn prepare_cq(
    device: &DeviceShared,
    user: UserMemory,
    machine: &mut Machine,
    command: &Command<'_>,
    cqn: Cqn,
) -> Result<(), Errno> {
    let stamps = Stamps::Counter(device.options().counter_start);
    machine.core.stamp_by(cqn, stamps).map_err(crate::chardev::device::errno)?;
    let sender = Sender::without_objects(device);
    let mut objects = lock(&device.firmware);
    let firmware = Firmware { core: &mut machine.core, objects: &mut objects, front: &sender };
    let record = firmware.doorbell_record(command, &CQ_RECORD).map_err(|_| Errno::EINVAL)?;
    user.write_value(record.wrapping_add(4), &u32::MAX)
}
