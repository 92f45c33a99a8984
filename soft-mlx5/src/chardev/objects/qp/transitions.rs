//! Required and optional attributes of each QP state transition: `ib_modify_qp_is_ok`
//! (core/verbs.c).
#![forbid(unsafe_code)]

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

/// QP types that the transition table distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    XrcInitiator,
    XrcTarget,
    RawPacket,
}

impl Service {
    /// Whether QPs have a peer of their own (`is_qp_type_connected` in core/verbs.c).
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget)
    }
}

use Service::{RawPacket, Rc, Uc, Ud, XrcInitiator, XrcTarget};
use mask::*;

/// Whether `mask` may accompany the change from `current` to `next`.
pub(crate) fn allowed(current: u8, next: u8, service: Service, given: u32) -> bool {
    use state::{RTR, RTS, SQD, SQE};
    if given & CUR_STATE != 0 && !matches!(current, RTR | RTS | SQD | SQE) {
        return false;
    }
    transition(current, next, service).is_some_and(|(required, optional)| {
        given & required == required && given & !(required | optional | STATE) == 0
    })
}

/// Required and optional attributes; `None` if there is no such transition.
fn transition(current: u8, next: u8, service: Service) -> Option<(u32, u32)> {
    use state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
    match (current, next) {
        (RESET..=ERR, RESET) | (INIT..=ERR, ERR) => Some((0, 0)),
        (RESET, INIT) => Some((init(service), 0)),
        (INIT, INIT) => Some((0, if service == RawPacket { 0 } else { init(service) })),
        (INIT, RTR) => Some(to_rtr(service)),
        (RTR, RTS) => Some(to_rts(service)),
        (RTS, RTS) => Some((0, in_rts(service))),
        (RTS, SQD) => Some((0, if service == RawPacket { 0 } else { EN_SQD_ASYNC_NOTIFY })),
        (SQD, RTS) => Some((0, from_sqd_to_rts(service))),
        (SQD, SQD) => Some((0, in_sqd(service))),
        (SQE, RTS) => Some((0, from_sqe_to_rts(service))),
        _ => None,
    }
}

fn init(service: Service) -> u32 {
    match service {
        Ud => PKEY_INDEX | PORT | QKEY,
        RawPacket => PORT,
        Rc | Uc | XrcInitiator | XrcTarget => PKEY_INDEX | PORT | ACCESS_FLAGS,
    }
}

fn to_rtr(service: Service) -> (u32, u32) {
    let path = AV | PATH_MTU | DEST_QPN | RQ_PSN;
    let connected = ALT_PATH | ACCESS_FLAGS | PKEY_INDEX;
    match service {
        Ud => (0, PKEY_INDEX | QKEY),
        Uc | XrcInitiator => (path, connected),
        Rc | XrcTarget => (path | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, connected),
        RawPacket => (0, 0),
    }
}

fn to_rts(service: Service) -> (u32, u32) {
    let required = match service {
        Ud | Uc => SQ_PSN,
        Rc | XrcInitiator => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
        XrcTarget => TIMEOUT | SQ_PSN,
        RawPacket => 0,
    };
    (required, in_rts(service))
}

fn in_rts(service: Service) -> u32 {
    let connected = CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE;
    match service {
        Ud => CUR_STATE | QKEY,
        Uc | XrcInitiator => connected,
        Rc | XrcTarget => connected | MIN_RNR_TIMER,
        RawPacket => RATE_LIMIT,
    }
}

fn from_sqd_to_rts(service: Service) -> u32 {
    if service == RawPacket { 0 } else { in_rts(service) }
}

fn in_sqd(service: Service) -> u32 {
    let connected = AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE;
    match service {
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
        RawPacket => 0,
    }
}

fn from_sqe_to_rts(service: Service) -> u32 {
    match service {
        Ud => CUR_STATE | QKEY,
        Uc => CUR_STATE | ACCESS_FLAGS,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
