//! A C program against the system's header and this library: what the verbs promise, and NCCL's way
//! of loading it.

mod library;

use std::path::Path;
use std::process::Command;

use library::{DropIn, compiled, skip};

fn runs(source: &str, libraries: &[&str]) {
    let drop_in = DropIn::new(source);
    let Some(program) = compiled(&drop_in, source, libraries) else {
        return skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
    };
    // By the functions for this processor, and by those for any.
    for variable in ["UVERBS_NO_VARIABLE", "UVERBS_BASE_INSTRUCTIONS"] {
        keeps(&program, &drop_in, (variable, "1"));
    }
}

fn keeps(program: &Path, drop_in: &DropIn, variable: (&str, &str)) {
    let output = Command::new(program)
        .env("LD_LIBRARY_PATH", drop_in.path())
        .env("UVERBS_DEVICE", "soft")
        .env(variable.0, variable.1)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("kept"), "{variable:?}: {said}{failed}");
}

#[test]
fn promises_of_the_verbs_are_kept() {
    runs("semantics.c", &["-libverbs"]);
}

#[test]
fn a_target_is_shared_by_number() {
    runs("shared_qp.c", &["-libverbs"]);
}

#[test]
fn doorbell_pages_and_firmware_commands_go_to_the_kernel() {
    runs("devx.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn threads_and_children_wait_for_nothing_that_cannot_come() {
    runs("threads.c", &["-libverbs"]);
}

#[test]
fn programs_write_requests_and_read_completions_themselves() {
    runs("direct.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn matchers_and_their_rules_bring_frames() {
    runs("matchers.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn keys_lead_to_what_requests_say() {
    runs("keys.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn requests_are_in_the_ring_as_they_were_asked_for() {
    runs("requests.c", &["-libverbs", "-lmlx5"]);
}

/// Also where a trace shows them.
#[test]
fn structs_of_older_programs_are_not_read_past_their_end() {
    let (source, libraries) = ("short.c", ["-libverbs", "-lmlx5"]);
    runs(source, &libraries);
    let drop_in = DropIn::new("traced-short");
    if let Some(program) = compiled(&drop_in, source, &libraries) {
        keeps(&program, &drop_in, ("UVERBS_TRACE", "/dev/null"));
    }
}

/// `dlopen` of `libibverbs.so`, and `dlvsym` of each name with its version, as NCCL's loader does.
#[test]
fn nccl_finds_what_it_looks_for() {
    runs("loader.c", &["-ldl"]);
}
