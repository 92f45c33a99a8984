//! A guest: QEMU under software emulation with software ConnectXes on its PCI Express bus.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use uverbs_soft::pci::{Cable, Fabric, PciDevice, Settings, Trace, serve};

/// QEMU as unpacked from Debian's packages, run with its own libraries.
#[derive(Debug)]
pub(crate) struct Qemu {
    pub(crate) root: PathBuf,
}

impl Qemu {
    /// Under `setpriv`, so that it does not outlive a test that is killed.
    fn command(&self) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command
            .arg(libraries.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.root.join("usr/bin/qemu-system-x86_64"));
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(firmware));
        }
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }
}

/// What a guest boots.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// Where console log, command trace and sockets go.
    pub(crate) directory: &'a Path,
    pub(crate) limit: Duration,
    /// More kernel arguments.
    pub(crate) arguments: &'a str,
}

impl Boot<'_> {
    fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.console()).unwrap_or_default()).into_owned()
    }
}

/// A device served to the guest by a thread.
struct Served {
    name: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Served {
    fn start(
        directory: &Path,
        number: usize,
        settings: Settings,
        fabric: Option<&Fabric>,
    ) -> Result<Self> {
        let name = format!("device-{number}.sock");
        let listener = listen(directory, &name)?;
        let trace = Trace::new(File::create(directory.join(format!("commands-{number}.log")))?);
        let cable = fabric.map(|fabric| Cable::to_fabric(&settings, fabric)).transpose()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept()?;
            let device = PciDevice::new(settings, trace);
            let mut device = match cable {
                Some(cable) => device.plug(cable),
                None => device,
            };
            serve(stream, &mut device, &stopped)
        });
        Ok(Self { name, stop, thread })
    }

    /// The socket is named relative to the working directory that QEMU gets.
    fn argument(&self) -> String {
        let path = &self.name;
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"path":"{path}","type":"unix"}}}}"#)
    }

    fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        // A guest that never connected leaves the thread in accept(); it ends with this process.
        if self.thread.is_finished() {
            match self.thread.join() {
                Ok(result) => result.context("the device's connection to QEMU")?,
                Err(_) => bail!("the software device panicked"),
            }
        }
        Ok(())
    }
}

/// Addresses of sockets are at most 107 bytes long, which paths below deep target directories are not: hence by way of the
/// directory's descriptor.
fn listen(directory: &Path, name: &str) -> Result<UnixListener> {
    let path = directory.join(name);
    let _ = fs::remove_file(&path);
    let opened = File::open(directory)?;
    let short = format!("/proc/self/fd/{}/{name}", opened.as_raw_fd());
    UnixListener::bind(short).with_context(|| path.display().to_string())
}

/// Runs a guest with these devices to its end and returns its console log.
///
/// On a busy machine an emulated kernel may hang while it measures its clocks; such a guest is started again.
pub(crate) fn run(qemu: &Qemu, boot: &Boot<'_>, devices: &[Settings]) -> Result<String> {
    fs::create_dir_all(boot.directory)?;
    for _ in 0..ATTEMPTS {
        let log = attempt(qemu, boot, devices)?;
        if log.contains(BOOTED) {
            return Ok(log);
        }
        eprintln!("the guest did not get as far as its first program; once more");
    }
    bail!("the guest does not boot; its console log is in {}", boot.directory.display())
}

const ATTEMPTS: u32 = 3;
/// How long a booting kernel may say nothing.
const SILENCE: Duration = Duration::from_secs(45);
const BOOTED: &str = "@@ booted";

fn attempt(qemu: &Qemu, boot: &Boot<'_>, devices: &[Settings]) -> Result<String> {
    // What an earlier run left would be taken for this one's.
    let _ = fs::remove_file(boot.console());
    // A single device reaches itself; several are connected to each other.
    let fabric = (devices.len() > 1).then(Fabric::new);
    let devices = devices.iter().cloned().enumerate();
    let served: Vec<Served> = devices
        .map(|(number, settings)| Served::start(boot.directory, number, settings, fabric.as_ref()))
        .collect::<Result<_>>()?;
    let errors = boot.directory.join("qemu.log");
    let mut command = command_line(qemu, boot, &served);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
    let mut child = command.spawn().context("QEMU does not start (setpriv is of util-linux)")?;
    let ended = wait(&mut child, boot)?;
    let text = boot.log();
    served.into_iter().try_for_each(Served::finish)?;
    if ended && text.is_empty() {
        bail!("QEMU: {}", fs::read_to_string(errors)?);
    }
    Ok(text)
}

fn command_line(qemu: &Qemu, boot: &Boot<'_>, served: &[Served]) -> Command {
    let mut command = qemu.command();
    command.current_dir(boot.directory);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024M"]);
    command.args(["-machine", "microvm,pcie=on,rtc=on,memory-backend=mem0"]);
    command.args(["-object", "memory-backend-memfd,id=mem0,size=1024M,share=on"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.args(["-serial", "file:console.log"]);
    command.arg("-kernel").arg(boot.kernel).arg("-initrd").arg(boot.initramfs);
    command.arg("-append").arg(kernel_arguments(boot));
    for device in served {
        command.arg("-device").arg(device.argument());
    }
    command
}

/// With the clock's frequency given, the kernel need not measure it, which fails on a busy machine: the emulated time
/// stamp counter is the host's.
fn kernel_arguments(boot: &Boot<'_>) -> String {
    let mut arguments = String::from("console=ttyS0 loglevel=6 reboot=t panic=-1 mitigations=off");
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let frequency =
        processors.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split(':').nth(1));
    if let Some(megahertz) = frequency.and_then(|text| text.trim().parse::<f64>().ok()) {
        arguments.push_str(&format!(" tsc_early_khz={:.0} tsc=reliable", megahertz * 1000.0));
    }
    format!("{arguments} {}", boot.arguments)
}

/// Waits for the guest to power off; stops it after its limit, or if it falls silent while it boots. False if it had to
/// be stopped.
fn wait(child: &mut Child, boot: &Boot<'_>) -> Result<bool> {
    let start = Instant::now();
    let (mut booted, mut said, mut spoke) = (false, 0, start);
    while start.elapsed() < boot.limit && (booted || spoke.elapsed() < SILENCE) {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        if !booted {
            let log = boot.log();
            booted = log.contains(BOOTED);
            if log.len() > said {
                (said, spoke) = (log.len(), Instant::now());
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

/// What the devices of the last run complained about: refused commands and warnings in the command traces.
pub(crate) fn complaints(directory: &Path, devices: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for number in 0..devices {
        let trace = fs::read_to_string(directory.join(format!("commands-{number}.log")))?;
        let is_complaint =
            |line: &&str| line.contains("REFUSED") || line.trim_start().starts_with("WARNING");
        found.extend(trace.lines().filter(is_complaint).map(|line| line.trim().to_owned()));
    }
    Ok(found)
}
