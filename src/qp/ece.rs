//! Enhanced connection establishment (ECE): vendor options that two ends negotiate before they
//! connect.
//!
//! Device and driver define the options; the program only exchanges them:
//!
//! 1. The connecting end queries its queue pair
//!    ([`QueuePair::query_ece`](super::QueuePair::query_ece)) and sends the options to the peer.
//! 2. The accepting end sets them ([`QueuePair::set_ece`](super::QueuePair::set_ece)), connects,
//!    queries what its device granted, and sends that back.
//! 3. The connecting end sets the returned options, and connects.
//!
//! The next change of attributes passes the options to the device and returns the granted ones, as
//! in `mlx5_set_ece` and `mlx5_query_ece` (rdma-core, providers/mlx5/verbs.c).

use uverbs_uapi::mlx5::AllocUcontextRespMask;

use crate::device::context::Context;
use crate::error::{Error, Result};

/// The PCI vendor id that mlx5's options carry.
const VENDOR: u32 = 0x15b3;
/// Options requested at creation: "version 1 as a trigger" (`mlx5_create_qp` of rdma-core).
const TRIGGER: u32 = 0x1000_0000;

/// Options of enhanced connection establishment (`struct ibv_ece`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ece {
    /// PCI vendor id of the vendor that defined the options.
    pub vendor_id: u32,
    /// The options, bits defined by the vendor. 0: none.
    pub options: u32,
}

/// A queue pair's options.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EceState {
    /// Options that the next change of attributes asks for.
    pub(super) wanted: Option<u32>,
    /// Options that the device granted last.
    pub(super) granted: u32,
}

impl EceState {
    pub(super) fn query(self, context: &Context) -> Result<Ece> {
        require("query_ece", context)?;
        Ok(Ece { vendor_id: VENDOR, options: self.granted })
    }

    pub(super) fn set(&mut self, context: &Context, ece: Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        require(VERB, context)?;
        if ece.vendor_id != VENDOR {
            let cause = format!("the options are vendor {:#x}'s, not {VENDOR:#x}'s", ece.vendor_id);
            return Err(Error::invalid(VERB, cause));
        }
        (self.wanted, self.granted) = (Some(ece.options), 0);
        Ok(())
    }
}

/// Options to ask for at creation.
pub(super) fn at_creation(context: &Context) -> u32 {
    if is_supported(context) { TRIGGER } else { 0 }
}

fn is_supported(context: &Context) -> bool {
    context.driver_limits().comp_mask.contains(AllocUcontextRespMask::ECE)
}

fn require(verb: &'static str, context: &Context) -> Result<()> {
    if is_supported(context) {
        return Ok(());
    }
    let cause = "the device has no enhanced connection establishment (ECE)";
    Err(Error::unsupported(verb, cause).cure_with("connect without these options"))
}
