//! `cargo xtask kernel-test`: a matrix of kernels and port types, and a table of what passed.
//!
//! Needs a Debian system's apt-get and dpkg-deb, the network the first time, no root. Everything lives below
//! `target/kernel-test`; nothing outside of it changes but sockets in the temporary directory while a guest runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use uverbs_soft::pci::Settings;

use crate::guest::{self, Boot, Qemu};
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::packages::Packages;
use crate::programs::{self, Program};
use crate::suite::{self, Link, Outcome, Report, Test};

/// Options of `cargo xtask kernel-test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Kernels to run; all of them by default
    #[arg(long, value_enum)]
    kernel: Vec<KernelChoice>,
    /// Port types to run; all of them by default
    #[arg(long, value_enum)]
    port: Vec<PortChoice>,
    /// Runs Debian's programs only, not this project's tests
    #[arg(long)]
    control_group: bool,
    /// Seconds until a guest is stopped
    #[arg(long, default_value_t = 600)]
    limit: u64,
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

    fn devices(self) -> Vec<Settings> {
        match self {
            Self::Ib => vec![Settings::infiniband(0x0002_c903_0000_0100, 1)],
            Self::Roce => vec![Settings::ethernet(0x0002_c903_0000_0100)],
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let bench = Bench::prepare(options)?;
    let mut passed = true;
    for choice in chosen(&options.kernel) {
        let kernel = Kernel::prepare(&bench.packages, choice.release(), &bench.root)?;
        for port in chosen(&options.port) {
            let directory =
                bench.root.join(format!("run-{}-{port:?}", choice.release()).to_lowercase());
            passed &= bench.run(&kernel, port, &directory)?;
        }
    }
    if passed { Ok(()) } else { bail!("some tests failed") }
}

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
        let mut tests = suite::control_group();
        let mut programs = Vec::new();
        if !options.control_group {
            programs = programs::build_tests(&workspace()?)?;
            tests.extend(suite::own_tests(&programs));
            programs.extend(programs::build_command(&workspace()?)?);
            tests.extend(suite::command_tests());
        }
        tests.push(suite::device_removal());
        let limit = Duration::from_secs(options.limit);
        Ok(Self { root, packages, qemu, userland, programs, tests, limit })
    }

    /// Runs one guest; true if everything passed.
    fn run(&self, kernel: &Kernel, port: PortChoice, directory: &Path) -> Result<bool> {
        let initramfs = self.write_initramfs(kernel, port.link(), directory)?;
        let boot =
            Boot { kernel: &kernel.image, initramfs: &initramfs, directory, limit: self.limit };
        let started = Instant::now();
        let console = guest::run(&self.qemu, &boot, &port.devices())?;
        let report = Report::parse(&console, self.tests.len());
        let complaints = guest::complaints(directory)?;
        println!("{} {port:?} ({:.1} s)", kernel.version(), started.elapsed().as_secs_f64());
        for (test, outcome) in self.tests.iter().zip(&report.outcomes) {
            println!("  {:<44} {}", test.name, word(outcome));
        }
        println!("  {:<44} {}", "modules unload", if report.unloaded { "ok" } else { "FAILED" });
        println!(
            "  {:<44} {}",
            "the device has nothing to complain about",
            if complaints.is_empty() { "ok" } else { "FAILED" }
        );
        complaints.iter().take(10).for_each(|complaint| println!("    {}", complaint.trim()));
        let passed = report.passed() && complaints.is_empty();
        if !passed {
            println!("  console log and command trace: {}", directory.display());
        }
        Ok(passed)
    }

    fn write_initramfs(&self, kernel: &Kernel, link: Link, directory: &Path) -> Result<PathBuf> {
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
        programs::add(&mut archive, &self.programs, directory)?;
        archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
        archive.file("init", 0o755, suite::init_script(&modules, link, &self.tests).as_bytes());
        let path = directory.join("initramfs.cpio");
        fs::write(&path, archive.finish())?;
        Ok(path)
    }
}

fn workspace() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run this through cargo")?;
    Ok(Path::new(&manifest).with_file_name(""))
}

fn chosen<T: ValueEnum + Copy>(given: &[T]) -> Vec<T> {
    if given.is_empty() { T::value_variants().to_vec() } else { given.to_vec() }
}

fn target_directory() -> Result<PathBuf> {
    let default = workspace()?.join("target");
    Ok(std::env::var_os("CARGO_TARGET_DIR").map_or(default, PathBuf::from))
}

/// The guest's programs.
const USERLAND: &[&str] =
    &["busybox-static", "ibverbs-utils", "ibverbs-providers", "perftest", "rdmacm-utils"];

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
    "mount", "mkdir", "insmod", "rmmod", "ifconfig", "sleep", "seq", "cat", "kill", "killall",
    "date", "uname", "reboot", "grep", "tr", "ls", "dmesg", "sh", "test", "[", "echo", "lspci",
    "ip", "head", "basename",
];

fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => "ok".to_owned(),
        Outcome::Failed(status, tests) if tests.is_empty() => format!("FAILED ({status})"),
        Outcome::Failed(_, tests) => format!("FAILED: {}", tests.join(", ")),
        Outcome::NotRun => "NOT RUN".to_owned(),
    }
}
