use super::*;
use crate::fork::tests::a_child_returns;

/// An event that represents this many events.
struct Event(u32);

impl Counted for Event {
    fn join(&mut self, other: Self) {
        self.0 += other.0;
    }

    fn acknowledge(&mut self, count: u32) -> bool {
        self.0 -= count.min(self.0);
        self.0 > 0
    }
}

#[test]
fn a_waiting_destroy_goes_on_after_the_last_acknowledgement() {
    let held = Held::default();
    held.hold(Event(1));
    held.hold(Event(1));
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| held.wait());
        held.acknowledge(1);
        assert!(!destroying.is_finished());
        held.acknowledge(1);
    });
}

/// In strict seccomp mode the kernel kills a process at any system call but read, write and exit.
#[test]
fn an_acknowledgement_that_no_thread_waits_for_makes_no_system_call() {
    assert!(a_child_returns(|| {
        let held = Held::default();
        held.hold(Event(1));
        // SAFETY: no memory is involved. `SYS_exit` is the exit that this mode allows.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT), 0);
            held.acknowledge(1);
            libc::syscall(libc::SYS_exit, 0);
        }
    }));
}
