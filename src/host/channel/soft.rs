//! The software ConnectX inside this process, behind the same ioctl bytes as a kernel device.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use uverbs_soft::PerProcess;
use uverbs_soft::chardev::{EventReader, OpenFile, RdmaCm, SoftDevice, Sysfs};
use uverbs_soft::settings::{Settings, Variables};

use super::{Access, AtDrop, Channel, Handed};
use crate::error::{Error, Result};
use crate::host::system::{Call, Mapping};

/// Name of the process's shared device, which the name `soft` opens.
const SHARED_NAME: &str = "soft0";

/// Makes the shared device, with the options in the variables `UVERBS_SOFT_…`.
fn start() -> io::Result<SoftDevice> {
    let wrong = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    Variables::OF_PROGRAMS.all_known().map_err(wrong)?;
    let settings = Settings::from_environment(Variables::OF_PROGRAMS).map_err(wrong)?;
    if settings.devices != 1 {
        let text = "UVERBS_SOFT_DEVICES: a program opens one software device by name, and makes others \
                    with SoftDevice::builder";
        return Err(wrong(text.to_owned()));
    }
    let device = settings.build(SHARED_NAME, 0, None)?;
    if let Some(faults) = &settings.faults {
        faults.begin(&device)?;
    }
    Ok(device)
}

fn cannot_start(error: &io::Error) -> Error {
    let failed = Error::io("open_device", error).asked(SHARED_NAME);
    match error.kind() {
        io::ErrorKind::AddrInUse => failed.cure_with(
            "end the programs that hold UDP port 4791 (ss -lunp names them), or run this one in a network namespace of its own \
             (unshare -rn)",
        ),
        _ => failed,
    }
}

/// A software device that can be opened.
#[derive(Debug, Clone)]
pub(crate) struct SoftSource {
    device: Arc<SoftDevice>,
    name: String,
    /// Kept after the first use, because it has to answer peers after the program has destroyed its
    /// ids, as the kernel's connection manager does.
    manager: Arc<OnceLock<RdmaCm>>,
}

impl SoftSource {
    pub(crate) fn new(device: Arc<SoftDevice>) -> Self {
        let name = device.name().to_owned();
        Self { device, name, manager: Arc::default() }
    }

    /// The process's shared device, started at the first call. A forked child gets a new device,
    /// because the old one's thread does not exist there.
    pub(crate) fn shared() -> Result<Self> {
        static SHARED: PerProcess<Mutex<Option<SoftSource>>> = PerProcess::new();
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = &*shared {
            return Ok(source.clone());
        }
        let device = start().map_err(|error| cannot_start(&error))?;
        let source = Self::new(Arc::new(device));
        *shared = Some(source.clone());
        Ok(source)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn node_guid(&self) -> u64 {
        u64::from_be_bytes(self.device.node_guid())
    }

    /// The connection manager of this device.
    pub(crate) fn manager(&self) -> io::Result<RdmaCm> {
        match self.manager.get() {
            Some(manager) => Ok(manager.clone()),
            None => {
                let manager = self.device.rdma_cm()?;
                Ok(self.manager.get_or_init(|| manager).clone())
            }
        }
    }

    pub(crate) fn open(&self) -> Result<SoftChannel> {
        let directory = format!("class/infiniband/{}", self.name);
        Ok(SoftChannel { file: self.device.open(), sysfs: self.device.sysfs(), directory })
    }
}

/// An open file of a software device.
#[derive(Debug)]
pub(crate) struct SoftChannel {
    file: OpenFile,
    sysfs: Sysfs,
    directory: String,
}

impl Channel for SoftChannel {
    fn ioctl(&self, call: Call<'_>) -> io::Result<()> {
        call.send_soft(&self.file)
    }

    fn mmap(
        &self,
        length: usize,
        access: Access,
        offset: u64,
    ) -> std::result::Result<Mapping, Errno> {
        Mapping::of_soft_file(&self.file, length, access, offset)
    }

    fn attribute(&self, name: &str) -> io::Result<String> {
        // Counters are current; other files have their contents from the time of opening.
        if let Some(counter) = name.strip_prefix("ports/1/hw_counters/") {
            let value = self.file.hw_counter(counter);
            return value.map(|value| value.to_string()).ok_or(io::ErrorKind::NotFound.into());
        }
        let text = self.sysfs.read(&format!("{}/{name}", self.directory));
        text.map(|text| text.trim_end().to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn poll_idle(&self) {
        self.file.poll_idle();
    }

    fn at_drop(&self) -> AtDrop {
        AtDrop::Ends
    }

    fn refresh_clock(&self) {
        self.file.refresh_clock();
    }

    fn handed(&self, channel: BorrowedFd<'_>) -> Option<Arc<dyn Handed>> {
        Some(Arc::new(self.file.event_reader(channel)?))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Handed for EventReader {
    fn wait(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> std::result::Result<bool, Errno> {
        self.wait(files, timeout).map(|found| found.is_some())
    }

    fn read(&self, record: &mut [u8]) -> Option<usize> {
        self.read(record)
    }
}
