//! Memory that the device reads or writes while we hold it.

pub use crate::mapped::DmaMemory;
