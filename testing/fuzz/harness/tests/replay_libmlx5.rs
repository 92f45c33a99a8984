//! As `replay.rs`, for the target that compares with libmlx5. It has its own process, because
//! loading libmlx5 changes the environment. Without libmlx5 it prints a message and passes; with
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
