//! Dynamic connections: one initiator sends to many servers without a queue pair for each, and each
//! server has one target for all initiators.
//!
//! `cargo run --features soft --example dynamic [DEVICE]`; the default device is `soft`.

use std::error::Error;
use std::io::Read;

use uverbs::cq::{CompletionOpcode, Status};
use uverbs::qp::{DcTarget, PathOptions, PostFlags};
use uverbs::qp_type::Dci;
use uverbs::{
    AddressHandle, CompletionQueue, DcAddress, DcEndpoint, DcReceiver, PollError, ProtectionDomain,
    QueuePair, SharedReceiveQueue, Slab, Slot, op,
};

const SERVERS: u32 = 24;
const ROUNDS: u32 = 20;
/// The number of receives that each server keeps posted.
const DEPTH: u32 = 4;
const BYTES: u32 = 64;

struct Server {
    target: DcReceiver,
    srq: SharedReceiveQueue,
    cq: CompletionQueue,
    sum: u64,
}

impl Server {
    fn new(pd: &ProtectionDomain, slab: &Slab) -> Result<Self, Box<dyn Error>> {
        let cq = pd.context().create_cq(64).build()?;
        let mut srq = pd.create_srq(DEPTH).build()?;
        for _ in 0..DEPTH {
            srq.post(slab.take().ok_or("no slot")?)?;
        }
        let key = random()?;
        let target =
            pd.create_dc_receiver(cq.handle(), srq.handle(), key, PathOptions::default())?;
        Ok(Self { target, srq, cq, sum: 0 })
    }

    /// Waits for the next number, and posts its slot again.
    fn serve(&mut self) -> Result<(), Box<dyn Error>> {
        let slot = wait(&mut self.cq, CompletionOpcode::Recv)?;
        let number: [u8; 8] = slot[..8].try_into()?;
        self.sum += u64::from_le_bytes(number);
        Ok(self.srq.post(slot)?)
    }
}

/// A random access key, which others cannot guess.
fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The address of a server, as the initiator uses it.
struct Peer {
    #[allow(dead_code, reason = "`address` refers to it")]
    ah: AddressHandle,
    address: DcAddress,
}

impl Peer {
    fn new(
        pd: &ProtectionDomain,
        initiator: &QueuePair<Dci>,
        bytes: &[u8; DcEndpoint::BYTES],
    ) -> uverbs::Result<Self> {
        let there = DcEndpoint::from_bytes(bytes)?;
        let ah = pd.create_ah(&initiator.address_of(&there.endpoint)?)?;
        let address = ah.dc_target_at(&there);
        Ok(Self { ah, address })
    }
}

fn wait(cq: &mut CompletionQueue, wanted: CompletionOpcode) -> Result<Slot, Box<dyn Error>> {
    let context = cq.context().clone();
    loop {
        match cq.poll() {
            Err(PollError::Empty) => context.poll_idle(),
            Err(error) => return Err(error.into()),
            Ok(done) if done.completion.status() != Status::Success => {
                return Err(format!("{:?}", done.completion.status()).into());
            }
            Ok(done) if done.completion.opcode() == wanted => {
                return done.slot.ok_or_else(|| "a request has a slot".into());
            }
            Ok(_) => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let pd = context.alloc_pd()?;
    let slab = pd.create_slab(SERVERS * DEPTH + 8, BYTES)?;
    let mut servers =
        (0..SERVERS).map(|_| Server::new(&pd, &slab)).collect::<Result<Vec<_>, _>>()?;

    let mut cq = context.create_cq(64).build()?;
    let mut initiator = pd.create_qp::<Dci>(cq.handle(), cq.handle()).build()?;
    initiator.activate()?;
    // Between machines, each server would send these 56 bytes over a socket.
    let ends = servers.iter().map(|server| server.target.endpoint().to_bytes());
    let peers =
        ends.map(|bytes| Peer::new(&pd, &initiator, &bytes)).collect::<Result<Vec<_>, _>>()?;
    for round in 0..ROUNDS {
        for (index, (peer, server)) in (0..).zip(peers.iter().zip(&mut servers)) {
            let mut slot = slab.take().ok_or("no slot")?;
            slot.write(&u64::from(round * SERVERS + index).to_le_bytes())?;
            let send = op::To(DcTarget(&peer.address), op::Send);
            initiator.post_send(send, slot, PostFlags::SIGNALED)?;
            server.serve()?;
            wait(&mut cq, CompletionOpcode::Send)?;
        }
    }
    let sum: u64 = servers.iter().map(|server| server.sum).sum();
    println!("one queue pair reached {SERVERS} servers; their numbers add up to {sum}");
    Ok(())
}
