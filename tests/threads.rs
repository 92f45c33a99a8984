//! Which types may move to another thread, and which may be shared: the table in the crate's documentation.

use uverbs::completion_channel::{CqEvent, DetachedCqEvent};
use uverbs::cq::WorkCompletion;
use uverbs::events::{AsyncEvent, DetachedEvent};
use uverbs::qp::{Rc, Ud, XrcReceiver};
use uverbs::{
    AddressHandle, Buffer, CompletionChannel, CompletionQueue, Context, Counters, CqHandle, Device,
    DeviceClock, DeviceMemory, Endpoint, Error, MemoryRegion, MemoryView, MemoryWindow,
    ProtectionDomain, QueuePair, SafeCompletionQueue, SafeQueuePair, SharedReceiveQueue, Slab,
    Slot, SrqHandle, ThreadDomain, XrcDomain,
};

/// Whether a type has a trait, decided when the test is compiled: the inherent constant is found only where its
/// bound holds, else the one of the blanket trait is.
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
    ($send:literal, $sync:literal: $($type:ty),* $(,)?) => {$(
        assert_eq!(has!($type, Send), $send, "Send of {}", stringify!($type));
        assert_eq!(has!($type, Sync), $sync, "Sync of {}", stringify!($type));
    )*};
}

#[test]
fn the_trick_tells_apart() {
    expect!(true, true: u8);
    expect!(true, false: std::cell::Cell<u8>);
    expect!(false, false: *const u8);
}

#[test]
fn handles_and_parents_are_shared_freely() {
    expect!(true, true:
        Device, Context, ProtectionDomain, ThreadDomain, XrcDomain, CqHandle, SrqHandle,
        CompletionChannel, MemoryRegion, MemoryView<'static>, MemoryWindow, Buffer, AddressHandle,
        DeviceMemory, DeviceClock, Counters, XrcReceiver, Endpoint, Error, WorkCompletion, Slab,
        Slot,
    );
}

#[test]
fn queues_belong_to_one_thread_at_a_time() {
    expect!(true, false: CompletionQueue, QueuePair<Rc>, QueuePair<Ud>, SharedReceiveQueue);
    expect!(true, false: SafeCompletionQueue, SafeQueuePair<Rc>);
}

#[test]
fn events_stay_with_the_thread_that_got_them_unless_detached() {
    expect!(false, false: AsyncEvent, CqEvent);
    expect!(true, true: DetachedEvent, DetachedCqEvent);
}
