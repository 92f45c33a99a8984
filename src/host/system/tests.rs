#[path = "../../../tests/common/child.rs"]
#[allow(clippy::duplicate_mod, reason = "each test module has its own")]
mod child;

use std::sync::mpsc::channel;

use super::*;
use child::{Outcome, in_child};

#[test]
fn a_child_waits_for_no_thread_that_was_registering_handlers() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let ((begun, has_begun), (end, may_end)) = (channel(), channel::<()>());
    let other = std::thread::spawn(move || {
        once_at_least(&DONE, || {
            begun.send(()).unwrap();
            let _ = may_end.recv();
        });
    });
    has_begun.recv().unwrap();
    let mut registered = false;
    assert_eq!(in_child(|| once_at_least(&DONE, || registered = true)), Outcome::Well);
    once_at_least(&DONE, || registered = true);
    assert!(registered);
    once_at_least(&DONE, || panic!("registered already"));
    drop(end);
    other.join().unwrap();
}

#[test]
fn without_a_watch_there_may_always_have_been_a_fork() {
    let forks = Forks { count: AtomicU64::new(3), unwatched: AtomicU64::new(0) };
    assert_eq!([forks.number(), forks.number()], [3, 3]);
    forks.unwatched.store(1, Ordering::SeqCst);
    assert_ne!(forks.number(), forks.number());
}
