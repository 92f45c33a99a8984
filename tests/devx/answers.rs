//! Answers of queries through a channel.

use uverbs::devx::{DevxEventChannelFlags, UarKind};
use uverbs_soft_adapter::firmware::layout::command::object;
use uverbs_soft_adapter::firmware::layout::context::cqc;

use crate::events::{never_wait, no_event};
use crate::firmware::{CONTEXT, Cq, Input, LOG_CQES};
use crate::{setup, setup_for_refusals};

#[test]
fn answers_of_queries_come_through_a_channel() {
    let Some((_setup, devx)) = setup() else { return };
    let channel = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    // More than a pipe of sixteen pages holds.
    for wr_id in 0..40u64 {
        cq.object.query_async(&query.0, 272, wr_id, &channel).unwrap();
    }
    for wr_id in 0..40u64 {
        let mut answer = [0xaa; 8 + 272];
        assert_eq!(channel.read(&mut answer).unwrap(), answer.len());
        assert_eq!(answer[..8], wr_id.to_ne_bytes());
        assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer[8..]), LOG_CQES);
    }
    let other = Input::new(0x402, 16).set(object::NUMBER, cq.number + 1);
    let error = cq.object.query_async(&other.0, 272, 1, &channel).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    cq.close();
}

/// Answers longer than a packet of a pipe, and one with the largest length of an attribute. In
/// guests, a command whose answer is too long counts as a mistake of the driver.
#[test]
fn long_answers_come_whole_and_one_by_one() {
    let Some((_setup, devx)) = setup_for_refusals() else { return };
    let channel = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    let lengths = [4088, 4089, 272, 272, u16::MAX as usize, 8192, 8192, 272];
    for (wr_id, length) in lengths.iter().enumerate() {
        cq.object.query_async(&query.0, *length as u64, wr_id as u64, &channel).unwrap();
    }
    for (wr_id, length) in lengths.into_iter().enumerate() {
        let mut answer = vec![0xaa; 1 << 17];
        assert_eq!(channel.read(&mut answer).unwrap(), 8 + length, "answer {wr_id}");
        assert_eq!(answer[..8], (wr_id as u64).to_ne_bytes());
        assert_eq!(cqc::LOG_CQ_SIZE.at(CONTEXT).get(&answer[8..]), LOG_CQES);
        assert!(answer[8 + 272..8 + length].iter().all(|byte| *byte == 0));
    }
    cq.close();
}

#[test]
fn a_read_into_too_little_space_takes_nothing() {
    let Some((_setup, devx)) = setup() else { return };
    let answers = devx.command_channel().unwrap();
    let uar = devx.alloc_uar(UarKind::NonCached).unwrap();
    let cq = Cq::new(&devx, &uar);
    let query = Input::new(0x402, 16).set(object::NUMBER, cq.number);
    cq.object.query_async(&query.0, 272, 1, &answers).unwrap();
    for space in [0, 7] {
        let error = answers.read(&mut [0; 8][..space]).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    }
    assert_eq!(answers.read(&mut [0; 8 + 272]).unwrap(), 8 + 272);

    let whole = devx.event_channel(DevxEventChannelFlags::empty()).unwrap();
    let cookies = devx.event_channel(DevxEventChannelFlags::OMIT_DATA).unwrap();
    for (events, length) in [(&whole, 72), (&cookies, 8)] {
        never_wait(events);
        for space in [0, length - 1] {
            let error = events.read(&mut vec![0; space]).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
        }
        no_event(events);
    }
    cq.close();
}
