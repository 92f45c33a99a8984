//! Programs of libibverbs that wait under `uverbs run`: `waiting.c` waits with calls of the C
//! library and of the provider.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Running, Scratch};

/// The program; `None`, without `CI`, on a machine without a C compiler or the headers.
fn compiled(scratch: &Scratch) -> Option<PathBuf> {
    let program = scratch.path().join("waiting");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command/waiting.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
    compiler.args(["-lmlx5", "-libverbs", "-lpthread", "-ldl"]);
    let Ok(output) = compiler.output() else { return missing("cc") };
    if output.status.success() {
        return Some(program);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("infiniband/") && text.contains("No such file"), "{text}");
    missing("libibverbs-dev")
}

fn missing<T>(what: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "{what} is missing");
    eprintln!("skipped: no {what}");
    None
}

/// Runs the program with the names of checks.
#[track_caller]
fn holds(name: &str, checks: &[&str]) {
    process::build_library();
    let scratch = Scratch::new(name);
    let Some(program) = compiled(&scratch) else { return };
    let mut command = process::uverbs(&["run", "--"]);
    let ended = Running::start(command.arg(program).args(checks)).end().success();
    assert_eq!(ended.stdout, "well\n", "{ended:?}");
}

#[test]
fn a_sleeping_program_runs_the_device_and_signals_interrupt_it_as_they_do_a_read() {
    holds("waiting-signals", &["signals", "nonblocking"]);
}

#[test]
fn a_thread_that_runs_the_device_while_it_sleeps_can_be_cancelled() {
    holds("waiting-cancel", &["cancel"]);
}

#[test]
fn polls_of_every_context_and_extended_queue_let_the_device_make_progress() {
    holds("waiting-tables", &["tables"]);
}

#[test]
fn a_signal_handler_may_end_a_program_that_polls() {
    holds("waiting-exit", &["exit"]);
}

#[test]
fn a_path_to_a_gid_that_no_device_has_times_out() {
    holds("waiting-neighbour", &["neighbour"]);
}
