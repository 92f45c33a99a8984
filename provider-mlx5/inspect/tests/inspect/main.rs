//! The inspector: round trips for every service and opcode, findings one by one, dumps.

mod bytes;
mod completions;
mod everything;
mod findings;
mod generate;
mod strategy;
mod values;
