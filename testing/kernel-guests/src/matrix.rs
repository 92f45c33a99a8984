//! Runs the matrix of kernels and port types, and prints a table of the results.
//!
//! Needs apt-get and dpkg-deb of a Debian system, and network access the first time, but not root.
//! All files are below `target/kernel-test`; nothing outside of it changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use uverbs_soft::wire::Station;
use uverbs_soft_pci::Fabric;

use crate::figures;
use crate::guest::{self, Boot, Card, Clock, Device, Network, Qemu};
use crate::initramfs::Initramfs;
use crate::kernel::{Flavour, Kernel};
use crate::options::{Group, KernelChoice, Options, Port, chosen};
use crate::packages::Packages;
use crate::programs::{self, DropIn, Program};
use crate::record;
use crate::report::{Outcome, Report, Table};
use crate::script::{self, Place};
use crate::suite::{self, Test};
use crate::{target_directory, workspace};

/// Runs the tests that `options` select and prints a table of the results. Fails if a test failed.
pub fn run(options: &Options) -> Result<()> {
    let bench = Bench::prepare(options)?;
    let mut table = Table::default();
    for choice in chosen(&options.kernel) {
        let prepare =
            |flavour| Kernel::prepare(&bench.packages, flavour, choice.release(), &bench.root);
        if options.wants(Group::SoftRoce) && choice == KernelChoice::BookwormBackports {
            let kernel = prepare(Flavour::Generic)?;
            table.add(&format!("{} rxe", kernel.short_version()), &bench.soft_roce(&kernel)?);
        }
        if options.is_only(Group::SoftRoce) {
            continue;
        }
        let kernel = prepare(Flavour::Cloud)?;
        for port in chosen(&options.port) {
            // A guest that does not run affects only its own column.
            let results = bench.run(&kernel, port, options).unwrap_or_else(|error| {
                eprintln!("{error:#}");
                vec![("the guest runs".to_owned(), false.into())]
            });
            table.add(&format!("{} {}", kernel.short_version(), port.word()), &results);
        }
    }
    println!("\n{table}");
    if table.passed() { Ok(()) } else { bail!("some tests failed") }
}

type Results = Vec<(String, Outcome)>;

/// The files and settings that all guests share.
struct Bench {
    root: PathBuf,
    packages: Packages,
    qemu: Qemu,
    programs: Vec<Program>,
    /// This project's libibverbs, if guests use it.
    drop_in: Option<PathBuf>,
    tests: Vec<Test>,
    limit: Duration,
    /// Whether a guest with a failed test is run once more.
    again: bool,
}

impl Bench {
    fn prepare(options: &Options) -> Result<Self> {
        let root = target_directory().join("kernel-test");
        let packages = Packages::open(&root)?;
        let qemu = Qemu { root: root.join("qemu") };
        packages.unpack("trixie-backports", &["qemu-system-x86"], true, &qemu.root)?;
        packages.unpack("bookworm", USERLAND, true, &root.join(OLDER))?;
        packages.unpack("bookworm", &["coreutils"], false, &root.join("coreutils"))?;
        let mut programs = build(options)?;
        let [wants_drop_in, measures] =
            [Group::DropIn, Group::SoftRoce].map(|one| options.wants(one));
        let drop_in = (wants_drop_in || measures)
            .then(|| programs::build_drop_in(&root.join("drop-in")))
            .transpose()?;
        if wants_drop_in {
            programs.push(programs::build_c(workspace(), suite::KEYS, &root.join("drop-in"))?);
            packages.unpack("trixie", USERLAND, true, &root.join(NEWER))?;
        }
        let mut tests = Vec::new();
        if options.wants(Group::Control) {
            tests.extend(suite::control_group());
        }
        if options.wants(Group::Own) {
            tests.extend(suite::own_tests(&programs));
            tests.extend(suite::command_tests());
        }
        if !tests.is_empty() {
            let own = programs.iter().any(|program| program.name == "removal");
            tests.extend(suite::removals(own));
        }
        let limit = Duration::from_secs(options.limit);
        let again = options.again;
        Ok(Self { root, packages, qemu, programs, drop_in, tests, limit, again })
    }

    /// Runs the selected tests on one kernel and one kind of port.
    fn run(&self, kernel: &Kernel, port: Port, options: &Options) -> Result<Results> {
        let mut results = Results::new();
        if !self.tests.is_empty() {
            let plan = Plan::new(kernel, port, Place::OneDevice, "", &self.tests);
            results.extend(self.guest(&plan)?.results);
        }
        if options.wants(Group::Record) {
            let tests = suite::record(options.record);
            let mut plan = Plan::new(kernel, port, Place::OneDevice, "-record", &tests);
            plan.provokes = true;
            let guest = self.guest(&plan)?;
            if options.record {
                record::write(workspace(), port.word(), &guest.console)?;
            }
            results.extend(guest.named("record"));
        }
        // rdma_cm needs IP addresses, which an InfiniBand port only has with IPoIB.
        if options.wants(Group::ConnectionManager) && port == Port::Roce {
            let mut tests = suite::connection_manager("one guest");
            tests.extend(suite::own_connections("one guest"));
            let plan = Plan::new(kernel, port, Place::OneDevice, "-cm", &tests);
            results.extend(self.guest(&plan)?.named("rdma_cm"));
        }
        if options.wants(Group::DropIn) {
            results.extend(self.drop_in(kernel, port)?);
        }
        if options.wants(Group::TwoDevices) {
            let tests = suite::two_devices(port);
            let plan = Plan::new(kernel, port, Place::TwoDevices, "-two-devices", &tests);
            results.extend(self.guest(&plan)?.named("two devices"));
        }
        if options.wants(Group::TwoGuests) {
            results.extend(self.two_guests(kernel, port)?);
        }
        Ok(results)
    }

    /// Runs C programs on this project's libibverbs: Debian 12's, and on RoCE Debian 13's.
    fn drop_in(&self, kernel: &Kernel, port: Port) -> Result<Results> {
        let mut tests = suite::drop_in("drop-in", port);
        if port == Port::Roce {
            tests.push(suite::memory_keys());
        }
        let mut plan = Plan::new(kernel, port, Place::OneDevice, "-drop-in", &tests);
        plan.drop_in = Some(DropIn::WithHostLibraries);
        let mut results: Results = self.guest(&plan)?.named("drop-in").collect();
        if port == Port::Roce {
            let name = "drop-in, Debian 13";
            let tests = suite::drop_in(name, port);
            let mut plan = Plan::new(kernel, port, Place::OneDevice, "-drop-in-13", &tests);
            plan.userland = NEWER;
            plan.drop_in = Some(DropIn::Alone);
            results.extend(self.guest(&plan)?.named(name));
        }
        Ok(results)
    }

    /// Runs software devices against rdma_rxe, in a guest whose clock counts instructions, and
    /// measures single messages in one whose clock follows time.
    fn soft_roce(&self, kernel: &Kernel) -> Result<Results> {
        let (tests, latency) = (suite::soft_roce(), [suite::soft_roce_latency()]);
        let guests = [
            (Clock::Instructions, "-rxe", &tests[..]),
            (Clock::Time, "-rxe-latency", &latency[..]),
        ];
        let (mut results, mut console) = (Results::new(), String::new());
        for (clock, suffix, tests) in guests {
            let mut plan = Plan::new(kernel, Port::Roce, Place::SoftRoce, suffix, tests);
            plan.devices.clear();
            plan.drop_in = Some(DropIn::WithHostLibraries);
            plan.clock = clock;
            let guest = self.guest(&plan)?;
            console.push_str(&guest.console);
            results.extend(guest.named(suffix.trim_start_matches('-')));
        }
        let (file, lines) = (self.root.join(FIGURES), figures::lines(&console));
        if !lines.is_empty() {
            fs::write(&file, lines)?;
            println!("  figures for `cargo xtask figures`: {}", file.display());
        }
        Ok(results)
    }

    /// Runs two guests at the same time, connected over UDP.
    fn two_guests(&self, kernel: &Kernel, port: Port) -> Result<Results> {
        let tests = [suite::first_guest(port), suite::second_guest()];
        let mut first = Plan::new(kernel, port, Place::FirstGuest, FIRST, &tests[0]);
        let mut second = Plan::new(kernel, port, Place::SecondGuest, SECOND, &tests[1]);
        let stations = free_stations(port)?;
        for (plan, [here, there]) in
            [(&mut first, stations), (&mut second, [stations[1], stations[0]])]
        {
            let network = Network::Udp(there);
            plan.devices = vec![Device { settings: port.device_at(here), network }];
        }
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| self.guest(&second));
            (self.guest(&first), second.join())
        });
        let second = second.map_err(|_| anyhow!("the second guest's thread panicked"))??;
        Ok(first?.named("first guest").chain(second.named("second guest")).collect())
    }

    /// Runs one guest, and a second time if a test failed there and the options ask for it.
    fn guest(&self, plan: &Plan<'_>) -> Result<Guest> {
        let directory = self.root.join(plan.directory());
        let guest = self.guest_in(plan, &directory)?;
        if !self.again || guest.is_passed() || plan.card().is_some() {
            return Ok(guest);
        }
        println!("  once more: kernels measure in real time, and this machine may have been busy");
        let kept = self.root.join(format!("{}-first", plan.directory()));
        fs::remove_dir_all(&kept).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        fs::rename(&directory, &kept)?;
        self.guest_in(plan, &directory)
    }

    /// Runs one guest, whose files are in `directory`.
    fn guest_in(&self, plan: &Plan<'_>, directory: &Path) -> Result<Guest> {
        let initramfs = self.write_initramfs(plan, directory)?;
        let boot = Boot {
            kernel: &plan.kernel.image,
            initramfs: &initramfs,
            directory,
            limit: self.limit,
            devices: &plan.devices,
            card: plan.card(),
            clock: plan.clock,
        };
        let started = Instant::now();
        let console = guest::run(&self.qemu, &boot)?;
        fs::remove_file(&initramfs)?;
        let report = Report::parse(&console, plan.tests.len());
        let names = plan.tests.iter().map(|test| test.name.clone());
        let mut results: Results = names.zip(report.outcomes).collect();
        results.push((UNLOADED.to_owned(), (report.unloaded && report.finished).into()));
        let mut complaints = Vec::new();
        if !plan.provokes {
            complaints = guest::complaints(directory, plan.devices.len())?;
            results.push((COMPLAINTS.to_owned(), complaints.is_empty().into()));
        }
        let guest = Guest { results, complaints, console };
        let name = plan.directory();
        println!("{name} ({}, {:.1} s)", plan.kernel.version(), started.elapsed().as_secs_f64());
        guest.print(directory);
        Ok(guest)
    }

    fn write_initramfs(&self, plan: &Plan<'_>, directory: &Path) -> Result<PathBuf> {
        let mut archive = Initramfs::default();
        let userland = self.root.join(plan.userland);
        link_merged(&mut archive, &userland);
        archive.tree(&userland, &wanted)?;
        let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| userland.join(path));
        let busybox = busybox.into_iter().find(|path| path.is_file()).context("busybox")?;
        for applet in APPLETS {
            archive.symlink(&format!("sbin/{applet}"), "/bin/busybox");
        }
        archive.symlink("bin/sh", "/bin/busybox");
        for file in STDBUF {
            archive.copy(file, &self.root.join("coreutils").join(file))?;
        }
        for empty in ["dev", "proc", "sys", "tmp"] {
            archive.directory(empty);
        }
        let modules = plan.kernel.add_modules(&mut archive, &busybox)?;
        fs::create_dir_all(directory)?;
        let is_wanted = |program: &&Program| {
            let mut words = plan.tests.iter().flat_map(|test| test.script.split_whitespace());
            let is_needed = plan.place == Place::SoftRoce && program.name == programs::PRELOAD;
            program.name == suite::COMMAND || is_needed || words.any(|word| word == program.name)
        };
        programs::add(&mut archive, self.programs.iter().filter(is_wanted), directory)?;
        if let (Some(kind), Some(library)) = (plan.drop_in, &self.drop_in) {
            programs::add_drop_in(&mut archive, library, kind)?;
        }
        archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
        let init = script::init(&modules, plan.port, plan.place, plan.tests);
        archive.file("init", 0o755, init.as_bytes());
        let path = directory.join("initramfs.cpio");
        fs::write(&path, archive.finish())?;
        Ok(path)
    }
}

/// A guest to be run.
struct Plan<'a> {
    kernel: &'a Kernel,
    port: Port,
    place: Place,
    /// Suffix of its directory's name.
    suffix: &'static str,
    /// The directory of its programs.
    userland: &'static str,
    /// Whether it has this project's libibverbs.
    drop_in: Option<DropIn>,
    tests: &'a [Test],
    devices: Vec<Device>,
    clock: Clock,
    /// Whether its tests make the device refuse commands on purpose.
    provokes: bool,
}

const FIRST: &str = "-guest-1";
const SECOND: &str = "-guest-2";

impl<'a> Plan<'a> {
    fn new(
        kernel: &'a Kernel,
        port: Port,
        place: Place,
        suffix: &'static str,
        tests: &'a [Test],
    ) -> Self {
        let device = |number, network| {
            let settings = port.device_at(Station::candidate(number));
            Device { settings, network }
        };
        let devices = match place {
            Place::TwoDevices => {
                let fabric = Network::Fabric(Fabric::new());
                vec![device(1, fabric.clone()), device(2, fabric)]
            }
            _ => vec![device(1, Network::Nothing)],
        };
        let (userland, drop_in, clock, provokes) = (OLDER, None, Clock::Time, false);
        Self { kernel, port, place, suffix, userland, drop_in, tests, devices, clock, provokes }
    }

    fn directory(&self) -> String {
        self.directory_of(self.suffix)
    }

    fn directory_of(&self, suffix: &str) -> String {
        format!("run-{}-{}{suffix}", self.kernel.short_version(), self.port.word())
    }

    /// Guests that run tests against each other also have a network card.
    fn card(&self) -> Option<Card> {
        let (number, other) = match self.place {
            Place::FirstGuest => (1, SECOND),
            Place::SecondGuest => (2, FIRST),
            _ => return None,
        };
        let there = format!("../{}/{CARD}", self.directory_of(other));
        Some(Card { number, here: CARD.to_owned(), there })
    }
}

/// File of the measurements of the guests with rdma_rxe.
const FIGURES: &str = "rxe.json";

/// The socket of a guest's network card.
const CARD: &str = "card.sock";

/// Two stations that no other device of this machine uses now.
fn free_stations(port: Port) -> Result<[Station; 2]> {
    let pairs = (1..1000).map(|n| [Station::candidate(2 * n), Station::candidate(2 * n + 1)]);
    let is_free = |pair: &[Station; 2]| {
        pair.iter().all(|station| Network::is_free(&port.device_at(*station)))
    };
    pairs.into_iter().find(is_free).context("no two free stations on the loopback network")
}

const UNLOADED: &str = "modules unload";
const COMPLAINTS: &str = "the device has nothing to complain about";

/// The outcome of one guest.
struct Guest {
    results: Results,
    complaints: Vec<String>,
    console: String,
}

impl Guest {
    fn is_passed(&self) -> bool {
        self.results.iter().all(|(_, outcome)| outcome.is_passed())
    }

    /// Its results, with `name` as prefix of those that every guest has.
    fn named(self, name: &str) -> impl Iterator<Item = (String, Outcome)> {
        let rename = move |(test, outcome): (String, _)| match test {
            test if [UNLOADED, COMPLAINTS].contains(&test.as_str()) => {
                (format!("{name}: {test}"), outcome)
            }
            test => (test, outcome),
        };
        self.results.into_iter().map(rename)
    }

    /// Prints what failed, and where its logs are.
    fn print(&self, directory: &Path) {
        let mut failed = self.results.iter().filter(|(_, outcome)| !outcome.is_passed()).peekable();
        if failed.peek().is_some() || !self.complaints.is_empty() {
            println!("  console log and trace of firmware commands: {}", directory.display());
        }
        self.complaints.iter().take(10).for_each(|complaint| println!("    {complaint}"));
        for (name, outcome) in failed {
            match outcome {
                Outcome::Failed(_, tests) if !tests.is_empty() => {
                    println!("  FAILED {name}: {}", tests.join(", "));
                }
                Outcome::Failed(status, _) => println!("  FAILED {name} ({status})"),
                _ => println!("  NOT RUN {name}"),
            }
        }
    }
}

/// Builds this project's programs for the guests.
fn build(options: &Options) -> Result<Vec<Program>> {
    let workspace = workspace();
    let mut built = Vec::new();
    if let Some(files) = options.files() {
        built.extend(programs::build_tests(workspace, files)?);
    }
    if options.wants_command_tests() {
        built.extend(programs::build_command_tests(workspace)?);
    }
    if options.wants_command() {
        built.extend(programs::build_command(workspace, options.wants(Group::SoftRoce))?);
    }
    Ok(built)
}

/// Links the root's folders to those of `/usr`, as in newer releases, whose packages have all files
/// there.
fn link_merged(archive: &mut Initramfs, userland: &Path) {
    for name in ["bin", "sbin", "lib", "lib64"] {
        if !userland.join(name).exists() {
            let target = format!("usr/{name}");
            archive.directory(&target);
            archive.symlink(name, &target);
        }
    }
}

/// Directories for Debian 12's and Debian 13's programs.
const OLDER: &str = "userland";
const NEWER: &str = "userland-13";

/// The guest's programs.
const USERLAND: &[&str] = &[
    "busybox-static",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "rdmacm-utils",
    "iproute2",
];

/// The one program of Debian's coreutils that busybox does not have.
const STDBUF: [&str; 2] = ["usr/bin/stdbuf", "usr/libexec/coreutils/libstdbuf.so"];

/// Files of the userland packages that no test needs.
fn wanted(path: &str) -> bool {
    const UNWANTED: &[&str] = &[
        "usr/share",
        "usr/lib/x86_64-linux-gnu/gconv",
        "usr/lib/x86_64-linux-gnu/perl",
        "usr/lib/locale",
        "var",
        ".unpacked",
    ];
    !UNWANTED.iter().any(|prefix| path.starts_with(prefix)) && !path.contains("perl")
}

/// Busybox programs that the guest's script uses.
const APPLETS: &[&str] = &[
    "mount", "mkdir", "insmod", "rmmod", "ifconfig", "sleep", "seq", "cat", "kill", "date",
    "uname", "reboot", "grep", "tr", "ls", "dmesg", "sh", "test", "[", "echo", "lspci", "ip",
    "head", "basename", "readlink", "cmp", "killall", "nc", "ping", "md5sum", "touch", "sysctl",
];
