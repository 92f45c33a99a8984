//! Doorbell registers in a user access region (UAR), the page of the NIC that a program maps.
//!
//! Two registers doing two jobs: the BlueFlame register of a send queue takes either an 8-byte
//! doorbell or a copy of the whole WQE; the arm register takes a CQ's request for an event.

pub use crate::mapped::{ArmRegister, BlueFlame, InChild, SharedBlueFlame};
pub(crate) use sealed::Ring;

pub(crate) mod sealed {
    /// Sealed: access to the inner register would let callers swap it with another queue's.
    pub trait Sealed {
        /// Runs `ring` with exclusive access to the register.
        fn with(&mut self, ring: impl Ring);
    }

    /// A store to a register. The fast path has its own types for it, because a closure that is not
    /// inlined would keep the request in memory.
    pub trait Ring {
        fn ring(self, register: &mut super::BlueFlame);
    }

    impl<F: FnOnce(&mut super::BlueFlame)> Ring for F {
        #[inline(always)]
        fn ring(self, register: &mut super::BlueFlame) {
            self(register);
        }
    }
}

/// The register that rings a send queue's doorbell: its own ([`BlueFlame`]) or one shared under a
/// lock ([`SharedBlueFlame`]). Only a send queue can write it:
///
/// ```compile_fail
/// fn ring(register: &mut uverbs_mlx5::mmio::SharedBlueFlame) {
///     register.with(|_register| ());
/// }
/// ```
pub trait Register: sealed::Sealed + Send + 'static {
    /// Largest WQE, in bytes, that can be copied to the register; 0 if it takes doorbells only.
    fn copy_limit(&self) -> u32;
}
