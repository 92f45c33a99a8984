//! Network namespaces and devices in them.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use uverbs::Device;
use uverbs::qp::AckTimeout;
use uverbs::qp_type::Connected;
use uverbs::raw;
use uverbs::soft::{DeviceBuilder, SoftDevice};

use crate::common::Setup;

/// Set for the test's second run.
const INSIDE: &str = "UVERBS_TEST_NAMESPACE";

/// Runs `test` in a network namespace whose only interface is `lo`. `name` is the test's name as
/// the harness prints it.
pub(crate) fn inside(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        run("ip link set lo up");
        return test();
    }
    let namespaces = ["--user", "--map-root-user", "--net", "--"];
    let allowed = Command::new("unshare").args(namespaces).args(["ip", "link"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "unshare and ip have to work here");
        eprintln!("skipped: no network namespace can be made here (unshare, ip)");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(namespaces).arg(program).args([name, "--exact", "--nocapture"]).env(INSIDE, "1");
    let status = command.status().unwrap();
    assert!(status.success(), "{name} in a namespace: {status}");
}

/// Runs a command with its arguments. It must succeed.
pub(crate) fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

type Task = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, at the other end of a virtual cable.
pub(crate) struct Far {
    tasks: Sender<Task>,
}

impl Far {
    /// Creates the namespace and the cable: interface `near` here, `far` there, both up, with these
    /// MTUs and addresses 10.9.0.1 and 10.9.0.2, fd09::1 and fd09::2, fe80::1 and fe80::2.
    pub(crate) fn new(mtu: [u32; 2]) -> Self {
        let (tasks, queue): (Sender<Task>, Receiver<Task>) = channel();
        let (say, told) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            say.send(gettid()).unwrap();
            queue.into_iter().for_each(|task| task());
        });
        let there = told.recv().unwrap();
        run("ip link add near type veth peer name far");
        run(&format!("ip link set far netns {there}"));
        set_up("near", 1, mtu[0]);
        let far = Self { tasks };
        far.run(move || set_up("far", 2, mtu[1]));
        far
    }

    /// Runs something in the namespace and waits for its result.
    pub(crate) fn run<R: Send + 'static>(&self, task: impl FnOnce() -> R + Send + 'static) -> R {
        let (say, told) = channel();
        self.tasks.send(Box::new(move || say.send(task()).unwrap())).unwrap();
        told.recv().expect("the task does not panic")
    }
}

fn set_up(name: &str, number: u8, mtu: u32) {
    // Without duplicate address detection, addresses are usable at once.
    run(&format!("sysctl -q net.ipv6.conf.{name}.accept_dad=0"));
    run(&format!("ip link set {name} mtu {mtu} address 02:00:00:00:09:0{number} up"));
    run(&format!("ip address add 10.9.0.{number}/24 dev {name}"));
    // IPv6 needs 1280 bytes.
    for v6 in
        [format!("fd09::{number}/64"), format!("fe80::{number}/64")].iter().filter(|_| mtu >= 1280)
    {
        run(&format!("ip -6 address add {v6} dev {name} nodad"));
        // On a busy machine a reliable connection may give up before neighbour discovery ends.
        let other = 3 - number;
        let v6 = v6.replace(&format!("::{number}/64"), &format!("::{other}"));
        let mac = format!("02:00:00:00:09:0{other}");
        run(&format!("ip neigh replace {v6} lladdr {mac} dev {name}"));
    }
}

/// A device at an address.
pub(crate) fn device(address: &str) -> std::io::Result<SoftDevice> {
    builder(address).build()
}

pub(crate) fn builder(address: &str) -> DeviceBuilder {
    SoftDevice::builder("soft0").address(address.parse().unwrap())
}

/// A device, opened, with a PD and a CQ.
pub(crate) struct End {
    pub(crate) soft: Arc<SoftDevice>,
    pub(crate) setup: Setup,
}

impl End {
    pub(crate) fn at(address: &str) -> Self {
        Self::of(device(address).unwrap())
    }

    pub(crate) fn of(soft: SoftDevice) -> Self {
        let soft = Arc::new(soft);
        let setup = Setup::on(Device::from_shared_soft(soft.clone()).open().unwrap());
        Self { soft, setup }
    }

    /// A queue pair with a long ACK timeout: the peer's thread may not be scheduled for a while.
    pub(crate) fn qp<T: Connected>(&self) -> raw::QueuePair<T> {
        let patient = |path: &mut uverbs::qp::PathOptions| path.timeout = AckTimeout::from_code(15);
        self.setup.builder::<T>().path(patient).build().unwrap()
    }
}

/// Two devices. The second one may be in another namespace.
pub(crate) struct Ends {
    pub(crate) near: End,
    pub(crate) there: End,
    pub(crate) far: Option<Far>,
}

impl Ends {
    /// Two devices at the ends of a virtual cable.
    pub(crate) fn across(mtu: [u32; 2], near: &str, far: &'static str) -> Self {
        let there = Far::new(mtu);
        let near = End::at(near);
        Self { near, there: there.run(move || End::at(far)), far: Some(there) }
    }

    /// Two connected queue pairs. Each connects in its device's namespace, where the kernel keeps
    /// the route and the neighbour.
    pub(crate) fn pair<T: Connected + Send + 'static>(
        &self,
    ) -> (raw::QueuePair<T>, raw::QueuePair<T>)
    where
        raw::QueuePair<T>: Send,
    {
        let (mut a, mut b) = (self.near.qp::<T>(), self.there.qp::<T>());
        let (end_a, end_b) = (a.endpoint(), b.endpoint());
        a.connect(&end_b).unwrap();
        let connect = move || {
            b.connect(&end_a).unwrap();
            b
        };
        let b = match &self.far {
            Some(far) => far.run(connect),
            None => connect(),
        };
        (a, b)
    }
}
