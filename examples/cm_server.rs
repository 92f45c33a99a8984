//! One listener and one shared receive queue for many clients, which connect by address.
//!
//! `cargo run --features soft --example cm_server [DEVICE]`; the default device is `soft`;
//! `default` selects the first device of the kernel.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use uverbs::cm::{Connection, Connector, Listener};
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{CompletionQueue, Context, PollError, Slot, op};

const CLIENTS: u32 = 16;
const BYTES: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(60);

/// An error that a thread can return.
type Failure = Box<dyn Error + Send + Sync>;

/// Waits for the next completion, and returns its slot.
fn next(cq: &mut CompletionQueue) -> Result<Option<Slot>, Failure> {
    loop {
        match cq.poll() {
            Ok(done) if done.completion.is_success() => return Ok(done.slot),
            Ok(done) => return Err(format!("{:?}", done.completion.status()).into()),
            Err(PollError::Empty) => {}
            Err(error) => return Err(error.into()),
        }
        cq.context().poll_idle();
    }
}

/// Receives one message of each client, in any order, and keeps the connections until the clients
/// end them.
fn serve(mut listener: Listener<uverbs::layer::Safe, ()>, mut all: Shared) -> Result<u64, Failure> {
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let connection = listener.accept()?;
        if let Some(peer) = connection.link.peer_address()? {
            println!("connected: {peer}");
        }
        connections.push(connection);
    }
    let mut sum = 0;
    for _ in 0..CLIENTS {
        let slot = next(&mut all.cq)?.ok_or("a completion without its slot")?;
        sum += u64::from_le_bytes(slot[..8].try_into()?);
    }
    for connection in &mut connections {
        connection.wait_disconnected(Some(PATIENCE))?;
    }
    Ok(sum)
}

/// The queues that all connections of the server share.
struct Shared {
    cq: CompletionQueue,
    _srq: uverbs::SharedReceiveQueue,
}

/// Listens on `address`, with one receive queue for all connections.
fn listen(
    context: &Context,
    address: SocketAddr,
) -> Result<(Listener<uverbs::layer::Safe, ()>, Shared), Failure> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(2 * CLIENTS).build()?;
    let mut srq = pd.create_srq(CLIENTS).build()?;
    let slab = pd.create_slab(CLIENTS, BYTES)?;
    while let Some(slot) = slab.take() {
        srq.post(slot).map_err(|refused| refused.to_string())?;
    }
    let (completions, receives) = (cq.handle().clone(), srq.handle().clone());
    let builder = Listener::builder().context(context).backlog(CLIENTS);
    let listener = builder.bind_with(address, move |_request| {
        let qp = pd.create_qp::<Rc>(&completions, &completions).max_send_wr(1);
        Ok((qp.shared_receive_queue(&receives).build()?, ()))
    })?;
    Ok((listener, Shared { cq, _srq: srq }))
}

/// Connects, sends a number, and ends the connection.
fn client(context: &Context, address: SocketAddr, number: u64) -> Result<(), Failure> {
    let connector = Connector::new().context(context).timeout(PATIENCE).queue_depths(1, 1);
    let mut connection: Connection = connector.connect(address)?;
    let slab = connection.resources.pd.create_slab(1, BYTES)?;
    let mut slot = slab.take().ok_or("no slot")?;
    slot.write(&number.to_le_bytes())?;
    let posted = connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED);
    posted.map_err(|refused| refused.to_string())?;
    next(&mut connection.resources.cq)?;
    connection.disconnect()?;
    connection.wait_disconnected(Some(PATIENCE))?;
    Ok(())
}

/// The device's IPv4 address, with port 0 for a free port.
fn address(context: &Context) -> Result<SocketAddr, Failure> {
    let gids = context.gid_table(1)?;
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4());
    Ok(SocketAddr::new(IpAddr::from(ipv4.ok_or("the device has no IPv4 address")?), 0))
}

fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = match name.as_str() {
        "default" => uverbs::open_default()?,
        name => uverbs::device(name)?.open()?,
    };
    let (listener, shared) = listen(&context, address(&context)?)?;
    let address = listener.local_address()?;
    println!("listening at {address}");
    let server = thread::spawn(move || serve(listener, shared));
    let clients: Vec<_> = (1..=u64::from(CLIENTS))
        .map(|number| {
            let context = context.clone();
            thread::spawn(move || client(&context, address, number))
        })
        .collect();
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    let sum = server.join().map_err(|_| "the server panicked")??;
    println!("{CLIENTS} clients connected by address; their numbers add up to {sum}");
    Ok(())
}
