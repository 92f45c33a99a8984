//! Objects of direct verbs, for tests of all objects.

use std::ptr;

use super::{devx, keys, matchers};
use crate::abi::*;
use crate::result::tests::{Object, object};

/// One object of each kind. Those that need others come after them.
///
/// # Safety
/// A live domain.
pub(crate) unsafe fn one_of_each(domain: *mut ibv_pd) -> Vec<Object> {
    /// ALLOC_PD: a command, and space for its answer.
    const ALLOC_PD: [u8; 16] = [0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // `struct mlx5dv_mkey_init_attr`: an indirect key of four entries.
    let mut key = [domain.expose_provenance() as u64, 4 << 32 | 1];
    // `struct mlx5dv_flow_match_parameters` of 64 bytes: the destination is all ones.
    let mut matched = [0; 9];
    (matched[0], matched[2]) = (64, u64::MAX >> 16);
    // `struct mlx5dv_flow_matcher_attr`: outer headers, and the mask.
    let matcher = [0, 1 << 16, matched.as_ptr().expose_provenance() as u64, 0];
    // `struct mlx5dv_flow_action_attr`: frames are dropped.
    let drop = [1_u64, 0];
    let memory = Box::leak(Box::new([0_u8; 4096])).as_mut_ptr();
    let mut answer = [0; ALLOC_PD.len()];
    // SAFETY: structs as above; the caller's domain.
    unsafe {
        let context = (*domain).context;
        let (command, length) = (ALLOC_PD.as_ptr().cast(), ALLOC_PD.len());
        let made = devx::obj_create(context, command, length, answer.as_mut_ptr().cast(), length);
        let matcher = matchers::create_flow_matcher(context, matcher.as_ptr().cast());
        let value = matched.as_ptr().cast();
        let rule = matchers::create_flow(matcher, value, 1, drop.as_ptr().cast());
        vec![
            object(made, devx::obj_destroy),
            object(devx::umem_reg(context, memory.cast(), 4096, 1), devx::umem_dereg),
            object(keys::create_mkey(key.as_mut_ptr().cast()), keys::destroy_mkey),
            object(matcher, matchers::destroy_flow_matcher),
            object(rule, crate::flow::destroy_flow),
        ]
    }
}
