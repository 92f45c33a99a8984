//! Each command of a program fails in turn. The test has a separate process, because it counts open
//! descriptors.

mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::Arc;

use nix::errno::Errno;
use uverbs::Device;
use uverbs::soft::{Fault, Moment, SoftDevice};

#[test]
fn a_failing_command_leaks_no_descriptor() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let device = Device::from_shared_soft(soft.clone());
    let before = soft.ioctl_count();
    device.open().and_then(program::run).unwrap();
    let commands = soft.ioctl_count() - before;
    let descriptors = open_descriptors();
    let mut failures = 0;
    for call in 0..commands {
        soft.inject(Fault { moment: Moment::Call(call), errno: Errno::ENOMEM });
        if let Err(error) = device.open().and_then(program::run) {
            assert_eq!(error.errno(), Errno::ENOMEM as i32, "command {call}: {error}");
            failures += 1;
        }
        // Whichever command failed, the next program runs.
        device.open().and_then(program::run).unwrap();
        assert_eq!(open_descriptors(), descriptors, "command {call} left a descriptor open");
    }
    assert!(failures > commands / 2, "{failures} of {commands}");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
