use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::*;

fn is_here_in_a_child(home: &Home) -> bool {
    // SAFETY: the child reads two words and exits at once.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(home.is_here().into()) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, code) => code != 0,
            other => panic!("{other:?}"),
        },
    }
}

#[test]
fn a_forked_child_is_another_process() {
    let home = Home::new();
    let plain = Home { process: home.process(), mark: None };
    for home in [home, plain] {
        assert!(home.is_here());
        assert!(!is_here_in_a_child(&home));
        assert!(home.is_here());
    }
}

#[test]
fn a_forked_child_has_a_number_of_its_own() {
    assert_eq!(own_process(), std::process::id());
    // SAFETY: the child reads two numbers and exits at once.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let is_own = own_process() == std::process::id();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(is_own.into()) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 1)));
        }
    }
}
