use std::sync::{Mutex, mpsc};
use std::thread;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

use super::*;

#[test]
fn all_threads_of_a_process_share_one() {
    static SHARED: PerProcess<Mutex<u32>> = PerProcess::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| *SHARED.get().lock().unwrap() += 1);
        }
    });
    assert_eq!(*SHARED.get().lock().unwrap(), 4);
}

#[test]
fn a_forked_child_has_a_new_value_even_if_another_thread_holds_the_lock() {
    static SHARED: PerProcess<Mutex<u32>> = PerProcess::new();
    let ((held, is_held), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut guard = SHARED.get().lock().unwrap();
            *guard = 7;
            held.send(()).unwrap();
            let _ = is_done.recv();
        });
        is_held.recv().unwrap();
        // SAFETY: the child uses no threads and locks of the parent, and exits at once.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                // Kills a child that hangs.
                alarm::set(60);
                let fresh = *SHARED.get().lock().unwrap();
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(fresh as i32) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        drop(done);
    });
    assert_eq!(*SHARED.get().lock().unwrap(), 7, "the parent keeps its own");
}
