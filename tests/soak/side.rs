//! One end of all links: its completion queues, its memory, and the requests that it has posted.

use std::collections::HashMap;

use uverbs::cq::WorkCompletion;
use uverbs::events::EventType;
use uverbs::{ErrorKind, MemoryRegion, PollError, XrcDomain, raw};

use crate::network::End;

/// Bytes of a slot: up to three packets, and a GRH before a datagram.
pub(crate) const SLOT: usize = 10_240;
const SLOTS: usize = 512;
const CQS: usize = 3;
/// Bound on the links that exist at the same time.
pub(crate) const LINKS: usize = 8;
/// Receives in the shared receive queue: far fewer than the smallest completion queue has entries.
pub(crate) const SHARED: u32 = 32;

/// A request that has been posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posted {
    /// The link's serial number; 0 for receives of a shared queue.
    pub(crate) link: u64,
    pub(crate) slot: Option<usize>,
}

pub(crate) struct Side {
    pub(crate) posted: HashMap<u64, Posted>,
    pub(crate) srq: raw::SharedReceiveQueue,
    pub(crate) xrc_srq: raw::SharedReceiveQueue,
    pub(crate) xrcd: XrcDomain,
    pub(crate) cqs: Vec<raw::CompletionQueue>,
    pub(crate) memory: MemoryRegion,
    free: Vec<usize>,
    next: u64,
    pub(crate) end: End,
}

impl Side {
    pub(crate) fn new(end: End) -> Self {
        let setup = &end.setup;
        let cqs: Vec<_> =
            (0..CQS).map(|_| setup.context.create_raw_cq(1000).build().unwrap()).collect();
        let xrcd = setup.context.open_xrcd().unwrap();
        let srq = setup.pd.create_raw_srq(SHARED).build().unwrap();
        let xrc_srq = setup.pd.create_raw_srq(SHARED).xrc(&xrcd, cqs[0].handle()).build().unwrap();
        let memory = setup.region(SLOT * SLOTS);
        // Every page is touched at the beginning, so that resident memory grows only if something
        // leaks.
        memory.view().fill(0, SLOT * SLOTS, 0xff).unwrap();
        // The context caches freed doorbell pages, so after this it allocates no more.
        let register = |_| setup.context.alloc_thread_domain().unwrap();
        drop((0..=LINKS).map(register).collect::<Vec<_>>());
        let free = (0..SLOTS).collect();
        let posted = HashMap::new();
        Self { posted, srq, xrc_srq, xrcd, cqs, memory, free, next: 1, end }
    }

    pub(crate) fn take_slot(&mut self) -> usize {
        self.free.pop().expect("there are more slots than requests")
    }

    pub(crate) fn give_slot(&mut self, slot: Option<usize>) {
        self.free.extend(slot);
    }

    /// Records a request and returns its id, which is never used again.
    pub(crate) fn note(&mut self, link: u64, slot: Option<usize>) -> u64 {
        self.next += 1;
        self.posted.insert(self.next, Posted { link, slot });
        self.next
    }

    /// Removes the record of a request that the queue refused.
    pub(crate) fn forget(&mut self, wr_id: u64) {
        let posted = self.posted.remove(&wr_id).expect("just noted");
        self.give_slot(posted.slot);
    }

    /// Removes the records of a link that was destroyed.
    pub(crate) fn forget_link(&mut self, link: u64) {
        let free = &mut self.free;
        self.posted.retain(|_, posted| {
            if posted.link == link {
                free.extend(posted.slot);
            }
            posted.link != link
        });
    }

    /// Polls all completions. Each must belong to an outstanding request.
    pub(crate) fn poll(&mut self) -> Vec<(WorkCompletion, Posted)> {
        let mut all = Vec::new();
        for cq in &mut self.cqs {
            loop {
                match cq.poll() {
                    Ok(completion) => all.push(completion.to_work_completion()),
                    Err(PollError::Empty) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        all.into_iter().map(|completion| self.retire(completion)).collect()
    }

    fn retire(&mut self, completion: WorkCompletion) -> (WorkCompletion, Posted) {
        let posted = self.posted.remove(&completion.wr_id);
        let posted = posted.unwrap_or_else(|| panic!("repeated or never posted: {completion:?}"));
        (completion, posted)
    }

    /// Keeps the shared receive queues filled.
    pub(crate) fn fill_shared(&mut self) {
        let outstanding = |side: &Self, link| {
            side.posted.values().filter(|posted| posted.link == link).count() as u32
        };
        for (link, count) in [(SRQ, outstanding(self, SRQ)), (XRC_SRQ, outstanding(self, XRC_SRQ))]
        {
            for _ in count..SHARED - 1 {
                let slot = self.take_slot();
                let wr_id = self.note(link, Some(slot));
                let room = [self.memory.sge(slot * SLOT, SLOT).unwrap()];
                let srq = if link == SRQ { &mut self.srq } else { &mut self.xrc_srq };
                // SAFETY: the slot is not touched before the receive completes, and the region
                // outlives the queue.
                unsafe { srq.post(wr_id, &room).unwrap() };
            }
        }
        self.srq.publish();
        self.xrc_srq.publish();
    }

    /// The device's counters and unread events, for the message of a failure.
    pub(crate) fn report(&self) -> String {
        let counters = self.end.soft.inspect(|core| core.counters()).unwrap();
        let event = || self.end.setup.context.try_get_event().ok();
        let events: Vec<_> = std::iter::from_fn(event).map(|event| event.kind()).collect();
        format!("{counters:?}, {:?}, {events:?}", self.end.counters.lock().unwrap())
    }

    /// Checks that no event reports a failure.
    pub(crate) fn check_events(&self) {
        loop {
            match self.end.setup.context.try_get_event() {
                Ok(event) => assert_eq!(event.kind(), EventType::COMM_EST, "{event:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    return;
                }
            }
        }
    }
}

/// Used instead of a link's serial number for receives that all links share.
pub(crate) const SRQ: u64 = 0;
pub(crate) const XRC_SRQ: u64 = u64::MAX;
