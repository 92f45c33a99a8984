//! Tests of the device through its driver's interface: guest memory, configuration space, BAR
//! stores, firmware commands through their queue.

mod counters;
mod driver;
mod flow_counters;
mod flow_tables;
mod frames;
mod owners;
mod queues;
mod reserved_numbers;
mod strictness;
mod tag_matching;
mod targets;
mod user_contexts;
mod wires;
