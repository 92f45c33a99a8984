//! Unmodified programs that were built for libibverbs, on the software device inside this library.

mod library;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use library::pair::{PATIENCE, both_ended};
use library::port::free_port;
use library::{DropIn, skip};

/// The output of a program that needs no peer.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_software_device_is_listed_on_request() {
    let drop_in = DropIn::new("devices");
    let Some(mut program) = drop_in.command("ibv_devices") else { return skip("no ibverbs-utils") };
    assert!(output(&mut program).contains("soft0"));
    assert!(output(program.env("UVERBS_SOFT_DEVICES", "3")).contains("soft2"));
    // Without the variable it is not listed.
    assert!(!output(program.env_remove("UVERBS_DEVICE")).contains("soft0"));
}

#[test]
fn a_device_is_described() {
    let drop_in = DropIn::new("devinfo");
    let Some(mut program) = drop_in.command("ibv_devinfo") else { return skip("no ibverbs-utils") };
    let text = output(program.arg("-v"));
    for expected in ["hca_id:\tsoft0", "PORT_ACTIVE (4)", "RoCE v2", "board_id:", "hca_core_clock:"]
    {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    let text = output(program.env("UVERBS_SOFT_LINK", "ib"));
    assert!(text.contains("InfiniBand") && !text.contains("RoCE v2"), "{text}");
    let text = output(program.env("UVERBS_SOFT_MODEL", "cx7"));
    assert!(text.contains("4129"), "{text}");
}

/// Server and client of a program that exchanges addresses over TCP.
fn pair(name: &str, arguments: &[&str]) {
    pair_in(&DropIn::new(&format!("{name}{}", arguments.concat())), name, arguments, &[]);
}

/// [`pair`] in the directory of the library, with variables set.
fn pair_in(drop_in: &DropIn, name: &str, arguments: &[&str], variables: &[(&str, &str)]) {
    let port = free_port();
    let side = || {
        let mut command = drop_in.command(name)?;
        command.args(arguments).args(["-p", &port]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.current_dir(drop_in.path()).envs(variables.iter().copied());
        Some(command)
    };
    let Some(mut server) = side() else { return skip(&format!("no {name}")) };
    let mut server = server.spawn().unwrap();
    until_it_listens(&mut server, &port);
    let client = side().unwrap().arg("127.0.0.1").spawn().unwrap();
    let ends = both_ended([("client", client), ("server", server)]);
    let texts = ends.each_ref().map(|end| format!("{}: {}", end.name, end.text));
    assert!(ends.iter().all(|end| end.success), "{name} {arguments:?}\n{}", texts.join("\n"));
}

/// Waits until the server is reachable, or has ended.
fn until_it_listens(server: &mut Child, port: &str) {
    let state = format!(":{:04X} ", port.parse::<u16>().unwrap());
    let listens = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
            let mut text = String::new();
            let read =
                std::fs::File::open(table).and_then(|mut file| file.read_to_string(&mut text));
            read.is_ok()
                && BufReader::new(text.as_bytes()).lines().map_while(Result::ok).any(|line| {
                    line.split_whitespace()
                        .nth(1)
                        .is_some_and(|local| format!("{local} ").ends_with(&state))
                        && line.split_whitespace().nth(3) == Some("0A")
                })
        })
    };
    let began = Instant::now();
    while !listens() && server.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            server.kill().unwrap();
        }
        std::thread::yield_now();
    }
}

const ROUNDS: &[&str] = &["-g", "3", "-n", "50"];

fn pingpong(name: &str, variants: &[&[&str]]) {
    for variant in variants {
        pair(name, &[ROUNDS, variant].concat());
    }
}

#[test]
fn reliable_connections() {
    pingpong("ibv_rc_pingpong", &[&[], &["-e"], &["-t"], &["-N"], &["-N", "-e"], &["-o"], &["-j"]]);
}

#[test]
fn other_connections() {
    pingpong("ibv_uc_pingpong", &[&[], &["-e"]]);
    pingpong("ibv_ud_pingpong", &[&[], &["-e"]]);
}

#[test]
fn shared_receive_queues() {
    pingpong("ibv_srq_pingpong", &[&[], &["-e"]]);
    pingpong("ibv_xsrq_pingpong", &[&[], &["-e"]]);
}

#[test]
fn perftest() {
    let short = ["-x", "3", "-F", "-n", "50"];
    let rows: [(&str, &[&str]); 6] = [
        ("ib_send_lat", &["-s", "64", "-c", "XRC"]),
        ("ib_write_bw", &["-s", "4096"]),
        ("ib_read_lat", &["-s", "64", "--use_old_post_send"]),
        ("ib_atomic_bw", &[]),
        ("ib_send_bw", &["-s", "1024", "-c", "UD", "-e"]),
        ("ib_send_bw", &["-s", "1024", "--use-srq"]),
    ];
    for (name, arguments) in rows {
        pair(name, &[&short, arguments].concat());
    }
}

#[test]
fn the_wire_has_faults_and_is_recorded() {
    let variables = [("UVERBS_SOFT_FAULTS", "7,duplicate=50"), ("UVERBS_SOFT_PCAP", "wire.pcap")];
    let drop_in = DropIn::new("wire");
    pair_in(&drop_in, "ibv_rc_pingpong", ROUNDS, &variables);
    // Two processes, each with a recording.
    let recorded = std::fs::read_dir(drop_in.path()).unwrap().map(Result::unwrap);
    let sizes = recorded
        .filter(|file| file.file_name().to_string_lossy().starts_with("wire.pcap"))
        .map(|file| file.metadata().unwrap().len());
    let sizes: Vec<_> = sizes.collect();
    if drop_in.command("ibv_rc_pingpong").is_some() {
        assert!(sizes.len() == 2 && sizes.iter().all(|size| *size > 1000), "{sizes:?}");
    }
}
