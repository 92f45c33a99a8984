//! The character device, tested with requests as raw bytes.
#![allow(unsafe_code)]

mod bench;
mod contexts;
mod dispatcher;
mod dynamic;
mod event_files;
mod flow_tables;
mod matchers;
mod memory;
mod not_modelled;
mod objects;
mod on_demand;
mod queues;
mod raw_packet;
mod removal;
mod states;
mod traffic;
mod work_queues;
