//! The operations that a send queue carries: used qualified, as `op::Send`.
//!
//! Which operation a queue pair takes depends on its [type](crate::qp_type) and is checked when a
//! program is compiled ([`Carries`]), as is what an operation can carry ([`Takes`]).

pub use uverbs_mlx5::send_queue::{
    BindWindow, Carries, CompareSwap, EthernetFrame, EthernetSend, EthernetSendHeader, EthernetTso,
    FetchAdd, LocalInvalidate, MaskedCompareSwap, MaskedFetchAdd, Nop, Operation, Read, Send,
    SendImmediate, SendInvalidate, Takes, To, UnbindWindow, Write, WriteImmediate,
};
