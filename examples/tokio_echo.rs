//! An echo server and a client as tokio tasks.
//!
//! `cargo run --features soft,tokio --example tokio_echo [DEVICE]`; the default device is `soft`.

use std::error::Error;

use uverbs::cq::{CompletionOpcode, Status, WorkCompletion};
use uverbs::layer::Raw;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::tokio::AsyncCompletionQueue;
use uverbs::{AccessFlags, Buffer, Context, MemoryRegion, op, raw};

const MESSAGES: u32 = 200;
const BYTES: usize = 64;
/// Offsets in each end's memory: of received bytes, and of bytes to send.
const RECEIVED: usize = 0;
const SENT: usize = BYTES;

struct End {
    qp: raw::QueuePair<Rc>,
    cq: AsyncCompletionQueue<Raw>,
    memory: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_raw_cq(64).build_async()?;
        let qp = pd.create_raw_qp::<Rc>(cq.handle(), cq.handle()).signal_all().build()?;
        let memory = pd.register(Buffer::new(2 * BYTES)?, AccessFlags::LOCAL_WRITE)?;
        let mut end = Self { qp, cq, memory };
        end.post_receive()?;
        Ok(end)
    }

    fn post_receive(&mut self) -> uverbs::Result<()> {
        let sge = self.memory.sge(RECEIVED, BYTES)?;
        // SAFETY: the memory outlives the queue pair, and is read only between completion and
        // reposting.
        unsafe { self.qp.post_receive(0, &[sge])? };
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> uverbs::Result<()> {
        self.memory.view().write(SENT, message)?;
        let sge = self.memory.sge(SENT, message.len())?;
        // SAFETY: the memory outlives the queue pair, and is written again only after the
        // completion.
        unsafe { self.qp.post_send(0, op::Send, sge, PostFlags::empty())? };
        Ok(())
    }

    async fn next(&mut self) -> Result<WorkCompletion, Box<dyn Error + std::marker::Send + Sync>> {
        let done = self.cq.completion().await?;
        if done.status == Status::Success { Ok(done) } else { Err(format!("{done:?}").into()) }
    }

    /// Waits for a message, and if `sending`, also for the completion of the previous send.
    async fn receive(
        &mut self,
        mut sending: bool,
    ) -> Result<Vec<u8>, Box<dyn Error + std::marker::Send + Sync>> {
        let mut length = None;
        while sending || length.is_none() {
            let done = self.next().await?;
            match done.opcode() {
                CompletionOpcode::Recv => length = Some(done.byte_len() as usize),
                _ => sending = false,
            }
        }
        let mut message = vec![0; length.unwrap_or_default()];
        self.memory.view().read(RECEIVED, &mut message)?;
        self.post_receive()?;
        Ok(message)
    }
}

async fn serve(mut end: End) -> Result<End, Box<dyn Error + std::marker::Send + Sync>> {
    for round in 0..MESSAGES {
        let message = end.receive(round > 0).await?;
        end.send(&message)?;
    }
    end.next().await?;
    Ok(end)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let (mut client, mut server) = (End::new(&context)?, End::new(&context)?);
    let (end_client, end_server) = (client.qp.endpoint(), server.qp.endpoint());
    client.qp.connect(&end_server)?;
    server.qp.connect(&end_client)?;
    let server = tokio::spawn(serve(server));
    for round in 0..MESSAGES {
        let message = format!("message {round}");
        client.send(message.as_bytes())?;
        let echo = client.receive(true).await.map_err(|error| error.to_string())?;
        assert_eq!(echo, message.as_bytes());
    }
    // The server's end must not be dropped before the client has everything.
    drop(server.await?.map_err(|error| error.to_string())?);
    println!("{MESSAGES} messages echoed by a task");
    Ok(())
}
