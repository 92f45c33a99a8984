//! Memory that the device may read or write as long as a queue uses it.

pub use crate::mapped::DmaMemory;
