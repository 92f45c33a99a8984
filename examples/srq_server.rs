//! One server, many clients, one shared receive queue: the server posts receives for all clients
//! together, and posts more after each limit event.
//!
//! `cargo run --features soft --example srq_server [DEVICE]`; the default device is `soft`.

use std::error::Error;

use uverbs::events::EventType;
use uverbs::qp::{Inline, PostFlags};
use uverbs::qp_type::Rc;
use uverbs::{
    AccessFlags, Buffer, Context, Endpoint, MemoryRegion, PollError, ProtectionDomain, op, raw,
};

const CLIENTS: u32 = 32;
const REQUESTS: u32 = 50;
const SLOTS: usize = 64;
const BYTES: usize = 64;
/// More receives are posted when fewer than this are left.
const LIMIT: u32 = 16;

struct Server {
    clients: Vec<raw::QueuePair<Rc>>,
    cq: raw::CompletionQueue,
    srq: raw::SharedReceiveQueue,
    // Dropped after the queues, which receive into it.
    requests: MemoryRegion,
    /// Slots that were read and not yet posted again.
    read: Vec<usize>,
    refills: u32,
}

impl Server {
    fn new(pd: &ProtectionDomain) -> Result<Self, Box<dyn Error>> {
        let cq = pd.context().create_raw_cq(256).build()?;
        let srq = pd.create_raw_srq(SLOTS as u32).build()?;
        let requests = pd.register(Buffer::new(SLOTS * BYTES)?, AccessFlags::LOCAL_WRITE)?;
        let read = (0..SLOTS).collect();
        let mut server = Self { clients: Vec::new(), cq, srq, requests, read, refills: 0 };
        server.refill()?;
        Ok(server)
    }

    fn accept(&mut self, client: &Endpoint) -> uverbs::Result<Endpoint> {
        let builder = self.requests.pd().create_raw_qp::<Rc>(self.cq.handle(), self.cq.handle());
        // Completions return the index, which tells the server which client to answer.
        let index = self.clients.len() as u64;
        let builder = builder.shared_receive_queue(self.srq.handle()).user_context(index);
        let mut qp = builder.build()?;
        qp.connect(client)?;
        let endpoint = qp.endpoint();
        self.clients.push(qp);
        Ok(endpoint)
    }

    fn refill(&mut self) -> uverbs::Result<()> {
        let mut batch = self.srq.batch();
        for slot in self.read.drain(..) {
            let sge = self.requests.sge(slot * BYTES, BYTES)?;
            // SAFETY: the region outlives the queue, and a slot is read only between completion and
            // reposting.
            unsafe { batch.build(slot as u64, &[sge])? };
        }
        batch.publish();
        self.srq.arm_limit(LIMIT)
    }

    /// Answers every request that has arrived with twice its number.
    fn serve(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let (client, slot) = match self.cq.poll() {
                Ok(done) if done.is_success() => (done.user_context() as usize, done.wr_id()),
                Ok(done) => return Err(format!("{:?}", done.to_work_completion()).into()),
                Err(PollError::Empty) => break,
                Err(error) => return Err(error.into()),
            };
            let mut number = [0; 4];
            self.requests.view().read(slot as usize * BYTES, &mut number)?;
            self.read.push(slot as usize);
            let answer = (u32::from_le_bytes(number) * 2).to_le_bytes();
            let qp = self.clients.get_mut(client).ok_or("a completion of no client")?;
            // SAFETY: inline data is copied by the post.
            unsafe { qp.post_send(0, op::Send, Inline(&answer), PostFlags::empty())? };
        }
        while let Ok(event) = self.requests.pd().context().try_get_event() {
            if event.kind() == EventType::SRQ_LIMIT_REACHED {
                self.refills += 1;
                self.refill()?;
            }
        }
        Ok(())
    }
}

struct Client {
    qp: raw::QueuePair<Rc>,
    cq: raw::CompletionQueue,
    answer: MemoryRegion,
}

impl Client {
    fn new(context: &Context, server: &mut Server) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_raw_cq(16).build()?;
        let answer = pd.register(Buffer::new(BYTES)?, AccessFlags::LOCAL_WRITE)?;
        let mut qp = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).signal_all().build()?;
        let peer = server.accept(&qp.endpoint())?;
        qp.connect(&peer)?;
        Ok(Self { qp, cq, answer })
    }

    fn ask(&mut self, number: u32) -> uverbs::Result<()> {
        let sge = self.answer.sge(0, BYTES)?;
        // SAFETY: the region outlives the queue pair, and is read only after the completion.
        unsafe { self.qp.post_receive(1, &[sge])? };
        // SAFETY: inline data is copied by the post.
        unsafe {
            self.qp.post_send(0, op::Send, Inline(&number.to_le_bytes()), PostFlags::empty())?
        };
        Ok(())
    }

    /// Waits for the answer and for the completion of the request, while the server works.
    fn answer(&mut self, server: &mut Server) -> Result<u32, Box<dyn Error>> {
        let mut left = 2;
        while left > 0 {
            server.serve()?;
            match self.cq.poll() {
                Ok(done) if done.is_success() => left -= 1,
                Ok(done) => return Err(format!("{:?}", done.to_work_completion()).into()),
                Err(PollError::Empty) => self.cq.context().poll_idle(),
                Err(error) => return Err(error.into()),
            }
        }
        let mut number = [0; 4];
        self.answer.view().read(0, &mut number)?;
        Ok(u32::from_le_bytes(number))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let mut server = Server::new(&context.alloc_pd()?)?;
    let mut clients =
        (0..CLIENTS).map(|_| Client::new(&context, &mut server)).collect::<Result<Vec<_>, _>>()?;
    let mut answered = 0;
    for round in 0..REQUESTS {
        for (index, client) in (0..).zip(&mut clients) {
            client.ask(round * CLIENTS + index)?;
        }
        for (index, client) in (0..).zip(&mut clients) {
            assert_eq!(client.answer(&mut server)?, (round * CLIENTS + index) * 2);
            answered += 1;
        }
    }
    println!("{answered} requests of {CLIENTS} clients answered, {} refills", server.refills);
    Ok(())
}
