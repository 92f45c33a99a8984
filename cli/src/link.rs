//! A reliable connection to the peer: one RC queue pair, its completion queue, and its registered
//! memory.
//!
//! Work requests name ranges of that memory by offset, so the device cannot reach memory outside
//! of it.
#![allow(unsafe_code)]

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use uverbs::cm::QpOptions;
use uverbs::qp::{AckTimeout, AtomicResult, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{
    AccessFlags, Buffer, CompletionChannel, DeviceKind, Endpoint, ErrorKind, MemoryRegion,
    MemoryView, PollError, Remote, raw,
};
use uverbs_mlx5::completion_queue::WorkCompletion;
use uverbs_mlx5::request::Sge;
use uverbs_mlx5::send_queue::{Carries, RunTimeDestination, RunTimeOperation, SendRequest, Takes};
use uverbs_mlx5_inspect::{Cqe, CqeBody, ErrorText, parse_hex};

use crate::by_address::{self, Connected, Offer};
use crate::device::Chosen;
use crate::failure::{Context, Failure, Outcome};
use crate::gone::{Lookout, require_device};
use crate::output::hexadecimal;
use crate::rendezvous::Rendezvous;

/// The longest wait for a completion while the peer is still connected.
const SILENCE: Duration = Duration::from_secs(60);

/// The sizes of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Bytes of registered memory.
    pub(crate) bytes: usize,
    /// Most outstanding sends.
    pub(crate) sends: u32,
    /// Most outstanding receives.
    pub(crate) receives: u32,
    /// Sleep until completion events instead of polling.
    pub(crate) sleeps: bool,
    /// Bytes of inline data per send.
    pub(crate) inline_bytes: u32,
}

/// The peer's access rights to the memory.
const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Default limit of inline data, which the library grants without a request for more.
pub(crate) const USUAL_INLINE: u32 = 60;

#[derive(Debug)]
pub(crate) struct Link {
    // Declared first, so destroyed first: after that the device no longer accesses the memory.
    qp: raw::QueuePair<Rc>,
    cq: raw::CompletionQueue,
    channel: Option<CompletionChannel>,
    memory: MemoryRegion,
    /// With `--cm`: the listener until the peer connects, then the connection.
    offer: Option<Offer>,
    connected: Option<Connected>,
    lookout: Lookout,
    /// When the timeout for the peer started, because nothing had arrived since the last
    /// completion.
    idle_since: Option<Instant>,
    silence: Duration,
    /// A copy of the data of inline requests, because the peer may write to the registered memory
    /// at any time.
    carried: Vec<u8>,
}

/// A range of the link's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalRange {
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Link {
    /// Creates a queue pair, which is not connected yet; receives may be posted.
    pub(crate) fn new(chosen: &Chosen, shape: Shape) -> Outcome<Self> {
        let context = &chosen.context;
        let access = ACCESS;
        let buffer =
            Buffer::new(shape.bytes).context(|| format!("no {} bytes of memory", shape.bytes))?;
        let pd = context.alloc_pd()?;
        let memory = pd.register(buffer, access)?;
        let channel = shape.sleeps.then(|| context.create_completion_channel()).transpose()?;
        let mut cq = context.create_raw_cq(shape.sends + shape.receives);
        if let Some(channel) = &channel {
            cq = cq.channel(channel);
        }
        let cq = cq.build()?;
        let offer =
            chosen.by_address.then(|| Offer::new(context, &chosen.gid.entry)).transpose()?;
        let qp = pd
            .create_raw_qp::<Rc>(cq.handle(), cq.handle())
            .max_send_wr(shape.sends)
            .max_recv_wr(shape.receives)
            .max_inline_data(shape.inline_bytes)
            .port(chosen.port)
            .gid_index(chosen.gid.entry.index)
            .access(access)
            .path(|path| path.timeout = ack_timeout(context.kind()))
            .build()?;
        Ok(Self {
            qp,
            cq,
            channel,
            memory,
            offer,
            connected: None,
            lookout: Lookout::new(),
            idle_since: None,
            silence: SILENCE,
            carried: Vec::new(),
        })
    }

    /// The endpoint with which the peer connects.
    pub(crate) fn own_endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    /// Connects to a peer.
    pub(crate) fn connect_to(&mut self, peer: &Endpoint) -> Outcome {
        Ok(self.qp.connect(peer)?)
    }

    /// The data with which the peer connects: an endpoint in hexadecimal, or with `--cm` an
    /// address.
    pub(crate) fn endpoint(&self) -> Outcome<String> {
        match &self.offer {
            Some(offer) => offer.text(),
            None => Ok(hexadecimal(&self.qp.endpoint().to_bytes())),
        }
    }

    /// Waits for a peer that was offered an address.
    pub(crate) fn accept(&mut self, peer: &mut Rendezvous) -> Outcome {
        if let Some(offer) = self.offer.take() {
            let options = qp_options(&self.qp);
            self.connected = Some(offer.accept(&mut self.qp, options, peer)?);
        }
        Ok(())
    }

    /// Connects to the peer's [`Link::endpoint`], unless the link was connected by address.
    pub(crate) fn connect(&mut self, endpoint: &str, peer: &mut Rendezvous) -> Outcome {
        if self.connected.is_some() {
            return Ok(());
        }
        if let Some(offered) = by_address::offered(endpoint) {
            let options = qp_options(&self.qp);
            self.connected = Some(by_address::connect(offered?, &mut self.qp, options, peer)?);
            return Ok(());
        }
        let bytes = parse_hex(endpoint).and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| Failure::failed("the peer's endpoint is garbled"))?;
        Ok(self.qp.connect(&Endpoint::from_bytes(&bytes)?)?)
    }

    /// The registered memory.
    pub(crate) fn memory(&self) -> MemoryView<'_> {
        self.memory.view()
    }

    /// Address and key of the first byte of the memory, for the peer.
    pub(crate) fn remote(&self) -> Outcome<Remote> {
        Ok(self.memory.remote(0)?)
    }

    /// Posts one request and rings the doorbell.
    pub(crate) fn post<O>(&mut self, operation: O, range: LocalRange, flags: PostFlags) -> Outcome
    where
        Rc: Carries<O>,
        O: Takes<Sge>,
    {
        let sge = self.memory.sge(range.offset, range.length)?;
        // SAFETY: the region has checked that it contains the range; it outlives the queue pair
        // (order of declaration), and this process accesses its bytes only atomically.
        let posted = unsafe { self.qp.post_send(0, operation, sge, flags) };
        posted.context(|| "cannot post".into())
    }

    /// Posts the same request `count` times with one doorbell; the last one is signaled. `inline`
    /// requests contain a copy of the range.
    pub(crate) fn post_many(
        &mut self,
        operation: RunTimeOperation<'_>,
        range: LocalRange,
        inline: bool,
        count: u32,
    ) -> Outcome {
        let mut data = [self.memory.sge(range.offset, range.length)?];
        if inline {
            self.carried.resize(range.length, 0);
            self.memory.view().read(range.offset, &mut self.carried)?;
            data =
                [Sge::new(self.carried.as_ptr().expose_provenance() as u64, data[0].length(), 0)];
        }
        let mut batch = self.qp.batch().context(|| "cannot post".into())?;
        for left in (0..count).rev() {
            let flags = if left == 0 { PostFlags::SIGNALED } else { PostFlags::empty() };
            let destination = RunTimeDestination::Connected;
            let request =
                SendRequest { wr_id: 0, operation, destination, flags, inline, data: &data };
            // SAFETY: as for `post`. Inline data is copied now, from bytes that are borrowed until
            // the end of the function.
            unsafe { batch.build_request(&request) }.context(|| "cannot post".into())?;
        }
        batch.publish();
        Ok(())
    }

    /// Bytes of inline data that a request may carry.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.qp.capacities().max_inline_data as usize
    }

    /// Posts an atomic operation whose result goes to the eight bytes at `offset`.
    pub(crate) fn post_atomic<O>(&mut self, operation: O, offset: usize) -> Outcome
    where
        Rc: Carries<O>,
        O: Takes<AtomicResult>,
    {
        let sge = self.memory.sge(offset, 8)?;
        let result = AtomicResult { address: sge.address(), lkey: sge.lkey() };
        // SAFETY: as for `post`.
        let posted = unsafe { self.qp.post_send(0, operation, result, PostFlags::SIGNALED) };
        posted.context(|| "cannot post".into())
    }

    /// Posts a receive into a range of the memory, or for a message of zero bytes.
    pub(crate) fn receive(&mut self, range: Option<LocalRange>) -> Outcome {
        let sge = range.map(|range| self.memory.sge(range.offset, range.length)).transpose()?;
        // SAFETY: as for `post`.
        let posted = unsafe { self.qp.post_receive(0, sge.as_slice()) };
        posted.context(|| "cannot post a receive".into())
    }

    /// The next completion, if there is one. A failed request fails the link.
    pub(crate) fn try_next(&mut self) -> Outcome<Option<WorkCompletion>> {
        match self.cq.poll() {
            Ok(completion) if completion.is_success() => {
                self.lookout.reset();
                self.idle_since = None;
                Ok(Some(completion.to_work_completion()))
            }
            Ok(completion) => Err(in_words(&completion.to_bytes())),
            Err(PollError::Empty) => Ok(None),
            Err(error) => Err(Failure::failed(error.to_string())),
        }
    }

    /// Waits until the byte at `offset` is `value`: the last byte of an RDMA WRITE, which generates
    /// no completion here. Calls `completed` for completions of this end's requests meanwhile.
    pub(crate) fn next_write(
        &mut self,
        peer: &mut Rendezvous,
        offset: usize,
        value: u8,
        mut completed: impl FnMut(&WorkCompletion),
    ) -> Outcome {
        let mut last = [0];
        loop {
            self.memory().read(offset, &mut last)?;
            if last[0] == value {
                // Later reads return data at least as new as the byte.
                fence(Ordering::Acquire);
                self.made_progress();
                return Ok(());
            }
            match self.try_next()? {
                Some(completion) => completed(&completion),
                None => self.pause(peer)?,
            }
        }
    }

    /// Restarts the timeout, because the peer has sent something.
    pub(crate) fn made_progress(&mut self) {
        self.lookout.reset();
        self.idle_since = None;
    }

    /// How long the peer may still be silent. Fails if it was silent for too long.
    fn time_left(&mut self) -> Outcome<Duration> {
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        match self.silence.checked_sub(idle) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(Failure::failed(format!(
                "the peer has fallen silent: nothing has arrived for {} s",
                self.silence.as_secs()
            ))),
        }
    }

    /// Waits for the next completion. Fails if the peer disappears or is silent for too long.
    pub(crate) fn next(&mut self, peer: &mut Rendezvous) -> Outcome<WorkCompletion> {
        loop {
            if let Some(completion) = self.try_next()? {
                return Ok(completion);
            }
            if self.channel.is_none() {
                self.pause(peer)?;
                continue;
            }
            // A completion between the last poll and arming raises no event.
            self.cq.arm();
            if let Some(completion) = self.try_next()? {
                return Ok(completion);
            }
            self.sleep(peer)?;
        }
    }

    /// Waits for the next receive, ignoring completions of sends before it.
    pub(crate) fn next_receive(&mut self, peer: &mut Rendezvous) -> Outcome<WorkCompletion> {
        loop {
            let completion = self.next(peer)?;
            if !completion.is_send() {
                return Ok(completion);
            }
        }
    }

    /// To be called after an empty poll: lets a software device make progress, and sometimes checks
    /// the device and the peer.
    pub(crate) fn pause(&mut self, peer: &mut Rendezvous) -> Outcome {
        if self.lookout.look(self.cq.context())? {
            peer.watch()?;
            self.time_left()?;
        }
        self.poll_idle();
        Ok(())
    }

    /// As [`Link::pause`], without checking the peer.
    pub(crate) fn pause_alone(&mut self) -> Outcome {
        self.lookout.look(self.cq.context())?;
        self.poll_idle();
        Ok(())
    }

    pub(crate) fn has_device(&self) -> bool {
        require_device(self.cq.context()).is_ok()
    }

    /// Between two empty polls: see `Context::poll_idle`.
    pub(crate) fn poll_idle(&self) {
        self.cq.context().poll_idle();
    }

    /// Waits for a completion event, a message from the peer, or the timeout.
    fn sleep(&mut self, peer: &mut Rendezvous) -> Outcome {
        let left = self.time_left()?;
        let Some(channel) = &self.channel else { return Ok(()) };
        match channel.wait_event(peer.fd_to_watch().as_slice(), Some(left)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        match channel.try_get_event() {
            Ok(event) => event.acknowledge(),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        peer.watch()
    }
}

/// A longer timeout for software devices, which share the processors with other threads: on a
/// machine with two processors and thirty runnable threads, an acknowledgement took longer than the
/// default timeout with all its retries. Code 16 is 0.27 s, and eight times that with the retries.
fn ack_timeout(kind: DeviceKind) -> AckTimeout {
    match kind {
        DeviceKind::Software => AckTimeout::from_code(16),
        DeviceKind::Kernel => AckTimeout::DEFAULT,
    }
}

/// The same attributes when the connection manager connects.
fn qp_options(qp: &raw::QueuePair<Rc>) -> QpOptions {
    let timeout = Some(ack_timeout(qp.context().kind()));
    QpOptions { access: ACCESS, timeout, ..QpOptions::default() }
}

/// Describes an error completion: what failed, and what that means.
fn in_words(cqe: &[u8; 64]) -> Failure {
    let text = match Cqe::decode(cqe) {
        Ok(Cqe { body: CqeBody::Error(error), .. }) => {
            let text = ErrorText::of(&error);
            format!("{} {}", text.what, text.meaning)
        }
        _ => "a work request failed".to_owned(),
    };
    Failure::failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::DeviceChoice;

    #[test]
    fn a_peer_that_stays_silent_ends_the_wait() {
        let choice = DeviceChoice { device: Some("soft".into()), gid_index: None, address: None };
        let chosen = crate::device::choose(&choice).expect("a device");
        for sleeps in [false, true] {
            let shape = Shape { bytes: 64, sends: 1, receives: 1, sleeps, inline_bytes: 0 };
            let mut link = Link::new(&chosen, shape).expect("a link");
            link.silence = Duration::from_millis(30);
            let (mut near, _far) = Rendezvous::pair();
            let failure = link.next(&mut near).expect_err("silent");
            assert!(failure.to_string().contains("fallen silent"), "{failure}");
        }
    }

    #[test]
    fn garbled_endpoints_are_refused() {
        let choice = DeviceChoice { device: Some("soft".into()), gid_index: None, address: None };
        let chosen = crate::device::choose(&choice).expect("a device");
        let shape = Shape { bytes: 64, sends: 1, receives: 1, sleeps: false, inline_bytes: 0 };
        let mut link = Link::new(&chosen, shape).expect("a link");
        let (mut near, _far) = Rendezvous::pair();
        for text in ["", &"ü".repeat(48), &"zz".repeat(48), &"7f".repeat(47)] {
            let failure = link.connect(text, &mut near).expect_err(text);
            assert!(failure.to_string().contains("garbled"), "{failure}");
        }
    }
}
