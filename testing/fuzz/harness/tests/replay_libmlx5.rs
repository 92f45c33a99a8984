//! As `replay.rs`, for the target that compares with libmlx5, in a process of its own because
//! bringing that up changes the environment. Where there is no libmlx5 it says so and passes; with
//! `CI` set it fails.

mod inputs;

use uverbs_fuzz_harness::libmlx5;

#[test]
fn all_inputs() {
    if libmlx5::is_there() {
        inputs::replay("libmlx5", libmlx5::run);
        inputs::random("libmlx5", libmlx5::run, 3000);
    }
}
