//! The measurements, over any connection that carries messages of one size.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Round trips of one message.
    Latency,
    /// The same; the result is the mean instead of the median.
    RoundTrips,
    /// Messages in one direction, as many at a time as the queues hold.
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Rdma,
}

/// What a side does while no message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Polls, and yields to other threads between two polls.
    Poll,
    /// Sleeps until a message arrives.
    Sleep,
}

/// One measurement, as both ends run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) measure: Measure,
    pub(crate) transport: Transport,
    pub(crate) wait: Wait,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Round trips, or messages.
    pub(crate) count: u64,
}

/// One end of a connection.
pub(crate) trait Link {
    /// Sends one message; waits while the window is full.
    fn send(&mut self);

    /// Waits for the next `count` messages.
    fn receive(&mut self, count: u64);
}

impl Case {
    /// Runs the measuring end. Returns nanoseconds: of half a round trip (median), of a whole one
    /// (mean), or per message.
    pub(crate) fn lead(&self, link: &mut dyn Link) -> f64 {
        match self.measure {
            Measure::Latency => {
                let mut times: Vec<u64> = (0..self.count).map(|_| round_trip(link)).collect();
                times.sort_unstable();
                times[times.len() / 2] as f64 / 2.0
            }
            Measure::RoundTrips => {
                let time: u64 = (0..self.count).map(|_| round_trip(link)).sum();
                time as f64 / self.count as f64
            }
            Measure::Rate => {
                let start = Instant::now();
                (0..self.count).for_each(|_| link.send());
                // Tells the other end that all messages have arrived.
                link.receive(1);
                start.elapsed().as_nanos() as f64 / self.count as f64
            }
        }
    }

    /// Runs the other end.
    pub(crate) fn follow(&self, link: &mut dyn Link) {
        match self.measure {
            Measure::Latency | Measure::RoundTrips => (0..self.count).for_each(|_| {
                link.receive(1);
                link.send();
            }),
            Measure::Rate => {
                link.receive(self.count);
                link.send();
            }
        }
    }
}

fn round_trip(link: &mut dyn Link) -> u64 {
    let start = Instant::now();
    link.send();
    link.receive(1);
    start.elapsed().as_nanos() as u64
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, transport, wait, size, count } = self;
        write!(f, "{measure:?} {transport:?} {wait:?} {size} {count}")
    }
}

impl FromStr for Case {
    type Err = ();

    /// Parses what [`Display`](fmt::Display) wrote.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or(());
        Ok(Self {
            measure: match word()? {
                "Latency" => Measure::Latency,
                "RoundTrips" => Measure::RoundTrips,
                _ => Measure::Rate,
            },
            transport: if word()? == "Tcp" { Transport::Tcp } else { Transport::Rdma },
            wait: if word()? == "Poll" { Wait::Poll } else { Wait::Sleep },
            size: word()?.parse().map_err(drop)?,
            count: word()?.parse().map_err(drop)?,
        })
    }
}
