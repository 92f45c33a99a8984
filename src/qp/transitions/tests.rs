use super::*;

#[test]
fn what_is_missing_is_named() {
    let given = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::QKEY;
    let error = check(QpType::Rc, State::Init, State::Rtr, given).unwrap_err();
    let TransitionError::Attributes { missing, unexpected, .. } = error else { panic!("{error}") };
    assert_eq!(missing, Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER);
    assert_eq!(unexpected, Mask::QKEY);
    let text = error.to_string();
    assert!(text.contains("MIN_RNR_TIMER") && text.contains("does not take QKEY"), "{text}");
}

#[test]
fn every_state_but_reset_may_fail_and_every_state_may_be_reset() {
    for from in State::ALL {
        assert!(transition(QpType::Rc, from, State::Reset).is_some(), "{from}");
        let to_error = transition(QpType::Rc, from, State::Err).is_some();
        assert_eq!(to_error, from != State::Reset, "{from}");
    }
}

#[test]
fn states_cannot_be_skipped() {
    let skipped = transition(QpType::Rc, State::Init, State::Rts);
    assert_eq!(skipped, None);
    let reset = transition(QpType::Ud, State::Reset, State::Rtr);
    assert_eq!(reset, None);
}
