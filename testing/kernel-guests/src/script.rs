//! The guest's first program, a shell script: it brings the device up, runs the tests and prints
//! their exit statuses on the console.

use std::collections::BTreeSet;

use crate::options::Port;
use crate::suite::{CM_PROGRAMS, Test};

/// The devices of a guest, and the peers of its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// One device, which is its own peer.
    OneDevice,
    /// Two devices that are connected.
    TwoDevices,
    /// One device, connected to the other guest's.
    FirstGuest,
    /// The other one of these two guests, in which the servers run.
    SecondGuest,
    /// No PCI device, but the kernel's software RoCE, and software devices of processes in another
    /// network namespace.
    SoftRoce,
}

impl Place {
    fn setup(self, port: Port) -> Vec<&'static str> {
        match (self, port) {
            (Self::OneDevice, Port::InfiniBand) => vec![],
            (Self::OneDevice, Port::Roce) => vec!["guest=1\n", ROCE],
            (Self::TwoDevices, Port::InfiniBand) => vec![TWO_DEVICES],
            (Self::TwoDevices, Port::Roce) => vec![TWO_DEVICES, TWO_DEVICES_ROCE],
            (Self::SoftRoce, _) => vec![SOFT_ROCE],
            (Self::FirstGuest, Port::InfiniBand) => vec!["guest=1\n", CONTROL, FIRST_GUEST],
            (Self::FirstGuest, Port::Roce) => {
                vec!["guest=1\n", CONTROL, FIRST_GUEST, ROCE, "PEER=192.168.7.2\nADDRESS=$PEER\n"]
            }
            (Self::SecondGuest, Port::InfiniBand) => vec!["guest=2\n", CONTROL, SECOND_GUEST],
            (Self::SecondGuest, Port::Roce) => vec!["guest=2\n", CONTROL, ROCE, SECOND_GUEST],
        }
    }
}

/// The script that loads `modules` in this order and runs `tests`.
pub(crate) fn init(modules: &[String], port: Port, place: Place, tests: &[Test]) -> String {
    let mut script = String::from(PROLOGUE);
    for module in modules {
        script
            .push_str(&format!("insmod /modules/{module} || echo \"@@ module {module} failed\"\n"));
    }
    if place != Place::SoftRoce {
        script.push_str("wait_for_device\n");
    }
    script.extend(place.setup(port));
    script.push_str("export G X GID SERVER\n");
    for (number, test) in tests.iter().enumerate() {
        script.push_str(&format!("test_{number}() {{\n{}\n}}\n", test.script));
        script.push_str(&format!("run {number} {} {}\n", test.limit, programs(test)));
    }
    script.push_str(if place == Place::SoftRoce { UNLOAD_RXE } else { UNLOAD_MLX5 });
    script.push_str(EPILOGUE);
    script
}

/// The C programs in a test, which the script must kill, since they do not end with their shell.
fn programs(test: &Test) -> String {
    let is_program = |word: &&str| {
        word.starts_with("ib_") || word.starts_with("ibv_") || CM_PROGRAMS.contains(word)
    };
    let words = test.script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(is_program).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

/// `there` runs a command in the servers' guest. `play` runs a server there and, once it listens,
/// its client here. `own_test` runs a test binary and checks that the kernel then lists as many
/// objects as before.
const PROLOGUE: &str = r#"#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/host/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm /tmp
ulimit -l unlimited
ifconfig lo 127.0.0.1 up
PEER=localhost
wait_for_device() {
    for i in $(seq 100); do [ -c /dev/infiniband/uverbs${1:-0} ] && return; sleep 0.1; done
}
wait_for_port() {
    for i in $(seq 100); do grep -q ACTIVE /sys/class/infiniband/$1/ports/1/state && return; sleep 0.1; done
}
there() {
    sh -c "$1"
}
# perftest compares two clocks when it ends, and prints no result if an emulated processor's disagree.
play() {
    for attempt in 1 2 3; do
        play_once "$1" "$2" && return
        grep -q "Can't produce a report" /tmp/client /tmp/server || return 1
    done
    return 1
}
play_once() {
    there "$1" > /tmp/server 2>&1 & server=$!
    for i in $(seq 50); do
        sleep 0.2
        eval "$2" > /tmp/client 2>&1; status=$?
        grep -q "ouldn.t connect\|cannot reach\|EVENT_REJECTED\|EVENT_UNREACHABLE" /tmp/client || break
    done
    cat /tmp/client
    [ $status = 0 ] || there "killall -q -9 ${1%% *}"
    wait $server && [ $status = 0 ] || { cat /tmp/server; return 1; }
}
own_test() {
    before=$(rdma resource show)
    UVERBS_TEST_DEVICE=mlx5_0 "$@" --test-threads=1 || return 1
    after=$(rdma resource show)
    [ "$before" = "$after" ] || { echo "objects left: $before -> $after"; return 1; }
}
run() {
    echo "@@ begin $1"
    ( test_$1 ) & child=$!
    ( sleep $2; kill -9 $child 2>/dev/null ) & watchdog=$!
    wait $child; status=$?
    kill $watchdog 2>/dev/null
    echo "@@ end $1 $status"
    shift 2
    [ $status = 0 ] || killall -q -9 $(ls /host/bin) 2>/dev/null
    [ $# = 0 ] && return
    killall -q -9 "$@"
    [ $status = 0 ] || there "killall -q -9 $*"
}
echo "@@ booted $(uname -r)"
"#;

/// Brings the network device up and finds the GID of its IPv4 address. `$G`, `$X` and `$GID` are
/// the options for this GID of the pingpongs, of perftest and of the command. `$ADDRESS` is the
/// address of rdma_cm's servers.
const ROCE: &str = r#"
netdev=$(ls /sys/class/infiniband/mlx5_0/device/net | head -n 1)
ifconfig $netdev 192.168.7.$guest netmask 255.255.255.0 up
wait_for_port mlx5_0
for i in $(seq 50); do
    gid=$(grep -l "ffff:c0a8:070$guest" /sys/class/infiniband/mlx5_0/ports/1/gids/* 2>/dev/null | head -n 1)
    [ -n "$gid" ] && break
    sleep 0.1
done
index=$(basename "$gid")
ADDRESS=192.168.7.$guest
echo "network device $netdev, GID $index"
G="-g $index"
X="-x $index"
GID="--gid-index $index"
"#;

/// Servers use the first device, clients the second.
const TWO_DEVICES: &str = r#"
wait_for_device 1
SERVER='-d mlx5_0'
CLIENT='-d mlx5_1'
"#;

/// Uses link-local GIDs, because address resolution would not leave this one guest. Duplicate
/// address detection is off, because the kernel refuses routes from tentative addresses.
///
/// `frames` runs a program that exchanges Ethernet frames without a connection. A frame is lost if
/// the server has posted no receive. So the client starts after the server has printed its
/// unbuffered headline, when its receives are posted.
const TWO_DEVICES_ROCE: &str = r#"
for netdev in $(ls /sys/class/infiniband/*/device/net | grep -v :); do
    echo 0 > /proc/sys/net/ipv6/conf/$netdev/accept_dad
    ifconfig $netdev up
done
wait_for_port mlx5_0
wait_for_port mlx5_1
G="-g 0"
X="-x 0"
GID="--gid-index 0"
mac() {
    cat /sys/class/infiniband/$1/device/net/*/address
}
frames() {
    # Emptied here, not by the server's shell when it comes to it: the last server's headline would count for this one's.
    : > /tmp/server
    stdbuf -oL $1 -d mlx5_0 --server -B $(mac mlx5_0) -E $(mac mlx5_1) > /tmp/server 2>&1 & server=$!
    until grep -q '#bytes' /tmp/server || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
    $1 -d mlx5_1 --client -B $(mac mlx5_1) -E $(mac mlx5_0) || { kill $server; cat /tmp/server; return 1; }
    wait $server || { cat /tmp/server; return 1; }
}
"#;

/// Sets the network card up, which carries commands for the second guest and, on InfiniBand, the
/// programs' exchange of addresses.
const CONTROL: &str = r#"
ifconfig $(basename $(ls -d /sys/bus/virtio/devices/*/net/*)) 192.168.9.$guest netmask 255.255.255.0 up
"#;

/// The last line of the answer is the command's exit status.
const FIRST_GUEST: &str = r#"
PEER=192.168.9.2
there() {
    echo "$1; echo status \$?" | nc 192.168.9.2 99 | {
        while read -r line; do
            case "$line" in "status "*) exit ${line#status } ;; esac
            echo "$line"
        done
        exit 1
    }
}
for i in $(seq 100); do there true && break; sleep 0.5; done
"#;

/// Executes the commands that the first guest sends.
const SECOND_GUEST: &str = r#"
export G X GID
nc -ll -p 99 -e /bin/sh &
"#;

/// rxe is at 10.0.0.1 (fd00::1), software devices are at 10.0.0.2 and .3 (fd00::2) at the other end
/// of a cable, in the network namespace `soft`. `$RUN` runs a program there on a software device.
/// `/bin/ip` is needed because busybox's shell would run its own `ip`.
const SOFT_ROCE: &str = r#"
mkdir -p /var/run /run
/bin/ip netns add soft
/bin/ip link add v0 type veth peer name v1
/bin/ip link set v1 netns soft
soft() { /bin/ip netns exec soft "$@"; }
set_up() {
    $1 /bin/ip link set lo up
    $1 sysctl -q -w net.ipv6.conf.$2.accept_dad=0
    $1 /bin/ip link set $2 mtu 4200 up
    $1 /bin/ip address add 10.0.0.$3/24 dev $2
    $1 /bin/ip -6 address add fd00::$3/64 dev $2 nodad
}
set_up "" v0 1
set_up "/bin/ip netns exec soft" v1 2
soft /bin/ip address add 10.0.0.3/24 dev v1
rdma link add rxe0 type rxe netdev v0
for i in $(seq 100); do [ -c /dev/infiniband/uverbs0 ] && break; sleep 0.1; done
wait_for_port rxe0
gid() {
    for i in $(seq 50); do
        found=$(grep -l "$1" /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null | head -n 1)
        [ -n "$found" ] && basename $found && return
        sleep 0.1
    done
}
THEIRS="-g $(gid ffff:0a00:0001)"
THEIRS6="-g $(gid fd00:0000:0000:0000:0000:0000:0000:0001)"
echo "rxe: GIDs $THEIRS and $THEIRS6"
X="-x ${THEIRS#-g }"
RUN="/bin/ip netns exec soft uverbs run --address 10.0.0.2 --"
RUN6="/bin/ip netns exec soft uverbs run --address fd00::2 --"
export THEIRS THEIRS6 RUN RUN6
"#;

const UNLOAD_RXE: &str = r#"
rdma link delete rxe0 && rmmod rdma_rxe && echo "@@ unloaded"
"#;

const UNLOAD_MLX5: &str = r#"
rmmod mlx5_ib && rmmod mlx5_core && echo "@@ unloaded"
"#;

const EPILOGUE: &str = r#"
echo "@@ done"
reboot -f
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_starts_is_stopped_after_it() {
        let script =
            "play 'ib_send_lat -n 100 $X'; ibv_asyncwatch > /tmp/ib & uverbs info".to_owned();
        let test = Test { name: String::new(), script, limit: 1 };
        assert_eq!(programs(&test), "ib_send_lat ibv_asyncwatch");
    }
}
