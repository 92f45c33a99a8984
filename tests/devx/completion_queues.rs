//! Completion queues that change their rings.

use uverbs::devx::UarKind;
use uverbs_soft_adapter::firmware::layout::command::{create_cq_in, header, object};
use uverbs_soft_adapter::firmware::layout::context::cqc;

use crate::firmware::{CONTEXT, Cq, Input, Memory, free};
use crate::queue_pairs::{Qp, path_of};
use crate::{refusal, setup_for_refusals};

/// RESIZE_CQ: a ring of 2^`log_size` entries in `memory`.
fn resize(number: u32, memory: &Memory, log_size: u64) -> Input {
    Input::new(0x403, 272)
        .set(header::OP_MOD, 1u64)
        .set(object::NUMBER, number)
        .set(create_cq_in::CQ_UMEM_ID, memory.umem.id())
        .set(cqc::LOG_CQ_SIZE.at(CONTEXT), log_size)
}

/// Four completions do not fit a ring of two, whether the device has written them yet or not.
#[test]
fn requests_before_a_resize_count() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let qp = Qp::new(&devx, &uar, setup.pd.number(), &cq);
    qp.connect(qp.number, &path);
    let stop = Input::new(0x507, 16).set(object::NUMBER, qp.number);
    qp.object.modify(&stop.0, &mut [0; 16]).unwrap();
    let region = setup.region(64);
    (0..4).for_each(|index| qp.send(index, &region, &uar));
    let mut answer = [0; 16];
    let shrink = resize(cq.number, &cq.memory, 1);
    assert_ne!(refusal(cq.object.modify(&shrink.0, &mut answer), &answer), 0);
    qp.close();
    cq.close();
}

#[test]
fn a_cq_of_verbs_gives_back_the_memory_of_a_command() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let memory = Memory::new(&devx);
    let cq = setup.context.create_cq(3).build().unwrap();
    let (handle, number) = (cq.handle().kernel_handle(), cq.handle().number());
    devx.modify(handle, &resize(number, &memory, 4).0, &mut [0; 16]).unwrap();
    cq.destroy().unwrap();
    free(memory);
}

#[test]
fn a_resize_by_verbs_gives_back_the_memory_of_a_command() {
    let Some((setup, devx)) = setup_for_refusals() else { return };
    let memory = Memory::new(&devx);
    let mut cq = setup.context.create_cq(3).build().unwrap();
    let (handle, number) = (cq.handle().kernel_handle(), cq.handle().number());
    devx.modify(handle, &resize(number, &memory, 4).0, &mut [0; 16]).unwrap();
    cq.resize(100).unwrap();
    free(memory);
    // Commands still reach it.
    let memory = Memory::new(&devx);
    devx.modify(handle, &resize(number, &memory, 4).0, &mut [0; 16]).unwrap();
    cq.destroy().unwrap();
    free(memory);
}
