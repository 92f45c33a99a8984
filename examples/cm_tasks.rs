//! An echo server with tokio: one listener, one completion queue and one shared receive queue for
//! all clients. No thread polls; tasks sleep until a connection or a completion arrives.
//!
//! `cargo run --features soft,tokio --example cm_tasks [DEVICE]`; the default device is `soft`.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use uverbs::cm::{Connection, Connector, Listener};
use uverbs::cq::{CompletionOpcode, Status, WorkCompletion};
use uverbs::layer::Safe;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::tokio::{AsyncCompletionQueue, AsyncListener, connect_with};
use uverbs::{Context, ProtectionDomain, SharedReceiveQueue, Slot, op};

const CLIENTS: u32 = 8;
const MESSAGES: u32 = 50;
const BYTES: u32 = 64;
/// The number of slots of the shared receive queue.
const SLOTS: u32 = 64;
/// The most messages that are kept for connections that are not accepted yet.
const EARLY: usize = SLOTS as usize / 2;

/// An error that a task can return.
type Failure = Box<dyn Error + Send + Sync>;

struct Server {
    listener: AsyncListener<Safe, ()>,
    /// Connections by queue pair number.
    connections: HashMap<u32, Connection<Safe, ()>>,
    /// Messages that arrived before the listener returned their connections: a peer may send as
    /// soon as it is connected. The listener may also give up on the peer, so the oldest message is
    /// dropped if there are many.
    early: VecDeque<(u32, Slot)>,
    cq: AsyncCompletionQueue,
    srq: SharedReceiveQueue,
    echoed: u32,
}

impl Server {
    fn new(context: &Context, address: SocketAddr) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * SLOTS).build_async()?;
        let mut srq = pd.create_srq(SLOTS).build()?;
        let slab = pd.create_slab(SLOTS, BYTES)?;
        while let Some(slot) = slab.take() {
            srq.post(slot)?;
        }
        let (completions, receives) = (cq.handle().clone(), srq.handle().clone());
        let builder = Listener::builder().context(context);
        let listener = builder.bind_with(address, move |_request| {
            let qp = pd.create_qp::<Rc>(&completions, &completions).max_send_wr(SLOTS);
            Ok((qp.shared_receive_queue(&receives).build()?, ()))
        })?;
        let listener = AsyncListener::new(listener)?;
        let (connections, early) = Default::default();
        Ok(Self { listener, connections, early, cq, srq, echoed: 0 })
    }

    /// Echoes until all messages of all clients are sent back.
    async fn serve(mut self) -> Result<u32, Failure> {
        while self.echoed < CLIENTS * MESSAGES {
            tokio::select! {
                connection = self.listener.accept() => self.add(connection?)?,
                done = self.cq.completion() => {
                    let (slot, done) = done?;
                    self.handle(slot.ok_or("a completion without slot")?, &done)?;
                }
            }
        }
        Ok(self.echoed)
    }

    fn add(&mut self, connection: Connection<Safe, ()>) -> Result<(), Failure> {
        self.connections.insert(connection.qp.number(), connection);
        mem::take(&mut self.early).into_iter().try_for_each(|(qp, slot)| self.echo(qp, slot))
    }

    fn handle(&mut self, slot: Slot, done: &WorkCompletion) -> Result<(), Failure> {
        if done.status != Status::Success {
            // The peer is gone; only its queue pair fails.
            self.connections.remove(&done.qp_num());
        } else if done.opcode() == CompletionOpcode::Recv {
            return self.echo(done.qp_num(), slot);
        } else {
            self.echoed += 1;
        }
        Ok(self.srq.post(slot)?)
    }

    /// Sends a message back, or keeps it until the listener returns its connection.
    fn echo(&mut self, qp: u32, slot: Slot) -> Result<(), Failure> {
        if let Some(connection) = self.connections.get_mut(&qp) {
            return Ok(connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED)?);
        }
        self.early.push_back((qp, slot));
        match self.early.len() > EARLY {
            true => self.early.pop_front().map_or(Ok(()), |(_, slot)| Ok(self.srq.post(slot)?)),
            false => Ok(()),
        }
    }
}

/// A connected client.
struct Client {
    connection: Connection<Safe, AsyncCompletionQueue>,
    pd: ProtectionDomain,
}

impl Client {
    async fn connect(context: &Context, address: SocketAddr) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let connector = Connector::new().context(context);
        let connecting = connect_with(&connector, address, |id| {
            let cq = context.create_cq(4).build_async()?;
            let qp = id.create_qp::<Rc, _>(&pd, cq.handle(), cq.handle())?;
            Ok((qp.max_send_wr(1).max_recv_wr(1).build()?, cq))
        });
        Ok(Self { connection: connecting.await?, pd })
    }

    /// Waits for the next completion, and returns its slot.
    async fn next(&mut self) -> Result<Slot, Failure> {
        match self.connection.resources.completion().await? {
            (Some(slot), done) if done.status == Status::Success => Ok(slot),
            (_, done) => Err(format!("{:?}", done.status).into()),
        }
    }

    /// Sends messages and compares the echoes. Returns the client so that its connection stays
    /// open: closing it at once could lose the acknowledgement of the last echo.
    async fn run(mut self, number: u32) -> Result<Self, Failure> {
        let slab = self.pd.create_slab(2, BYTES)?;
        for round in 0..MESSAGES {
            let message = format!("message {round} of client {number}");
            let (receive, send) = (slab.take(), slab.take());
            self.connection.qp.post_receive(receive.ok_or("no slot")?)?;
            let mut slot = send.ok_or("no slot")?;
            slot.write(message.as_bytes())?;
            self.connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED)?;
            let (one, other) = (self.next().await?, self.next().await?);
            assert_eq!((&one[..], &other[..]), (message.as_bytes(), message.as_bytes()));
        }
        Ok(self)
    }
}

/// The device's IPv4 address, with port 0 for a free port.
fn address(context: &Context) -> Result<SocketAddr, Failure> {
    let gids = context.gid_table(1)?;
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4());
    Ok(SocketAddr::new(IpAddr::from(ipv4.ok_or("the device has no IPv4 address")?), 0))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let server = Server::new(&context, address(&context)?)?;
    let address = server.listener.listener().local_address()?;
    let server = tokio::spawn(server.serve());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let context = context.clone();
            tokio::spawn(async move { Client::connect(&context, address).await?.run(number).await })
        })
        .collect();
    let mut connected = Vec::new();
    for client in clients {
        connected.push(client.await??);
    }
    println!("{} messages of {CLIENTS} clients echoed by a task", server.await??);
    drop(connected);
    Ok(())
}
