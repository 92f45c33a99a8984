//! A process without free file descriptors must get this error, not an empty list of devices.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use uverbs::Error;
use uverbs::channel::Roots;

/// The result of `ask` while file descriptors are limited to numbers below `limit`.
fn with_limit<T>(limit: u64, ask: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit");
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("limit");
    let answer = ask();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("limit");
    answer
}

fn names_the_limit(error: &Error) {
    assert_eq!(error.errno(), nix::libc::EMFILE, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

fn device(root: &Path, uverbs: &str, name: &str) {
    let directory = root.join("sys/class/infiniband_verbs").join(uverbs);
    fs::create_dir_all(&directory).expect("directory");
    fs::write(directory.join("ibdev"), name).expect("file");
}

/// A single test, because the limit is for the whole process.
#[test]
fn a_list_of_devices_without_descriptors_left_names_the_limit() {
    names_the_limit(&with_limit(0, uverbs::devices).expect_err("a list"));
    names_the_limit(&with_limit(0, || uverbs::device("mlx5_77")).expect_err("a device"));
    names_the_limit(&with_limit(0, uverbs::open_default).expect_err("a context"));

    let root = std::env::temp_dir().join(format!("uverbs-descriptors-{}", std::process::id()));
    device(&root, "uverbs0", "mlx5_0");
    device(&root, "uverbs1", "mlx5_1");
    let roots = Roots::below(&root);
    let all = uverbs::devices_below(&roots).expect("list");
    assert_eq!(all.len(), 2);
    // Enough for the directory of devices, but not for a file in it.
    let free = File::open("/dev/null").expect("file").as_raw_fd() as u64;
    let listed = with_limit(free + 1, || uverbs::devices_below(&roots));
    fs::remove_dir_all(&root).expect("remove");
    names_the_limit(&listed.expect_err("a list"));
}
