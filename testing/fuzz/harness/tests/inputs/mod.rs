//! Runs targets with committed and random inputs.

use uverbs_fuzz_harness::corpus;

/// Prints the input with which a target found a defect, when it is dropped by a panic.
struct Running(String);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was {}", self.0);
        }
    }
}

pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let [corpus, regressions] =
        corpus::files(target).map(|file| (file.clone(), corpus::read(&file).expect("readable")));
    assert!(!corpus.1.is_empty(), "no corpus of {target}");
    for (file, inputs) in [corpus, regressions] {
        for input in inputs {
            let _running = Running(format!("{}: {}", file.display(), input.name));
            run(&input.bytes);
        }
    }
}

/// Runs a target with random bytes, which are poor inputs, but differ from the corpus: `count`
/// times, or as often as `UVERBS_FUZZ_RUNS` specifies.
pub(crate) fn random(target: &str, run: fn(&[u8]), count: u64) {
    let wanted = std::env::var("UVERBS_FUZZ_RUNS").ok();
    let count = wanted.map_or(count, |wanted| wanted.parse().expect("a number"));
    for seed in 1..=count {
        let _running = Running(format!("random bytes of seed {seed} for {target}"));
        run(&bytes(seed));
    }
}

/// Up to 1 KiB from a xorshift generator.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let length = (next() % 1024) as usize;
    (0..length).map(|_| (next() >> 32) as u8).collect()
}
