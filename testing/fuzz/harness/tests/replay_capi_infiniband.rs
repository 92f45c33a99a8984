//! As `replay_capi.rs`, on software devices with InfiniBand ports, with tag matching.

mod inputs;

use uverbs_fuzz_harness::capi;

#[test]
fn all_inputs() {
    capi::use_infiniband();
    inputs::random("capi", capi::run, 200);
    inputs::replay("capi_infiniband", capi::run);
}
