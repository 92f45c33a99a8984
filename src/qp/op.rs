//! The operations of send queues. Use them qualified: `op::Send`.
//!
//! The compiler checks that the queue pair's [type](crate::qp_type) has the operation
//! ([`Carries`]), and that the operation takes the payload ([`Takes`]).

pub use uverbs_mlx5::send_queue::{
    BindWindow, Carries, CompareSwap, EthernetFrame, EthernetSend, EthernetSendHeader, EthernetTso,
    FetchAdd, LocalInvalidate, MaskedCompareSwap, MaskedFetchAdd, Nop, Operation, Read, Send,
    SendImmediate, SendInvalidate, Takes, To, UnbindWindow, Write, WriteImmediate,
};
