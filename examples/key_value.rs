//! A table that clients look up and change without the server's processor: RDMA READ finds an entry,
//! fetch-and-add counts the visits.
//!
//! `cargo run --features soft --example key_value [DEVICE]`; the device is `soft` if not named.

use std::error::Error;
use std::sync::atomic::Ordering;

use uverbs::cq::Status;
use uverbs::qp::{FetchAdd, PostFlags, Rc, Read};
use uverbs::{
    AccessFlags, Buffer, PollError, Remote, SafeCompletionQueue, SafeQueuePair, Slab, Slot,
};

/// An entry: 8 bytes key, 8 bytes value, 8 bytes visits.
const ENTRY: u64 = 24;
const ENTRIES: u64 = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "soft".into());
    let context = uverbs::device(&name)?.open()?;
    let pd = context.alloc_pd()?;

    // The server fills its table once and then does nothing.
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let table = pd.register(Buffer::new((ENTRY * ENTRIES) as usize)?, access)?;
    for key in 0..ENTRIES {
        let entry = table.view().part((slot_of(key) * ENTRY) as usize, ENTRY as usize)?;
        entry.atomic_u64(0)?.store(key, Ordering::Relaxed);
        entry.atomic_u64(8)?.store(key * key, Ordering::Relaxed);
    }
    let server_cq = context.create_cq(16).build_safe()?;
    let allowed = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let mut server = pd
        .create_safe_qp::<Rc>(server_cq.handle(), server_cq.handle())
        .with(|builder| builder.access(allowed))
        .build()?;

    let cq = context.create_cq(16).build_safe()?;
    let mut qp = pd.create_safe_qp::<Rc>(cq.handle(), cq.handle()).build()?;
    let (here, there) = (qp.endpoint(), server.endpoint());
    qp.connect(&there)?;
    server.connect(&here)?;
    let mut client = Client { qp, cq, slab: pd.create_slab(2, 64)?, table: table.remote(0)? };
    for key in (0..ENTRIES).chain([7, 7, 7]) {
        assert_eq!(client.look_up(key)?, Some(key * key));
    }
    let visits = table.view().atomic_u64((slot_of(7) * ENTRY + 16) as usize)?;
    println!("7 squared is 49; it was asked for {} times", visits.load(Ordering::Relaxed));
    assert_eq!(visits.load(Ordering::Relaxed), 4);
    Ok(())
}

/// Where a key stands: any permutation would do.
fn slot_of(key: u64) -> u64 {
    key * 37 % ENTRIES
}

struct Client {
    qp: SafeQueuePair<Rc>,
    cq: SafeCompletionQueue,
    slab: Slab,
    table: Remote,
}

impl Client {
    fn look_up(&mut self, key: u64) -> Result<Option<u64>, Box<dyn Error>> {
        let entry = Remote::new(self.table.address + slot_of(key) * ENTRY, self.table.rkey);
        let mut slot = self.slab.take().ok_or("no slot")?;
        slot.set_len(16);
        self.qp.post(Read(entry), slot, PostFlags::SIGNALED)?;
        let found = self.wait()?;
        if found.first_chunk() != Some(&key.to_ne_bytes()) {
            return Ok(None);
        }
        let visits = Remote::new(entry.address + 16, entry.rkey);
        let visit = FetchAdd { remote: visits, add: 1 };
        self.qp.post_atomic(visit, self.slab.take().ok_or("no slot")?, PostFlags::SIGNALED)?;
        self.wait()?;
        Ok(found.last_chunk().map(|value| u64::from_ne_bytes(*value)))
    }

    fn wait(&mut self) -> Result<Slot, Box<dyn Error>> {
        loop {
            match self.cq.poll() {
                Err(PollError::Empty) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
                Ok(done) if done.completion.status == Status::Success => {
                    return done.slot.ok_or_else(|| "the request had a slot".into());
                }
                Ok(done) => return Err(format!("{:?}", done.completion.status).into()),
            }
        }
    }
}
