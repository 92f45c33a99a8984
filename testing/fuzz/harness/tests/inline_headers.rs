//! As `replay_libmlx5.rs`, on a device that requires the first 18 bytes of each packet inside the
//! WQE.

mod inputs;

use uverbs_fuzz_harness::libmlx5;

#[test]
fn all_inputs() {
    libmlx5::want_inline_headers();
    if libmlx5::is_there() {
        inputs::replay("libmlx5", libmlx5::run);
        inputs::random("libmlx5", libmlx5::run, 3000);
    }
}
