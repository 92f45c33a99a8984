//! Tests of the engine over plain-buffer memory, driven step by step.

mod completion;
mod compression;
mod datagram;
mod dc;
mod errors;
mod harness;
mod hostile;
mod lengths;
mod lists;
mod loss;
mod not_ready;
mod queues;
mod raw;
mod rc;
mod repeated;
mod rights;
mod shared;
mod strangers;
mod striding;
mod tags;
mod umr;
mod windows;
mod wr;
