//! What runs in the guest: shell commands by name, and what came of them.

use crate::programs::Program;

/// A test: a shell command that succeeds.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    script: String,
    /// Seconds until it is stopped.
    limit: u32,
}

impl Test {
    fn new(name: &str, script: &str, limit: u32) -> Self {
        Self { name: name.to_owned(), script: script.to_owned(), limit }
    }
}

/// The port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Addressed by LID.
    InfiniBand,
    /// Addressed by GIDs made from the IP addresses of the network device.
    Roce,
}

/// Debian's own programs on libmlx5: what fails here is the device's fault.
pub(crate) fn control_group() -> Vec<Test> {
    let mut tests = vec![
        Test::new("uverbs0 appears", "test -c /dev/infiniband/uverbs0", 10),
        Test::new("ibv_devinfo", "ibv_devinfo -v", 10),
    ];
    for program in PINGPONGS {
        tests.push(Test::new(program, &format!("pair {program} $G -n 100"), 30));
    }
    for program in PERFTESTS {
        tests.push(Test::new(program, &format!("pair {program} $X"), 30));
    }
    tests.push(Test::new("killed with resources open", KILLED, 30));
    tests
}

const PINGPONGS: &[&str] = &[
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
];

const PERFTESTS: &[&str] = &[
    "ib_send_lat -n 100",
    "ib_send_lat -n 100 -c UC",
    "ib_send_lat -n 100 -c UD",
    "ib_send_lat -n 100 -c XRC",
    "ib_send_lat -n 100 -e",
    "ib_write_lat -n 100",
    "ib_write_lat -n 100 -c UC",
    "ib_write_lat -n 100 -c XRC",
    "ib_read_lat -n 100",
    "ib_atomic_lat -n 100 -A FETCH_AND_ADD",
    "ib_atomic_lat -n 100 -A CMP_AND_SWAP",
    "ib_send_bw -n 500",
    "ib_send_bw -n 500 -e",
    "ib_send_bw -n 500 -c UD",
    "ib_send_bw -n 500 -r 64 --use-srq",
    "ib_send_bw -n 500 -q 4",
    "ib_write_bw -n 500",
    "ib_read_bw -n 500",
];

/// The kernel cleans up after a process that dies with queue pairs open; the device has to end without objects.
const KILLED: &str =
    "ibv_rc_pingpong $G & victim=$!; sleep 1; kill -9 $victim; wait $victim; [ $? = 137 ]";

/// This project's end-to-end tests, on the kernel's device.
pub(crate) fn own_tests(programs: &[Program]) -> Vec<Test> {
    let test = |program: &Program| {
        let script =
            format!("UVERBS_TEST_DEVICE=mlx5_0 /host/bin/{} --test-threads=1", program.name);
        Test::new(&format!("uverbs: {}", program.name), &script, 120)
    };
    programs
        .iter()
        .filter(|program| !HOST_ONLY.contains(&program.name.as_str()))
        .map(test)
        .collect()
}

/// Tests that look at the sources, at the build, or at the built-in device.
const HOST_ONLY: &[&str] = &["dependencies", "examples", "faults_observed", "ui"];

/// The `uverbs` command on the kernel's device.
pub(crate) fn command_tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("uverbs devices", "uverbs devices", 20),
        Test::new("uverbs info", "uverbs info", 20),
    ];
    for operation in ["send", "write", "write-imm", "read", "atomic"] {
        for mode in ["--poll", "--events"] {
            let line = format!("uverbs pingpong --iters 200 --op {operation} {mode}");
            tests.push(Test::new(&line, &line, 60));
        }
    }
    tests
}

/// The last one: it takes the device away under a program that watches for events, and brings it back.
pub(crate) fn device_removal() -> Test {
    Test::new("device unbound while in use", REMOVAL, 60)
}

const REMOVAL: &str = r#"
driver=/sys/bus/pci/drivers/mlx5_core
function=$(basename $(readlink /sys/class/infiniband/mlx5_0/device))
ibv_asyncwatch > /tmp/events 2>&1 & watcher=$!
sleep 1
echo $function > $driver/unbind
sleep 1
cat /tmp/events
kill $watcher 2>/dev/null
grep -q FATAL /tmp/events || exit 1
echo $function > $driver/bind
wait_for_device
test -c /dev/infiniband/uverbs0
"#;

/// The guest's first program. `pair` runs a program as server and again as client.
pub(crate) fn init_script(modules: &[String], link: Link, tests: &[Test]) -> String {
    let mut script = String::from(PROLOGUE);
    for module in modules {
        script
            .push_str(&format!("insmod /modules/{module} || echo \"@@ module {module} failed\"\n"));
    }
    script.push_str("wait_for_device\n");
    if link == Link::Roce {
        script.push_str(ROCE);
    }
    for (number, test) in tests.iter().enumerate() {
        script.push_str(&format!("run {number} {} '{}'\n", test.limit, test.script));
    }
    script.push_str(EPILOGUE);
    script
}

const PROLOGUE: &str = r#"#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/host/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm /tmp
ulimit -l unlimited
ifconfig lo 127.0.0.1 up
wait_for_device() {
    for i in $(seq 50); do [ -c /dev/infiniband/uverbs0 ] && return; sleep 0.1; done
}
pair() {
    "$@" > /tmp/server 2>&1 & server=$!
    for i in $(seq 20); do
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

const EPILOGUE: &str = r#"
rmmod mlx5_ib && rmmod mlx5_core && echo "@@ unloaded"
echo "@@ done"
reboot -f
"#;

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It succeeded.
    Passed,
    /// Its exit status, and which of a test binary's tests failed.
    Failed(i32, Vec<String>),
    /// The guest ended before it did.
    NotRun,
}

/// What the guest's console says.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// The modules came out again.
    pub(crate) unloaded: bool,
    /// The guest came to its end.
    pub(crate) finished: bool,
}

impl Report {
    pub(crate) fn parse(console: &str, tests: usize) -> Self {
        let mut outcomes = vec![Outcome::NotRun; tests];
        let mut failures = Vec::new();
        for line in console.lines() {
            failures.extend(failed_test(line));
            let Some((number, status)) =
                line.split_once("@@ end ").and_then(|(_, rest)| ended(rest))
            else {
                continue;
            };
            let failed = std::mem::take(&mut failures);
            if let Some(outcome) = outcomes.get_mut(number) {
                *outcome =
                    if status == 0 { Outcome::Passed } else { Outcome::Failed(status, failed) };
            }
        }
        let marked = |mark: &str| console.lines().any(|line| line.contains(mark));
        Self { outcomes, unloaded: marked("@@ unloaded"), finished: marked("@@ done") }
    }

    pub(crate) fn passed(&self) -> bool {
        self.finished
            && self.unloaded
            && self.outcomes.iter().all(|outcome| *outcome == Outcome::Passed)
    }
}

/// "3 0" after the mark: the test's number and its exit status.
fn ended(rest: &str) -> Option<(usize, i32)> {
    let mut words = rest.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// "test NAME ... FAILED", as the test harness prints it.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}
