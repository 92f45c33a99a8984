//! Two queue pairs bounce a message, without `unsafe` code: posting a slot gives it to the queue,
//! and its completion returns it.
//!
//! `cargo run --features soft --example echo [DEVICE]`; the default device is `soft`.

use std::error::Error;

use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{CompletionQueue, PollError, QueuePair, Slot, op};

const ROUNDS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let pd = context.alloc_pd()?;
    let mut client_cq = context.create_cq(64).build()?;
    let mut server_cq = context.create_cq(64).build()?;
    let mut client = pd.create_qp::<Rc>(client_cq.handle(), client_cq.handle()).build()?;
    let mut server = pd.create_qp::<Rc>(server_cq.handle(), server_cq.handle()).build()?;
    // Between two machines, each side would send these 48 bytes over a socket.
    let (here, there) = (client.endpoint(), server.endpoint());
    client.connect(&there)?;
    server.connect(&here)?;

    let slab = pd.create_slab(8, 256)?;
    for round in 0..ROUNDS {
        receive(&mut client, slab.take().ok_or("no slot")?)?;
        receive(&mut server, slab.take().ok_or("no slot")?)?;
        let mut message = slab.take().ok_or("no slot")?;
        message.write(format!("message {round}").as_bytes())?;
        client.post_send(op::Send, message, PostFlags::SIGNALED)?;
        let arrived = wait(&mut server_cq)?;
        server.post_send(op::Send, arrived, PostFlags::SIGNALED)?;
        let echo = wait(&mut client_cq)?;
        assert_eq!(&echo[..], format!("message {round}").as_bytes());
    }
    println!("{ROUNDS} messages went there and back on {}", context.device().name());
    Ok(())
}

fn receive(qp: &mut QueuePair<Rc>, slot: Slot) -> Result<(), Box<dyn Error>> {
    qp.post_receive(slot)?;
    Ok(())
}

/// Waits for the next message. Dropping the completions of sends returns their slots to the slab.
fn wait(cq: &mut CompletionQueue) -> Result<Slot, Box<dyn Error>> {
    let context = cq.context().clone();
    loop {
        match cq.poll() {
            Err(PollError::Empty) => context.poll_idle(),
            Err(error) => return Err(error.into()),
            Ok(done) if done.completion.status() != Status::Success => {
                return Err(done.completion.status().text().into());
            }
            Ok(done) if !done.completion.is_send() => {
                return done.slot.ok_or_else(|| "a receive has a slot".into());
            }
            Ok(_) => {}
        }
    }
}
