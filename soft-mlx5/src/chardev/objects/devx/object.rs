//! Firmware objects that were created by commands.
#![forbid(unsafe_code)]

use std::ops::Range;

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::command::Command;
use uverbs_soft_adapter::firmware::event::{QUEUE_DCT, QUEUE_QP, QUEUE_RQ, QUEUE_SQ};
use uverbs_soft_adapter::firmware::refusal::Done;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::mlx5::object::devx_obj::{create, destroy, modify, query};
use uverbs_uapi::objects::Attr;
use uverbs_uapi::objects::kind::{Handle, In, Out};

use super::rules::{self, Act, Family, opcode};
use super::{HEADER, Request, Sender, answer, doorbell, errno, execute, prepare_cq};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::chardev::device::subscriptions::FirmwareId;
use crate::chardev::objects::object::{Kind, Object};
use crate::chardev::objects::qp::service_code;
use crate::core::{Cqn, QpType, Qpn};
use crate::runtime::{self, Doorbell, UarPage};

/// A firmware object.
#[derive(Debug)]
pub(crate) struct FirmwareObject {
    /// The command that destroys it.
    destruction: Vec<u8>,
    family: &'static Family,
    number: u32,
    /// How many consecutive numbers it has.
    length: u32,
    doorbell: Option<(UarPage, Doorbell)>,
}

pub(crate) const CREATE: &[Attribute] = &[
    Attribute::new_handle(create::HANDLE, Kind::DevxObj),
    Attribute::input_min(create::CMD_IN, HEADER),
    Attribute::output_min(create::CMD_OUT, HEADER),
];

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::DevxObj)];

pub(crate) const MODIFY: &[Attribute] = &[
    Attribute::any_handle(modify::HANDLE),
    Attribute::input_min(modify::CMD_IN, HEADER),
    Attribute::output_min(modify::CMD_OUT, HEADER),
];

pub(crate) const QUERY: &[Attribute] = &[
    Attribute::any_handle(query::HANDLE),
    Attribute::input_min(query::CMD_IN, HEADER),
    Attribute::output_min(query::CMD_OUT, HEADER),
];

impl FirmwareObject {
    /// Sends the command that destroys it.
    pub(crate) fn destroy(&self, device: &DeviceShared) -> Result<(), Errno> {
        let sends = [opcode::CREATE_QP, opcode::CREATE_DCT, opcode::CREATE_SQ];
        if sends.contains(&self.family.create) {
            device.control(|machine| {
                machine.catch_up(runtime::now(), Qpn(self.number));
                Ok(())
            })?;
        }
        let mut command = Command::new(&self.destruction, HEADER);
        let outcome = execute(&Sender::without_objects(device), &mut command, |machine, _| {
            if let Some((page, doorbell)) = &self.doorbell {
                machine.uars.detach(page, *doorbell);
            }
            Ok(())
        })?;
        outcome.map_err(|refusal| errno(&refusal))?;
        device.routes().subscriptions.end(self.id());
        Ok(())
    }

    /// The command that created it, and its number: unique among all objects.
    pub(super) fn id(&self) -> FirmwareId {
        (self.family.create, self.number)
    }

    /// Its numbers; only counters have several.
    pub(super) fn numbers(&self) -> Range<u32> {
        self.number..self.number + self.length
    }

    /// How events name its type (`get_legacy_obj_type`).
    pub(super) fn queue_type(&self) -> u8 {
        match self.family.create {
            opcode::CREATE_RQ => QUEUE_RQ,
            opcode::CREATE_SQ => QUEUE_SQ,
            opcode::CREATE_DCT => QUEUE_DCT,
            _ => QUEUE_QP,
        }
    }

    /// Order of destruction when the file closes.
    pub(crate) fn destruction_rank(&self) -> u8 {
        self.family.rank
    }
}

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    let mut request = Request::answered(call, create::CMD_IN, create::CMD_OUT)?;
    if !rules::is_creation(&request.command()) {
        return Err(Errno::EINVAL);
    }
    rules::set_umem_valid(&mut request.input);
    let family = rules::family_of(request.opcode());
    let (device, user) = (call.file.device.clone(), call.user);
    let mut command = request.command();
    let mut made = None;
    let sender = Sender::of(call, &device);
    let outcome = execute(&sender, &mut command, |machine, command| {
        let Some(family) = family else { return Ok(()) };
        let number = family.created(command);
        let doorbell = doorbell(&device, command, number);
        if let Some((page, doorbell)) = &doorbell {
            machine.uars.attach(page, *doorbell);
        }
        let (destruction, length) = (family.destruction(command, number), rules::length(command));
        made = Some(FirmwareObject { destruction, family, number, length, doorbell });
        Ok(())
    })?;
    if let Some(object) = made {
        let number = object.number;
        call.commit(Object::Devx(object))?;
        if request.opcode() == opcode::CREATE_CQ {
            device.control(|machine| prepare_cq(&device, user, machine, &command, Cqn(number)))?;
        }
    }
    answer(call, create::CMD_OUT, command, outcome)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY`.
pub(crate) fn modify(call: &mut Call<'_>) -> Result<(), Errno> {
    about(call, Act::Modify, modify::HANDLE, modify::CMD_IN, modify::CMD_OUT)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_QUERY`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    about(call, Act::Query, query::HANDLE, query::CMD_IN, query::CMD_OUT)
}

fn about<M>(
    call: &mut Call<'_>,
    act: Act,
    handle: Attr<M, Handle>,
    input: Attr<M, In>,
    output: Attr<M, Out>,
) -> Result<(), Errno> {
    let mut request = Request::answered(call, input, output)?;
    let (command, outcome) = run(call, act, call.handle(handle)?, &mut request)?;
    answer(call, output, command, outcome)
}

/// Runs a command about the object of a handle. The inner result is that of the firmware.
pub(super) fn run<'a>(
    call: &Call<'_>,
    act: Act,
    handle: u32,
    request: &'a mut Request,
) -> Result<(Command<'a>, Done), Errno> {
    let named = rules::subject(act, &request.command()).ok_or(Errno::EINVAL)?;
    if !answers_to(call.any_object(handle)?, named) {
        return Err(Errno::EINVAL);
    }
    if act == Act::Modify {
        rules::set_umem_valid(&mut request.input);
    }
    let device = call.file.device.clone();
    if act == Act::Modify {
        device.control(|machine| {
            match named.0 {
                opcode::CREATE_CQ => machine.catch_up_cq(runtime::now(), Cqn(named.1)),
                opcode::CREATE_QP | opcode::CREATE_SQ => {
                    machine.catch_up(runtime::now(), Qpn(named.1));
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    let sender = Sender::of(call, &device);
    let mut command = request.command();
    let outcome = execute(&sender, &mut command, |_, _| Ok(()))?;
    Ok((command, outcome))
}

/// Whether the object of a handle is the one that a command names (`devx_is_valid_obj_id`). Raw
/// packet QPs, work queues and indirection tables that verbs created are not firmware objects of
/// this device.
fn answers_to(object: &Object, named: (u16, u32)) -> bool {
    match object {
        Object::Devx(object) => {
            named.0 == object.family.create && object.numbers().contains(&named.1)
        }
        Object::Cq(cq) => named == (opcode::CREATE_CQ, cq.cqn.0),
        Object::Qp(qp) if qp.qp_type == QpType::DcTarget => named == (opcode::CREATE_DCT, qp.qpn.0),
        Object::Qp(qp) => {
            named == (opcode::CREATE_QP, qp.qpn.0) && service_code(qp.qp_type).is_some()
        }
        Object::Srq(srq) => named == (creation_of(srq.srq_type), srq.srqn.0),
        _ => false,
    }
}

/// The command that creates shared receive queues of a type.
fn creation_of(srq_type: SrqType) -> u16 {
    match srq_type {
        SrqType::XRC => opcode::CREATE_XRC_SRQ,
        SrqType::TM => opcode::CREATE_XRQ,
        _ => opcode::CREATE_RMP,
    }
}
