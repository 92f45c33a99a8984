//! C programs, built with the system's header and this library: promises of the verbs, and NCCL's
//! way of loading the library.

mod library;

use std::path::Path;
use std::process::Command;

use library::{DropIn, compiled, skip};

fn runs(source: &str, libraries: &[&str]) {
    let drop_in = DropIn::new(source);
    let Some(program) = compiled(&drop_in, source, libraries) else {
        return skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
    };
    // With the functions for this processor, with the portable ones, and with the observed ones.
    let trace = [("UVERBS_TRACE", "/dev/null"), ("UVERBS_TRACE_DATA", "1")];
    let variants: [&[_]; 4] =
        [&[], &[("UVERBS_BASE_INSTRUCTIONS", "1")], &[("UVERBS_CHECK", "1")], &trace];
    for variables in variants {
        keeps(&program, &drop_in, variables);
    }
}

fn keeps(program: &Path, drop_in: &DropIn, variables: &[(&str, &str)]) {
    let output = Command::new(program)
        .env("LD_LIBRARY_PATH", drop_in.path())
        .env("UVERBS_DEVICE", "soft")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("kept"), "{variables:?}: {said}{failed}");
}

#[test]
fn promises_of_the_verbs_are_kept() {
    runs("semantics.c", &["-libverbs"]);
}

#[test]
fn unknown_bits_are_refused_as_by_libibverbs() {
    runs("masks.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn rare_requests_are_answered_as_by_libibverbs() {
    runs("answers.c", &["-libverbs"]);
}

#[test]
fn windows_start_at_their_address_or_at_zero() {
    runs("windows.c", &["-libverbs"]);
}

#[test]
fn signals_interrupt_waits_as_their_handlers_say() {
    runs("signals.c", &["-libverbs"]);
}

#[test]
fn texts_for_closed_standard_streams_are_no_events() {
    runs("streams.c", &["-libverbs"]);
}

/// Tag matching is on InfiniBand ports.
#[test]
fn tags_are_matched() {
    let drop_in = DropIn::new("tags");
    let Some(program) = compiled(&drop_in, "tags.c", &["-libverbs", "-lmlx5"]) else {
        return skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
    };
    let link = ("UVERBS_SOFT_LINK", "ib");
    let trace = [link, ("UVERBS_TRACE", "/dev/null"), ("UVERBS_TRACE_DATA", "1")];
    for variables in [&[link][..], &[link, ("UVERBS_CHECK", "1")], &trace] {
        keeps(&program, &drop_in, variables);
    }
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
fn events_of_the_firmware_are_read() {
    runs("devx_events.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn threads_and_children_never_wait_for_ever() {
    runs("threads.c", &["-libverbs"]);
}

#[test]
fn programs_write_requests_and_read_completions_themselves() {
    runs("direct.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn rules_of_matchers_deliver_frames() {
    runs("matchers.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn requests_configure_memory_keys() {
    runs("keys.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn random_requests_are_encoded_as_expected() {
    runs("requests.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn requests_of_no_bytes_are_delivered_and_invalid_receives_are_named() {
    runs("empty.c", &["-libverbs", "-lmlx5"]);
}

#[test]
fn structs_of_older_programs_are_not_read_past_their_end() {
    runs("short.c", &["-libverbs", "-lmlx5"]);
}

/// `dlopen` of `libibverbs.so`, and `dlvsym` of each name with its version, as NCCL's loader does.
#[test]
fn nccl_finds_its_symbols() {
    runs("loader.c", &["-ldl"]);
}
