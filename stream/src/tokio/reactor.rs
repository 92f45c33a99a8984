//! How the two directions of a stream wait in tasks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use tokio::task::coop::poll_proceed;
use uverbs::tokio::AsyncFile;

use crate::core::{Attempt, Core};
use crate::readiness::Side;
use crate::shared::Shared;

/// A stream whose events tokio watches.
#[derive(Debug)]
pub(super) struct Reactor {
    /// The stream's epoll file, by a descriptor of its own.
    events: AsyncFile,
    wakers: Arc<Wakers>,
    pub(super) shared: Arc<Shared>,
}

/// The tasks that wait, one of each direction. The file wakes both: one event may be good for
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
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        for place in &self.0 {
            let waker = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Reactor {
    pub(super) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let file = shared.readiness()?.try_clone_to_owned()?;
        let events = AsyncFile::new(file)?;
        Ok(Self { events, wakers: Arc::default(), shared })
    }

    /// Tries; if it has to wait, the task is woken when another try may succeed. A task whose
    /// tries always succeed leaves the others their turn, as with all of tokio's I/O.
    pub(super) fn poll<T>(
        &self,
        task: &mut Context<'_>,
        side: Side,
        attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        let turn = ready!(poll_proceed(task));
        let result = ready!(self.poll_in_turn(task, side, attempt));
        turn.made_progress();
        Poll::Ready(result)
    }

    /// An event is asked for before the last try, so that what arrives after it wakes the task.
    /// Readiness is forgotten only after a try that came later than it and found nothing. What
    /// arrived since then makes the file ready anew.
    fn poll_in_turn<T>(
        &self,
        task: &mut Context<'_>,
        side: Side,
        mut attempt: impl FnMut(&mut Core) -> Attempt<T>,
    ) -> Poll<io::Result<T>> {
        if let Some(result) = self.shared.try_once(side, &mut attempt).transpose() {
            return Poll::Ready(result);
        }
        self.wakers.set(side, task.waker());
        let both = Waker::from(self.wakers.clone());
        let mut both = Context::from_waker(&both);
        let mut ready = self.events.poll_readable(&mut both);
        loop {
            if let Some(result) = self.shared.look_once(side, &mut attempt).transpose() {
                return Poll::Ready(result);
            }
            match ready {
                Poll::Ready(found) => found?.clear(),
                Poll::Pending => return Poll::Pending,
            }
            ready = self.events.poll_readable(&mut both);
            if ready.is_pending() {
                return Poll::Pending;
            }
        }
    }
}
