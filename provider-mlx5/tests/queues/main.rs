//! The queues over plain memory, with the tests playing the device: laps, full rings, wrap-around,
//! doorbells, completions of every kind, queues that are closed.

mod closing;
mod completions;
mod device;
mod doorbells;
mod encodings;
mod frames;
mod handles;
mod hostile;
mod overrun;
mod receives;
mod resizing;
mod sends;
mod strides;
mod templates;
