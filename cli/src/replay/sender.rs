//! Sends frames unchanged.

use uverbs::cq::Status;
use uverbs::qp::{EthernetOffload, PostError, PostFlags, RunTimeDestination, RunTimeOperation};
use uverbs::qp_type::RawPacket;
use uverbs::{CompletionQueue, Context, PollError, QueuePair, Slab, SlotRequest};

use crate::device::Chosen;
use crate::failure::{Failure, Outcome};
use crate::gone::Lookout;

/// The bytes of the longest frame: the largest MTU of an mlx5 network device, with Ethernet header
/// and tag.
const LONGEST: u32 = 9978 + 18;
/// The bytes of the shortest frame: an Ethernet header.
const SHORTEST: usize = 14;

/// A raw packet queue pair with buffers of its own.
pub(super) struct Sender {
    // Declared first, so that the queue pair is destroyed before its buffers.
    qp: QueuePair<RawPacket>,
    cq: CompletionQueue,
    slab: Slab,
    context: Context,
    outstanding: u32,
    lookout: Lookout,
}

impl Sender {
    pub(super) fn new(chosen: &Chosen, depth: u32) -> Outcome<Self> {
        let context = chosen.context.clone();
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(depth).build()?;
        let builder = pd.create_qp::<RawPacket>(cq.handle(), cq.handle()).port(chosen.port);
        let mut qp = builder.max_send_wr(depth).max_recv_wr(0).build()?;
        qp.activate()?;
        let slab = pd.create_slab(depth, LONGEST)?;
        Ok(Self { qp, cq, slab, context, outstanding: 0, lookout: Lookout::new() })
    }

    /// Whether a frame of this length can be sent.
    pub(super) fn takes(&self, length: usize) -> bool {
        (SHORTEST..=LONGEST as usize).contains(&length)
    }

    /// Sends a frame; waits for space if necessary.
    pub(super) fn send(&mut self, frame: &[u8]) -> Outcome {
        let mut slot = loop {
            match self.slab.take() {
                Some(slot) => break slot,
                None => self.idle()?,
            }
        };
        slot.write(frame)?;
        loop {
            let request = SlotRequest {
                operation: RunTimeOperation::Packet(EthernetOffload::default()),
                destination: RunTimeDestination::Connected,
                flags: PostFlags::SIGNALED,
                slot,
            };
            match self.qp.post_list([request]) {
                Ok(()) => break,
                Err(refused) if refused.reason == PostError::Full => slot = refused.slot,
                Err(refused) => return Err(uverbs::Error::from(refused.reason).into()),
            }
            self.idle()?;
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Polls completions, or lets a software device make progress.
    pub(super) fn idle(&mut self) -> Outcome {
        match self.cq.poll() {
            Ok(done) if done.completion.status() == Status::Success => self.outstanding -= 1,
            Ok(done) => {
                let text = format!("a frame was not sent: {:?}", done.completion.status());
                return Err(Failure::failed(text));
            }
            Err(PollError::Empty) => {
                self.lookout.look(&self.context)?;
                self.context.poll_idle();
            }
            Err(error) => return Err(uverbs::Error::from(error).into()),
        }
        Ok(())
    }

    /// Waits until all frames were sent.
    pub(super) fn finish(&mut self) -> Outcome {
        while self.outstanding > 0 {
            self.idle()?;
        }
        Ok(())
    }
}
