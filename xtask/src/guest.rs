//! A guest: QEMU under software emulation with a software ConnectX on its PCI Express bus.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use uverbs_soft::pci::{PciDevice, Settings, Trace, serve};

/// QEMU as unpacked from Debian's packages, run with its own libraries.
#[derive(Debug)]
pub(crate) struct Qemu {
    pub(crate) root: PathBuf,
}

impl Qemu {
    fn command(&self) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
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
}

/// A device served to the guest by a thread.
struct Served {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Served {
    fn start(directory: &Path, number: usize, settings: Settings) -> Result<Self> {
        // Socket addresses are short: a name in the working directory would be too long below deep target directories.
        let socket =
            std::env::temp_dir().join(format!("uverbs-{}-{number}.sock", std::process::id()));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
        let trace = Trace::new(File::create(directory.join(format!("commands-{number}.log")))?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept()?;
            serve(stream, &mut PciDevice::new(settings, trace), &stopped)
        });
        Ok(Self { socket, stop, thread })
    }

    fn argument(&self) -> String {
        let path = self.socket.display();
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"path":"{path}","type":"unix"}}}}"#)
    }

    fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let _ = fs::remove_file(&self.socket);
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
/// How long a kernel may take until its first program reports.
const BOOT_LIMIT: Duration = Duration::from_secs(45);
const BOOTED: &str = "@@ booted";

fn attempt(qemu: &Qemu, boot: &Boot<'_>, devices: &[Settings]) -> Result<String> {
    let console = boot.directory.join("console.log");
    let devices = devices.iter().cloned().enumerate();
    let served: Vec<Served> = devices
        .map(|(number, settings)| Served::start(boot.directory, number, settings))
        .collect::<Result<_>>()?;
    let errors = boot.directory.join("qemu.log");
    let mut command = command_line(qemu, boot, &console, &served);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
    let mut child = command.spawn().context("QEMU does not start")?;
    let ended = wait(&mut child, &console, boot.limit)?;
    let text = read(&console);
    served.into_iter().try_for_each(Served::finish)?;
    if ended && text.is_empty() {
        bail!("QEMU: {}", fs::read_to_string(errors)?);
    }
    Ok(text)
}

fn command_line(qemu: &Qemu, boot: &Boot<'_>, console: &Path, served: &[Served]) -> Command {
    let mut command = qemu.command();
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024M"]);
    command.args(["-machine", "microvm,pcie=on,rtc=on,memory-backend=mem0"]);
    command.args(["-object", "memory-backend-memfd,id=mem0,size=1024M,share=on"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.arg("-kernel").arg(boot.kernel).arg("-initrd").arg(boot.initramfs);
    command.arg("-append").arg(kernel_arguments());
    for device in served {
        command.arg("-device").arg(device.argument());
    }
    command
}

/// With the clock's frequency given, the kernel need not measure it, which fails on a busy machine: the emulated time
/// stamp counter is the host's.
fn kernel_arguments() -> String {
    let mut arguments = String::from("console=ttyS0 loglevel=6 reboot=t panic=-1 mitigations=off");
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let frequency =
        processors.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split(':').nth(1));
    if let Some(megahertz) = frequency.and_then(|text| text.trim().parse::<f64>().ok()) {
        arguments.push_str(&format!(" tsc_early_khz={:.0} tsc=reliable", megahertz * 1000.0));
    }
    arguments
}

fn read(console: &Path) -> String {
    String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned()
}

/// Waits for the guest to power off; stops it after `limit`, or if it does not boot. False if it had to be stopped.
fn wait(child: &mut Child, console: &Path, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    let mut booted = false;
    while start.elapsed() < limit && (booted || start.elapsed() < BOOT_LIMIT) {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        booted = booted || read(console).contains(BOOTED);
        thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

/// What the devices of the last run complained about: refused commands and warnings in the command traces.
pub(crate) fn complaints(directory: &Path) -> Result<Vec<String>> {
    let trace = fs::read_to_string(directory.join("commands-0.log"))?;
    let is_complaint =
        |line: &&str| line.contains("REFUSED") || line.trim_start().starts_with("WARNING");
    Ok(trace.lines().filter(is_complaint).map(str::to_owned).collect())
}
