//! Generates queues and work requests from a fuzzer's bytes.

use arbitrary::{Result, Unstructured};
use uverbs_mlx5::format::*;
use uverbs_mlx5::request::{Immediate, PostFlags, Remote, Sge};
use uverbs_mlx5::send_queue::*;
use uverbs_mlx5_inspect::*;

/// A request with the data that [`Work`] borrows.
pub(crate) struct Request {
    operation: Operation,
    address: AddressVector,
    destination: u8,
    remote_srqn: u32,
    flags: PostFlags,
    pub(crate) inline: bool,
    data: Vec<(Sge, Vec<u8>)>,
}

pub(crate) enum Operation {
    Plain(RunTimeOperation<'static>),
    Segmented { offload: EthernetOffload, mss: u16, header: Vec<u8> },
}

pub(crate) fn queue(u: &mut Unstructured<'_>) -> Result<SendQueueSpec> {
    let service = *u.choose(&Service::ALL)?;
    let raw = service == Service::RawEthernet;
    Ok(SendQueueSpec {
        service,
        number: u.int_in_range(0..=0xff_ffff)?,
        blocks: 1 << u.int_in_range(0..=7)?,
        start: u.arbitrary()?,
        small_fence: u.arbitrary()?,
        signal_all: u.arbitrary()?,
        max_sge: u.int_in_range(1..=64)?,
        max_inline: u.int_in_range(0..=1030)?,
        min_inline_header: if raw && u.arbitrary()? { ETH_INLINE_L2 as u8 } else { 0 },
    })
}

pub(crate) fn request(u: &mut Unstructured<'_>, spec: &SendQueueSpec) -> Result<Request> {
    let inline: bool = u.arbitrary()?;
    let has_header = spec.min_inline_header != 0;
    let flags = PostFlags::from_bits_truncate(u.arbitrary()?);
    let operation = operation(u, spec.service)?;
    let destination = if u.ratio(1, 8)? { u.arbitrary()? } else { destination_of(spec.service) };
    let address = AddressVector { key: U64::new(u.arbitrary()?), ..AddressVector::default() };
    let address = address.for_datagram(u.int_in_range(0..=0xff_ffff)?, u.arbitrary()?);
    let count = if u.ratio(1, 8)? { u.int_in_range(0..=66)? } else { u.int_in_range(0..=4)? };
    let buffer = |u: &mut Unstructured<'_>| {
        let length = match u.int_in_range(0..=9)? {
            0 => 8,
            1 if !inline && !has_header => u.arbitrary()?,
            _ => u.int_in_range(0..=300)?,
        };
        let mut bytes = vec![0; if inline || has_header { length as usize } else { 0 }];
        u.fill_buffer(&mut bytes)?;
        Ok((Sge::new(u.arbitrary()?, length, u.arbitrary()?), bytes))
    };
    let data = (0..count).map(|_| buffer(u)).collect::<Result<Vec<_>>>()?;
    let remote_srqn = u.int_in_range(0..=0xff_ffff)?;
    Ok(Request { operation, address, destination, remote_srqn, flags, inline, data })
}

/// The kind of destination that a service's requests have, as a number: see [`Request::work`].
fn destination_of(service: Service) -> u8 {
    match service {
        Service::Rc | Service::Uc | Service::RawEthernet => 0,
        Service::Ud => 1,
        Service::Xrc => 2,
        Service::Dci => 3,
    }
}

fn operation(u: &mut Unstructured<'_>, service: Service) -> Result<Operation> {
    use RunTimeOperation as O;
    let remote = Remote::new(u.arbitrary()?, u.arbitrary()?);
    let immediate = Immediate(u.arbitrary()?);
    let number: u32 = u.arbitrary()?;
    let aligned =
        if u.ratio(7, 8)? { Remote::new(remote.address & !7, remote.rkey) } else { remote };
    // Mostly use raw packet queues' own two operations.
    let packets = service == Service::RawEthernet && u.ratio(7, 8)?;
    Ok(Operation::Plain(match u.int_in_range(if packets { 14 } else { 0 }..=15)? {
        0 => O::Send,
        1 => O::SendImmediate(immediate),
        2 => O::SendInvalidate(number),
        3 => O::Write(remote),
        4 => O::WriteImmediate(remote, immediate),
        5 => O::Read(remote),
        6 => {
            let (compare, swap) = (u.arbitrary()?, u.arbitrary()?);
            O::CompareSwap(CompareSwap { remote: aligned, compare, swap })
        }
        7 => O::FetchAdd(FetchAdd { remote: aligned, add: u.arbitrary()? }),
        8 => O::MaskedCompareSwap(MaskedCompareSwap {
            remote: aligned,
            compare: u.arbitrary()?,
            compare_mask: u.arbitrary()?,
            swap: u.arbitrary()?,
            swap_mask: u.arbitrary()?,
        }),
        9 => {
            let (add, field_boundary) = (u.arbitrary()?, u.arbitrary()?);
            O::MaskedFetchAdd(MaskedFetchAdd { remote: aligned, add, field_boundary })
        }
        10 => O::Nop,
        11 => O::BindWindow(bind(u, remote, number)?),
        12 => {
            let (window_type, new_rkey) = (window_type(u)?, u.arbitrary()?);
            O::UnbindWindow(UnbindWindow { window: number, window_type, new_rkey })
        }
        13 => O::LocalInvalidate(number),
        14 => O::Packet(offload(u)?),
        _ => {
            let mut header = vec![0; u.int_in_range(0..=120)?];
            u.fill_buffer(&mut header)?;
            return Ok(Operation::Segmented { offload: offload(u)?, mss: u.arbitrary()?, header });
        }
    }))
}

fn window_type(u: &mut Unstructured<'_>) -> Result<WindowType> {
    Ok(if u.arbitrary()? { WindowType::Type1 } else { WindowType::Type2 })
}

fn bind(u: &mut Unstructured<'_>, at: Remote, window: u32) -> Result<BindWindow> {
    let length = if u.arbitrary()? { u.int_in_range(0..=1 << 31)? } else { u.arbitrary()? };
    Ok(BindWindow {
        window,
        window_type: window_type(u)?,
        new_rkey: u.arbitrary()?,
        lkey: at.rkey,
        address: at.address,
        length,
        access: WindowAccess::from_bits_truncate(u.arbitrary()?),
        zero_based: u.arbitrary()?,
    })
}

fn offload(u: &mut Unstructured<'_>) -> Result<EthernetOffload> {
    let vlan = if u.ratio(1, 4)? { Some(u.arbitrary()?) } else { None };
    Ok(EthernetOffload { checksum: EthChecksum(u.arbitrary()?), vlan, metadata: u.arbitrary()? })
}

impl Request {
    /// Reduces the offloads of a packet to those of verbs: both checksums or none.
    pub(crate) fn simplify_offload(&mut self) {
        let (Operation::Plain(RunTimeOperation::Packet(offload))
        | Operation::Segmented { offload, .. }) = &mut self.operation
        else {
            return;
        };
        let both = offload.checksum.contains(EthChecksum::L3);
        let checksum = if both { EthChecksum::IP_CSUM } else { EthChecksum::NONE };
        *offload = EthernetOffload { checksum, ..EthernetOffload::default() };
    }

    /// Makes the SGEs refer to their data, for an encoder that copies some of it.
    pub(crate) fn name_own_bytes(&mut self) {
        for (sge, bytes) in &mut self.data {
            *sge = sge.with_address(bytes.as_ptr().expose_provenance() as u64);
        }
    }

    pub(crate) fn buffers(&self) -> Vec<Buffer<'_>> {
        self.data.iter().map(|(sge, bytes)| Buffer { sge: *sge, bytes }).collect()
    }

    pub(crate) fn work<'a>(&'a self, data: &'a [Buffer<'a>]) -> Work<'a> {
        let operation = match &self.operation {
            Operation::Plain(operation) => *operation,
            Operation::Segmented { offload, mss, header } => {
                RunTimeOperation::Segmented { offload: *offload, mss: *mss, header }
            }
        };
        let destination = match self.destination % 4 {
            0 => RunTimeDestination::Connected,
            1 => RunTimeDestination::Datagram(&self.address),
            2 => RunTimeDestination::Xrc(self.remote_srqn),
            _ => RunTimeDestination::Dc(&self.address),
        };
        Work { operation, destination, flags: self.flags, inline: self.inline, data }
    }
}
