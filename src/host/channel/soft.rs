//! The software ConnectX inside this process, behind the same raw ioctl bytes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use uverbs_soft::PerProcess;
use uverbs_soft::chardev::{DeviceBuilder, OpenFile, RdmaCm, SoftDevice, Sysfs};
use uverbs_soft::settings::Variables;
use uverbs_soft::wire::{Carrier, HostAddress};

use super::{Access, AtDrop, Channel};
use crate::error::{Error, Result};
use crate::host::system::{Call, Mapping};

/// Name of the one device that all callers of a process get when they open `soft`.
const SHARED_NAME: &str = "soft0";

/// Environment variable for the device that is opened by name:
/// `udp` keeps it to UDP, so that capture programs see its packets; `memory-of-any-user` has it
/// share memory with processes of every user that says so, not of its own alone.
const WIRE_VARIABLE: &str = "UVERBS_SOFT_WIRE";

fn carrier() -> io::Result<Carrier> {
    let value = std::env::var_os(WIRE_VARIABLE).unwrap_or_default();
    match value.to_string_lossy().as_ref() {
        "" | "memory" => Ok(Carrier::Memory),
        "udp" => Ok(Carrier::Udp),
        "memory-of-any-user" => Ok(Carrier::MemoryOfAnyUser),
        other => {
            let text =
                format!("{WIRE_VARIABLE}: {other:?} is none of memory, memory-of-any-user and udp");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Environment variable for the address of the device that is opened by name.
const ADDRESS_VARIABLE: &str = "UVERBS_SOFT_ADDRESS";

fn address() -> io::Result<Option<HostAddress>> {
    let Some(list) = std::env::var_os(ADDRESS_VARIABLE).filter(|list| !list.is_empty()) else {
        return Ok(None);
    };
    let address = HostAddress::of_list(&list.to_string_lossy(), 0);
    let wrong =
        |text| io::Error::new(io::ErrorKind::InvalidInput, format!("{ADDRESS_VARIABLE}: {text}"));
    address.map(Some).map_err(wrong)
}

fn start() -> io::Result<SoftDevice> {
    let wrong = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    Variables::OF_PROGRAMS.all_known().map_err(wrong)?;
    let builder = SoftDevice::builder(SHARED_NAME).carrier(carrier()?);
    address()?.into_iter().fold(builder, DeviceBuilder::address).build()
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
    /// Kept from the first use on, as a kernel's connection manager is there all the time: it
    /// answers peers after a program has destroyed its ids.
    manager: Arc<OnceLock<RdmaCm>>,
}

impl SoftSource {
    pub(crate) fn new(device: Arc<SoftDevice>) -> Self {
        let name = device.name().to_owned();
        Self { device, name, manager: Arc::default() }
    }

    /// The process's own device, started at the first call. A forked child gets a new one: the
    /// parent's thread does not run there.
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

    /// What is behind `/dev/infiniband/rdma_cm` of this device.
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
    fn ioctl(&self, call: Call<'_>) -> std::result::Result<(), Errno> {
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
        // Counters have the values of now, everything else those of when it was opened.
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

    fn wait_readable(
        &self,
        files: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> std::result::Result<bool, Errno> {
        self.file.wait_readable(files, timeout)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
