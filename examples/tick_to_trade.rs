//! From a tick to a trade without the kernel's network stack: a desk receives quotes from two
//! redundant multicast lines of one feed, keeps a book, and sends orders from a template.
//!
//! `cargo run --features soft --example tick_to_trade [EXCHANGE DESK]`. Without arguments it uses
//! two software devices; real devices need Ethernet ports and CAP_NET_RAW.
//!
//! The exchange sends each quote on both lines. Some quotes are lost on one line, some on both. The
//! desk takes each quote from the line where it arrives first, detects gaps, keeps the best prices,
//! and sends an order whenever the spread is narrow. [`Desk::trade`] does all of that, without
//! system calls or allocations (`tests/tick_to_trade.rs` runs it in a thread that would be killed
//! otherwise).

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use uverbs::ethernet::{Field, FrameError, RxQueue, Template, TxQueue, blocks};
use uverbs::flow::{FiveTuple, Protocol, UdpMulticast};
use uverbs::qp::{EthChecksum, EthernetOffload, PostError};
use uverbs::soft::SoftDevice;
use uverbs::{Context, Device, Flow, ProtectionDomain};

/// The two lines of the feed: group and port. The flow tag of a frame identifies its line.
const LINES: [UdpMulticast; 2] = [
    UdpMulticast::new(Ipv4Addr::new(239, 1, 2, 3), 14310).tag(1),
    UdpMulticast::new(Ipv4Addr::new(239, 1, 2, 4), 14311).tag(2),
];
const EXCHANGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DESK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ORDER_PORT: u16 = 9000;
/// The bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// The bytes of a quote: number, side, price and size.
const QUOTE: usize = 8 + 8 + 8 + 8;
/// The bytes of an order: account, number of the quote, price and size.
const ORDER: usize = 8 + 8 + 8 + 8;
/// The device fills in the IP and UDP checksums.
const SUMS: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::IP_CSUM, vlan: None, metadata: 0 };
/// The desk buys if the spread is at most this.
const NARROW: u64 = 3;
/// The number of quotes that the exchange sends.
pub(crate) const QUOTES: u64 = 1000;
/// When the example gives up waiting.
const PATIENCE: Duration = Duration::from_secs(20);

type Order = Template<{ blocks(HEADERS + ORDER) }>;
type Quote = Template<{ blocks(HEADERS + QUOTE) }>;

fn main() -> Result<(), Box<dyn Error>> {
    let [there, here] = devices()?;
    let mut desk = Desk::new(&here.open()?)?;
    let mut exchange = Exchange::new(&there.open()?)?;
    let deadline = Instant::now() + PATIENCE;
    for number in 0..QUOTES {
        exchange.publish(number)?;
        // Quotes that are lost on both lines never arrive.
        while desk.next <= last_seen(number) && Instant::now() < deadline {
            desk.trade()?;
            desk.rx.context().poll_idle();
        }
        // The exchange has 256 receives, and would lose orders if it took them only at the end.
        exchange.take_orders()?;
    }
    while exchange.orders < desk.orders && Instant::now() < deadline {
        exchange.take_orders()?;
        exchange.rx.context().poll_idle();
    }
    println!("{}", desk.report());
    println!("the exchange got {} orders", exchange.orders);
    Ok(())
}

/// The devices of the exchange and of the desk.
fn devices() -> Result<[Device; 2], Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    match names.as_slice() {
        [] => Ok([uverbs::device("soft")?, Device::from_soft(SoftDevice::named("soft1")?)]),
        [both] => Ok([uverbs::device(both)?, uverbs::device(both)?]),
        [exchange, desk, ..] => Ok([uverbs::device(exchange)?, uverbs::device(desk)?]),
    }
}

/// Whether a quote is lost on a line: every tenth on the first line, every seventh on the second.
fn is_lost(line: usize, number: u64) -> bool {
    if line == 0 { number % 10 == 9 } else { number % 7 == 6 }
}

/// The number of the last quote up to `number` that is not lost on both lines.
pub(crate) fn last_seen(number: u64) -> u64 {
    let seen = |number: &u64| !(is_lost(0, *number) && is_lost(1, *number));
    (0..=number).rev().find(seen).unwrap_or_default()
}

/// The side that sends quotes and receives orders.
pub(crate) struct Exchange {
    tx: TxQueue,
    quotes: [Quote; 2],
    /// The queue that receives orders.
    pub(crate) rx: RxQueue,
    _session: Flow,
    /// The number of orders received.
    pub(crate) orders: u64,
}

impl Exchange {
    const NUMBER: Field<u64, HEADERS> = Field::new();
    const SIDE: Field<u64, { HEADERS + 8 }> = Field::new();
    const PRICE: Field<u64, { HEADERS + 16 }> = Field::new();
    const SIZE: Field<u64, { HEADERS + 24 }> = Field::new();

    /// Creates an exchange on a device.
    pub(crate) fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let mut tx = pd.create_tx_queue(256).build()?;
        let [a, b] = LINES.map(|line| {
            let ends = [(EXCHANGE, line.port), (line.group, line.port)];
            tx.template(&packet(line.mac(), ends, QUOTE), SUMS)
        });
        let (rx, _session) = session(&pd)?;
        Ok(Self { tx, quotes: [a?, b?], rx, _session, orders: 0 })
    }

    /// Sends a quote on each line where it is not lost.
    pub(crate) fn publish(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        for line in (0..2).filter(|line| !is_lost(*line, number)) {
            let quote = &mut self.quotes[line];
            let price = 10_000 + number % 5 + 3 * (number % 2);
            let is_set = quote.set(Self::NUMBER, number)
                && quote.set(Self::SIDE, number % 2)
                && quote.set(Self::PRICE, price)
                && quote.set(Self::SIZE, 100);
            assert!(is_set, "the fields are inside the frame");
            while self.tx.send(number, quote) == Err(PostError::Full) {
                self.tx.reap();
                self.tx.context().poll_idle();
            }
        }
        Ok(())
    }

    /// Counts the orders that have arrived.
    pub(crate) fn take_orders(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            match self.rx.poll() {
                Ok(order) if order.checksums_ok() => self.orders += 1,
                Ok(order) => order.reject(),
                Err(FrameError::Empty) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Creates the queue for orders, and its steering rule.
fn session(pd: &ProtectionDomain) -> Result<(RxQueue, Flow), Box<dyn Error>> {
    let mut rx = pd.create_rx_queue(256).build()?;
    let orders = FiveTuple {
        protocol: Protocol::Udp,
        source: std::net::SocketAddrV4::new(DESK, ORDER_PORT),
        destination: std::net::SocketAddrV4::new(EXCHANGE, ORDER_PORT),
        tag: None,
    };
    let rule = rx.steer(&orders)?;
    Ok((rx, rule))
}

/// The side that trades.
pub(crate) struct Desk {
    /// Receives both lines, which are distinguished by their tags.
    pub(crate) rx: RxQueue,
    tx: TxQueue,
    _lines: [Flow; 2],
    order: Order,
    /// The number that the next quote should have.
    pub(crate) next: u64,
    /// For each line, the number of quotes that arrived on it first.
    first: [u64; 2],
    /// The number of quotes that had already arrived on the other line.
    copies: u64,
    /// The number of quotes that arrived on neither line.
    pub(crate) gaps: u64,
    /// The best prices: bid and offer.
    best: [u64; 2],
    /// The number of orders sent.
    pub(crate) orders: u64,
}

impl Desk {
    const NUMBER: Field<u64, { HEADERS + 8 }> = Field::new();
    const PRICE: Field<u64, { HEADERS + 16 }> = Field::new();
    const SIZE: Field<u64, { HEADERS + 24 }> = Field::new();

    /// Creates a desk on a device, which receives both lines.
    pub(crate) fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let mut rx = pd.create_rx_queue(1024).count_matches().build()?;
        let [a, b] = LINES.map(|line| rx.steer(&line));
        let mut tx = pd.create_tx_queue(256).build()?;
        let ends = [(DESK, ORDER_PORT), (EXCHANGE, ORDER_PORT)];
        let order = tx.template(&packet([2, 0, 0, 0, 0, 9], ends, ORDER), SUMS)?;
        let mut desk = Self {
            rx,
            tx,
            _lines: [a?, b?],
            order,
            next: 0,
            first: [0; 2],
            copies: 0,
            gaps: 0,
            best: [10_000, 10_003],
            orders: 0,
        };
        // Loads code, template and ring into the caches for the first order.
        desk.tx.warm(&desk.order)?;
        Ok(desk)
    }

    /// Handles the quotes that have arrived: the path from a tick to a trade.
    ///
    /// # Errors
    /// The receive queue or an order failed.
    pub(crate) fn trade(&mut self) -> uverbs::Result<()> {
        loop {
            let frame = match self.rx.poll() {
                Ok(frame) => frame,
                Err(FrameError::Empty) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if !frame.checksums_ok() {
                frame.reject();
                continue;
            }
            let Some(quote) = quote(frame.bytes()) else { continue };
            let [number, side, price, size] = quote;
            if number < self.next {
                self.copies += 1;
                continue;
            }
            let line = usize::from(frame.flow_tag() == 2);
            // Returns the buffer before the order is sent.
            drop(frame);
            self.first[line] += 1;
            self.gaps += number - self.next;
            self.next = number + 1;
            self.best[(side & 1) as usize] = price;
            let [bid, offer] = self.best;
            if offer.saturating_sub(bid) <= NARROW {
                self.buy(number, offer, size)?;
            }
        }
    }

    fn buy(&mut self, number: u64, price: u64, size: u64) -> Result<(), PostError> {
        let is_set = self.order.set(Self::NUMBER, number)
            && self.order.set(Self::PRICE, price)
            && self.order.set(Self::SIZE, size);
        assert!(is_set, "the fields are inside the frame");
        while let Err(error) = self.tx.send(number, &self.order) {
            if error != PostError::Full || self.tx.counters().failed != 0 {
                return Err(error);
            }
            self.tx.reap();
        }
        self.orders += 1;
        Ok(())
    }

    /// A summary of the run.
    pub(crate) fn report(&self) -> String {
        let counters = self.rx.counters();
        let lost = self.rx.lost().map_or_else(|_| "?".to_owned(), |lost| lost.to_string());
        format!(
            "{} quotes, {} and {} first on their line, {} copies, {} gaps, {} orders\n\
             {} frames, {} too long, {} rejected, {lost} lost, {} receives left at least",
            self.first[0] + self.first[1],
            self.first[0],
            self.first[1],
            self.copies,
            self.gaps,
            self.orders,
            counters.frames,
            counters.too_long,
            counters.rejected,
            counters.lowest,
        )
    }
}

/// The number, side, price and size in a frame, if it is long enough.
#[inline(always)]
fn quote(frame: &[u8]) -> Option<[u64; 4]> {
    let data: &[u8; QUOTE] = frame.get(HEADERS..)?.first_chunk()?;
    let number = |at: usize| {
        data.get(at..at + 8)?.first_chunk().map(|bytes: &[u8; 8]| u64::from_be_bytes(*bytes))
    };
    Some([number(0)?, number(8)?, number(16)?, number(24)?])
}

/// A UDP packet with `length` zero bytes of data, and without checksums.
fn packet(mac: [u8; 6], [from, to]: [(Ipv4Addr, u16); 2], length: usize) -> Vec<u8> {
    let udp = (8 + length) as u16;
    let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]].concat();
    frame.extend_from_slice(&(20 + udp).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 16, 17, 0, 0]);
    frame.extend_from_slice(&from.0.octets());
    frame.extend_from_slice(&to.0.octets());
    for number in [from.1, to.1, udp, 0] {
        frame.extend_from_slice(&number.to_be_bytes());
    }
    frame.resize(HEADERS + length, 0);
    frame
}
