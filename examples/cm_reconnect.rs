//! A client that reconnects when its server ends a connection, a limited number of times and with
//! growing pauses.
//!
//! `cargo run --features soft --example cm_reconnect [DEVICE]`; the default device is `soft`.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use uverbs::cm::{Connection, Connector, Listener};
use uverbs::qp::PostFlags;
use uverbs::{Context, PollError, op};

/// The number of connections that the server ends at once.
const FAILURES: u32 = 3;
/// The number of attempts before the client gives up.
const ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error + Send + Sync>;

/// Ends some connections, and receives a message from the next one.
fn serve(mut listener: Listener) -> Result<Vec<u8>, Failure> {
    for _ in 0..FAILURES {
        drop(listener.accept()?);
    }
    let mut connection = listener.accept()?;
    let slab = connection.resources.pd.create_slab(1, 64)?;
    let receive = slab.take().ok_or("no slot")?;
    connection.qp.post_receive(receive).map_err(|refused| refused.to_string())?;
    let text = finished(&mut connection)?.unwrap_or_default();
    connection.wait_disconnected(Some(PATIENCE))?;
    Ok(text)
}

/// Waits for the next completion, and returns the bytes of its slot; fails if the request failed.
fn finished(connection: &mut Connection) -> Result<Option<Vec<u8>>, Failure> {
    loop {
        match connection.resources.cq.poll() {
            Ok(done) if done.completion.is_success() => {
                return Ok(done.slot.map(|slot| slot.to_vec()));
            }
            Ok(done) => return Err(format!("{:?}", done.completion.status()).into()),
            Err(PollError::Empty) => {}
            Err(error) => return Err(error.into()),
        }
        // Fails sooner, and with a clearer error, than the timeout of a send.
        if connection.has_ended()? {
            return Err("the peer ended the connection".into());
        }
        connection.context().poll_idle();
    }
}

/// One attempt: connect, and send the message.
fn attempt(connector: &Connector, address: SocketAddr) -> Result<(), Failure> {
    let mut connection = connector.connect(address)?;
    let slab = connection.resources.pd.create_slab(1, 64)?;
    let mut slot = slab.take().ok_or("no slot")?;
    slot.write(b"at last")?;
    let posted = connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED);
    posted.map_err(|refused| refused.to_string())?;
    finished(&mut connection)?;
    connection.disconnect()?;
    connection.wait_disconnected(Some(PATIENCE))?;
    Ok(())
}

/// Tries up to [`ATTEMPTS`] times, with growing pauses. Returns the number of attempts.
fn deliver(context: &Context, address: SocketAddr) -> Result<u32, Failure> {
    let connector = Connector::new().context(context).timeout(PATIENCE);
    let mut pause = FIRST_PAUSE;
    for number in 1.. {
        match attempt(&connector, address) {
            Ok(()) => return Ok(number),
            Err(error) if number == ATTEMPTS => return Err(error),
            Err(error) => println!("attempt {number}: {error}"),
        }
        thread::sleep(pause);
        pause *= 2;
    }
    Err("no attempt".into())
}

fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let gids = context.gid_table(1)?;
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).ok_or("no IPv4 address")?;
    let builder = Listener::builder().context(&context);
    let listener = builder.bind(SocketAddr::new(IpAddr::from(ipv4), 0))?;
    let address = listener.local_address()?;
    let server = thread::spawn(move || serve(listener));
    let attempts = deliver(&context, address)?;
    let text = server.join().map_err(|_| "the server panicked")??;
    println!("{:?} arrived with attempt {attempts}", String::from_utf8_lossy(&text));
    Ok(())
}
