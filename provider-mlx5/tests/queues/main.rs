//! The queues over plain memory; the tests act as the device. Laps, full rings, wrap-around,
//! doorbells, completions of every kind, closed queues.

mod closing;
mod completions;
mod compressed;
mod device;
mod differential;
mod doorbells;
mod encodings;
mod fences;
mod frames;
mod handles;
mod hostile;
mod hostile_tags;
mod overrun;
mod receives;
mod resizing;
mod sends;
mod strides;
mod tags;
mod templates;
