//! How the two directions of a stream wait in tasks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Context, Poll, Wake, Waker};

use tokio::runtime::{self, Handle};
use tokio::task::coop::poll_proceed;
use uverbs::tokio::{AsyncFile, Readable};

use super::delivery;
use crate::core::{Attempt, Core};
use crate::readiness::Side;
use crate::shared::Shared;

/// A stream whose events tokio watches.
#[derive(Debug)]
pub(super) struct Reactor {
    events: Arc<Events>,
    /// The runtime that watches the events.
    runtime: runtime::Id,
    pub(super) shared: Arc<Shared>,
}

/// The files of a stream's events, and the tasks that wait for them.
#[derive(Debug)]
pub(super) struct Events {
    /// Duplicates of the files in [`Shared::files`].
    files: [AsyncFile; 2],
    wakers: Arc<Wakers>,
}

/// The waiting tasks, one for each direction. Each file wakes both, because an event may concern
/// either.
#[derive(Debug, Default)]
struct Wakers([Mutex<Option<Waker>>; 2]);

impl Wakers {
    fn set(&self, side: Side, waker: &Waker) {
        let mut place = self.0[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            Some(old) => old.clone_from(waker),
            None => *place = Some(waker.clone()),
        }
    }

    fn wake_one(&self, side: Side) {
        let mut place = self.0[side as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let waker = place.take();
        drop(place);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_one(Side::Read);
        self.wake_one(Side::Write);
    }
}

/// Waits for delivery in a separate task: otherwise a peer that does not answer would stop all
/// tasks of this thread for the stream's linger time.
impl Drop for Reactor {
    fn drop(&mut self) {
        delivery::wait(&self.shared, &self.events, self.runtime);
    }
}

impl Reactor {
    pub(super) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let (events, runtime) = (Arc::new(Events::new(&shared)?), Handle::current().id());
        Ok(Self { events, runtime, shared })
    }

    /// See [`Events::poll`].
    pub(super) fn poll<T>(
        &self,
        task: &mut Context<'_>,
        side: Side,
        attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        self.events.poll(&self.shared, task, side, attempt)
    }
}

impl Events {
    fn new(shared: &Shared) -> io::Result<Self> {
        let [completions, manager] = shared.files().map(|file| file.try_clone_to_owned());
        let files = [AsyncFile::new(completions?)?, AsyncFile::new(manager?)?];
        Ok(Self { files, wakers: Arc::default() })
    }

    /// Tries, and if it has to wait, wakes the task when another try may succeed. It uses tokio's
    /// cooperative budget, so a task whose tries always succeed lets others run.
    pub(super) fn poll<T>(
        &self,
        shared: &Shared,
        task: &mut Context<'_>,
        side: Side,
        attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        let turn = task::ready!(poll_proceed(task));
        let result = task::ready!(self.poll_in_turn(shared, task, side, attempt));
        turn.made_progress();
        Poll::Ready(result)
    }

    /// Arms the completion queue before the last try, so that a completion after that wakes the
    /// task. Clears the readiness of a file only after a later try has found nothing; events since
    /// then make the file ready again.
    fn poll_in_turn<T>(
        &self,
        shared: &Shared,
        task: &mut Context<'_>,
        side: Side,
        mut attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        if let Some(result) = shared.try_once(side, &mut attempt).transpose() {
            return Poll::Ready(result);
        }
        self.wakers.set(side, task.waker());
        let both = Waker::from(self.wakers.clone());
        let mut both = Context::from_waker(&both);
        let mut ready = self.ready(&mut both)?;
        loop {
            if let Some(result) = self.look(shared, side, &ready, &mut attempt).transpose() {
                return Poll::Ready(result);
            }
            if ready.iter().all(Option::is_none) {
                return Poll::Pending;
            }
            ready.into_iter().flatten().for_each(Readable::clear);
            ready = self.ready(&mut both)?;
            if ready.iter().all(Option::is_none) {
                return Poll::Pending;
            }
        }
    }

    /// The files that may be readable.
    fn ready(&self, both: &mut Context<'_>) -> io::Result<[Option<Readable<'_>>; 2]> {
        let [completions, manager] = &self.files;
        Ok([ready(completions, both)?, ready(manager, both)?])
    }

    /// Takes the events of ready files, and tries. Such an event may also concern the other side,
    /// whose task may have begun to wait only after the event had woken all tasks, so this wakes
    /// it.
    fn look<T>(
        &self,
        shared: &Shared,
        side: Side,
        ready: &[Option<Readable<'_>>; 2],
        attempt: &mut impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Attempt<T> {
        let readable = [0, 1].map(|file| ready[file].is_some());
        let (taken, result) = shared.look_at(side, readable, attempt);
        if taken {
            self.wakers.wake_one(side.other());
        }
        result
    }
}

fn ready<'a>(file: &'a AsyncFile, both: &mut Context<'_>) -> io::Result<Option<Readable<'a>>> {
    match file.poll_readable(both) {
        Poll::Ready(ready) => Ok(Some(ready?)),
        Poll::Pending => Ok(None),
    }
}
