//! DC targets.

use uverbs::cq::Status;
use uverbs::devx::{Devx, DevxEventChannelFlags, DevxObject, UarKind};
use uverbs::op;
use uverbs::qp::{DcTarget, PostFlags};
use uverbs::qp_type::Dci;
use uverbs_soft_adapter::firmware::layout::command::object;
use uverbs_soft_adapter::firmware::layout::context::{ads, dctc};

use crate::common::{self, Setup};
use crate::events::{KEY_VIOLATION, event, never_wait, no_event};
use crate::firmware::{CONTEXT, Cq, Input, create};
use crate::queue_pairs::path_of;
use crate::{setup, setup_for_refusals};

const ACCESS_KEY: u64 = 0x0102_0304_0506_0708;

/// A DC target, and its number.
fn dc_target(devx: &Devx, setup: &Setup, cq: &Cq, srq: u32, path: &[u8]) -> (DevxObject, u32) {
    let input = Input::new(0x710, 128)
        .set(dctc::CQN.at(CONTEXT), cq.number)
        .set(dctc::SRQN_XRQN.at(CONTEXT), srq)
        .set(dctc::PD.at(CONTEXT), setup.pd.number())
        .set(dctc::DC_ACCESS_KEY.at(CONTEXT), ACCESS_KEY)
        .set(dctc::PORT.at(CONTEXT), 1u64)
        .set(dctc::MTU.at(CONTEXT), 3u64)
        .set(dctc::HOP_LIMIT.at(CONTEXT), 64u64)
        .set(dctc::MY_ADDR_INDEX.at(CONTEXT), ads::SRC_ADDR_INDEX.get(path))
        .set(dctc::MIN_RNR_NAK.at(CONTEXT), 12u64);
    create(devx, &input)
}

/// The kernel's own event queue has no such events, so that a guest gets none.
#[test]
fn an_armed_target_reports_one_wrong_access_key() {
    let Some((mut setup, devx)) = setup_for_refusals() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let srq = setup.pd.create_raw_srq(16).build().unwrap();
    let (target, dctn) = dc_target(&devx, &setup, &cq, srq.handle().number(), &path);
    let channel = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    channel.subscribe(Some(target.kernel_handle()), &[KEY_VIOLATION], 5).unwrap();
    let arm = Input::new(0x714, 16).set(object::NUMBER, dctn);
    target.modify(&arm.0, &mut [0; 16]).unwrap();
    let mut initiator = setup.builder::<Dci>().build().unwrap();
    initiator.activate().unwrap();
    let ah = setup.pd.create_ah(&initiator.address_of(&initiator.endpoint()).unwrap()).unwrap();
    let to = ah.dc_target(dctn, ACCESS_KEY + 1);
    let data = setup.region(64);
    // SAFETY: the region outlives the queue.
    unsafe {
        let sge = data.sge(0, 64).unwrap();
        initiator.post_send(2, op::To(DcTarget(&to), op::Send), sge, PostFlags::SIGNALED).unwrap();
    }
    let told: [u8; 72] = event(&channel);
    assert_eq!((told[0], told[8 + 1]), (5, KEY_VIOLATION as u8));
    assert_eq!(told[8 + 32 + 24..][..4], dctn.to_be_bytes());
    let wrong = Input::new(0x714, 16).set(object::NUMBER, dctn + 1);
    assert_eq!(target.modify(&wrong.0, &mut [0; 16]).unwrap_err().errno(), 22, "of another");
    // The initiator repeats its request until it gives up.
    assert_eq!(setup.completion().status, Status::RetryExceeded);
    never_wait(&channel);
    no_event(&channel);
    target.destroy().unwrap();
    cq.close();
}

#[test]
fn a_dct_created_by_a_command_receives_from_a_verbs_queue_pair() {
    let Some((mut setup, devx)) = setup() else { return };
    let path = path_of(&devx, &setup);
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let mut cq = Cq::new(&devx, &uar);
    let mut srq = setup.pd.create_raw_srq(16).build().unwrap();
    let mut initiator = setup.builder::<Dci>().build().unwrap();
    initiator.activate().unwrap();
    let own = initiator.endpoint();
    let (target, dctn) = dc_target(&devx, &setup, &cq, srq.handle().number(), &path);
    let mut shown = [0; 128];
    target.query(&Input::new(0x713, 16).set(object::NUMBER, dctn).0, &mut shown).unwrap();
    assert_eq!(dctc::DC_ACCESS_KEY.at(CONTEXT).get(&shown), ACCESS_KEY);

    let ah = setup.pd.create_ah(&initiator.address_of(&own).unwrap()).unwrap();
    let to = ah.dc_target(dctn, ACCESS_KEY);
    let (from, into) = (setup.region(64), setup.region(64));
    let sent = common::pattern(64, 9);
    from.view().write(0, &sent).unwrap();
    // SAFETY: the regions outlive the queues, and are looked at through views between requests.
    unsafe {
        srq.post(1, &[into.sge(0, 64).unwrap()]).unwrap();
        let data = from.sge(0, 64).unwrap();
        initiator.post_send(2, op::To(DcTarget(&to), op::Send), data, PostFlags::SIGNALED).unwrap();
    }
    common::success(&mut setup.cq);
    assert_eq!(cq.opcode(), 2, "a send has arrived");
    assert_eq!(into.view().to_vec()[..64], sent);
    target.destroy().unwrap();
    drop(srq);
    cq.close();
}
