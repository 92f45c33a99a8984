//! One end: a receive queue of frames, a send queue, and the frame that it sends.

use uverbs::ethernet::{Field, FrameError, RxQueue, Template, TxQueue};
use uverbs::flow::UdpMulticast;
use uverbs::qp::{EthChecksum, EthernetOffload, PostError};
use uverbs::{Context, DeviceKind, Flow};

use super::plan::Plan;
use crate::capture::require_ethernet;
use crate::device::Chosen;
use crate::failure::{Failure, Outcome};
use crate::gone::Lookout;

/// The bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// Offset of the frame's number, after the headers.
const NUMBER: Field<u64, HEADERS> = Field::new();
/// The device computes the checksums of layers 3 and 4.
const SUMS: EthernetOffload =
    EthernetOffload { checksum: EthChecksum::IP_CSUM, vlan: None, metadata: 0 };
/// The most frames in the send queue.
const SENDS: u32 = 1024;

pub(super) struct End<const BLOCKS: usize> {
    pub(super) rx: RxQueue,
    pub(super) tx: TxQueue,
    template: Template<BLOCKS>,
    pub(super) context: Context,
    /// Whether waiting must let a software device make progress in this thread.
    pub(super) is_software: bool,
    lookout: Lookout,
    _rule: Flow,
}

impl<const BLOCKS: usize> End<BLOCKS> {
    /// Creates an end that receives the line `hears` and sends to the line `speaks`.
    pub(super) fn new(
        chosen: &Chosen,
        plan: &Plan,
        [hears, speaks]: [UdpMulticast; 2],
    ) -> Outcome<Self> {
        require_ethernet(&chosen.context, chosen.port)?;
        let pd = chosen.context.alloc_pd()?;
        let mut rx = pd.create_rx_queue(plan.depth).port(chosen.port).count_matches().build()?;
        let rule = rx.steer(&hears)?;
        let mut tx = pd.create_tx_queue(SENDS).port(chosen.port).build()?;
        let template = tx.template(&frame(&speaks, plan.bytes as usize), SUMS);
        let template = template.map_err(uverbs::Error::from)?;
        let context = chosen.context.clone();
        let is_software = context.kind() == DeviceKind::Software;
        let lookout = Lookout::new();
        Ok(Self { rx, tx, template, context, is_software, lookout, _rule: rule })
    }

    /// The number of the next frame, if one has arrived.
    #[inline]
    pub(super) fn poll(&mut self) -> Outcome<Option<u64>> {
        Ok(self.poll_timed()?.map(|(number, _)| number))
    }

    /// The number of the next frame and its arrival time on the device's clock.
    #[inline]
    pub(super) fn poll_timed(&mut self) -> Outcome<Option<(u64, u64)>> {
        match self.rx.poll() {
            Ok(frame) => {
                let number = frame.bytes().get(HEADERS..).and_then(<[u8]>::first_chunk);
                let number = number.map(|bytes| u64::from_be_bytes(*bytes));
                Ok(number.map(|number| (number, frame.timestamp().raw())))
            }
            Err(FrameError::Empty) => Ok(None),
            Err(error) => Err(uverbs::Error::from(error).into()),
        }
    }

    /// Sends a frame; waits for space if necessary.
    #[inline]
    pub(super) fn send(&mut self, number: u64) -> Outcome {
        self.post(number, false)
    }

    /// As [`End::send`], and requests a completion for the frame.
    pub(super) fn send_timed(&mut self, number: u64) -> Outcome {
        self.post(number, true)
    }

    #[inline]
    fn post(&mut self, number: u64, timed: bool) -> Outcome {
        let mut frame = self.template;
        if !frame.set(NUMBER, number) {
            return Err(Failure::failed("the frame is too short for its number"));
        }
        loop {
            let sent = match timed {
                true => self.tx.send_timed(number, &frame),
                false => self.tx.send(number, &frame),
            };
            match sent {
                Ok(()) => return Ok(()),
                Err(PostError::Full) => self.make_space()?,
                Err(error) => return Err(uverbs::Error::from(error).into()),
            }
        }
    }

    /// Executes the code of a send without the doorbell.
    pub(super) fn warm(&mut self) -> Outcome {
        Ok(self.tx.warm(&self.template).map_err(uverbs::Error::from)?)
    }

    #[cold]
    fn make_space(&mut self) -> Outcome {
        self.tx.reap();
        self.context.poll_idle();
        self.lookout.look(&self.context).map(drop)
    }
}

/// A UDP packet of a line.
fn frame(line: &UdpMulticast, length: usize) -> Vec<u8> {
    let ip = (length - 14) as u16;
    let mut frame = [&line.mac()[..], &[2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]].concat();
    frame.extend_from_slice(&ip.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 1, 17, 0, 0, 10, 0, 0, 1]);
    frame.extend_from_slice(&line.group.octets());
    for word in [line.port, line.port, ip - 20, 0] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.resize(length, 0);
    frame
}
