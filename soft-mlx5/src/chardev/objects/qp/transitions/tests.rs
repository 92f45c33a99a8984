use super::state::*;
use super::*;

#[test]
fn rc_from_reset_to_rts() {
    let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    let rts = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    for (current, next, full) in [(RESET, INIT, init), (INIT, RTR, rtr), (RTR, RTS, rts)] {
        assert!(allowed(current, next, Rc, full));
        for bit in (1..21).map(|bit| 1 << bit).filter(|bit| full & bit != 0) {
            assert!(!allowed(current, next, Rc, full & !bit), "without bit {bit:#x}");
        }
        assert!(!allowed(current, next, Rc, full | QKEY));
    }
}

#[test]
fn every_state_can_be_reset_and_only_live_ones_fail() {
    for current in RESET..=ERR {
        assert!(allowed(current, RESET, Rc, STATE));
        assert_eq!(allowed(current, ERR, Rc, STATE), current != RESET);
    }
    assert!(!allowed(RESET, RTR, Rc, STATE));
    assert!(!allowed(RTS, INIT, Ud, STATE));
    assert!(!allowed(SQE, SQD, Ud, STATE));
}

#[test]
fn the_current_state_may_be_given_only_in_states_that_change_by_themselves() {
    assert!(allowed(RTS, RTS, Ud, STATE | CUR_STATE));
    assert!(!allowed(INIT, INIT, Ud, STATE | CUR_STATE));
    assert!(allowed(SQE, RTS, Ud, STATE | CUR_STATE | QKEY));
    assert!(!allowed(SQE, RTS, Rc, STATE | CUR_STATE));
}
