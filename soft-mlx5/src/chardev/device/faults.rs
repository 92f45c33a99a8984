//! Injected failures of ioctls and mmaps.
#![forbid(unsafe_code)]

use std::sync::Mutex;

use crate::locking::lock;
use nix::errno::Errno;
use uverbs_uapi::objects::{MethodId, ObjectId};
use uverbs_uapi::write::WriteCmd;

/// When a [`Fault`] makes a call fail. Counts start at 0 when the fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the n-th ioctl of any kind has done anything.
    Call(u64),
    /// Before the n-th call of one method has done anything. [`uverbs_uapi::objects`], which
    /// programs see as `uverbs::soft::objects`, has the ids: `cq::OBJECT` and
    /// `cq::destroy::METHOD`, for example. Write commands are all one method of the device object.
    Method(ObjectId, MethodId, u64),
    /// Before the n-th write command of one kind has done anything. Linux and the crate `uverbs`
    /// create, modify and query most objects by write commands (`WriteCmd::EX_CREATE_CQ`), and
    /// destroy them by methods. Write commands of the same verb have different numbers: with and
    /// without `EX_`.
    Command(WriteCmd, u64),
    /// At the end of the n-th ioctl that would have succeeded, as when the answer cannot be copied
    /// out. Objects that it created are destroyed, but its other changes remain.
    Completed(u64),
    /// Before the n-th mmap.
    Mapping(u64),
}

/// An ioctl or mmap that fails, as a kernel fails one that is interrupted (EINTR) or that runs out
/// of memory (ENOMEM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it takes effect.
    pub moment: Moment,
    /// The errno that the call fails with.
    pub errno: Errno,
}

/// The faults of a device that have not taken effect yet.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    pending: Vec<Fault>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.lock().pending.push(fault);
    }

    /// How many ioctls the device has seen.
    pub(crate) fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Removes the faults that have not taken effect, and returns their number.
    pub(crate) fn clear(&self) -> usize {
        std::mem::take(&mut self.lock().pending).len()
    }

    /// Counts a call, and fails it if a fault is due.
    pub(crate) fn count_call(&self, object: ObjectId, method: MethodId) -> Result<(), Errno> {
        let mut state = self.lock();
        state.calls += 1;
        state.count(|moment| match moment {
            Moment::Call(left) => Some(left),
            Moment::Method(of, which, left) if (*of, *which) == (object, method) => Some(left),
            _ => None,
        })
    }

    /// Counts a write command, and fails it if a fault is due.
    pub(crate) fn count_command(&self, command: WriteCmd) -> Result<(), Errno> {
        self.lock().count(|moment| match moment {
            Moment::Command(which, left) if *which == command => Some(left),
            _ => None,
        })
    }

    /// Counts a call that has succeeded, and fails it if a fault is due.
    pub(crate) fn count_completed(&self) -> Result<(), Errno> {
        self.lock().count(|moment| match moment {
            Moment::Completed(left) => Some(left),
            _ => None,
        })
    }

    /// Counts an mmap, and fails it if a fault is due.
    pub(crate) fn count_mapping(&self) -> Result<(), Errno> {
        self.lock().count(|moment| match moment {
            Moment::Mapping(left) => Some(left),
            _ => None,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Counts down the faults for which `of` returns a counter. The first one that is due takes
    /// effect and is removed.
    fn count(&mut self, mut of: impl FnMut(&mut Moment) -> Option<&mut u64>) -> Result<(), Errno> {
        let mut due = None;
        self.pending.retain_mut(|fault| {
            let Some(left) = of(&mut fault.moment) else { return true };
            if *left == 0 && due.is_none() {
                due = Some(fault.errno);
                return false;
            }
            *left = left.saturating_sub(1);
            true
        });
        due.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
