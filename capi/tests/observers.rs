//! `UVERBS_TRACE` and `UVERBS_CHECK` must not disturb a program: writes that fail, cancelled
//! threads, forks, closed descriptors.

mod library;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use library::{DropIn, compiled, path, skip};

/// Runs the program with variables set, and asserts that it ends well; `None` without a compiler.
fn observed(
    what: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Option<(DropIn, Output)> {
    let drop_in = DropIn::new(&format!("observers-{what}{}", variables.len()));
    let Some(program) = compiled(&drop_in, "observers.c", &["-libverbs"]) else {
        skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
        return None;
    };
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", drop_in.path()).env("UVERBS_DEVICE", "soft");
    command.arg(what).args(arguments).envs(variables.iter().copied()).current_dir(drop_in.path());
    let output = command.output().unwrap();
    assert!(said(&output.stdout).contains("kept"), "{what}: {output:?}");
    assert!(output.status.success(), "{what}: {output:?}");
    Some((drop_in, output))
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn programs_continue_if_the_output_cannot_be_written() {
    observed("full", &[], &[("UVERBS_CHECK", "1"), ("UVERBS_ERRORS", "1")]);
    let trace = [("UVERBS_TRACE", "/dev/full"), ("UVERBS_TRACE_DATA", "1"), ("UVERBS_CHECK", "1")];
    observed("threads", &[], &trace);
}

#[test]
fn a_trace_that_cannot_be_opened_is_named() {
    for file in ["/", "no/such/directory"] {
        let Some((_, output)) = observed("nothing", &[], &[("UVERBS_TRACE", file)]) else { return };
        let complaint = said(&output.stderr);
        assert!(complaint.starts_with("uverbs: no trace in "), "{file}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{file}: {complaint}");
    }
}

/// A pipe that no program reads is one of them: waiting for a reader would stop the program.
#[test]
fn a_pipe_without_a_reader_is_no_trace() {
    let drop_in = DropIn::new("pipe");
    let pipe = drop_in.path().join("trace");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let variables = [("UVERBS_TRACE", pipe.to_str().unwrap())];
    let Some((_, output)) = observed("nothing", &[], &variables) else { return };
    assert!(said(&output.stderr).starts_with("uverbs: no trace in "), "{output:?}");
}

#[test]
fn a_limit_of_file_sizes_does_not_end_the_program() {
    let variables = [("UVERBS_TRACE", "trace"), ("UVERBS_CHECK", "1")];
    let Some((drop_in, _)) = observed("limited", &[], &variables) else { return };
    assert_eq!(fs::metadata(drop_in.path().join("trace")).unwrap().len(), 4096);
    let Some((_, output)) = observed("too_small", &[], &[]) else { return };
    assert!(said(&output.stderr).contains("no software devices"), "{output:?}");
}

#[test]
fn verbs_are_no_cancellation_points() {
    observed("cancelled", &[], &[]);
    let variables = [("UVERBS_TRACE", "trace"), ("UVERBS_TRACE_DATA", "1"), ("UVERBS_CHECK", "1")];
    observed("cancelled", &[], &variables);
}

#[test]
fn a_child_does_not_wait_for_a_complaint_of_its_parent() {
    observed("forked", &[], &[("UVERBS_CHECK", "1")]);
}

#[test]
fn a_trace_goes_to_no_other_file() {
    let variables = [("UVERBS_TRACE", "trace"), ("UVERBS_CHECK", "1")];
    let Some((drop_in, _)) = observed("closed", &["trace"], &variables) else { return };
    let text = fs::read_to_string(drop_in.path().join("trace")).unwrap();
    assert!(text.contains("cqe=-1,") && text.contains("ibv_close_device("), "{text}");
}

#[test]
fn lines_of_several_threads_do_not_mix() {
    let variables = [("UVERBS_TRACE", "trace"), ("UVERBS_CHECK", "1")];
    let Some((drop_in, output)) = observed("threads", &[], &variables) else { return };
    let (text, complaints) =
        (fs::read_to_string(drop_in.path().join("trace")).unwrap(), said(&output.stderr));
    assert_eq!(text.matches("ibv_alloc_pd(").count(), 1601);
    let is_whole = |line: &str| line.matches(" ibv_").count() == 1 && line.ends_with(" us>");
    assert!(text.lines().all(is_whole), "{text}");
    let start = "uverbs: misuse: ibv_dealloc_pd: double destroy: ";
    assert_eq!(complaints.lines().count(), 1600);
    assert!(complaints.lines().all(|line| line.starts_with(start)), "{complaints}");
}

/// The variables name files to write to, so they must not affect a set-user-ID program.
#[test]
fn set_user_id_programs_ignore_the_variables() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let drop_in = DropIn::new("privileged");
    let library = format!("-Wl,-rpath,{}", drop_in.path().display());
    let Some(program) = compiled(&drop_in, "observers.c", &[&library, "-libverbs"]) else {
        return skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
    };
    // The other user may have no access to the build directory.
    let name = drop_in.path().join("libibverbs.so.1");
    fs::remove_file(&name).unwrap();
    fs::copy(path(), &name).unwrap();
    const UNPRIVILEGED: u32 = 65534;
    chown(&program, Some(0), Some(0)).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let output = Command::new(program)
        .arg("privileged")
        .env("UVERBS_DEVICE", "soft")
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED)
        .output()
        .unwrap();
    assert!(said(&output.stdout).contains("kept"), "{output:?}");
}
