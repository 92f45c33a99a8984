//! Doorbell registers in a user access region (UAR), the page of the NIC that a program maps.
//!
//! Two registers doing two jobs: the BlueFlame register of a send queue takes either an 8-byte
//! doorbell or a copy of the whole WQE; the arm register takes a CQ's request for an event.

pub(crate) use crate::mapped::Ring;
pub use crate::mapped::{ArmRegister, BlueFlame, InChild, Register, SharedBlueFlame};
