//! `uverbs run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::process::{self, Ended, Running, Scratch};

/// The command, with a library of this source tree beside it.
fn uverbs<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    process::build_library();
    process::uverbs(arguments)
}

fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Ended {
    Running::start(&mut uverbs(arguments)).end()
}

/// Whether a program of a Debian package is installed. With `CI` set it has to be.
pub(crate) fn is_installed(program: &str, package: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    assert!(found || std::env::var_os("CI").is_none(), "{program} of {package} is missing");
    if !found {
        eprintln!("skipped: no {program} (package {package})");
    }
    found
}

#[test]
fn the_command_exits_with_the_programs_status() {
    assert_eq!(run(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["run", "--", "sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
    run(&["run", "--", "true"]).success();
}

#[test]
fn a_temporary_directory_that_cannot_be_written_is_no_obstacle() {
    let mut command = uverbs(&["run", "--", "ls", "/sys/class/infiniband"]);
    let listed = Running::start(command.env("TMPDIR", "/proc")).end().success();
    assert_eq!(listed.stdout.trim(), "mlx5_0");
}

/// A command without its library, in a directory that looks like cargo's.
#[test]
fn a_missing_library_is_told_and_never_built() {
    let scratch = Scratch::new("run-missing");
    let directory = scratch.directory("debug");
    let command = directory.join("uverbs");
    fs::copy(env!("CARGO_BIN_EXE_uverbs"), &command).expect("copy");
    let witness = scratch.path().join("built");
    let cargo = scratch.file("cargo", format!("#!/bin/sh\n: > {}\n", witness.display()).as_bytes());
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("executable");
    let mut run = Command::new(&command);
    run.args(["run", "--", "true"]).env("CARGO", &cargo).env_remove("UVERBS_PRELOAD");
    run.env("PATH", format!("{}:/usr/bin:/bin", scratch.path().display()));
    let ended = Running::start(&mut run).end().failure(1, "is not beside this command");
    for words in ["debug/../lib", "cargo build --release -p uverbs-preload", "UVERBS_PRELOAD"] {
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
    assert!(!witness.exists(), "cargo was called");
}

#[test]
fn signals_go_to_the_program() {
    let script =
        "trap 'echo got it; exit 3' TERM; echo ready; while :; do read -r line || sleep 1; done";
    let mut running = Running::start(&mut uverbs(&["run", "--", "sh", "-c", script]));
    running.line("ready");
    let status = Command::new("kill").args(["-TERM", &running.id().to_string()]).status();
    assert!(status.expect("kill").success());
    let ended = running.end();
    assert_eq!((ended.status.code(), ended.stdout.trim()), (Some(3), "got it"), "{ended:?}");
}

/// The program has the other end of the pipe that `end` reads, longer than the test waits.
#[test]
fn a_killed_command_takes_its_program_along() {
    let script = "echo ready; exec sleep 200";
    let mut running = Running::start(&mut uverbs(&["run", "--", "sh", "-c", script]));
    running.line("ready");
    running.kill();
    assert_eq!(running.end().status.signal(), Some(9));
}

#[test]
fn variables_that_the_devices_do_not_follow_are_named() {
    let said = |variable: &str, value: &str, option: &[&str]| {
        let mut command = uverbs(&[&["run"], option, &["--", "true"]].concat());
        Running::start(command.env(variable, value)).end().success().stderr
    };
    let warning = said("UVERBS_SOFT_FAULTS", "zz", &[]);
    let expected = "UVERBS_SOFT_FAULTS is not for the devices of uverbs run: use --faults\n";
    assert_eq!(warning, format!("uverbs run: {expected}"));
    assert!(said("UVERBS_SOFT_LINK", "ib", &[]).contains("use --link"));
    assert_eq!(said("UVERBS_SOFT_LINK", "ib", &["--link", "ib"]), "");
    assert_eq!(said("UVERBS_SOFT_LINK", "roce", &[]), "");
    assert_eq!(said("UVERBS_SOFT_FAULTS", "7", &["--faults", "8"]), "");
    assert_eq!(said("UVERBS_SOFT_ADDRESS", "127.18.77.1", &[]), "");
}

/// 203.0.113.0/24 is for documentation (RFC 5737).
#[test]
fn an_address_of_another_machine_is_named_before_the_program_runs() {
    let list = "127.0.0.1,203.0.113.77";
    let with = |devices| {
        let ended = run(&["run", "--devices", devices, "--address", list, "--", "echo", "here"]);
        assert_eq!(ended.stdout, "here\n");
        ended.success().stderr
    };
    assert_eq!(with("1"), "");
    let warning = with("2");
    let words = "uverbs run: no software device here: 203.0.113.77 is not an address of this";
    assert!(warning.starts_with(words) && warning.lines().count() == 1, "{warning}");
}

#[test]
fn temporary_files_are_removed() {
    let scratch = Scratch::new("run-removed");
    let list = "ls \"$UVERBS_RUN_SYSFS\" > /dev/null && ls /sys/class/infiniband_verbs";
    let ended =
        Running::start(uverbs(&["run", "--", "sh", "-c", list]).env("TMPDIR", scratch.path()))
            .end()
            .success();
    assert!(ended.stdout.contains("uverbs0"), "{ended:?}");
    assert_eq!(fs::read_dir(scratch.path()).expect("a directory").count(), 0);
}

#[test]
fn programs_that_cannot_be_served_are_named_in_one_line() {
    let scratch = Scratch::new("run-reach");
    let mut elf = vec![0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let program = |name: &str, contents: &[u8]| {
        let path = scratch.file(name, contents);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path.to_str().expect("a path").to_owned()
    };
    let fixed = program("static", &elf);
    run(&["run", "--", &fixed]).failure(1, "linked statically");
    let script = program("script", format!("#!{fixed}\n").as_bytes());
    run(&["run", "--", &script]).failure(1, "linked statically");
    elf[18] = 3;
    run(&["run", "--", &program("foreign", &elf)]).failure(1, "another architecture");
    run(&["run", "--", "no-such-program"]).failure(2, "no program no-such-program");
    run(&["run"]).failure(2, "PROGRAM");
}

#[test]
fn a_trace_names_verbs_and_fields() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("run-trace");
    let trace = scratch.path().join("trace");
    let option = format!("--trace={}", trace.display());
    let ended = run(&["run", &option, "--", "ibv_devinfo"]).success();
    assert!(ended.stdout.contains("PORT_ACTIVE"), "{ended:?}");
    let trace = fs::read_to_string(trace).expect("a trace");
    for words in
        ["uverbs0 open = ", "DEVICE.GET_CONTEXT", "max_send_wqebb=", "mmap(", "legacy_resp={"]
    {
        assert!(trace.contains(words), "{words} is missing in {trace}");
    }
}

#[test]
fn a_trace_without_a_reader_ends_no_program() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    // The reader ends at once.
    let script = "exec 3>&1; (sleep 1; ibv_devinfo > /dev/null; echo ended $? >&3) 2>&1 | :";
    let ended = run(&["run", "--trace=-", "--", "sh", "-c", script]).success();
    assert!(ended.stdout.contains("ended 0"), "{ended:?}");
}

/// A pingpong between two C programs, or one and this command, under `options`.
fn game(options: &[&str], server: &[&str], client: &[&str]) {
    let port = crate::port::free_port();
    let line = |program: &[&str]| -> Vec<String> {
        let own = program.first() == Some(&"pingpong");
        let run = if own { vec![] } else { [&["run"], options, &["--"]].concat() };
        run.iter().chain(program).map(|word| word.replace("PORT", &port)).collect()
    };
    let running = Running::start(&mut uverbs(&line(server)));
    process::wait_for_listener(&port);
    run(&line(client)).success();
    running.end().success();
}

const C_PROGRAM: &str = "ibv_rc_pingpong -g 3 -n 100 -p PORT";
const OURS: &str = "pingpong --peer ibv --device soft --iters 100 --port PORT";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn c_programs_run_against_each_other_and_against_this_command() {
    if !is_installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let (theirs, ours) = (words(C_PROGRAM), words(OURS));
    let client = |line: &[&'static str]| [line, &["127.0.0.1"]].concat();
    game(&[], &theirs, &client(&theirs));
    game(&[], &theirs, &client(&ours));
    game(&[], &[&ours[..], &["--listen"]].concat(), &client(&theirs));
}

/// Both sides wait for each other before they end. `ibv_rc_pingpong` does not: if the
/// acknowledgement of its last message is lost, no program is left to send another. The time-out
/// (`-u`: half a second instead of 67 ms) leaves a busy machine time to answer.
#[test]
fn c_programs_survive_a_bad_wire() {
    if !is_installed("ib_write_bw", "perftest") {
        return;
    }
    let server = words("ib_write_bw -x 3 -F -n 200 -u 17 -p PORT");
    game(&["--faults", "7"], &server, &[&server[..], &["127.0.0.1"]].concat());
}

#[test]
fn recordings_have_one_file_per_process() {
    if !is_installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("run-pcap");
    let file = scratch.path().join("wire.pcap");
    let script = "ibv_devinfo > /dev/null; ibv_devinfo > /dev/null";
    let path = file.to_str().expect("a path");
    run(&["run", "--pcap", path, "--", "sh", "-c", script]).success();
    let files = process::names(scratch.path());
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.contains(&"wire.pcap".to_owned()));
    let magic = fs::read(file).expect("a file");
    assert_eq!(magic[..4], 0xa1b2_3c4d_u32.to_le_bytes());
}

#[test]
fn the_page_about_c_programs_lists_every_option() {
    let help = run(&["run", "--help"]).success().stdout;
    let options = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    let options = options.map(|option| option.split(['[', '=']).next().unwrap_or_default());
    let page = include_str!("../../../docs/c-programs.md");
    let mut listed = 0;
    for option in options.filter(|option| !["", "help", "version"].contains(option)) {
        assert!(page.contains(&format!("| `--{option}")), "--{option}");
        listed += 1;
    }
    assert!(listed >= 9, "{help}");
}
