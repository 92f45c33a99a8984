//! Waiting, after a stream is dropped, until the peer's device has all of its data.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::runtime::{self, Handle};
use uverbs::tokio::Alarm;

use super::reactor::Events;
use crate::core::Core;
use crate::readiness::Side;
use crate::shared::Shared;

/// Keeps a dropped stream until the peer's device has all of its data, for at most its linger time.
#[derive(Debug)]
struct Delivery {
    events: Arc<Events>,
    alarm: Alarm,
    shared: Arc<Shared>,
}

/// Waits in a thread for blocking work if the wait is not over, because a runtime that shuts down
/// drops its tasks.
impl Drop for Delivery {
    fn drop(&mut self) {
        wait_in_thread(self.shared.clone());
    }
}

impl Delivery {
    /// Ready when the wait is over, or cannot continue in a task.
    fn poll(&self, task: &mut Context<'_>) -> Poll<()> {
        let delivered = self.events.poll(&self.shared, task, Side::Write, Core::finished);
        let Some(deadline) = self.shared.delivery_deadline() else { return delivered.map(drop) };
        while delivered.is_pending() && Instant::now() < deadline {
            if ready!(self.alarm.poll(deadline, task)).is_err() {
                break;
            }
        }
        Poll::Ready(())
    }
}

/// Waits in a task of this runtime if it is the one that watches the stream's events, else in a
/// thread. Outside a runtime it does nothing: dropping `shared` waits.
pub(super) fn wait(shared: &Arc<Shared>, events: &Arc<Events>, watching: runtime::Id) {
    if !shared.awaits_delivery() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return };
    // Another runtime may have no I/O, without which an alarm panics.
    let alarm = (runtime.id() == watching).then(Alarm::new);
    let (shared, events) = (shared.clone(), events.clone());
    match alarm {
        Some(Ok(alarm)) => {
            let delivery = Delivery { events, alarm, shared };
            drop(runtime.spawn(std::future::poll_fn(move |task| delivery.poll(task))));
        }
        _ => wait_in_thread(shared),
    }
}

/// Waits in a thread of the runtime for blocking work. Outside a runtime it does nothing: dropping
/// `shared` waits.
pub(super) fn wait_in_thread(shared: Arc<Shared>) {
    if !shared.awaits_delivery() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return };
    let spawn = || runtime.spawn_blocking(move || shared.wait_for_delivery());
    // It panics if it cannot create a thread. Then the stream is kept until there is one, or until
    // the runtime is dropped.
    if catch_unwind(AssertUnwindSafe(spawn)).is_err() {
        tracing::warn!("no thread can wait for the delivery of a dropped stream");
    }
}
