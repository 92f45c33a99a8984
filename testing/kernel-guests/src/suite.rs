//! The tests that run in the guests: shell commands with names.

use crate::options::Port;
use crate::programs::{PRELOAD, Program};

/// A test: a shell command that must succeed.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) script: String,
    /// Time limit in seconds.
    pub(crate) limit: u32,
}

impl Test {
    fn new(name: &str, script: &str, limit: u32) -> Self {
        Self { name: name.to_owned(), script: script.to_owned(), limit }
    }
}

/// Limit in seconds of a test that takes a few seconds on an idle machine.
const SHORT: u32 = 120;
/// Limit in seconds of a test binary, which takes one or two minutes.
const LONG: u32 = 1800;

/// Debian's own programs on libmlx5. A failure is a defect of the device.
pub(crate) fn control_group() -> Vec<Test> {
    let mut tests = vec![
        Test::new("uverbs0 appears", "test -c /dev/infiniband/uverbs0", SHORT),
        Test::new("ibv_devinfo", "ibv_devinfo -v", SHORT),
    ];
    for program in PINGPONGS {
        tests.push(Test::new(program, &both(&format!("{program} $G -n 100")), SHORT));
    }
    for program in PERFTESTS {
        tests.push(Test::new(program, &both(&format!("{program} $X")), SHORT));
    }
    let script = killed("ibv_rc_pingpong", "ibv_rc_pingpong $G");
    tests.push(Test::new("killed with resources open", &script, SHORT));
    tests
}

/// A C program as server and as client.
fn both(program: &str) -> String {
    format!("play '{program} $SERVER' '{program} $CLIENT $PEER'")
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
    "ib_send_lat -n 100 -c DC",
    "ib_send_lat -n 100 -e",
    "ib_write_lat -n 100",
    "ib_write_lat -n 100 -c UC",
    "ib_write_lat -n 100 -c XRC",
    "ib_write_lat -n 100 -c DC",
    "ib_read_lat -n 100",
    "ib_read_lat -n 100 -c DC",
    "ib_atomic_lat -n 100 -A FETCH_AND_ADD",
    "ib_atomic_lat -n 100 -A CMP_AND_SWAP",
    "ib_atomic_lat -n 100 -A FETCH_AND_ADD -c DC",
    "ib_send_bw -n 500",
    "ib_send_bw -n 500 -e",
    "ib_send_bw -n 500 -c UD",
    "ib_send_bw -n 500 -r 64 --use-srq",
    "ib_send_bw -n 500 -q 4",
    "ib_write_bw -n 500",
    "ib_read_bw -n 500",
];

/// Kills a process whose queue pairs are connected or wait for a peer. The kernel must then list as
/// many objects as before, after the process's peer, if any, has ended, too.
fn killed(program: &str, command: &str) -> String {
    format!(
        r#"
before=$(rdma resource show)
{command} > /dev/null 2>&1 & victim=$!
until rdma resource show qp | grep -q {program}; do kill -0 $victim || exit 1; sleep 0.1; done
kill -9 $victim; wait $victim; [ $? = 137 ] || exit 1
for i in $(seq 100); do
    after=$(rdma resource show)
    [ "$after" = "$before" ] && exit 0
    sleep 0.1
done
echo "$before -> $after"
exit 1
"#
    )
}

/// This project's end-to-end tests, on the kernel's device. After each one the kernel must have as
/// many objects as before.
pub(crate) fn own_tests(programs: &[Program]) -> Vec<Test> {
    let test = |program: &Program| {
        let script = format!("own_test {}{}", program.name, skips(&program.name));
        Test::new(&format!("uverbs: {}", program.name), &script, LONG)
    };
    let is_test = |program: &&Program| {
        let name = program.name.as_str();
        ![COMMAND, PRELOAD, KEYS].contains(&name) && reason_to_stay(name).is_none()
    };
    std::iter::once(first_program()).chain(programs.iter().filter(is_test).map(test)).collect()
}

/// The command, which is not a test.
pub(crate) const COMMAND: &str = "uverbs";

/// Why a test binary does not run in guests; `None` if it does.
pub(crate) fn reason_to_stay(name: &str) -> Option<&'static str> {
    HOST_ONLY.iter().find(|(program, _)| *program == name).map(|(_, reason)| *reason)
}

const HOST_ONLY: &[(&str, &str)] = &[
    ("async_events", "raises each event on the built-in device by hand"),
    ("dependencies", "looks at the sources and the dependency graph"),
    ("examples", "builds and runs the examples with cargo"),
    ("faults", "injects faults into the built-in device"),
    ("faults_commands", "injects faults into the built-in device"),
    ("faults_observed", "injects faults into the built-in device and looks at its objects"),
    ("infiniband", "the other test files once more; in a guest they run on its own kind of port"),
    ("semantics", "looks at the sources of the other test files"),
    ("start_up", "counts the calls that reach the built-in device"),
    ("strangers", "attacks the built-in device and looks at its objects"),
    ("style", "looks at the sources"),
    ("soak", "injects faults into the built-in device, for hours if asked"),
    ("threads", "is about the compiler and the sources, with no device in it"),
    ("ui", "compiles programs that must not compile"),
    ("removal", "runs last, since the network device comes back without its address"),
    ("record", "runs in a guest of its own: it provokes refusals, which fail other guests"),
];

/// The options that exclude those tests of a test binary that do not run in guests.
fn skips(program: &str) -> String {
    let absent = HOST_ONLY_TESTS.iter().filter(|(file, ..)| *file == program);
    let names: String = absent.map(|(_, test, _)| format!(" --skip {test}")).collect();
    if names.is_empty() { names } else { format!(" --exact{names}") }
}

/// Test binary, test, and why it does not run in guests.
const HOST_ONLY_TESTS: &[(&str, &str, &str)] = &[
    ("frames", "several_queues_get_copies_of_one_multicast_group", OWN_MULTICAST),
    ("work_queues", "a_multicast_group_moves_to_a_new_table_with_copies_in_between", OWN_MULTICAST),
    ("work_queues", "rebalancing_a_multicast_group_under_load_loses_no_frame", OWN_MULTICAST),
];

const OWN_MULTICAST: &str = "the device behind PCI does not deliver its port's own multicast \
    frames to that port, because the network device would take its own address requests for \
    another device's";

/// Makes the kernel create its own objects, as it does at the first registration
/// (`mlx5r_umr_resource_init`), because later tests count objects.
fn first_program() -> Test {
    Test::new("a first program", &both("ibv_rc_pingpong $G -n 10"), SHORT)
}

/// Compares the kernel's answers with the recorded ones. With `prints_answers`, prints them on the
/// console.
pub(crate) fn record(prints_answers: bool) -> Vec<Test> {
    let script = if prints_answers { "own_test record --show-output" } else { "own_test record" };
    vec![first_program(), Test::new("uverbs: record", script, LONG)]
}

/// The `uverbs` command on the kernel's device.
pub(crate) fn command_tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("uverbs devices", "uverbs devices", SHORT),
        Test::new("uverbs info", "uverbs info", SHORT),
        Test::new("uverbs transfer", TRANSFER, LONG),
    ];
    for operation in ["send", "write", "write-imm", "read", "atomic"] {
        for mode in ["--poll", "--events"] {
            let line = format!("uverbs pingpong --iters 200 --op {operation} {mode}");
            tests.push(Test::new(&line, &line, SHORT));
        }
    }
    tests.extend(mixed());
    let script = killed("RTS.*uverbs", "uverbs pingpong --iters 100000000");
    tests.push(Test::new("uverbs killed while it runs", &script, SHORT));
    tests
}

const TRANSFER: &str = r#"
mkdir -p /tmp/in /tmp/out
head -c 5000001 /dev/urandom > /tmp/in/one
head -c 1 /dev/urandom > /tmp/in/two
export UVERBS_CODE=kernel-test
uverbs transfer recv /tmp/out --port 7777 > /tmp/receiver 2>&1 & receiver=$!
until grep -q "listening" /tmp/receiver; do sleep 0.1; done
uverbs transfer send /tmp/in/one /tmp/in/two 127.0.0.1 --port 7777 || exit 1
wait $receiver || { cat /tmp/receiver; exit 1; }
cmp /tmp/in/one /tmp/out/one && cmp /tmp/in/two /tmp/out/two
"#;

/// The last tests, which remove the device while programs use it, and bring it back.
pub(crate) fn removals(own: bool) -> Vec<Test> {
    let ours = Test::new("uverbs: removal", "UVERBS_TEST_DEVICE=mlx5_0 removal", SHORT);
    let theirs = Test::new("device unbound while in use", REMOVAL, SHORT);
    if own { vec![ours, theirs] } else { vec![theirs] }
}

const REMOVAL: &str = r#"
driver=/sys/bus/pci/drivers/mlx5_core
function=$(basename $(readlink /sys/class/infiniband/mlx5_0/device))
ibv_asyncwatch > /tmp/events 2>&1 & watcher=$!
until ls -l /proc/$watcher/fd | grep -q uverbs; do sleep 0.1; done
echo $function > $driver/unbind
until grep -q FATAL /tmp/events; do sleep 0.1; done
cat /tmp/events
kill $watcher 2>/dev/null
echo $function > $driver/bind
wait_for_device
test -c /dev/infiniband/uverbs0
"#;

/// `uverbs pingpong` as server and as client.
const OUR_SERVER: &str =
    "uverbs pingpong --listen 0.0.0.0 --port 7777 $GID ${SERVER:+--device mlx5_0}";
const OUR_CLIENT: &str = "uverbs pingpong $PEER --port 7777 $GID ${CLIENT:+--device mlx5_1}";

/// The command with the C program as its peer, as client and as server.
fn mixed() -> Vec<Test> {
    let theirs = "ibv_rc_pingpong $G -n 100 -p 7777";
    let ours = "--peer ibv --iters 100";
    let client = format!("play '{theirs} $SERVER' '{OUR_CLIENT} {ours}'");
    let server = format!("play '{OUR_SERVER} {ours}' '{theirs} $CLIENT $PEER'");
    vec![
        Test::new("uverbs pingpong to ibv_rc_pingpong", &client, SHORT),
        Test::new("ibv_rc_pingpong to uverbs pingpong", &server, SHORT),
    ]
}

/// Programs and their peers on two connected devices, of one guest or of two.
fn connected(what: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    for program in PINGPONGS {
        tests.push(Test::new(program, &both(&format!("{program} $G -n 100")), SHORT));
    }
    for program in ["ib_write_bw -n 500", "ib_read_lat -n 100", "ib_send_lat -n 100 -c UD"] {
        tests.push(Test::new(program, &both(&format!("{program} $X")), SHORT));
    }
    for operation in ["send", "write", "write-imm", "read", "atomic"] {
        let options = format!("--op {operation}");
        let code = "--code kernel-test";
        let (server, client) = (format!("{OUR_SERVER} {code}"), format!("{OUR_CLIENT} {code}"));
        let line = format!("play '{server}' '{client} {options} --iters 200'");
        tests.push(Test::new(&format!("uverbs pingpong {options}"), &line, SHORT));
    }
    tests.extend(mixed());
    tests.iter_mut().for_each(|test| test.name = format!("{what}: {}", test.name));
    tests
}

/// Programs that connect through the kernel's rdma_cm, whose messages are datagrams between QPs 1.
pub(crate) fn connection_manager(what: &str) -> Vec<Test> {
    let test = |server: &str, client: &str| {
        Test::new(&format!("{what}: {client}"), &format!("play '{server}' '{client}'"), SHORT)
    };
    let mut tests = vec![
        test("rping -s -C 20 -V", "rping -c -a $ADDRESS -C 20 -V"),
        test("ucmatose -c 4 -C 10", "ucmatose -s $ADDRESS -c 4 -C 10"),
        test("udaddy -c 2 -C 10", "udaddy -s $ADDRESS -c 2 -C 10"),
    ];
    tests.push(Test::new(&format!("{what}: no MAD without a receiver"), NO_RETRIES, SHORT));
    tests
}

/// The programs that [`connection_manager`] and [`own_connections`] start.
pub(crate) const CM_PROGRAMS: [&str; 5] =
    ["rping", "ucmatose", "udaddy", "rdma_client", "rdma_server"];

/// This library's client of the kernel's rdma_cm: against `rdma_client`, `rdma_server` and `rping`
/// in both roles, and against itself. If both ends disconnect at once the kernel repeats a DREP, so
/// these tests are after the one that counts repetitions.
pub(crate) fn own_connections(what: &str) -> Vec<Test> {
    let interoperation = "own_test interoperation connections_by_address";
    let mut tests =
        vec![first_program(), Test::new(&format!("{what}: by address"), interoperation, LONG)];
    for command in ["pingpong --cm --iters 200", "perf bw --cm --qps 3 --iters 200"] {
        let line = format!("uverbs {command}");
        tests.push(Test::new(&format!("{what}: {line}"), &line, SHORT));
    }
    tests
}

/// Checks that no message was sent twice: each arrived immediately, even the first one to a peer,
/// with its P_Key in the completion.
const NO_RETRIES: &str = r#"
dmesg | grep "retrieve pkey\|different BTH P_Key" && exit 1
for counters in cm_tx_retries cm_rx_duplicates; do
    grep . /sys/class/infiniband/mlx5_0/ports/1/$counters/* | grep -v ':0$' && exit 1
done
cat /sys/class/infiniband/mlx5_0/ports/1/cm_tx_msgs/req | grep -v '^0$'
"#;

/// Two devices of one guest. On Ethernet ports, raw packet queue pairs also exchange frames.
pub(crate) fn two_devices(port: Port) -> Vec<Test> {
    let mut tests = connected("two devices");
    if port == Port::Roce {
        for program in
            ["raw_ethernet_lat -F -n 100 -s 256", "raw_ethernet_bw -F -n 200 -s 1024 -r 512"]
        {
            let name = format!("two devices: {program}");
            tests.push(Test::new(&name, &format!("frames '{program}'"), SHORT));
        }
    }
    tests
}

/// Debian's own programs, with this project's library instead of Debian's libibverbs and
/// libmlx5.
pub(crate) fn drop_in(what: &str, port: Port) -> Vec<Test> {
    let mut tests = vec![Test::new("it is loaded", LOADED, SHORT)];
    tests.extend(control_group());
    if port == Port::Roce {
        tests.extend(connection_manager("rdma_cm"));
    }
    for test in &mut tests {
        test.name = format!("{what}: {}", test.name);
        test.script = format!("export LD_LIBRARY_PATH=/{DROP_IN}\n{}", test.script);
    }
    tests
}

/// Memory keys of direct verbs, by a C program of the drop-in's tests.
pub(crate) fn memory_keys() -> Test {
    let script = format!("export LD_LIBRARY_PATH=/{DROP_IN} GID_INDEX=${{G#-g }}\nown_test {KEYS}");
    Test::new("drop-in: memory keys of direct verbs", &script, SHORT)
}

/// The name of that program.
pub(crate) const KEYS: &str = "keys";

/// The directory of the library in the guest.
pub(crate) const DROP_IN: &str = "drop-in";

/// Checks that a program and librdmacm load each of the library's names from that directory.
const LOADED: &str = r#"
loaded() {
    LD_TRACE_LOADED_OBJECTS=1 $1 | grep ibverbs
    LD_TRACE_LOADED_OBJECTS=1 $1 | grep "$2.* => /drop-in/$2"
}
loaded ibv_devinfo libibverbs.so.1 && loaded rping libibverbs.so.1 && loaded ib_send_lat libmlx5.so.1
"#;

/// The first of two guests. The servers run in the second one, which the last test ends.
pub(crate) fn first_guest(port: Port) -> Vec<Test> {
    let mut tests = vec![Test::new("two guests: ping", "ping -c 3 $PEER", SHORT)];
    if port == Port::Roce {
        tests.extend(connection_manager("two guests"));
    }
    tests.extend(connected("two guests"));
    tests.push(Test::new("two guests: uverbs transfer", TRANSFER_THERE, LONG));
    tests.push(Test::new("two guests: all objects gone there", GONE_THERE, SHORT));
    tests.push(Test::new("the second guest is told to end", "there 'touch /tmp/quit'", SHORT));
    tests
}

const TRANSFER_THERE: &str = r#"
there 'mkdir -p /tmp/out'
head -c 5000001 /dev/urandom > /tmp/file
play 'uverbs transfer recv /tmp/out --listen 0.0.0.0 --port 7777 --code kernel-test' \
    'uverbs transfer send /tmp/file $PEER --port 7777 --code kernel-test' || exit 1
[ "$(md5sum < /tmp/file)" = "$(there 'md5sum < /tmp/out/file')" ]
"#;

/// Checks that the second guest has only the driver's own objects after all its programs have
/// ended.
const GONE_THERE: &str = r#"
there 'rdma resource show qp | grep pid' && exit 1
there 'rdma resource show'
"#;

/// The second guest runs the commands of the first one until that one ends it, or has itself ended.
pub(crate) fn second_guest() -> Vec<Test> {
    vec![Test::new("the second guest serves", SERVE, LONG)]
}

const SERVE: &str = r#"
until ping -c 1 192.168.9.1 > /dev/null; do sleep 1; done
until [ -e /tmp/quit ]; do ping -c 3 -W 20 192.168.9.1 > /dev/null || exit 1; done
"#;

/// Limit in seconds of a test against rxe, which takes one or two on an idle machine.
const RXE_LIMIT: u32 = 120;

/// A program on rxe and on a software device, each as server and as client.
fn against_rxe(name: &str, theirs: &str, ours: &str) -> [Test; 2] {
    let test = |who: &str, server: &str, client: &str| {
        let what = format!("rxe: {name}, {who} serves");
        Test::new(&what, &format!("play '{server}' '{client}'"), RXE_LIMIT)
    };
    [
        test("rxe", theirs, &format!("{ours} 10.0.0.1")),
        test("the software device", ours, &format!("{theirs} 10.0.0.2")),
    ]
}

/// Measures single messages of software devices and of the kernel's own software RoCE.
pub(crate) fn soft_roce_latency() -> Test {
    Test::new("rxe: latency", &format!("{RXE_PROGRAMS}{RXE_LATENCY}"), LONG)
}

/// Software devices of processes against the kernel's own software RoCE.
pub(crate) fn soft_roce() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: &str, theirs: &str, ours: &str| {
        tests.extend(against_rxe(name, theirs, ours));
    };
    for program in RXE_PINGPONGS {
        add(program, &format!("{program} -d rxe0 $THEIRS"), &format!("$RUN {program} -g 1"));
    }
    let six = "ibv_rc_pingpong -n 100 -s 9000";
    add(&format!("{six}, IPv6"), &format!("{six} -d rxe0 $THEIRS6"), &format!("$RUN6 {six} -g 1"));
    for program in RXE_PERFTESTS {
        add(program, &format!("{program} -d rxe0 $X"), &format!("$RUN {program} -x 1"));
    }
    let options = "--peer ibv --iters 100 --port 7777 --address 10.0.0.2";
    let theirs = "ibv_rc_pingpong -d rxe0 $THEIRS -n 100 -p 7777";
    let ours = format!("/bin/ip netns exec soft uverbs pingpong {options}");
    let mixed = [
        ("rxe serves", format!("play '{theirs}' '{ours} 10.0.0.1'")),
        ("uverbs serves", format!("play '{ours} --listen 0.0.0.0' '{theirs} 10.0.0.2'")),
    ];
    tests.extend(mixed.map(|(who, script)| {
        Test::new(&format!("rxe: uverbs pingpong, {who}"), &script, RXE_LIMIT)
    }));
    for (server, client) in RXE_CONNECTIONS {
        let theirs = format!("play '{server} 10.0.0.1' '$RUN {client} 10.0.0.1'");
        let ours = format!("play '$RUN {server} 10.0.0.2' '{client} 10.0.0.2'");
        tests.push(Test::new(&format!("rxe: {client}, rxe serves"), &theirs, RXE_LIMIT));
        tests.push(Test::new(&format!("rxe: {client}, the device serves"), &ours, RXE_LIMIT));
    }
    let lossy = RXE_LOSS.map(|program| {
        let theirs = format!("{program} -d rxe0 $THEIRS");
        let script = format!("{LOSE}play '{theirs}' '$RUN {program} -g 1 10.0.0.1'{REPAIR}");
        Test::new(&format!("rxe: {program}, 2% lost in both directions"), &script, RXE_LIMIT)
    });
    tests.extend(lossy);
    tests.push(Test::new("rxe: figures", &format!("{RXE_PROGRAMS}{RXE_FIGURES}"), LONG));
    tests
}

const RXE_PINGPONGS: &[&str] = &[
    "ibv_rc_pingpong -n 200",
    "ibv_rc_pingpong -n 50 -s 50000 -r 1",
    "ibv_rc_pingpong -n 100 -e",
    "ibv_uc_pingpong -n 200",
    "ibv_ud_pingpong -n 200 -s 1000",
    "ibv_srq_pingpong -n 200",
    "ibv_srq_pingpong -n 100 -e",
];

/// READs and atomics have at most 16 in flight. By default perftest uses the maximum of the peer's
/// device: 128 for rxe, more than an mlx5 device supports.
const RXE_PERFTESTS: &[&str] = &[
    "ib_send_lat -n 100",
    "ib_send_lat -n 100 -c UD -s 1000",
    "ib_send_bw -n 300 -s 20000 -r 4",
    "ib_write_bw -n 300 -s 20000",
    "ib_write_lat -n 100 -c UC",
    "ib_read_bw -n 100 -s 20000 -o 16",
    "ib_atomic_lat -n 100 -A FETCH_AND_ADD -o 16",
    "ib_atomic_lat -n 100 -A CMP_AND_SWAP -o 16",
];

/// Servers of librdmacm, and clients without the server's address, which is appended. Datagrams of
/// udaddy have immediate data.
const RXE_CONNECTIONS: &[(&str, &str)] = &[
    ("rping -s -C 20 -V -a", "rping -c -C 20 -V -a"),
    ("ucmatose -c 4 -C 10 -b", "ucmatose -c 4 -C 10 -s"),
    ("udaddy -c 2 -C 10 -b", "udaddy -c 2 -C 10 -s"),
];

const RXE_LOSS: [&str; 2] = ["ibv_rc_pingpong -n 100 -s 9000", "ibv_rc_pingpong -n 100 -e"];

/// With the full path, because busybox's shell has its own `tc`.
const LOSE: &str = "/sbin/tc qdisc add dev v0 root netem loss 2% && \
    soft /sbin/tc qdisc add dev v1 root netem loss 2% || exit 1\n";

const REPAIR: &str = "; status=$?
/sbin/tc qdisc del dev v0 root; soft /sbin/tc qdisc del dev v1 root
[ $status = 0 ]";

/// Shell functions that run perftest between two devices of a kind and between both kinds, and the
/// program that sends the same amount by UDP alone. Packets of software devices and of that program
/// go through the loopback interface of their network namespace. Packets between two queue pairs of
/// rxe do not leave its module: rxe has only the initial namespace's addresses, between which there
/// is no neighbour.
///
/// A figure is a column of the client's last line of numbers.
const RXE_PROGRAMS: &str = r#"
ours3="/bin/ip netns exec soft uverbs run --address 10.0.0.3 --"
rxe() { play "$1 -d rxe0 $X" "$1 -d rxe0 $X 10.0.0.1"; }
uverbs_soft() { play "$RUN $1 -x 1" "$ours3 $1 -x 1 10.0.0.2"; }
mixed() { play "$1 -d rxe0 $X" "$RUN $1 -x 1 10.0.0.1"; }
column() { awk -v at=$1 '$1 ~ /^[0-9]+$/ && NF > 4 { value = $at } END { print value }' /tmp/client; }
udp() {
    soft bare_udp serve 10.0.0.2 & server=$!
    sleep 0.3
    soft bare_udp $1 10.0.0.3 10.0.0.2 $2 && wait $server
}
"#;

/// Prints the figures of single messages for [`crate::figures`]: seven runs of each kind in turn,
/// so that other work of the machine affects all kinds alike.
const RXE_LATENCY: &str = r#"
for turn in 1 2 3 4 5 6 7; do
    for who in rxe uverbs_soft mixed udp; do
        case $who in
            udp) figure=$(udp polled 200) || exit 1 ;;
            *) $who "ib_send_lat -s 64 -n 200" > /tmp/out || { cat /tmp/out; exit 1; }
               figure=$(column 5) ;;
        esac
        echo "@@ figure polled $who $figure"
    done
done
"#;

/// Prints all other figures: three runs of each case in turn. Messages for which both ends sleep
/// are measured with a pingpong, because with `ib_send_lat -e` rxe's completion queue overruns.
/// Processor time is that of the whole guest, which does nothing else; the difference of two runs
/// excludes the time for starting.
const RXE_FIGURES: &str = r#"
P="ibv_rc_pingpong -e -s 64 -n 300"
awaited() {
    case $1 in
        rxe) play "$P -d rxe0 $THEIRS" "$P -d rxe0 $THEIRS 10.0.0.1" ;;
        uverbs_soft) play "$2 $P -g 1" "$3 $P -g 1 10.0.0.2" ;;
        mixed) play "$P -d rxe0 $THEIRS" "$2 $P -g 1 10.0.0.1" ;;
    esac > /tmp/out || { cat /tmp/out >&2; return 1; }
    awk '/usec/ { print $(NF - 1) / 2 }' /tmp/client
}
replaced() {
    echo "/bin/ip netns exec soft /bin/busybox env LD_LIBRARY_PATH=/drop-in UVERBS_DEVICE=soft \
        UVERBS_SOFT_ADDRESS=$1"
}
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
timed() {
    before=$(busy)
    case $1 in
        udp) udp bandwidth $2 ;;
        *) $1 "ib_send_bw -e -s 65536 -n $2" ;;
    esac > /tmp/timed || { cat /tmp/timed; return 1; }
    ticks=$(($(busy) - before))
}
processor() {
    timed $1 20 || return 1; few=$ticks
    timed $1 420 || return 1
    echo "@@ figure processor $1 $((ticks - few))"
}
for turn in 1 2 3; do
    figure=$(awaited rxe) || exit 1
    echo "@@ figure awaited rxe $figure"
    echo "@@ figure replaced rxe $figure"
    for who in uverbs_soft mixed; do
        figure=$(awaited $who "$RUN" "$ours3") || exit 1
        echo "@@ figure awaited $who $figure"
        figure=$(awaited $who "$(replaced 10.0.0.2)" "$(replaced 10.0.0.3)") || exit 1
        echo "@@ figure replaced $who $figure"
    done
    for who in rxe uverbs_soft mixed; do
        $who "ib_send_bw -n 2000 -s 64" > /tmp/out || { cat /tmp/out; exit 1; }
        echo "@@ figure rate $who $(column 5)"
        $who "ib_write_bw -n 500 -s 65536" > /tmp/out || { cat /tmp/out; exit 1; }
        echo "@@ figure bandwidth $who $(column 4)"
        processor $who || exit 1
    done
    for what in "awaited 300" "rate 2000" "bandwidth 500"; do
        figure=$(udp $what) || exit 1
        echo "@@ figure ${what% *} udp $figure"
        [ "${what% *}" != awaited ] || echo "@@ figure replaced udp $figure"
    done
    processor udp || exit 1
done
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_stay_on_the_host_exist_and_are_skipped() {
        for (file, test, _) in HOST_ONLY_TESTS {
            let source = crate::workspace().join("tests").join(format!("{file}.rs"));
            let source = std::fs::read_to_string(source).expect("the test file");
            assert!(source.contains(&format!("#[test]\nfn {test}()")), "{file}: {test}");
            assert!(skips(file).contains(&format!(" --skip {test}")), "{file}: {test}");
        }
        assert_eq!(skips("rc"), "");
    }
}
