//! As `replay.rs`, for the target that calls the drop-in. It has its own process, because it sets
//! the environment variable that selects the software device.

mod inputs;

use uverbs_fuzz_harness::capi;

#[test]
fn all_inputs() {
    inputs::random("capi", capi::run, 200);
    inputs::replay("capi", capi::run);
}
