//! Cost by the number of queue pairs: one thread, one device, every queue pair connected to itself.

use std::time::Instant;

use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::qp_type::Rc;
use uverbs::soft::SoftDevice;
use uverbs::{AccessFlags, Buffer, Device, MemoryRegion, PollError, op, raw};

use crate::lines::{self, Axis, Line};

const QPS: [usize; 7] = [1, 3, 10, 30, 100, 300, 1000];
const SIZE: usize = 64;
const RUNS: usize = 5;

/// Nanoseconds per message.
struct Point {
    qps: usize,
    /// Every queue pair has one message in flight.
    all: f64,
    /// One message at a time, on the last queue pair.
    one: f64,
}

pub(crate) struct Scaling(Vec<Point>);

struct Many {
    // Declared first, so destroyed first.
    qps: Vec<raw::QueuePair<Rc>>,
    cq: raw::CompletionQueue,
    memory: MemoryRegion,
}

impl Many {
    fn new(count: usize) -> uverbs::Result<Self> {
        let soft = SoftDevice::builder("soft0").without_wire().build().expect("a software device");
        let context = Device::from_soft(soft).open()?;
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = pd.register(Buffer::new(2 * SIZE).expect("memory"), access)?;
        let cq = context.create_raw_cq(count as u32 + 1).build()?;
        let qp = |_| {
            let mut qp = pd
                .create_raw_qp::<Rc>(cq.handle(), cq.handle())
                .max_send_wr(4)
                .access(access)
                .build()?;
            let own = qp.endpoint();
            qp.connect(&own)?;
            Ok(qp)
        };
        let qps = (0..count).map(qp).collect::<uverbs::Result<_>>()?;
        Ok(Self { qps, cq, memory })
    }

    fn post(&mut self, at: usize) {
        let write = op::Write(self.memory.remote(SIZE).expect("inside"));
        let data = self.memory.sge(0, SIZE).expect("inside");
        // SAFETY: the region outlives the queue pairs and no other code accesses it.
        unsafe { self.qps[at].post_send(0, write, data, PostFlags::SIGNALED) }.expect("space");
    }

    fn complete(&mut self, count: usize) {
        let mut left = count;
        while left > 0 {
            match self.cq.poll() {
                Ok(completion) => {
                    assert_eq!(completion.status(), Status::Success);
                    left -= 1;
                }
                Err(PollError::Empty) => self.cq.context().poll_idle(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn all(&mut self, messages: u64) -> f64 {
        let count = self.qps.len();
        let rounds = messages.div_ceil(count as u64).max(2);
        let start = Instant::now();
        for _ in 0..rounds {
            (0..count).for_each(|at| self.post(at));
            self.complete(count);
        }
        start.elapsed().as_nanos() as f64 / (rounds * count as u64) as f64
    }

    fn one(&mut self, messages: u64) -> f64 {
        let last = self.qps.len() - 1;
        let start = Instant::now();
        for _ in 0..messages {
            self.post(last);
            self.complete(1);
        }
        start.elapsed().as_nanos() as f64 / messages as f64
    }
}

/// Measures each number of queue pairs, with messages in proportion to `messages`.
pub(crate) fn measure(messages: u64) -> Scaling {
    let point = |qps| {
        let mut many = Many::new(qps).expect("queue pairs");
        let all = (0..RUNS).map(|_| many.all(messages / 4)).collect();
        let one = (0..RUNS).map(|_| many.one(messages / 16)).collect();
        Point { qps, all: crate::report::median(all), one: crate::report::median(one) }
    };
    Scaling(QPS.into_iter().map(point).collect())
}

impl Scaling {
    pub(crate) fn print(&self) {
        println!("\n{SIZE}-byte writes on one device by the number of queue pairs, ns per message");
        println!("{:>8} {:>16} {:>16}", "QPs", "all at work", "one at work");
        for Point { qps, all, one } in &self.0 {
            println!("{qps:>8} {all:>16.0} {one:>16.0}");
        }
    }

    pub(crate) fn print_json(&self) {
        for Point { qps, all, one } in &self.0 {
            println!("{{\"qps\":{qps},\"all_ns\":{all:.1},\"one_ns\":{one:.1}}}");
        }
    }

    pub(crate) fn chart(&self) -> String {
        let line = |label: &str, value: fn(&Point) -> f64| {
            let points = self
                .0
                .iter()
                .map(|point| ((point.qps as f64).log10(), (value(point) / 1000.0).log10()));
            Line { label: label.to_owned(), points: points.collect() }
        };
        let lines = [
            line("every queue pair has one write in flight", |point| point.all),
            line("one write at a time, the other queue pairs are silent", |point| point.one),
        ];
        let across = Axis { label: "queue pairs", ..Axis::powers_of_ten(0, 3) };
        let up = Axis {
            label: "microseconds per write of 64 bytes, one device, one thread",
            ..lines::decades(&lines)
        };
        lines::draw(&lines, &across, &up)
    }
}
