//! Inputs, and what to do with them.

use std::path::{Path, PathBuf};

/// Names the input that was running when a target found something.
struct Running(String);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was {}", self.0);
        }
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let corpus = files(&fuzz.join("corpus").join(target));
    assert!(!corpus.is_empty(), "no corpus of {target}");
    for path in corpus.into_iter().chain(files(&fuzz.join("regressions").join(target))) {
        let _running = Running(path.display().to_string());
        run(&std::fs::read(&path).expect("readable"));
    }
}

/// Random bytes are poor inputs, but never the same as the corpus. `UVERBS_FUZZ_RUNS` says how many, instead of `count`.
pub(crate) fn random(target: &str, run: fn(&[u8]), count: u64) {
    let wanted = std::env::var("UVERBS_FUZZ_RUNS").ok();
    let count = wanted.map_or(count, |wanted| wanted.parse().expect("a number"));
    for seed in 1..=count {
        let _running = Running(format!("random bytes of seed {seed} for {target}"));
        run(&bytes(seed));
    }
}

/// Up to 1 KiB out of a xorshift generator.
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
