//! The guest's first program, a shell script: it brings the device up, runs the tests and says on the console how they
//! ended.

use crate::suite::Test;

/// The port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Addressed by LID.
    InfiniBand,
    /// Addressed by GIDs made from the IP addresses of the network device.
    Roce,
}

/// The script that loads `modules` in this order and runs `tests` on so many devices.
pub(crate) fn init(modules: &[String], link: Link, devices: usize, tests: &[Test]) -> String {
    let mut script = String::from(PROLOGUE);
    for module in modules {
        script
            .push_str(&format!("insmod /modules/{module} || echo \"@@ module {module} failed\"\n"));
    }
    script.push_str("wait_for_device\n");
    match (link, devices) {
        (Link::InfiniBand, 1) => {}
        (Link::Roce, 1) => script.push_str(ROCE),
        (Link::InfiniBand, _) => script.push_str(SECOND),
        (Link::Roce, _) => {
            script.push_str(SECOND);
            script.push_str(SECOND_ROCE);
        }
    }
    for (number, test) in tests.iter().enumerate() {
        script.push_str(&format!("run {number} {} '{}'\n", test.limit, test.script));
    }
    script.push_str(EPILOGUE);
    script
}

/// `pair` runs a program as server and again as client; `own_test` a test binary, after which the kernel must list as
/// many objects as before.
const PROLOGUE: &str = r#"#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/host/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm /tmp
ulimit -l unlimited
ifconfig lo 127.0.0.1 up
wait_for_device() {
    for i in $(seq 100); do [ -c /dev/infiniband/uverbs0 ] && return; sleep 0.1; done
}
pair() {
    "$@" > /tmp/server 2>&1 & server=$!
    for i in $(seq 50); do
        sleep 0.2
        if "$@" localhost > /tmp/client 2>&1; then break; fi
        grep -q "ouldn't connect" /tmp/client && continue
        cat /tmp/client
        kill $server
        wait $server
        cat /tmp/server
        return 1
    done
    cat /tmp/client
    wait $server || { cat /tmp/server; return 1; }
}
own_test() {
    before=$(rdma resource show)
    UVERBS_TEST_DEVICE=mlx5_0 "$@" --test-threads=1 || return 1
    after=$(rdma resource show)
    [ "$before" = "$after" ] || { echo "objects left behind: $before -> $after"; return 1; }
}
run() {
    echo "@@ begin $1"
    ( eval "$3" ) & child=$!
    ( sleep $2; kill -9 $child 2>/dev/null ) & watchdog=$!
    wait $child; status=$?
    kill $watchdog 2>/dev/null
    killall -q -9 $(echo "$3" | tr ' ' '\n' | grep ^ib) 2>/dev/null
    echo "@@ end $1 $status"
}
echo "@@ booted $(uname -r)"
"#;

/// Brings the network device up and finds the GID of its IPv4 address; `$G` and `$X` choose it in the programs' options.
const ROCE: &str = r#"
netdev=$(ls /sys/class/infiniband/mlx5_0/device/net | head -n 1)
ifconfig $netdev 192.168.7.1 netmask 255.255.255.0 up
for i in $(seq 50); do
    gid=$(grep -l "ffff:c0a8:0701" /sys/class/infiniband/mlx5_0/ports/1/gids/* 2>/dev/null | head -n 1)
    grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state && [ -n "$gid" ] && break
    sleep 0.1
done
index=$(basename "$gid")
echo "network device $netdev, GID $index"
G="-g $index"
X="-x $index"
"#;

/// `across` runs a program as server on the first device and as client on the second; `across_ours` does so with
/// `uverbs pingpong`, `across_mixed` with a C program as the server, which must have an own GID since its peer tells one.
const SECOND: &str = r#"
for i in $(seq 100); do [ -c /dev/infiniband/uverbs1 ] && break; sleep 0.1; done
across() {
    "$@" -d mlx5_0 > /tmp/server 2>&1 & server=$!
    for i in $(seq 50); do
        sleep 0.2
        "$@" -d mlx5_1 localhost > /tmp/client 2>&1 && break
        grep -q "ouldn.t connect" /tmp/client && continue
        cat /tmp/client
        kill $server
        wait $server
        cat /tmp/server
        return 1
    done
    cat /tmp/client
    wait $server || { cat /tmp/server; return 1; }
}
across_ours() {
    uverbs pingpong --device mlx5_0 --listen --port 7777 $GID > /tmp/server 2>&1 & server=$!
    until grep -q listening /tmp/server; do sleep 0.1; done
    uverbs pingpong localhost --device mlx5_1 --port 7777 $GID "$@" || { kill $server; cat /tmp/server; return 1; }
    wait $server
}
across_mixed() {
    ibv_rc_pingpong -d mlx5_0 -g 0 -n 100 -p 7777 > /tmp/server 2>&1 & server=$!
    until netstat -ltn | grep -q ":7777 "; do sleep 0.1; done
    uverbs pingpong localhost --peer ibv --device mlx5_1 --port 7777 "$@" || { kill $server; cat /tmp/server; return 1; }
    wait $server
}
"#;

/// Link-local GIDs need no address resolution, which would not leave this one guest. Without a search for duplicates the
/// addresses can be used at once; routes from tentative ones are refused.
const SECOND_ROCE: &str = r#"
for netdev in $(ls /sys/class/infiniband/*/device/net | grep -v :); do
    echo 0 > /proc/sys/net/ipv6/conf/$netdev/accept_dad
    ifconfig $netdev up
done
for i in $(seq 50); do
    grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state && grep -q ACTIVE /sys/class/infiniband/mlx5_1/ports/1/state && break
    sleep 0.1
done
G="-g 0"
X="-x 0"
GID="--gid-index 0"
"#;

const EPILOGUE: &str = r#"
rmmod mlx5_ib && rmmod mlx5_core && echo "@@ unloaded"
echo "@@ done"
reboot -f
"#;
