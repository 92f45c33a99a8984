//! The required and optional attributes of each change of state.
//!
//! The facts are those of the kernel's table (`qp_state_table` in drivers/infiniband/core/verbs.c),
//! which follows IBTA volume 1, section 11.2.5.2; for dynamic connections those of the driver
//! (`modify_dci_qp_is_ok` and `mlx5_ib_modify_dct` in drivers/infiniband/hw/mlx5/qp.c). The library
//! checks this table before it asks the kernel, so that an error names the attributes that are
//! missing or not allowed. The kernel returns only EINVAL.

use std::fmt;

use super::attributes::QpAttrMask;
use super::{QpType, State};

type Mask = QpAttrMask;

/// The attributes of a change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be given.
    pub required: QpAttrMask,
    /// Attributes that may be given.
    pub optional: QpAttrMask,
}

/// What is wrong with the attributes of a change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransitionError {
    /// No queue pair of this type has this change of state.
    NoSuchTransition {
        /// The state the queue pair is in.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// The change needs other attributes.
    Attributes {
        /// The state the queue pair is in.
        from: State,
        /// The state asked for.
        to: State,
        /// Needed and not given.
        missing: QpAttrMask,
        /// Given and not allowed.
        unexpected: QpAttrMask,
    },
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTransition { from, to } => {
                write!(f, "a queue pair cannot go from {from} to {to}")
            }
            Self::Attributes { from, to, missing, unexpected } => {
                write!(f, "{from} to {to}")?;
                if !missing.is_empty() {
                    write!(f, " needs {missing}")?;
                }
                if !unexpected.is_empty() {
                    let joint = if missing.is_empty() { "" } else { " and" };
                    write!(f, "{joint} does not take {unexpected}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for TransitionError {}

/// The attributes that move a queue pair of type `qp_type` from `from` to `to`; `None` if it has no
/// such change.
pub fn transition(qp_type: QpType, from: State, to: State) -> Option<Transition> {
    let (required, optional) = match (from, to) {
        _ if qp_type == QpType::DcInitiator => initiator(from, to)?,
        _ if qp_type == QpType::DcTarget => target(from, to)?,
        (_, State::Reset | State::Err) if from != State::Reset || to == State::Reset => {
            (Mask::empty(), Mask::empty())
        }
        (State::Reset, State::Init) => (init(qp_type), Mask::empty()),
        (State::Init, State::Init) => (Mask::empty(), init(qp_type)),
        (State::Init, State::Rtr) => init_to_rtr(qp_type),
        (State::Rtr, State::Rts) => rtr_to_rts(qp_type),
        (State::Rts, State::Rts) => (Mask::empty(), in_rts(qp_type)),
        (State::Rts, State::Sqd) => (Mask::empty(), drain(qp_type)),
        (State::Sqd, State::Rts) => (Mask::empty(), in_rts(qp_type) - Mask::RATE_LIMIT),
        (State::Sqd, State::Sqd) => (Mask::empty(), in_sqd(qp_type)),
        (State::Sqe, State::Rts) => (Mask::empty(), sqe_to_rts(qp_type)),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// Checks a set of attributes (without STATE itself) against the table.
///
/// # Errors
/// Attributes that are missing and attributes that are not allowed.
pub fn check(
    qp_type: QpType,
    from: State,
    to: State,
    given: QpAttrMask,
) -> Result<(), TransitionError> {
    let Some(wanted) = transition(qp_type, from, to) else {
        return Err(TransitionError::NoSuchTransition { from, to });
    };
    let missing = wanted.required - given;
    let unexpected = given - wanted.required - wanted.optional - Mask::STATE;
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(TransitionError::Attributes { from, to, missing, unexpected })
}

fn initiator(from: State, to: State) -> Option<(Mask, Mask)> {
    let port = Mask::PKEY_INDEX | Mask::PORT;
    let retries = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
    Some(match (from, to) {
        (_, State::Reset) => (Mask::empty(), Mask::empty()),
        (State::Reset, State::Init) => (port, Mask::empty()),
        (State::Init, State::Init) => (Mask::empty(), port),
        (State::Init, State::Rtr) => (Mask::PATH_MTU, Mask::PKEY_INDEX | Mask::AV),
        (State::Rtr, State::Rts) => (retries | Mask::SQ_PSN, Mask::MIN_RNR_TIMER),
        (State::Rts, State::Rts) => (Mask::empty(), Mask::MIN_RNR_TIMER),
        (from, State::Err) if from != State::Reset => (Mask::empty(), Mask::empty()),
        _ => return None,
    })
}

fn target(from: State, to: State) -> Option<(Mask, Mask)> {
    let required = match (from, to) {
        (State::Reset, State::Init) => Mask::ACCESS_FLAGS | Mask::PKEY_INDEX | Mask::PORT,
        (State::Init, State::Rtr) => Mask::AV | Mask::PATH_MTU | Mask::MIN_RNR_TIMER,
        _ => return None,
    };
    Some((required, Mask::empty()))
}

fn init(qp_type: QpType) -> Mask {
    match qp_type {
        QpType::Ud => Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY,
        QpType::RawPacket => Mask::PORT,
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive => {
            Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS
        }
        QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
    }
}

fn init_to_rtr(qp_type: QpType) -> (Mask, Mask) {
    let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
    let responder = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
    let optional = Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX;
    match qp_type {
        QpType::Rc | QpType::XrcReceive => (path | responder, optional),
        QpType::Uc | QpType::XrcSend => (path, optional),
        QpType::Ud => (Mask::empty(), Mask::PKEY_INDEX | Mask::QKEY),
        QpType::RawPacket | QpType::DcInitiator | QpType::DcTarget => {
            (Mask::empty(), Mask::empty())
        }
    }
}

fn rtr_to_rts(qp_type: QpType) -> (Mask, Mask) {
    let retries = Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
    let required = match qp_type {
        QpType::Rc | QpType::XrcSend => Mask::TIMEOUT | Mask::SQ_PSN | retries,
        QpType::XrcReceive => Mask::TIMEOUT | Mask::SQ_PSN,
        QpType::Uc | QpType::Ud => Mask::SQ_PSN,
        QpType::RawPacket | QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
    };
    (required, in_rts(qp_type))
}

fn in_rts(qp_type: QpType) -> Mask {
    let connected = Mask::CUR_STATE | Mask::ACCESS_FLAGS | Mask::ALT_PATH | Mask::PATH_MIG_STATE;
    match qp_type {
        QpType::Rc | QpType::XrcReceive => connected | Mask::MIN_RNR_TIMER,
        QpType::Uc | QpType::XrcSend => connected,
        QpType::Ud => Mask::CUR_STATE | Mask::QKEY,
        QpType::RawPacket => Mask::RATE_LIMIT,
        QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
    }
}

fn drain(qp_type: QpType) -> Mask {
    match qp_type {
        QpType::RawPacket | QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::XrcReceive => {
            Mask::EN_SQD_ASYNC_NOTIFY
        }
    }
}

fn in_sqd(qp_type: QpType) -> Mask {
    let path =
        Mask::AV | Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX | Mask::PATH_MIG_STATE;
    let requester =
        Mask::PORT | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
    let responder = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
    match qp_type {
        QpType::Rc => path | requester | responder,
        QpType::XrcSend => path | requester,
        QpType::XrcReceive => path | Mask::PORT | Mask::TIMEOUT | responder,
        QpType::Uc => path,
        QpType::Ud => Mask::PKEY_INDEX | Mask::QKEY,
        QpType::RawPacket | QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
    }
}

fn sqe_to_rts(qp_type: QpType) -> Mask {
    match qp_type {
        QpType::Ud => Mask::CUR_STATE | Mask::QKEY,
        QpType::Uc => Mask::CUR_STATE | Mask::ACCESS_FLAGS,
        QpType::Rc | QpType::XrcSend | QpType::XrcReceive | QpType::RawPacket => Mask::empty(),
        QpType::DcInitiator | QpType::DcTarget => Mask::empty(),
    }
}

#[cfg(test)]
mod tests;
