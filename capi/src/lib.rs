//! `libibverbs.so.1` over the raw layer of [`uverbs`]: the C ABI of the verbs for programs that
//! were built for rdma-core.
//!
//! C's structs wrap the library's objects. This crate has no queue, encoder or command of its own.
//! Objects never move once a program has their address. `exports.txt` lists every exported name
//! with its versions and the function behind it; `build.rs` turns it into symbols and the linker's
//! version script.
//!
//! # Threads
//! The verbs are thread-safe. A queue's sends, its receives and its polls have a spin lock each,
//! unless the program declared that one thread uses the queue (a thread domain,
//! `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, `MLX5_SINGLE_THREADED`). `ibv_query_qp` takes neither lock
//! of the queue pair, and `ibv_modify_qp` only while a reset empties the queues; other verbs that
//! change a queue pair take both.
//!
//! # Panics
//! A panic in an `extern "C"` function aborts the process: nothing unwinds into C. The library does
//! not panic on outside input, and the paths of posting and polling have no branch that can.
//!
//! # Safety
//! Every function relies on the rules of the verbs' manual pages: pointers are to live objects of
//! this library, or to structs of the header; no object is used while another thread destroys it;
//! memory that requests name stays registered.

#![cfg_attr(
    test,
    allow(
        dead_code,
        unused_imports,
        reason = "test programs have no exported symbols, which use everything"
    )
)]

pub(crate) mod abi;
mod ah;
mod attributes;
mod channel;
mod closed;
mod context;
mod control;
mod cq;
mod create;
mod device;
mod dv;
mod environment;
mod events;
#[cfg(not(test))]
mod exports;
mod extras;
mod fields;
mod flow;
mod fork;
mod forms;
mod grown;
mod held;
mod lazy;
mod lock;
mod marshal;
mod memory;
mod observe;
mod pd;
mod poll;
mod post;
mod private;
mod qp;
mod query;
mod rates;
mod receive;
mod result;
mod soft;
mod srq;
mod steering;
mod strings;
mod table;
mod tags;
mod trace;
#[cfg(all(target_env = "gnu", not(test)))]
mod unwinder;
mod usual;
mod verbs;
mod window;
mod wq;
mod wr;
mod xrc;

#[cfg(not(test))]
#[doc(hidden)]
pub use exports::export;
