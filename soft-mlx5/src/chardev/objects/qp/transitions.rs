//! Required and optional attributes of each QP state transition: `ib_modify_qp_is_ok`
//! (core/verbs.c).
#![forbid(unsafe_code)]

use crate::core::QpType::{
    self, DcInitiator, DcTarget, RawPacket, Rc, RegUmr, Uc, Ud, XrcInitiator, XrcTarget,
};

/// Queue pair states, numbered as `enum ib_qp_state`.
pub(crate) mod state {
    pub(crate) const RESET: u8 = 0;
    pub(crate) const INIT: u8 = 1;
    pub(crate) const RTR: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const SQD: u8 = 4;
    pub(crate) const SQE: u8 = 5;
    pub(crate) const ERR: u8 = 6;
}

/// Bits of `enum ib_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1 << 0;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
    pub(crate) const RATE_LIMIT: u32 = 1 << 25;
    /// Every bit that MODIFY_QP's basic form knows (`IB_QP_ATTR_STANDARD_BITS`, bits 0..=20 without
    /// the reserved ones).
    pub(crate) const STANDARD: u32 = (1 << 21) - 1;
}

use mask::*;

/// Whether `mask` may accompany the change from `current` to `next`.
pub(crate) fn allowed(current: u8, next: u8, qp_type: QpType, given: u32) -> bool {
    use state::{RTR, RTS, SQD, SQE};
    if qp_type == DcInitiator {
        return allowed_for_initiator(current, next, given);
    }
    if given & CUR_STATE != 0 && !matches!(current, RTR | RTS | SQD | SQE) {
        return false;
    }
    transition(current, next, qp_type).is_some_and(|(required, optional)| {
        given & required == required && given & !(required | optional | STATE) == 0
    })
}

/// The driver's own rules for DC initiators (`modify_dci_qp_is_ok` in hw/mlx5/qp.c), which list the
/// state among the required attributes.
fn allowed_for_initiator(current: u8, next: u8, given: u32) -> bool {
    use state::{ERR, INIT, RESET, RTR, RTS};
    let (required, optional) = match (current, next) {
        (_, RESET) | (INIT..=ERR, ERR) => (0, 0),
        (RESET, INIT) => (PKEY_INDEX | PORT, 0),
        (INIT, INIT) => (0, PKEY_INDEX | PORT),
        (INIT, RTR) => (PATH_MTU, PKEY_INDEX | AV),
        (RTR, RTS) => (TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | SQ_PSN, MIN_RNR_TIMER),
        (RTS, RTS) => (0, MIN_RNR_TIMER),
        _ => return false,
    };
    is_exactly(given, required, optional)
}

/// A DC target has two changes of state (`mlx5_ib_modify_dct`).
pub(crate) fn allowed_for_target(current: u8, next: u8, given: u32) -> bool {
    use state::{INIT, RESET, RTR};
    let required = match (current, next) {
        (RESET, INIT) => ACCESS_FLAGS | PKEY_INDEX | PORT,
        (INIT, RTR) => MIN_RNR_TIMER | AV | PATH_MTU,
        _ => return false,
    };
    is_exactly(given, required, 0)
}

/// `is_valid_mask`; STATE is always required.
fn is_exactly(given: u32, required: u32, optional: u32) -> bool {
    let required = required | STATE;
    given & required == required && given & !(required | optional) == 0
}

/// Required and optional attributes; `None` if there is no such transition.
fn transition(current: u8, next: u8, qp_type: QpType) -> Option<(u32, u32)> {
    use state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
    match (current, next) {
        (RESET..=ERR, RESET) | (INIT..=ERR, ERR) => Some((0, 0)),
        (RESET, INIT) => Some((init(qp_type), 0)),
        (INIT, INIT) => Some((0, if qp_type == RawPacket { 0 } else { init(qp_type) })),
        (INIT, RTR) => Some(to_rtr(qp_type)),
        (RTR, RTS) => Some(to_rts(qp_type)),
        (RTS, RTS) => Some((0, in_rts(qp_type))),
        (RTS, SQD) => Some((0, if qp_type == RawPacket { 0 } else { EN_SQD_ASYNC_NOTIFY })),
        (SQD, RTS) => Some((0, from_sqd_to_rts(qp_type))),
        (SQD, SQD) => Some((0, in_sqd(qp_type))),
        (SQE, RTS) => Some((0, from_sqe_to_rts(qp_type))),
        _ => None,
    }
}

fn init(qp_type: QpType) -> u32 {
    match qp_type {
        Ud => PKEY_INDEX | PORT | QKEY,
        RawPacket | RegUmr => PORT,
        Rc | Uc | XrcInitiator | XrcTarget => PKEY_INDEX | PORT | ACCESS_FLAGS,
        DcInitiator | DcTarget => 0,
    }
}

fn to_rtr(qp_type: QpType) -> (u32, u32) {
    let path = AV | PATH_MTU | DEST_QPN | RQ_PSN;
    let connected = ALT_PATH | ACCESS_FLAGS | PKEY_INDEX;
    match qp_type {
        Ud => (0, PKEY_INDEX | QKEY),
        Uc | XrcInitiator => (path, connected),
        Rc | XrcTarget => (path | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, connected),
        RawPacket | RegUmr | DcInitiator | DcTarget => (0, 0),
    }
}

fn to_rts(qp_type: QpType) -> (u32, u32) {
    let required = match qp_type {
        Ud | Uc => SQ_PSN,
        Rc | XrcInitiator => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
        XrcTarget => TIMEOUT | SQ_PSN,
        RawPacket | RegUmr | DcInitiator | DcTarget => 0,
    };
    (required, in_rts(qp_type))
}

fn in_rts(qp_type: QpType) -> u32 {
    let connected = CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE;
    match qp_type {
        Ud => CUR_STATE | QKEY,
        Uc | XrcInitiator => connected,
        Rc | XrcTarget => connected | MIN_RNR_TIMER,
        RawPacket | RegUmr => RATE_LIMIT,
        DcInitiator | DcTarget => 0,
    }
}

fn from_sqd_to_rts(qp_type: QpType) -> u32 {
    if qp_type == RawPacket { 0 } else { in_rts(qp_type) }
}

fn in_sqd(qp_type: QpType) -> u32 {
    let connected = AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE;
    match qp_type {
        Ud => PKEY_INDEX | QKEY,
        Uc => connected,
        Rc => {
            connected
                | PORT
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | MIN_RNR_TIMER
        }
        XrcInitiator => connected | PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
        XrcTarget => connected | PORT | TIMEOUT | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
        RawPacket | RegUmr | DcInitiator | DcTarget => 0,
    }
}

fn from_sqe_to_rts(qp_type: QpType) -> u32 {
    match qp_type {
        Ud => CUR_STATE | QKEY,
        Uc => CUR_STATE | ACCESS_FLAGS,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
