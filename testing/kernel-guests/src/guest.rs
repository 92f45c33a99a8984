//! A guest: QEMU in software emulation, with software ConnectX devices on its PCI Express bus.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use uverbs_soft::wire::Station;
use uverbs_soft_pci::{Cable, Fabric, PciDevice, Settings, Trace, serve};

/// QEMU from Debian's packages, unpacked and run with its own libraries.
#[derive(Debug)]
pub(crate) struct Qemu {
    pub(crate) root: PathBuf,
}

impl Qemu {
    /// Uses `setpriv`, so that QEMU ends if the test is killed.
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

/// The configuration of a guest.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// Directory for console log, command trace and sockets.
    pub(crate) directory: &'a Path,
    pub(crate) limit: Duration,
    pub(crate) devices: &'a [Device],
    /// A network card beside the devices.
    pub(crate) card: Option<Card>,
    pub(crate) clock: Clock,
}

/// The time base of a guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// This machine's clock.
    Time,
    /// The number of instructions that the guest has executed.
    Instructions,
}

/// A device of a guest, and its network.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) settings: Settings,
    pub(crate) network: Network,
}

/// The network of a port.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// None: the device only reaches itself.
    Nothing,
    /// The other devices of this process.
    Fabric(Fabric),
    /// The device of another guest, at this station, over UDP.
    Udp(Station),
}

impl Network {
    /// Whether the UDP address of a device with these settings is free on this machine.
    pub(crate) fn is_free(settings: &Settings) -> bool {
        Cable::over_udp(settings, &[]).is_ok()
    }

    fn cable(&self, settings: &Settings) -> io::Result<Cable> {
        match self {
            Self::Nothing => Ok(Cable::default()),
            Self::Fabric(fabric) => Cable::to_fabric(settings, fabric),
            Self::Udp(peer) => Cable::over_udp(settings, &[*peer]),
        }
    }
}

/// A network card emulated by QEMU, connected to that of another guest. Paths of sockets are
/// relative to the guest's directory.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    /// The last byte of its MAC address.
    pub(crate) number: u8,
    pub(crate) here: String,
    pub(crate) there: String,
}

impl Card {
    fn arguments(&self) -> [String; 4] {
        let Self { number, here, there } = self;
        let network = format!(
            "dgram,id=card,local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        );
        let device = format!("virtio-net-pci,netdev=card,mac=52:54:00:00:00:{number:02x},romfile=");
        ["-netdev".to_owned(), network, "-device".to_owned(), device]
    }
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
    fn start(directory: &Path, number: usize, device: &Device) -> Result<Self> {
        let name = format!("device-{number}.sock");
        let listener = listen(directory, &name)?;
        let trace = Trace::new(File::create(directory.join(format!("commands-{number}.log")))?);
        let cable = device.network.cable(&device.settings).context("the device's cable")?;
        let mut device = PciDevice::new(device.settings.clone(), trace).plug(cable);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || match accept(&listener, &stopped)? {
            Some(stream) => serve(stream, &mut device, &stopped),
            None => Ok(()),
        });
        Ok(Self { name, stop, thread })
    }

    /// The socket's path is relative to QEMU's working directory.
    fn argument(&self) -> String {
        let path = &self.name;
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"path":"{path}","type":"unix"}}}}"#)
    }

    fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(result) => result.context("the device's connection to QEMU"),
            Err(_) => bail!("the software device panicked"),
        }
    }
}

/// QEMU's connection; `None` if `stop` is set before it connects.
fn accept(listener: &UnixListener, stop: &AtomicBool) -> io::Result<Option<UnixStream>> {
    listener.set_nonblocking(true)?;
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Binds the socket through the directory's descriptor, because the path may exceed the 107 bytes
/// of a socket's address.
fn listen(directory: &Path, name: &str) -> Result<UnixListener> {
    let path = directory.join(name);
    let _ = fs::remove_file(&path);
    let opened = File::open(directory)?;
    let short = format!("/proc/self/fd/{}/{name}", opened.as_raw_fd());
    UnixListener::bind(short).with_context(|| path.display().to_string())
}

/// Runs a guest until it ends and returns its console log.
///
/// On a busy machine an emulated kernel may hang while it measures its clocks. Such a guest is
/// started again.
pub(crate) fn run(qemu: &Qemu, boot: &Boot<'_>) -> Result<String> {
    fs::create_dir_all(boot.directory)?;
    for _ in 0..ATTEMPTS {
        let began = Instant::now();
        let log = attempt(qemu, boot)?;
        if began.elapsed() >= boot.limit {
            eprintln!("the guest was stopped at its limit of {} seconds", boot.limit.as_secs());
            return Ok(log);
        }
        if log.contains(BOOTED) {
            return Ok(log);
        }
        eprintln!("the guest did not reach its first program; trying again");
    }
    bail!("the guest does not boot; its console log is in {}", boot.directory.display())
}

const ATTEMPTS: u32 = 3;
/// Longest time in which a booting kernel prints nothing.
const SILENCE: Duration = Duration::from_secs(45);
const BOOTED: &str = "@@ booted";

fn attempt(qemu: &Qemu, boot: &Boot<'_>) -> Result<String> {
    // Remove the log of an earlier run.
    let _ = fs::remove_file(boot.console());
    let devices = boot.devices.iter().enumerate();
    let served: Vec<Served> = devices
        .map(|(number, device)| Served::start(boot.directory, number, device))
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
    let is_counted = boot.clock == Clock::Instructions;
    command.args(if is_counted { COUNTED } else { PARALLEL });
    command.args(["-cpu", processor(boot.devices.is_empty()), "-smp", "2", "-m", "1024M"]);
    command.args(["-machine", "microvm,pcie=on,rtc=on,memory-backend=mem0"]);
    command.args(["-object", "memory-backend-memfd,id=mem0,size=1024M,share=on"]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.args(["-serial", "file:console.log"]);
    command.arg("-kernel").arg(boot.kernel).arg("-initrd").arg(boot.initramfs);
    command.arg("-append").arg(kernel_arguments(is_counted));
    for device in served {
        command.arg("-device").arg(device.argument());
    }
    if let Some(card) = &boot.card {
        // Remove the socket of an earlier run.
        let _ = fs::remove_file(boot.directory.join(&card.here));
        command.args(card.arguments());
    }
    command
}

/// One thread of QEMU for each processor of the guest.
const PARALLEL: &[&str] = &["-accel", "tcg,thread=multi"];

/// The guest's clock counts instructions, one per nanosecond, and its processors run in turn. So
/// times measured in the guest do not depend on the load of this machine.
const COUNTED: &[&str] = &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"];

/// The frequency of the time stamp counter of such a guest (`icount_get` in
/// accel/tcg/icount-common.c).
const COUNTED_MEGAHERTZ: f64 = 1000.0;

/// The processor of a guest. `measures` if times measured in the guest are compared.
///
/// Two kinds of instructions are much slower than others on an emulated processor, but not on a
/// real one. A guest that measures does without both. String instructions move single bytes;
/// without the feature "fast strings" the kernel copies words (`rep_movs_alternative` in
/// arch/x86/lib/copy_user_64.S). Carry-less multiplication, which software devices use for CRCs but
/// rxe does not, tripled the time of an RDMA WRITE.
fn processor(measures: bool) -> &'static str {
    if measures { "max,erms=off,fsrm=off,pclmulqdq=off" } else { "max" }
}

/// Includes the frequency of the time stamp counter, because measuring it fails on a busy machine.
/// The counter is the host's, unless the clock counts instructions.
fn kernel_arguments(is_counted: bool) -> String {
    let mut arguments = String::from("console=ttyS0 loglevel=6 reboot=t panic=-1 mitigations=off");
    let megahertz = if is_counted { Some(COUNTED_MEGAHERTZ) } else { host_megahertz() };
    if let Some(megahertz) = megahertz {
        arguments.push_str(&format!(" tsc_early_khz={:.0} tsc=reliable", megahertz * 1000.0));
    }
    arguments
}

fn host_megahertz() -> Option<f64> {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let frequency =
        processors.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split(':').nth(1));
    frequency.and_then(|text| text.trim().parse().ok())
}

/// Waits for the guest to power off. Stops it after its limit, or if it prints nothing for
/// [`SILENCE`] while it boots, and then returns false.
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

/// Refused commands and warnings in the command traces of the last run's devices.
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
