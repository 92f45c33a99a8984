//! An RC connection: one SEND per message, each with its own doorbell.

use uverbs::cq::{CompletionOpcode, Status};
use uverbs::qp::{AckTimeout, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{
    AccessFlags, Buffer, CompletionChannel, Context, Endpoint, MemoryRegion, PollError, op, raw,
};

use crate::link::{Case, Link, Wait};

/// Sends that the queue holds.
const SENDS: u32 = 512;
/// Every so many messages one is signaled.
const SIGNAL_EVERY: u32 = 16;
/// Messages after which the receiver grants the sender as many more, in a message without data. So
/// the sender never sends more messages than the receiver has posted receives. TCP does the same
/// with its window.
const GRANT: u32 = 128;
/// Receives posted: for two grants of messages, and for the grants of the other side.
const RECEIVES: u32 = 2 * GRANT + 8;

pub(crate) struct Rdma {
    // The first field, so it is destroyed first. After that the device does not access the memory.
    qp: raw::QueuePair<Rc>,
    cq: raw::CompletionQueue,
    channel: Option<CompletionChannel>,
    memory: MemoryRegion,
    size: usize,
    /// Messages for which the other side has posted receives.
    granted: u32,
    /// Messages taken since the last grant.
    taken: u32,
    /// Sends in the queue, and sends after the last signaled one.
    queued: u32,
    unsignaled: u32,
    arrived: u64,
}

impl Rdma {
    pub(crate) fn new(context: &Context, case: Case) -> uverbs::Result<Self> {
        let pd = context.alloc_pd()?;
        // One message to send, and space for one that arrives, whose bytes are not read.
        let memory =
            pd.register(Buffer::new(2 * case.size).expect("memory"), AccessFlags::LOCAL_WRITE)?;
        let channel = match case.wait {
            Wait::Poll => None,
            Wait::Sleep => Some(context.create_completion_channel()?),
        };
        let cq = context.create_raw_cq(SENDS + RECEIVES);
        let cq = match &channel {
            Some(channel) => cq.channel(channel).build()?,
            None => cq.build()?,
        };
        let qp = pd
            .create_raw_qp::<Rc>(cq.handle(), cq.handle())
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES)
            // Seven retries of 1 s: the partner may have to wait for a processor.
            .path(|path| path.timeout = AckTimeout::from_code(18))
            .build()?;
        let (granted, taken, queued, unsignaled, arrived) = (2 * GRANT, 0, 0, 0, 0);
        let size = case.size;
        Ok(Self { qp, cq, channel, memory, size, granted, taken, queued, unsignaled, arrived })
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    pub(crate) fn connect(&mut self, peer: &Endpoint) -> uverbs::Result<()> {
        (0..RECEIVES).for_each(|_| self.post_receive());
        self.qp.connect(peer)
    }

    fn post_receive(&mut self) {
        let buffer = self.memory.sge(self.size, self.size).expect("inside");
        // SAFETY: the region outlives the queue pair and no other code accesses it.
        unsafe { self.qp.post_receive(0, &[buffer]) }.expect("space for a receive");
    }

    fn post(&mut self, length: usize) {
        while self.queued == SENDS {
            self.wait();
        }
        self.queued += 1;
        self.unsignaled += 1;
        let asks = self.unsignaled == SIGNAL_EVERY;
        let flags = if asks { PostFlags::SIGNALED } else { PostFlags::empty() };
        self.unsignaled %= SIGNAL_EVERY;
        let message = self.memory.sge(0, length).expect("inside");
        // SAFETY: as for receives.
        unsafe { self.qp.post_send(0, op::Send, message, flags) }.expect("space for a send");
    }

    /// Handles one completion; `false` if there is none.
    fn take(&mut self) -> bool {
        let (opcode, length) = match self.cq.poll() {
            Ok(completion) => {
                assert_eq!(
                    completion.status(),
                    Status::Success,
                    "{:?}",
                    completion.to_work_completion()
                );
                (completion.opcode(), completion.byte_len())
            }
            Err(PollError::Empty) => return false,
            Err(error) => panic!("{error}"),
        };
        if opcode != CompletionOpcode::Recv {
            self.queued -= SIGNAL_EVERY;
            return true;
        }
        self.post_receive();
        if length == 0 {
            self.granted += GRANT;
        } else {
            self.arrived += 1;
            self.taken += 1;
        }
        true
    }

    fn grant(&mut self) {
        if self.taken >= GRANT {
            self.taken -= GRANT;
            self.post(0);
        }
    }

    fn wait(&mut self) {
        if self.take() {
            return;
        }
        let Some(channel) = &self.channel else { return self.cq.context().poll_idle() };
        self.cq.arm();
        let channel = channel.clone();
        if !self.take() {
            channel.get_event().expect("an event").acknowledge();
        }
    }
}

impl Link for Rdma {
    fn send(&mut self) {
        while self.granted == 0 {
            self.wait();
        }
        self.granted -= 1;
        self.post(self.size);
    }

    fn receive(&mut self, count: u64) {
        while self.arrived < count {
            self.wait();
            self.grant();
        }
        self.arrived -= count;
    }
}
