//! As `replay.rs`, for the target that calls the drop-in, in a process of its own because it sets
//! the variable that asks for a software device.

mod inputs;

use uverbs_fuzz_harness::capi;

#[test]
fn all_inputs() {
    inputs::random("capi", capi::run, 200);
    inputs::replay("capi", capi::run);
}
