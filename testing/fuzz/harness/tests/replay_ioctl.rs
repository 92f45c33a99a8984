//! As `replay.rs`, for the target that counts the file descriptors of its process.

mod inputs;

use uverbs_fuzz_harness::ioctl;

#[test]
fn all_inputs() {
    inputs::random("ioctl", ioctl::run, 200);
    inputs::replay("ioctl", ioctl::run);
}
