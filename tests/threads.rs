//! Which types are `Send` and which are `Sync`: those in the table of the crate's documentation,
//! and all other public types.

#[path = "common/sources.rs"]
mod sources;

use uverbs::attributes::{Guid, Pacing};
use uverbs::channel::Roots;
use uverbs::clock::Conversion;
use uverbs::cm;
use uverbs::completion_channel::{CqEvent, DetachedCqEvent};
use uverbs::counters::CounterPoint;
use uverbs::cq::{Compression, TimestampFormat, WorkCompletion};
use uverbs::device_memory::DeviceOperation;
use uverbs::devx::{
    CommandChannel, Devx, DevxObject, DevxUar, EventChannel, PacingEntry, UarKind, Umem,
    UmemOptions, VirtioDoorbell,
};
use uverbs::ethernet::{self, FreeRunning, RealTime};
use uverbs::events::{AsyncEvent, DetachedEvent, EventSource, EventType, ObjectId};
use uverbs::flow::{self, Ethernet, FlowBuilder, FlowKind, Ipv4, Ipv6, Masked, Ports};
use uverbs::flow::{FlowAction, MatchedFlowBuilder, Matcher, MatcherOptions, Spread};
use uverbs::gid::{GidChoice, GidEntry, GidReason};
use uverbs::layer::{Raw, Safe};
use uverbs::memory::{QueueMemory, QueueUse, Registration};
use uverbs::qp::rss::{RssFields, RssOptions, RssTraffic};
use uverbs::qp::{
    AckTimeout, AlternatePath, Capacities, DcEndpoint, DcReceiver, Ece, MigrationState,
    PathOptions, PostError, QpAttributes, QpInfo, RateLimit, RnrTimer, TagQueue, Transition,
    TransitionError, XrcReceiver,
};
use uverbs::qp_type::{QpType, RawPacket, Rc, Ud};
use uverbs::srq::SrqAttributes;
use uverbs::tokio::{
    Alarm, AsyncCmChannel, AsyncCompletionChannel, AsyncCompletionQueue, AsyncEvents, AsyncFile,
    AsyncListener, Readable,
};
use uverbs::{
    AddressHandle, AddressVector, Batch, Buffer, Completion, CompletionChannel, CompletionQueue,
    Context, Counters, CqHandle, DestroyError, Device, DeviceAttributes, DeviceClock, DeviceKind,
    DeviceMemory, Endpoint, Error, ErrorKind, Flow, Gid, GidKind, GlobalRoute, IndirectionTable,
    InlineTemplate, Limit, LinkLayer, MemoryRegion, MemoryView, MemoryWindow, Mtu, PageSize,
    PollError, PortAttributes, ProtectionDomain, QpBuilder, QueuePair, ReceiveBatch, Refused,
    Remote, RssTarget, Sge, SharedReceiveBatch, SharedReceiveQueue, Slab, Slot, SlotRequest,
    SrqBuilder, ThreadDomain, WorkQueue, WqBuilder, WqHandle, WqState, XrcDomain, raw,
};

/// Whether a type implements a trait, decided at compile time: if the bound holds, the inherent
/// constant shadows the blanket trait's.
macro_rules! has {
    ($type:ty, $trait:path) => {{
        #[allow(dead_code)]
        trait Otherwise {
            const HAS: bool = false;
        }
        impl<T: ?Sized> Otherwise for T {}
        struct Of<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + $trait> Of<T> {
            const HAS: bool = true;
        }
        <Of<$type>>::HAS
    }};
}

macro_rules! expect {
    ($send:literal, $sync:literal: $($type:ty),* $(,)?) => {{
        let wrong: Vec<&str> = [$((stringify!($type), has!($type, Send), has!($type, Sync))),*]
            .into_iter()
            .filter(|(_, send, sync)| (*send, *sync) != ($send, $sync))
            .map(|(name, _, _)| name)
            .collect();
        assert!(wrong.is_empty(), "not Send {} and Sync {}: {wrong:?}", $send, $sync);
    }};
}

#[test]
fn the_macro_recognises_traits() {
    expect!(true, true: u8);
    expect!(true, false: std::cell::Cell<u8>);
    expect!(false, false: *const u8);
}

#[test]
fn handles_and_parents_are_shared_freely() {
    expect!(true, true:
        Devx, DevxObject, CommandChannel, EventChannel, PacingEntry, VirtioDoorbell, DevxUar, Umem,
        Device, Context, ProtectionDomain, ThreadDomain, XrcDomain, raw::CqHandle, raw::SrqHandle, CqHandle,
        CompletionChannel, AsyncCompletionChannel, AsyncEvents, MemoryRegion, MemoryView<'static>,
        MemoryWindow, Buffer, AddressHandle, DeviceMemory, DeviceClock, Counters,
        Flow, FlowAction, Matcher, Spread, flow::SteeringAnchor, DeviceOperation, XrcReceiver, DcReceiver, QueueMemory, Slab, Slot,
    );
}

#[test]
fn builders_and_plain_values_are_shared_freely() {
    expect!(true, true:
        SlotRequest<'static>, InlineTemplate<uverbs::op::Send>, raw::CqBuilder, raw::SrqBuilder, raw::QpBuilder<Rc>, QpBuilder<Rc>, SrqBuilder, Registration,
        AckTimeout, AddressVector, AlternatePath, Capacities, Conversion, DcEndpoint, DestroyError<Context>,
        DeviceAttributes, DeviceKind, Ece, Endpoint, Error, ErrorKind, EventSource, EventType, Gid,
        GidChoice, GidEntry, GidKind, GidReason, GlobalRoute, Guid, LinkLayer, MigrationState, Mtu,
        ObjectId, PageSize, PathOptions, PollError, PortAttributes, PostError, QpAttributes, QpInfo, Raw, Safe,
        QueueUse, Refused, Remote, RnrTimer, Roots, Sge, SrqAttributes, Transition, TransitionError,
        QpType, WorkCompletion, CounterPoint, Ethernet, FlowKind, Ipv4, Ipv6, Masked<u16>, Ports,
        MatcherOptions<'static>, RateLimit, Pacing, Limit, Compression, TimestampFormat, UarKind, UmemOptions<'static>,
    );
}

#[test]
fn queues_belong_to_one_thread_at_a_time() {
    expect!(true, false: raw::CompletionQueue, raw::QueuePair<Rc>, raw::QueuePair<Ud>, raw::SharedReceiveQueue);
    expect!(true, false: TagQueue, raw::TagBatch<'static>);
    expect!(true, false: raw::QueuePair<RawPacket>, FlowBuilder<'static>, WorkQueue, raw::WorkQueue);
    expect!(true, true: WqBuilder, raw::WqBuilder, WqHandle, WqState, IndirectionTable, RssTarget, RssFields, RssOptions, RssTraffic);
    expect!(true, false: CompletionQueue, QueuePair<Rc>, SharedReceiveQueue);
    // `raw::SharedReceiveBatch` is `RawSharedReceiveBatch` where it is declared.
    expect!(true, false: AsyncCompletionQueue, AsyncCompletionQueue<Raw>, raw::SharedReceiveBatch<'static>, SharedReceiveBatch<'static>);
    expect!(true, false: Batch<'static, Rc>, ReceiveBatch<'static>, MatchedFlowBuilder<'static>);
}

#[test]
fn connections_and_their_events_move_to_other_threads() {
    expect!(true, true: cm::Channel, cm::Id, cm::IdKey, cm::PortSpace, cm::Address<'static>, cm::IbAddress, cm::Event, cm::EventKind, cm::Reply);
    expect!(true, true: cm::DatagramPeer, cm::Group, cm::JoinMode, cm::Membership, cm::Rejection, cm::RejectReason);
    expect!(true, true: cm::PrivateData<56>, cm::QpOptions, cm::ConnectOptions, cm::AcceptOptions, cm::Peer);
    expect!(true, true: cm::ConnectionRequest, cm::HalfOpen<u8, u8, u8>, cm::Link, cm::ListenerBuilder, cm::Connector, AsyncCmChannel);
    expect!(true, true: Alarm, AsyncFile, Readable<'static>);
    expect!(true, false: cm::Listener, cm::Connection, cm::Resources, AsyncListener);
}

#[test]
fn queues_of_frames_belong_to_one_thread_at_a_time() {
    expect!(true, false: ethernet::RxQueue, ethernet::TxQueue, ethernet::RxBatch<'static>);
    expect!(true, false: ethernet::StridingQueue);
    expect!(true, true: ethernet::StridingBuilder, ethernet::StridingCounters);
    expect!(true, true: ethernet::StridedFrame, ethernet::Striding);
    expect!(true, true: ethernet::StrideBytes, ethernet::StridesPerWqe, ethernet::Untimed);
    expect!(true, true: ethernet::RxBuilder, ethernet::TxBuilder, ethernet::RxCounters, ethernet::TxCounters);
    expect!(true, true: ethernet::Timestamp<FreeRunning>, ethernet::Timestamp<RealTime>, ethernet::UtcClock);
    expect!(true, true: ethernet::Sent<FreeRunning>, ethernet::Template<2>, ethernet::Field<u32, 4>);
    expect!(true, true: ethernet::Tailed<2>, ethernet::Sum<40>, ethernet::recording::Recorded);
    expect!(true, true: ethernet::recording::Recorder<Vec<u8>>, ethernet::recording::Snapped<'static>);
    expect!(true, true: ethernet::recording::Recording<&'static [u8]>);
    expect!(true, false: ethernet::Staged<'static>);
    expect!(false, false: ethernet::Frame<'static>);
    expect!(true, true: flow::Sharing, flow::UdpMulticast, flow::Protocol, flow::FiveTuple, flow::FiveTupleV6);
    expect!(true, true: flow::Port, flow::Sniffer, flow::Leftovers, flow::Membership);
    expect!(true, true: flow::Matcher, flow::MatcherOptions<'static>, flow::FlowAction, flow::Spread);
    expect!(true, false: flow::MatchedFlowBuilder<'static>);
}

#[test]
fn lent_values_stay_with_their_thread() {
    expect!(false, false: raw::Completion<'static>, Completion<'static>, raw::PollBatch<'static>);
    expect!(false, false: raw::RingLayout, raw::QpLayout, raw::CqLayout);
}

#[test]
fn events_stay_with_the_thread_that_got_them_unless_detached() {
    expect!(false, false: AsyncEvent, CqEvent);
    expect!(true, true: DetachedEvent, DetachedCqEvent);
}

/// The names of the public types that a source file declares.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let rest = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "))?;
        rest.split(|c: char| !c.is_alphanumeric()).next()
    })
}

#[test]
fn every_public_type_is_in_one_of_the_lists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = sources::files(&root.join("src"), &["rs"]).into_iter();
    let all: Vec<_> = files.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let (_, tests) = include_str!("threads.rs").split_once("fn handles_and_parents").unwrap();
    let listed: Vec<_> = tests.split(|c: char| !c.is_alphanumeric()).collect();
    let types: Vec<_> = all.iter().flat_map(|code| declared(code)).collect();
    assert!(types.len() > 60, "{types:?}");
    let missing: Vec<_> = types.into_iter().filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "say whether these are Send and Sync: {missing:?}");
}
