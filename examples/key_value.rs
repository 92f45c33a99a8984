//! A hash table that many clients use without the server's processor: RDMA READ finds an entry,
//! compare-and-swap claims an empty one, fetch-and-add counts the visits.
//!
//! `cargo run --features soft --example key_value [DEVICE [CLIENTS]]`. By default 8 clients use the
//! device `soft`.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::thread;

use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::{
    AccessFlags, Buffer, CompletionQueue, Context, Endpoint, MemoryRegion, PollError,
    ProtectionDomain, QueuePair, Remote, Slab, Slot, op,
};

/// The bytes of an entry: 8 each for the key (0 if the entry is empty), the value, and the number
/// of visits.
const ENTRY: u64 = 24;
const ENTRIES: u64 = 1024;
/// Set in a key whose value has not been written yet.
const BUSY: u64 = 1 << 63;
/// The number of keys that each client inserts.
const KEYS_EACH: u64 = 16;
const SIGNALED: PostFlags = PostFlags::SIGNALED;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let device = words.next().unwrap_or_else(|| "soft".into());
    let clients = words.next().unwrap_or_else(|| "8".into());
    let clients: u64 =
        clients.parse().map_err(|_| format!("CLIENTS must be a number, not {clients}"))?;
    if !(1..=32).contains(&clients) {
        return Err(format!("{clients} clients: the table holds the keys of 1 to 32").into());
    }
    let context = uverbs::device(&device)?.open()?;
    let mut server = Server::new(&context)?;
    let mut ready = Vec::new();
    for number in 0..clients {
        let client = Client::new(&context, server.table.remote(0)?)?;
        ready.push((number, server.connect(client)?));
    }
    // The server does nothing while the clients work.
    let work = |(number, client)| thread::spawn(move || use_table(client, number));
    let running: Vec<_> = ready.into_iter().map(work).collect();
    for client in running {
        client.join().map_err(|_| "a client panicked")??;
    }
    let (keys, visits) = server.count()?;
    println!("{clients} clients inserted {keys} keys and visited them {visits} times");
    assert_eq!((keys, visits), (clients * KEYS_EACH, clients * KEYS_EACH));
    Ok(())
}

/// Inserts the client's keys, then looks up each of them, and as many that no client inserts.
fn use_table(mut client: Client, number: u64) -> Outcome<()> {
    let keys = number * KEYS_EACH + 1..=(number + 1) * KEYS_EACH;
    for key in keys.clone() {
        client.insert(key, key * key)?;
    }
    for key in keys {
        if client.look_up(key)? != Some(key * key) {
            return Err(format!("key {key} has another value").into());
        }
        if client.look_up(key + 1_000_000)?.is_some() {
            return Err("found a key that no client inserted".into());
        }
    }
    // This READ is beyond the region, so the server's device refuses it.
    match client.read(ENTRIES) {
        Err(error) if error.to_string().contains("RemoteAccess") => Ok(()),
        _ => Err("a READ beyond the table did not fail with RemoteAccess".into()),
    }
}

struct Server {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    table: MemoryRegion,
    queue_pairs: Vec<QueuePair<Rc>>,
}

impl Server {
    fn new(context: &Context) -> Outcome<Self> {
        let pd = context.alloc_pd()?;
        let buffer = Buffer::new((ENTRY * ENTRIES) as usize)?;
        let table = pd.register(buffer, AccessFlags::LOCAL_WRITE | Self::ALLOWED)?;
        let cq = context.create_cq(16).build()?;
        Ok(Self { pd, cq, table, queue_pairs: Vec::new() })
    }

    const ALLOWED: AccessFlags =
        AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

    fn connect(&mut self, mut client: Client) -> Outcome<Client> {
        let builder = self.pd.create_qp::<Rc>(self.cq.handle(), self.cq.handle());
        let mut qp = builder.access(Self::ALLOWED).build()?;
        let (here, there): (Endpoint, Endpoint) = (client.qp.endpoint(), qp.endpoint());
        client.qp.connect(&there)?;
        qp.connect(&here)?;
        self.queue_pairs.push(qp);
        Ok(client)
    }

    /// The number of keys in the table, and the sum of their visits.
    fn count(&self) -> Outcome<(u64, u64)> {
        let (mut keys, mut visits) = (0, 0);
        for entry in 0..ENTRIES {
            let entry = self.table.view().part((entry * ENTRY) as usize, ENTRY as usize)?;
            keys += u64::from(entry.atomic_u64(0)?.load(Ordering::Relaxed) != 0);
            visits += entry.atomic_u64(16)?.load(Ordering::Relaxed);
        }
        Ok((keys, visits))
    }
}

struct Client {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    slab: Slab,
    table: Remote,
}

impl Client {
    fn new(context: &Context, table: Remote) -> Outcome<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16).build()?;
        let qp = pd.create_qp::<Rc>(cq.handle(), cq.handle()).build()?;
        Ok(Self { qp, cq, slab: pd.create_slab(2, 64)?, table })
    }

    /// Adds one to the visits of a key and returns its value; `None` if no client inserted it.
    fn look_up(&mut self, key: u64) -> Outcome<Option<u64>> {
        for entry in places(key) {
            let (found, value) = self.read(entry)?;
            if found == 0 {
                return Ok(None);
            }
            if found == key {
                let visits = op::FetchAdd { remote: self.word(entry, 16), add: 1 };
                self.qp.post_atomic(visits, self.slot()?, SIGNALED)?;
                self.wait()?;
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Claims the first empty entry for the key, then fills it in.
    fn insert(&mut self, key: u64, value: u64) -> Outcome<()> {
        for entry in places(key) {
            let claim =
                op::CompareSwap { remote: self.word(entry, 0), compare: 0, swap: key | BUSY };
            self.qp.post_atomic(claim, self.slot()?, SIGNALED)?;
            let before = self.wait()?.ok_or("an atomic has a slot")?;
            if number(&before, 0) == 0 {
                // WRITEs of one connection are executed in order, so the key is stored after the
                // value. A READ may still fetch the value before the key: a robust table reads the
                // value after the key.
                let (words, unsignaled) = ([(8, value), (0, key)], PostFlags::empty());
                for ((at, word), flags) in words.into_iter().zip([unsignaled, SIGNALED]) {
                    let target = op::Write(self.word(entry, at));
                    self.qp.post_inline(target, &word.to_ne_bytes(), flags)?;
                }
                return self.wait().map(drop);
            }
        }
        Err("the table is full".into())
    }

    /// The key and value of an entry.
    fn read(&mut self, entry: u64) -> Outcome<(u64, u64)> {
        let mut slot = self.slot()?;
        slot.set_len(16);
        self.qp.post_send(op::Read(self.word(entry, 0)), slot, SIGNALED)?;
        let found = self.wait()?.ok_or("a read has a slot")?;
        Ok((number(&found, 0), number(&found, 8)))
    }

    fn word(&self, entry: u64, offset: u64) -> Remote {
        Remote::new(self.table.address + entry * ENTRY + offset, self.table.rkey)
    }

    fn slot(&self) -> Outcome<Slot> {
        self.slab.take().ok_or_else(|| "no slot".into())
    }

    fn wait(&mut self) -> Outcome<Option<Slot>> {
        let context = self.cq.context().clone();
        loop {
            match self.cq.poll() {
                Err(PollError::Empty) => context.poll_idle(),
                Err(error) => return Err(error.into()),
                Ok(done) if done.completion.status() == Status::Success => return Ok(done.slot),
                Ok(done) => return Err(format!("{:?}", done.completion.status()).into()),
            }
        }
    }
}

/// The entries where a key may be, in search order.
fn places(key: u64) -> impl Iterator<Item = u64> {
    let first = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    (0..ENTRIES).map(move |step| (first + step) % ENTRIES)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
