//! `uverbs devices` and `uverbs info`.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process::{Running, Scratch, run, uverbs};

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect(text)
}

#[test]
fn the_software_device_is_always_there() {
    let ended = run(&["devices"]).success();
    assert!(ended.stdout.lines().any(|line| line.starts_with("soft ")), "{ended:?}");
    let list = json(&run(&["devices", "--json"]).success().stdout);
    let soft =
        list["devices"].as_array().expect("devices").iter().find(|row| row["name"] == "soft");
    assert_eq!(soft.expect("soft")["usable"], true);
}

#[test]
fn info_says_which_device_leads_to_an_address() {
    let table = json(&run(&["info", "soft", "--json"]).success().stdout);
    let gids = table["devices"][0]["ports"][0]["gids"].as_array().expect("gids").clone();
    assert!(!gids.is_empty());
    let report = json(&run(&["info", "soft", "--to", "127.0.0.1", "--json"]).stdout);
    assert_eq!(report["address"], "127.0.0.1");
    let report = json(&run(&["info", "soft", "--to", "localhost", "--json"]).success().stdout);
    assert_eq!(report["address"], "localhost");
}

#[test]
fn info_says_why_an_address_cannot_be_resolved() {
    for (address, what, cure) in [
        ("127.77.0.1", "no software device of this network namespace has 127.77.0.1", "--address"),
        ("203.0.113.9", "the software device is on the loopback network", "cure: "),
        ("fe80::1", "fe80::1 is a link-local address", "fe80::1%eth0"),
        ("no.such.host.invalid", "nor a host name that this machine can resolve", "getent"),
    ] {
        let failed = run(&["info", "soft", "--to", address]);
        let failed = failed.failure(1, &format!("{address} cannot be resolved: "));
        assert!(failed.stdout.contains(what), "{}", failed.stdout);
        assert!(failed.stdout.contains(cure), "{}", failed.stdout);
    }
}

#[test]
fn info_shows_the_device_its_port_and_the_gid_it_would_use() {
    let text = run(&["info", "soft"]).success().stdout;
    for expected in
        ["soft0 (software device)", "max_qp_wr", "GID", "would use GID 3: RoCE v2 over IPv4"]
    {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    let report = json(&run(&["info", "soft", "--json"]).success().stdout);
    let device = &report["devices"][0];
    assert_eq!(device["kind"], "software");
    assert!(device["attributes"]["max_cqe"].as_u64().expect("a number") > 0);
    let port = &device["ports"][0];
    assert_eq!((&port["state"], &port["link_layer"]), (&"ACTIVE".into(), &"Ethernet".into()));
    let types: Vec<_> =
        port["gids"].as_array().expect("gids").iter().map(|gid| &gid["type"]).collect();
    assert_eq!(types, ["RoCE v1", "RoCE v2", "RoCE v1", "RoCE v2"]);
    assert_eq!(port["chosen_gid"]["index"], 3);
}

/// A file tree like that of a machine with three RDMA devices, none of them usable.
fn machine(scratch: &Scratch) {
    for (uverbs, name, alias) in [
        ("uverbs0", "mlx5_0", "pci:v000015B3d0000101Dsv"),
        ("uverbs1", "irdma0", "pci:v00008086d00001592sv"),
        ("uverbs2", "mlx5_1", "pci:v000015B3d0000101Dsv"),
    ] {
        let class = scratch.path().join("sys/class/infiniband_verbs").join(uverbs);
        fs::create_dir_all(&class).expect("class");
        fs::write(class.join("ibdev"), format!("{name}\n")).expect("ibdev");
        fs::write(class.join("dev"), "231:192\n").expect("dev");
        fs::write(class.join("abi_version"), "1\n").expect("abi_version");
        let device = scratch.path().join("sys/class/infiniband").join(name).join("device");
        fs::create_dir_all(&device).expect("device");
        fs::write(device.join("modalias"), alias).expect("modalias");
    }
    fs::create_dir_all(scratch.path().join("dev/infiniband")).expect("dev");
    fs::write(scratch.path().join("dev/infiniband/uverbs2"), "").expect("node");
}

#[test]
fn missing_drivers_and_files_are_named_with_their_cures() {
    let scratch = Scratch::new("machine");
    machine(&scratch);
    let root = scratch.path().to_str().expect("a path");
    let report = json(&run(&["devices", "--json", "--root", root]).success().stdout);
    let problem = |name: &str| {
        let rows = report["devices"].as_array().expect("devices");
        let row = rows.iter().find(|row| row["name"] == name).expect(name);
        assert_eq!(row["usable"], false);
        row["problem"].to_string()
    };
    assert!(problem("mlx5_0").contains("no node for it"), "{report}");
    assert!(problem("mlx5_0").contains("--device="), "{report}");
    assert!(problem("irdma0").contains("mlx5 only"), "{report}");
    assert!(problem("mlx5_1").contains("not a character device"), "{report}");
    let text = run(&["info", "--root", root]).success().stdout;
    assert_eq!(text.matches("cannot be opened: ").count(), 3, "{text}");
    run(&["info", "mlx5_0", "--root", root]).failure(1, "mlx5_0 cannot be opened");
}

/// The command in a mount namespace whose /sys/class is that of `machine`.
fn on_machine(machine: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c"]);
    command.args(["mount --bind \"$0\" /sys/class && exec \"$@\""]);
    command.arg(machine.path().join("sys/class")).arg(env!("CARGO_BIN_EXE_uverbs"));
    command.args(arguments).env_remove("UVERBS_DEVICE").env("UVERBS_CODE", "tests");
    command
}

/// Whether this process may make such a namespace. Under `CI` it must.
fn can_be_on(machine: &Scratch) -> bool {
    let probe = on_machine(machine, &["devices"]).output();
    let is_allowed = probe.is_ok_and(|output| output.status.success());
    if !is_allowed {
        assert!(std::env::var_os("CI").is_none(), "unshare and mount have to work here");
        eprintln!("skipped: no mount namespace can be made here (unshare)");
    }
    is_allowed
}

/// A recording without frames: a header of the classic format, Ethernet.
const EMPTY_PCAP: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];

#[test]
fn no_command_takes_the_software_device_instead_of_an_unusable_adapter() {
    let scratch = Scratch::new("adapters");
    machine(&scratch);
    if !can_be_on(&scratch) {
        return;
    }
    let recording = scratch.file("empty.pcap", &EMPTY_PCAP);
    let recording = recording.to_str().expect("a path");
    let directory = scratch.path().to_str().expect("a path");
    let target = scratch.path().join("target.pcapng");
    for line in [
        &["pingpong", "--iters", "1"][..],
        &["pingpong", "--listen"],
        &["pingpong", "--listen", "--peer", "ibv"],
        &["perf", "lat", "--iters", "1"],
        &["perf", "frames", "--iters", "1"],
        &["perf", "--listen"],
        &["transfer", "recv", directory],
        &["transfer", "send", recording, "127.0.0.1"],
        &["capture", target.to_str().expect("a path"), "--count", "1"],
        &["replay", recording],
    ] {
        let ended = Running::start(&mut on_machine(&scratch, line)).end();
        let ended = ended.failure(1, "--device soft");
        assert!(ended.stderr.contains("mlx5_0: "), "{line:?}: {ended:?}");
        assert!(ended.stderr.contains("no node for it"), "{line:?}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{line:?}: {ended:?}");
    }
    assert!(!target.exists());
}

#[test]
fn a_machine_with_other_adapters_only_has_the_software_device() {
    let scratch = Scratch::new("others");
    machine(&scratch);
    for number in ["uverbs0", "uverbs2"] {
        let class = scratch.path().join("sys/class/infiniband_verbs").join(number);
        fs::remove_dir_all(class).expect("remove");
    }
    if can_be_on(&scratch) {
        let mut command = on_machine(&scratch, &["pingpong", "--iters", "1"]);
        let ended = Running::start(&mut command).end().success();
        assert!(ended.stdout.contains("not mlx5: irdma0"), "{ended:?}");
    }
}

/// A recording that has no frames of the network, or a replay that no network gets, must not look
/// like a success.
#[test]
fn frames_are_those_of_the_software_device_only_if_it_was_asked_for() {
    let scratch = Scratch::new("no-adapter");
    machine(&scratch);
    for number in ["uverbs0", "uverbs1", "uverbs2"] {
        let class = scratch.path().join("sys/class/infiniband_verbs").join(number);
        fs::remove_dir_all(class).expect("remove");
    }
    if !can_be_on(&scratch) {
        return;
    }
    let recording = scratch.file("empty.pcap", &EMPTY_PCAP);
    let recording = recording.to_str().expect("a path");
    let target = scratch.path().join("target.pcapng");
    let capture = ["capture", target.to_str().expect("a path"), "--seconds", "0.1"];
    let lines = [&capture[..], &["replay", recording]];
    for line in lines {
        let ended = Running::start(&mut on_machine(&scratch, line)).end();
        let ended = ended.failure(1, "--device soft");
        assert!(ended.stderr.contains("the kernel has no RDMA device"), "{line:?}: {ended:?}");
        assert!(ended.stdout.is_empty() && !target.exists(), "{line:?}: {ended:?}");
    }
    for line in lines {
        let asked = [line, &["--device", "soft"]].concat();
        Running::start(&mut on_machine(&scratch, &asked)).end().success();
    }
}

#[test]
fn a_machine_without_rdma_is_told_so() {
    let scratch = Scratch::new("nothing");
    let text = run(&["info", "--root", scratch.path().to_str().expect("a path")]).success().stdout;
    assert!(text.contains("missing: no RDMA device") && text.contains("cure: "), "{text}");
    assert!(text.contains("soft0 (software device)"), "{text}");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let child = uverbs(&["info", "soft"])
        .stdout(Stdio::from(writer))
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let output = child.wait_with_output().expect("end");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let child = uverbs(&["devices"])
        .stdout(Stdio::from(full))
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let output = child.wait_with_output().expect("end");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"),
        "{output:?}"
    );
}

/// Rust's runtime opens /dev/null instead of a closed standard output.
#[test]
fn a_closed_standard_output_is_an_error_and_devnull_is_none() {
    for line in ["info soft", "devices", "--help", "pingpong --iters 1"] {
        let run = |redirection: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$0\" {line} {redirection}")]);
            shell.arg(env!("CARGO_BIN_EXE_uverbs")).env("UVERBS_DEVICE", "soft");
            Running::start(&mut shell).end()
        };
        run(">&-").failure(1, "cannot write to standard output: Bad file descriptor");
        run("> /dev/null").success();
        run("1<> /dev/null").success();
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    for argument in ["--help", "--version", "-h", "-V"] {
        let ended = Running::start(&mut uverbs(&[argument])).end().success();
        assert!(ended.stdout.contains("uverbs") && ended.stderr.is_empty(), "{ended:?}");
        let is_help = argument.to_lowercase().contains("-h");
        assert_eq!(ended.stdout.contains("Exit status: 0 success"), is_help, "{ended:?}");
    }
}

#[test]
fn the_doctor_examines_this_machine_and_changes_nothing() {
    let report = json(&run(&["doctor", "--json"]).success().stdout);
    let checks = report["checks"].as_array().expect("checks");
    assert!(checks.len() > 10, "{report}");
    for check in checks {
        let changes = check["verdict"] == "change";
        assert_eq!(changes, check["cure"].is_string(), "a change has a cure: {check}");
    }
    let text = run(&["doctor", "soft", "--cpus", "0"]).success().stdout;
    assert!(text.contains("processor 0"), "{text}");
    run(&["doctor", "--cpus", "none"]).failure(2, "2,4-7");
}
