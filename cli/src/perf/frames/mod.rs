//! `uverbs perf frames`: frames that bypass the kernel's network stack, between a queue of frames
//! here and one at the other end that answers each frame.
//!
//! The rounds, one after the other: the program's own stalls without traffic, round trips, a fixed
//! rate, bursts, the other end's time from a frame's arrival to its answer's departure, cold and
//! warm sends, steering rules.

mod client;
mod end;
mod gaps;
mod plan;
mod report;
mod rounds;
mod server;

pub(super) use client::run;
pub(super) use plan::Plan;
pub(super) use server::serve;
