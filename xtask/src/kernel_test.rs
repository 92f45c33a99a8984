//! `cargo xtask kernel-test`: a matrix of kernels and port types, and a table of what passed.
//!
//! Needs a Debian system's apt-get and dpkg-deb, the network the first time, no root. Everything lives below
//! `target/kernel-test`; nothing outside of it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::pci::Settings;
use uverbs_soft::wire::Station;

use crate::guest::{self, Boot, Qemu};
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::packages::Packages;
use crate::programs::{self, Program};
use crate::record;
use crate::report::{Outcome, Report, Table};
use crate::script::{self, Link};
use crate::suite::{self, Test};

/// Options of `cargo xtask kernel-test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Kernels to run; all of them by default
    #[arg(long, value_enum)]
    kernel: Vec<KernelChoice>,
    /// Port types to run; all of them by default
    #[arg(long, value_enum)]
    port: Vec<PortChoice>,
    /// What to run; everything by default
    #[arg(long, value_enum)]
    group: Vec<Group>,
    /// Writes the kernel's answers to tests/record, with which the software device is compared; meant for 6.12
    #[arg(long, conflicts_with = "group")]
    record: bool,
    /// Seconds until a guest is stopped
    #[arg(long, default_value_t = 1800)]
    limit: u64,
}

impl Options {
    fn wants(&self, group: Group) -> bool {
        if self.record { group == Group::Record } else { chosen(&self.group).contains(&group) }
    }

    /// Which test files are needed.
    fn files(&self) -> Option<&'static str> {
        let record = self.wants(Group::Record).then_some("record");
        if self.wants(Group::Own) { Some(programs::ALL) } else { record }
    }

    /// Builds what the guests need of this project.
    fn build(&self) -> Result<Vec<Program>> {
        let workspace = workspace()?;
        let mut built = Vec::new();
        if let Some(files) = self.files() {
            built.extend(programs::build_tests(&workspace, files)?);
        }
        if self.wants(Group::Own) || self.wants(Group::Two) {
            built.extend(programs::build_command(&workspace)?);
        }
        Ok(built)
    }
}

/// Tests that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Debian's own programs
    Control,
    /// This project's tests and its command
    Own,
    /// The kernel's answers, compared with the recorded ones; a guest of its own
    Record,
    /// Two devices that are connected; a guest of its own
    Two,
}

/// A Debian kernel by the release that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KernelChoice {
    /// 6.1 of bookworm
    #[value(name = "6.1")]
    Bookworm,
    /// 6.12 of bookworm-backports
    #[value(name = "6.12")]
    BookwormBackports,
    /// The newest, of trixie-backports
    #[value(name = "newest")]
    TrixieBackports,
}

impl KernelChoice {
    fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::BookwormBackports => "bookworm-backports",
            Self::TrixieBackports => "trixie-backports",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PortChoice {
    /// InfiniBand
    Ib,
    /// Ethernet, with RoCE v2
    Roce,
}

impl PortChoice {
    fn link(self) -> Link {
        match self {
            Self::Ib => Link::InfiniBand,
            Self::Roce => Link::Roce,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ib => "ib",
            Self::Roce => "roce",
        }
    }

    fn devices(self, count: usize) -> Vec<Settings> {
        let link = match self {
            Self::Ib => LinkLayer::InfiniBand,
            Self::Roce => LinkLayer::Ethernet,
        };
        (1..=count as u32).map(|n| Settings::at(Station::candidate(n), link)).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let bench = Bench::prepare(options)?;
    let mut table = Table::default();
    for choice in chosen(&options.kernel) {
        let kernel = Kernel::prepare(&bench.packages, choice.release(), &bench.root)?;
        for port in chosen(&options.port) {
            let results = bench.run(&kernel, port, options)?;
            table.add(&format!("{} {}", kernel.short_version(), port.word()), &results);
        }
    }
    println!("\n{table}");
    if table.passed() { Ok(()) } else { bail!("some tests failed") }
}

type Results = Vec<(String, Outcome)>;

/// Everything that is the same for all guests.
struct Bench {
    root: PathBuf,
    packages: Packages,
    qemu: Qemu,
    userland: PathBuf,
    programs: Vec<Program>,
    tests: Vec<Test>,
    limit: Duration,
}

impl Bench {
    fn prepare(options: &Options) -> Result<Self> {
        let root = target_directory()?.join("kernel-test");
        let packages = Packages::open(&root)?;
        let qemu = Qemu { root: root.join("qemu") };
        packages.unpack("trixie-backports", &["qemu-system-x86"], true, &qemu.root)?;
        let userland = root.join("userland");
        packages.unpack("bookworm", USERLAND, true, &userland)?;
        let programs = options.build()?;
        let mut tests = Vec::new();
        if options.wants(Group::Control) {
            tests.extend(suite::control_group());
        }
        if options.wants(Group::Own) {
            tests.extend(suite::own_tests(&programs));
            tests.extend(suite::command_tests());
        }
        if !tests.is_empty() {
            tests.extend(suite::removals(options.wants(Group::Own)));
        }
        let limit = Duration::from_secs(options.limit);
        Ok(Self { root, packages, qemu, userland, programs, tests, limit })
    }

    /// Runs what was asked for on one kernel and one kind of port.
    fn run(&self, kernel: &Kernel, port: PortChoice, options: &Options) -> Result<Results> {
        let name = format!("{} {}", kernel.short_version(), port.word());
        let mut results = Results::new();
        if !self.tests.is_empty() {
            let guest = self.guest(&name, kernel, (port, 1), &self.tests)?;
            let complaints = &guest.complaints;
            complaints.iter().take(10).for_each(|complaint| println!("    {complaint}"));
            let silent = complaints.is_empty();
            results.extend(guest.results);
            results.push((COMPLAINTS.to_owned(), silent.into()));
        }
        if options.wants(Group::Record) {
            let guest =
                self.guest(&format!("{name} record"), kernel, (port, 1), &suite::record())?;
            if options.record {
                record::write(&workspace()?, port.word(), &guest.console)?;
            }
            results.extend(guest.results.into_iter().filter(|(name, _)| name != UNLOADED));
        }
        if options.wants(Group::Two) {
            let guest = self.guest(&format!("{name} two"), kernel, (port, 2), &suite::across())?;
            results.extend(guest.results.into_iter().filter(|(name, _)| name != UNLOADED));
        }
        Ok(results)
    }

    /// Runs one guest.
    fn guest(
        &self,
        name: &str,
        kernel: &Kernel,
        (port, count): (PortChoice, usize),
        tests: &[Test],
    ) -> Result<Guest> {
        let directory = self.root.join(format!("run-{}", name.replace(' ', "-")));
        let initramfs = self.write_initramfs(kernel, (port, count), &directory, tests)?;
        let boot = Boot {
            kernel: &kernel.image,
            initramfs: &initramfs,
            directory: &directory,
            limit: self.limit,
            arguments: "",
        };
        let started = Instant::now();
        let devices = port.devices(count);
        let console = guest::run(&self.qemu, &boot, &devices)?;
        fs::remove_file(&initramfs)?;
        let report = Report::parse(&console, tests.len());
        let names = tests.iter().map(|test| test.name.clone());
        let mut results: Results = names.zip(report.outcomes).collect();
        results.push((UNLOADED.to_owned(), (report.unloaded && report.finished).into()));
        let complaints = guest::complaints(&directory, devices.len())?;
        let guest = Guest { results, complaints, console };
        println!("{name} ({}, {:.1} s)", kernel.version(), started.elapsed().as_secs_f64());
        guest.print(&directory);
        Ok(guest)
    }

    fn write_initramfs(
        &self,
        kernel: &Kernel,
        (port, devices): (PortChoice, usize),
        directory: &Path,
        tests: &[Test],
    ) -> Result<PathBuf> {
        let mut archive = Initramfs::default();
        archive.tree(&self.userland, &wanted)?;
        let busybox = self.userland.join("bin/busybox");
        for applet in APPLETS {
            archive.symlink(&format!("sbin/{applet}"), "/bin/busybox");
        }
        archive.symlink("bin/sh", "/bin/busybox");
        for empty in ["dev", "proc", "sys", "tmp"] {
            archive.directory(empty);
        }
        let modules = kernel.add_modules(&mut archive, &busybox)?;
        fs::create_dir_all(directory)?;
        let is_wanted = |program: &&Program| {
            let mut words = tests.iter().flat_map(|test| test.script.split_whitespace());
            program.name == suite::COMMAND || words.any(|word| word == program.name)
        };
        programs::add(&mut archive, self.programs.iter().filter(is_wanted), directory)?;
        archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
        archive.file("init", 0o755, script::init(&modules, port.link(), devices, tests).as_bytes());
        let path = directory.join("initramfs.cpio");
        fs::write(&path, archive.finish())?;
        Ok(path)
    }
}

const UNLOADED: &str = "modules unload";
const COMPLAINTS: &str = "the device has nothing to complain about";

/// What one guest came to.
struct Guest {
    results: Results,
    complaints: Vec<String>,
    console: String,
}

impl Guest {
    /// What failed, and where more of it is.
    fn print(&self, directory: &Path) {
        let mut failed = self.results.iter().filter(|(_, outcome)| !outcome.is_passed()).peekable();
        if failed.peek().is_some() || !self.complaints.is_empty() {
            println!("  console log and trace of firmware commands: {}", directory.display());
        }
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

fn workspace() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this through cargo")?;
    Ok(Path::new(&manifest).with_file_name(""))
}

fn chosen<T: ValueEnum + Copy>(given: &[T]) -> Vec<T> {
    if given.is_empty() { T::value_variants().to_vec() } else { given.to_vec() }
}

pub(crate) fn target_directory() -> Result<PathBuf> {
    let default = workspace()?.join("target");
    Ok(std::env::var_os("CARGO_TARGET_DIR").map_or(default, PathBuf::from))
}

/// The guest's programs.
const USERLAND: &[&str] = &[
    "busybox-static",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "rdmacm-utils",
    "iproute2",
];

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
    "head", "basename", "readlink", "cmp", "killall", "netstat",
];
