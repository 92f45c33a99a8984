#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uverbs_fuzz_harness::frames::run(data));
