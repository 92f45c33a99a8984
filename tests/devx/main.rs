//! Firmware commands of a program (DEVX) create queues in the program's memory, in addition to
//! queues created by verbs.
//!
//! The tests of frames need an Ethernet port, and CAP_NET_RAW on a kernel's device.

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod completion_queues;
mod counters;
mod dc_targets;
mod ethernet;
mod events;
mod firmware;
mod flow_tables;
#[path = "../common/frames.rs"]
mod frames;
mod pools;
mod queue_pairs;
mod reserved_numbers;
mod spreading;
mod tags;

use common::Setup;
use firmware::{CONTEXT, Cq, Input, Memory, commands, create, free, key_input};
use queue_pairs::Qp;
use uverbs::devx::{Devx, UarKind};
use uverbs::{Context, ErrorKind};
use uverbs_soft_adapter::firmware::bits::{Field, field};
use uverbs_soft_adapter::firmware::layout::capability::general;
use uverbs_soft_adapter::firmware::layout::command::{create_cq_in, header, object, result};
use uverbs_soft_adapter::firmware::layout::context::{cqc, mkc};

/// Statuses of refused commands, `MLX5_CMD_STAT_*`.
const BAD_PARAMETER: u64 = 0x3;
const BAD_RESOURCE: u64 = 0x5;
const BAD_INPUT_LENGTH: u64 = 0x50;

/// The commands of a context; `None` if the kernel's device grants none.
fn granted(context: &Context) -> Option<Devx> {
    if !context.has_devx() {
        assert!(!common::is_soft());
        println!("skipped: the device grants no DEVX");
        return None;
    }
    Some(commands(context))
}

/// A device whose contexts have DEVX, if there is one.
fn setup() -> Option<(Setup, Devx)> {
    let setup = Setup::on(common::open());
    let devx = granted(&setup.context)?;
    Some((setup, devx))
}

/// As `setup`, for tests whose commands the firmware refuses. `None` in the guests, where a refused
/// command counts as a defect of the device or the driver.
fn setup_for_refusals() -> Option<(Setup, Devx)> {
    if common::is_soft() { setup() } else { None }
}

/// A field of the general capabilities.
fn capability(devx: &Devx, field: Field) -> u64 {
    let mut answer = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 1u64).0, &mut answer).unwrap();
    field.at(CONTEXT).get(&answer)
}

/// The status with which the firmware has refused a command.
fn refusal<T>(result: uverbs::Result<T>, answer: &[u8]) -> u64 {
    let error = result.err().expect("refused");
    assert_eq!(error.errno(), libc::EREMOTEIO, "{error}");
    assert!(error.to_string().contains("the firmware refused the command"), "{error}");
    result::STATUS.get(answer)
}

/// The status with which the firmware refuses to create an object.
fn refused(devx: &Devx, input: &Input) -> u64 {
    let mut answer = [0; 16];
    refusal(devx.create(&input.0, &mut answer), &answer)
}

#[test]
fn umem_and_uar_live_as_long_as_the_object_that_uses_them() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let queue = Qp::new(&devx, &uar, setup.pd.number(), &cq);
    let Cq { object, memory: Memory { base, umem }, .. } = cq;
    let object = object.destroy().unwrap_err().object;
    let umem = *umem.destroy().unwrap_err().object;
    queue.close();
    object.destroy().unwrap();
    free(Memory { base, umem });
}

#[test]
fn mkeys_are_created_over_registered_memory() {
    let Some((setup, devx)) = setup() else { return };
    let memory = Memory::new(&devx);
    let (key, index) = create(&devx, &key_input(&memory, setup.pd.number(), 4096));
    let mut shown = [0; 304];
    let query = Input::new(0x201, 16).set(object::NUMBER, index);
    key.query(&query.0, &mut shown).unwrap();
    assert_eq!(mkc::LEN.at(CONTEXT).get(&shown), 4096);
    assert_eq!(mkc::PD.at(CONTEXT).get32(&shown), setup.pd.number());
    key.destroy().unwrap();
    free(memory);
}

#[test]
fn the_kernel_refuses_a_command_of_another_kind() {
    let Some((setup, devx)) = setup() else { return };
    let mut answer = [0; 272];
    let invalid = |result: uverbs::Result<()>| {
        let error = result.unwrap_err();
        assert_eq!((error.errno(), error.kind()), (22, ErrorKind::Refused), "{error}");
    };
    // CREATE_CQ is not a general command, QUERY_CQ creates nothing, and CREATE_CQ queries nothing.
    invalid(devx.command(&Input::new(0x400, 272).0, &mut answer));
    invalid(devx.create(&Input::new(0x402, 16).0, &mut answer).map(drop));
    let cq = setup.cq.handle().kernel_handle();
    let number = setup.cq.handle().number();
    invalid(devx.query(cq, &Input::new(0x400, 272).set(object::NUMBER, number).0, &mut answer));
    // The command's number is not the handle's.
    invalid(devx.query(cq, &Input::new(0x402, 16).set(object::NUMBER, number + 1).0, &mut answer));
    invalid(devx.modify(cq, &Input::new(0x402, 16).set(object::NUMBER, number).0, &mut answer));
    devx.query(cq, &Input::new(0x402, 16).set(object::NUMBER, number).0, &mut answer).unwrap();
    assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer), 11);
}

#[test]
fn the_firmware_refuses_objects_of_another_context() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let other = setup.context.device().open().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let (memory, theirs) = (Memory::new(&devx), Memory::new(&commands(&other)));
    let input = Cq::input(&devx, &uar, &memory).set(create_cq_in::CQ_UMEM_ID, theirs.umem.id());
    assert_ne!(refused(&devx, &input), 0);
    let input = Cq::input(&devx, &uar, &memory).set(create_cq_in::CQ_UMEM_OFFSET, 8192u64);
    assert_ne!(refused(&devx, &input), 0);
    let pd = other.alloc_pd().unwrap();
    let input = Qp::input(&uar, &memory, pd.number(), setup.cq.handle().number());
    assert_ne!(refused(&devx, &input), 0);
    free(memory);
    free(theirs);
}

#[test]
fn capabilities_can_be_queried() {
    let Some((_setup, devx)) = setup() else { return };
    let mut answer = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 1u64).0, &mut answer).unwrap();
    let general = |bit, width| field(CONTEXT + bit, width).get(&answer);
    assert!(general(0x463, 5) > 0, "log_max_uctx");
    assert_eq!(general(0x1b8, 8), 1, "num_ports");
}

/// DPDK's driver gives up if the firmware announces a group and refuses to show it.
#[test]
fn announced_groups_of_capabilities_can_be_queried() {
    let Some((_setup, devx)) = setup() else { return };
    for (announced, group) in [
        (general::ETH_NET_OFFLOADS, 1_u64),
        (general::ATOMIC, 3),
        (general::ROCE, 4),
        (general::NIC_FLOW_TABLE, 7),
    ] {
        if capability(&devx, announced) == 0 {
            continue;
        }
        let mut answer = vec![0; 16 + 4096];
        let query = Input::new(0x100, 16).set(header::OP_MOD, group << 1 | 1);
        devx.command(&query.0, &mut answer).unwrap_or_else(|error| panic!("{group}: {error}"));
        assert!(answer[16..].iter().any(|byte| *byte != 0), "{group}");
    }
}

#[test]
fn unknown_capabilities_are_refused() {
    let Some((_setup, devx)) = setup_for_refusals() else { return };
    let mut answer = vec![0; 16 + 4096];
    let unknown = Input::new(0x100, 16).set(header::OP_MOD, 0x7f01u64);
    assert_ne!(refusal(devx.command(&unknown.0, &mut answer), &answer), 0);
}
