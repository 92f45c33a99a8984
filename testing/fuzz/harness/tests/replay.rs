//! Replays the committed inputs of every fuzz target, and some random ones, on a stable toolchain.
//!
//! `testing/fuzz/README.md` describes the inputs. The target `ioctl` has a separate test, because
//! it counts the descriptors of its process.

mod inputs;

macro_rules! targets {
    ($($target:ident: $random:literal,)*) => {$(
        mod $target {
            #[test]
            fn committed_inputs() {
                super::inputs::replay(stringify!($target), uverbs_fuzz_harness::$target::run);
            }

            #[test]
            fn random_inputs() {
                super::inputs::random(stringify!($target), uverbs_fuzz_harness::$target::run, $random);
            }
        }
    )*};
}

targets! {
    wqe: 3000,
    ring_decode: 3000,
    post: 3000,
    cqe_poll: 3000,
    frames: 3000,
    ring_execute: 300,
    packet: 300,
}
