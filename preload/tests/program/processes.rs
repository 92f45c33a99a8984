//! Threads, forked children, executed programs and signals.

use super::*;

#[test]
fn duplicates_are_the_same_file_and_the_last_close_counts() {
    let trace = succeeds("processes::part_duplicates");
    assert_eq!(trace.matches(" close\n").count(), 1, "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_duplicates() {
    let first = open();
    assert!(make_context(&first).expect("a context") > 0);
    let second = first.try_clone().expect("a duplicate");
    drop(first);
    assert_eq!(ask_port(&second), Ok(()));
    assert_eq!(make_context(&second), Err(Errno::EINVAL), "the context is there already");
    drop(second);
    let trace = PathBuf::from(env::var_os("UVERBS_RUN_TRACE").expect("a trace"));
    let begin = Instant::now();
    while !fs::read_to_string(&trace).expect("the trace").contains(" close\n") {
        assert!(begin.elapsed() < PATIENCE, "the last close went unnoticed");
        std::thread::yield_now();
    }
}

#[test]
fn many_threads_may_open_ask_and_close() {
    let trace = succeeds("processes::part_threads");
    assert_eq!(trace.matches(" open = ").count(), 8 * 25, "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_threads() {
    let work = || {
        for _ in 0..25 {
            let file = open();
            make_context(&file).expect("a context");
            ask_port(&file).expect("a port");
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn a_forked_child_starts_anew_and_asks_its_parent_about_the_parents_device() {
    succeeds("processes::part_fork");
}

#[test]
#[ignore = "a part of the program"]
fn part_fork() {
    let file = open();
    make_context(&file).expect("a context");
    // SAFETY: the child uses no locks of its parent's other threads, and ends by `_exit`.
    match unsafe { fork() }.expect("a fork") {
        ForkResult::Child => {
            let status = i32::from(!child_starts_anew(&file));
            // SAFETY: ends the child without running its parent's end.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            assert_eq!(ask_port(&file), Ok(()), "the parent's device is as it was");
        }
    }
}

fn child_starts_anew(inherited: &OwnedFd) -> bool {
    // The parent executes calls that need only the request, also for a child of the child.
    let is_served = ask_port(inherited) == Ok(()) && make_context(inherited) == Err(Errno::EINVAL);
    let own = open();
    is_served && make_context(&own).is_ok() && ask_port(&own).is_ok()
}

#[test]
fn a_child_whose_parent_has_ended_is_told_so() {
    let (output, _) = run("processes::part_orphan", &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the orphan got EIO"), "{output:?}");
}

#[test]
#[ignore = "a part of the program"]
fn part_orphan() {
    let file = open();
    make_context(&file).expect("a context");
    let parent = Pid::this();
    // SAFETY: the child makes system calls and ends.
    if let ForkResult::Child = unsafe { fork() }.expect("a child") {
        // SAFETY: a call without pointers. It ends a child that hangs.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        while nix::unistd::getppid() == parent {
            std::thread::yield_now();
        }
        if ask_port(&file) == Err(Errno::EIO) {
            println!("the orphan got EIO");
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
}

#[test]
fn an_executed_program_has_devices_of_its_own() {
    succeeds("processes::part_exec");
}

#[test]
#[ignore = "a part of the program"]
fn part_exec() {
    let file = open();
    make_context(&file).expect("a context");
    let status = Command::new(env::current_exe().expect("a path"))
        .args(["--exact", "processes::part_executed", "--ignored"])
        .env("UVERBS_TEST_FD", file.as_raw_fd().to_string())
        .status()
        .expect("it starts");
    assert!(status.success());
    assert_eq!(ask_port(&file), Ok(()));
}

#[test]
#[ignore = "a part of the program"]
fn part_executed() {
    let number: i32 = env::var("UVERBS_TEST_FD").expect("a number").parse().expect("a number");
    // SAFETY: only asks whether there is a descriptor of that number.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    assert_eq!(Errno::result(flags), Err(Errno::EBADF), "the node was opened with O_CLOEXEC");
    let file = open();
    make_context(&file).expect("a context");
}

#[test]
fn signals_are_the_programs_own() {
    succeeds("processes::part_signals");
}

#[test]
#[ignore = "a part of the program"]
fn part_signals() {
    let file = open();
    make_context(&file).expect("a context");
    // Tested in a child, whose only other threads are the library's: if one of them received the
    // signal, its default action would end the child.
    let wanted = SigSet::from(Signal::SIGUSR1);
    // SAFETY: the child opens its own device and ends by `_exit`.
    match unsafe { fork() }.expect("a fork") {
        ForkResult::Child => {
            wanted.thread_block().expect("blocked");
            let own = open();
            let made = make_context(&own).is_ok();
            kill(Pid::this(), Signal::SIGUSR1).expect("sent");
            let got = wanted.wait() == Ok(Signal::SIGUSR1);
            // SAFETY: ends the child without running its parent's end.
            unsafe { libc::_exit(i32::from(!(made && got))) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}

/// A server that forks before it first looks for devices: each child has devices of its own.
#[test]
fn a_child_of_a_process_without_a_device_gets_its_own() {
    succeeds("processes::part_early_fork");
}

#[test]
#[ignore = "a part of the program"]
fn part_early_fork() {
    let children: Vec<Pid> = (0..3)
        // SAFETY: the child uses no locks of its parent's other threads, and ends by `_exit`.
        .map(|_| match unsafe { fork() }.expect("a fork") {
            ForkResult::Child => {
                let path = "/sys/class/infiniband/mlx5_0/ports/1/gids/3";
                let is_there = fs::read_to_string(path).is_ok();
                let is_usable = make_context(&open()).is_ok();
                // SAFETY: ends the child without running its parent's end.
                unsafe { libc::_exit(i32::from(!(is_there && is_usable))) }
            }
            ForkResult::Parent { child } => child,
        })
        .collect();
    for child in children {
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    }
    make_context(&open()).expect("the parent's own");
}
