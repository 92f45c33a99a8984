//! Unmodified programs in two network namespaces that a virtual cable connects.

use std::process::Command;

use crate::process::{Running, build_library};
use crate::run::is_installed;

/// Makes the cable, and runs a server at its far end and a client at its near end.
const SCRIPT: &str = r#"
set -e
uverbs=$1
mount -t tmpfs none /run
ip netns add far
ip link add near type veth peer name far netns far
set_up() {
    $3 ip link set lo up
    $3 ip link set $1 up
    $3 ip address add 10.9.0.$2/24 dev $1
}
set_up near 1
set_up far 2 "ip netns exec far"
ip netns exec far "$uverbs" run --address 10.9.0.2 -- rping -s -a 10.9.0.2 -C 5 -V &
server=$!
# The device's UDP port: packets before it is there are lost, and repeated after seconds.
until ip netns exec far grep -q :12B7 /proc/net/udp; do kill -0 $server; done
# It refuses until the program listens.
until "$uverbs" run --address 10.9.0.1 -- rping -c -a 10.9.0.2 -C 5 -V; do kill -0 $server; done
wait $server
"#;

/// A process with a device at an interface and one of the machine's network connects at 127.0.0.1
/// to a process that has the latter only, and that one to it.
const MIXED: &str = r#"
set -e
uverbs=$1
ip link set lo up
ip link add near type veth peer name far
ip link set near up
ip link set far up
ip address add 10.9.0.1/24 dev near
both="--devices 2 --address 10.9.0.1,127.18.200.7"
meet() {
    "$uverbs" run $1 -- rping -s -a 0.0.0.0 -p $3 -C 5 -V &
    server=$!
    until "$uverbs" run $2 -- rping -c -a 127.0.0.1 -p $3 -C 5 -V; do kill -0 $server; done
    wait $server
}
meet "" "$both" 7181
meet "$both" "" 7182
"#;

#[test]
fn rping_reaches_another_network_namespace() {
    succeeds(SCRIPT);
}

#[test]
fn rping_reaches_the_loopback_address_beside_a_device_at_an_interface() {
    succeeds(MIXED);
}

/// Runs a script in namespaces of its own.
fn succeeds(script: &str) {
    if !is_installed("rping", "rdmacm-utils") {
        return;
    }
    let namespaces = ["--user", "--map-root-user", "--net", "--mount", "--"];
    let allowed = Command::new("unshare").args(namespaces).args(["ip", "link"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "unshare and ip have to work here");
        return eprintln!("skipped: no network namespace can be made here (unshare, ip)");
    }
    build_library();
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_uverbs")]);
    Running::start(&mut command).end().success();
}
