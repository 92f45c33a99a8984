//! Compares send requests.

use arbitrary::{Result, Unstructured};
use uverbs_libmlx5_harness::QueuePair;
use uverbs_mlx5::format::{ControlSegment, EthSegment, OCTOWORD, Opcode, WQEBB_SIZE};
use uverbs_mlx5::request::{PostError, PostFlags, Sge};
use uverbs_mlx5::send_queue::{RunTimeDestination, RunTimeOperation, WindowType};
use uverbs_mlx5_inspect::{Buffer, Posted, SendQueueSpec, Service, Work, post_sends, send_errno};

use super::requests::{Request, changes_keys};
use super::{LONGEST, Libmlx5Queues, Own, UNWRITTEN, assert_same};
use crate::work;

/// Most bytes of a packet to be segmented, as the software device reports to libmlx5.
const MAX_TSO: u64 = uverbs_soft::core::MAX_TSO as u64;

/// Posts a list after `start` requests that have completed.
pub(super) fn run(queues: &mut Libmlx5Queues, u: &mut Unstructured<'_>) -> Result<()> {
    let Libmlx5Queues { libmlx5, wants_headers, pairs, own } = queues;
    let index = u.choose_index(pairs.len())?;
    let (_, signal_all, pair) = &mut pairs[index];
    let spec = spec(u, pair, *signal_all, *wants_headers)?;
    let as_list: bool = u.arbitrary()?;
    let requests = (0..u.int_in_range(1..=LONGEST)?).map(|_| request(u, &spec));
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let buffers: Vec<Vec<Buffer<'_>>> = requests.iter().map(work::Request::buffers).collect();
    let works: Vec<Work<'_>> =
        requests.iter().zip(&buffers).map(|(request, data)| request.work(data)).collect();
    // `ibv_wr_bind_mw` treats every window as one of type 2.
    let as_list = as_list || works.iter().any(has_window_of_type_1);
    let as_list = as_list && has_list(&spec, &works);
    // Up to the first request that libmlx5's interface does not have.
    let theirs = works.iter().take_while(|work| !as_list || fits_list(work, &spec)).zip(own.iter());
    let mut theirs: Vec<_> = theirs.map_while(|(work, own)| Request::of(work, own)).collect();
    let post = |count| post_sends(&spec, &works[..count]).expect("libmlx5 made such a queue");
    let mut posted = post(theirs.len());
    if let Some(gap) = (0..posted.wqes.len())
        .find(|at| header_reaches_end(&works[*at], posted.wqes[*at].slot, &spec))
    {
        theirs.truncate(gap);
        posted = post(gap);
    }
    let good = posted.wqes.len();

    libmlx5.restart(pair);
    advance(pair, &spec, &own[0]);
    pair.fill(UNWRITTEN);
    match posted.refused {
        Some(refused) if as_list && refused_alike(&works[refused.index], refused.reason) => {
            let (errno, index) = Libmlx5Queues::post_list(pair, &mut theirs[..=good]);
            assert_eq!((errno, index), (send_errno(refused.reason), refused.index));
        }
        _ if as_list => {
            let outcome = Libmlx5Queues::post_list(pair, &mut theirs[..good]);
            assert_eq!(outcome, (0, good), "{:?}", &works[..good]);
        }
        _ => {
            assert_eq!(Libmlx5Queues::post_built(pair, &theirs[..good]), 0, "{:?}", &works[..good])
        }
    }
    if good > 0 {
        compare(pair, &posted);
    }
    Ok(())
}

/// The queue of a pair, starting at a random position.
fn spec(
    u: &mut Unstructured<'_>,
    pair: &QueuePair,
    signal_all: bool,
    wants_headers: bool,
) -> Result<SendQueueSpec> {
    let service = ours(pair.service());
    let start = u.int_in_range(1..=2 * pair.direct.send.entries)?;
    let has_windows = matches!(service, Service::Rc | Service::Uc | Service::Xrc);
    let small_fence = has_windows && u.arbitrary()?;
    Ok(SendQueueSpec {
        service,
        number: pair.number(),
        blocks: pair.direct.send.entries,
        start,
        // The invalidation that causes the fence takes two blocks.
        small_fence: small_fence && start >= 2,
        signal_all,
        max_sge: pair.capacities[2],
        max_inline: pair.capacities[4],
        min_inline_header: if wants_headers && service == Service::RawEthernet { 18 } else { 0 },
    })
}

fn request(u: &mut Unstructured<'_>, spec: &SendQueueSpec) -> Result<work::Request> {
    let mut request = work::request(u, spec)?;
    request.simplify_offload();
    if spec.min_inline_header != 0 {
        request.name_own_bytes();
    }
    Ok(request)
}

/// Whether libmlx5 can post the requests as a list. It cannot for a DC initiator, and lists with
/// packets to segment are wrong if headers must be inline.
fn has_list(spec: &SendQueueSpec, works: &[Work<'_>]) -> bool {
    let segments = |work: &Work<'_>| matches!(work.operation, RunTimeOperation::Segmented { .. });
    let is_wrong = spec.min_inline_header != 0 && works.iter().any(segments);
    spec.service != Service::Dci && !is_wrong
}

fn ours(service: uverbs_libmlx5_harness::Service) -> Service {
    use uverbs_libmlx5_harness::Service as Theirs;
    match service {
        Theirs::Rc => Service::Rc,
        Theirs::Uc => Service::Uc,
        Theirs::Ud => Service::Ud,
        Theirs::XrcSend => Service::Xrc,
        Theirs::RawPacket => Service::RawEthernet,
        Theirs::Dci => Service::Dci,
    }
}

fn has_window_of_type_1(work: &Work<'_>) -> bool {
    let window_type = match work.operation {
        RunTimeOperation::BindWindow(bind) => bind.window_type,
        RunTimeOperation::UnbindWindow(unbind) => unbind.window_type,
        _ => return false,
    };
    window_type == WindowType::Type1
}

/// Whether `ibv_post_send` treats this request as this library does.
fn fits_list(work: &Work<'_>, spec: &SendQueueSpec) -> bool {
    use RunTimeOperation as O;
    let fewest = usize::from(matches!(work.operation, O::Packet(_)));
    // This library accepts inline data in any number of buffers.
    let most = if work.inline { spec.max_sge as usize } else { usize::MAX };
    let total: u64 = work.data.iter().map(|buffer| u64::from(buffer.sge.length())).sum();
    let longest = if matches!(work.operation, O::Segmented { .. }) { MAX_TSO } else { u64::MAX };
    (fewest..=most).contains(&work.data.len()) && total <= longest
}

/// Whether the header reaches the ring's end. If it continues at the start, libmlx5 leaves a gap
/// after it (`set_tso_eth_seg`); if not, `mlx5_send_wr_set_sge_eth` writes an entry beyond the
/// ring.
fn header_reaches_end(work: &Work<'_>, slot: u32, spec: &SendQueueSpec) -> bool {
    let RunTimeOperation::Segmented { header, .. } = work.operation else { return false };
    let header = size_of::<ControlSegment>() + EthSegment::segment_ds(header.len()) * OCTOWORD;
    slot as usize * WQEBB_SIZE + header >= spec.blocks as usize * WQEBB_SIZE
}

/// Whether libmlx5 refuses this, too, and there is no other reason for a refusal.
fn refused_alike(work: &Work<'_>, reason: PostError) -> bool {
    let sane = work.data.iter().all(|buffer| buffer.sge.length() < 1 << 20);
    let plain = matches!(work.operation, RunTimeOperation::Send);
    plain && sane && matches!(reason, PostError::TooManySge | PostError::InlineTooLong)
}

/// Posts and completes small requests until the queue's counter is `spec.start`. The last one
/// changes a key if the next one must be fenced.
fn advance(pair: &mut QueuePair, spec: &SendQueueSpec, own: &Own) {
    let vector = Default::default();
    let destination = match spec.service {
        Service::Ud => RunTimeDestination::Datagram(&vector),
        Service::Xrc => RunTimeDestination::Xrc(0),
        Service::Dci => RunTimeDestination::Dc(&vector),
        Service::Rc | Service::Uc | Service::RawEthernet => RunTimeDestination::Connected,
    };
    // A packet must not be empty, and its headers may be read.
    static PACKET: [u8; 64] = [0; 64];
    let address = PACKET.as_ptr().expose_provenance() as u64;
    let buffer = [Buffer { sge: Sge::new(address, 64, 0), bytes: &PACKET }];
    let (operation, data) = match spec.service {
        Service::RawEthernet => (RunTimeOperation::Packet(Default::default()), &buffer[..]),
        _ => (RunTimeOperation::Send, &[][..]),
    };
    let send = Work { operation, destination, flags: PostFlags::empty(), inline: false, data };
    let invalidate = Work {
        operation: RunTimeOperation::LocalInvalidate(1),
        destination: RunTimeDestination::Connected,
        ..send
    };
    let mut counter = 0;
    while counter < spec.start {
        // An invalidation takes two blocks.
        let last = spec.small_fence && spec.start - counter <= 2;
        let work = if last && spec.start - counter == 2 { &invalidate } else { &send };
        let mut request = [Request::of(work, own).expect("both are libmlx5's too")];
        match spec.service {
            Service::Dci => assert_eq!(Libmlx5Queues::post_built(pair, &request), 0),
            _ => assert_eq!(
                Libmlx5Queues::post_list(pair, &mut request),
                (0, 1),
                "{work:?} at {counter} of {spec:?}"
            ),
        }
        let opcode = if changes_keys(work) { Opcode::UMR } else { Opcode::SEND };
        pair.complete(requester(opcode, counter as u16)).expect("a completion");
        counter += if changes_keys(work) { 2 } else { 1 };
    }
}

/// The CQE of a request, the one at this counter.
fn requester(opcode: Opcode, counter: u16) -> [u8; 64] {
    let mut cqe = [0; 64];
    cqe[56] = opcode.0;
    cqe[60..62].copy_from_slice(&counter.to_be_bytes());
    cqe
}

fn compare(pair: &QueuePair, posted: &Posted) {
    let ring = pair.send_ring();
    for wqe in &posted.wqes {
        let length = usize::from(wqe.bytes[7] & 0x3f) * 16;
        let start = wqe.slot as usize * 64;
        let theirs: Vec<u8> = (0..length).map(|at| ring[(start + at) % ring.len()]).collect();
        assert_same(&wqe.bytes[..length], &theirs, "a WQE");
        assert!(wqe.bytes[length..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(pair.record()[4..], (posted.end & 0xffff).to_be_bytes());
    if posted.refused.is_none() {
        // Earlier doorbells determine which half of the register it is.
        let register = pair.register();
        let stores: Vec<_> =
            register.chunks(register.len() / 2).filter(|half| half[0] != UNWRITTEN).collect();
        let [store] = stores[..] else { panic!("{} stores to the register", stores.len()) };
        assert_eq!(store[..8], posted.mmio[0][..8]);
    }
}
