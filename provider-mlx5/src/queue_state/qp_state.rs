//! The state of a QP, as the program, a completion or an event last reported it.

use core::ops::RangeInclusive;

use super::QueueState;
use crate::request::PostError;
use crate::sync::Ordering;

/// The state of a QP, numbered as in `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum QpState {
    /// Nothing can be posted.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained or draining: sends can be posted, but are not executed.
    Sqd = 4,
    /// Send queue in error: sends can be posted, and complete with a flush error.
    Sqe = 5,
    /// Error: sends and receives can be posted, and complete with a flush error.
    Err = 6,
}

impl QpState {
    /// All states in numeric order.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// From the verbs encoding; `None` for a number that is not a state.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    pub(super) fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => Self::Reset,
        }
    }
}

impl core::fmt::Display for QpState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

impl QueueState {
    /// The QP's state, as the program or the device last set it.
    #[inline(always)]
    pub fn state(&self) -> QpState {
        QpState::from_u32(self.fixed.state.load(Ordering::Relaxed))
    }

    /// Whether sends may be posted: from RTS on.
    #[inline(always)]
    pub(crate) fn can_send(&self) -> bool {
        self.fixed.state.load(Ordering::Relaxed) >= QpState::Rts as u32
    }

    /// Whether receives may be posted: from INIT on.
    #[inline(always)]
    pub(crate) fn can_receive(&self) -> bool {
        self.fixed.state.load(Ordering::Relaxed) >= QpState::Init as u32
    }

    /// Records a state that the program set, or that a completion or an event reported. Posting
    /// reads the state only when it checks for space. After a change to a state that forbids
    /// posting, the queues' `recheck_state` must be called as well
    /// ([`SendQueue::recheck_state`](crate::send_queue::SendQueue::recheck_state) and its
    /// counterparts).
    pub(crate) fn set_state(&self, state: QpState) {
        self.fixed.state.store(state as u32, Ordering::Relaxed);
    }

    /// Called in a forked child: posting fails from the next check of the state on.
    pub(crate) fn disown(&self) {
        self.fixed.inherited.store(true, Ordering::Relaxed);
        self.set_state(QpState::Reset);
    }

    /// Whether this process is a forked child, and the queue belongs to its parent. Such a child
    /// must not call [`ShownRing::set`](crate::shown_ring::ShownRing::set): if a thread of the
    /// parent was reading the ring at the fork, the call would wait forever. For the same reason
    /// the child does not free the rings' memory.
    pub(crate) fn is_inherited(&self) -> bool {
        self.fixed.inherited.load(Ordering::Relaxed)
    }

    /// The error of a post in this state.
    pub(crate) fn refusal(&self) -> PostError {
        if self.is_inherited() { PostError::ForkedChild } else { PostError::BadState }
    }

    /// Records that the device moved the QP to ERR, unless the QP is in RESET.
    pub(crate) fn device_failed(&self) {
        self.device_moved(QpState::Init..=QpState::Err, QpState::Err);
    }

    /// Makes a failed send move the QP to SQE, in which only the send queue has stopped. The device
    /// does this for all services except the reliable ones. This setting holds until the state is
    /// reused for another QP.
    pub(crate) fn set_sends_fail_alone(&self) {
        self.fixed.failed_send.store(QpState::Sqe as u32, Ordering::Relaxed);
    }

    /// Makes a receive that is too short for its frame fail without moving the queue to ERR. Raw
    /// packet queues behave like this: mlx5e recovers a receive queue only after other errors
    /// (`cqe_syndrome_needs_recover` of mlx5/core/en/health.h, since Linux commit 187a9830c921).
    /// This setting holds until the state is reused for another QP.
    pub(crate) fn set_short_receives_fail_alone(&self) {
        self.fixed.short_receives_fail_alone.store(true, Ordering::Relaxed);
    }

    /// Sets the QP's state after a failed receive.
    pub(crate) fn receive_failed(&self, too_short: bool) {
        if !too_short || !self.fixed.short_receives_fail_alone.load(Ordering::Relaxed) {
            self.device_failed();
        }
    }

    /// Sets the QP's state after a failed send. If failed sends move the QP to SQE, a flushed send
    /// changes nothing: the failed send before it already did, and the program may have returned
    /// the QP to RTS since.
    pub(crate) fn send_failed(&self, flushed: bool) {
        if self.fixed.failed_send.load(Ordering::Relaxed) == QpState::Err as u32 {
            self.device_failed();
        } else if !flushed {
            self.device_moved(QpState::Rts..=QpState::Sqe, QpState::Sqe);
        }
    }

    /// Records a state change that the device made by itself, if the QP is in one of the states
    /// `from`.
    fn device_moved(&self, from: RangeInclusive<QpState>, to: QpState) {
        let state = &self.fixed.state;
        let current = state.load(Ordering::Relaxed);
        if from.contains(&QpState::from_u32(current)) {
            // If the exchange fails, the program has changed the state since, and its change is
            // newer.
            let _ =
                state.compare_exchange(current, to as u32, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
