//! The device as a program sees it, and the modules of its parts.

mod builder;
pub(crate) mod clock;
pub(crate) mod context;
mod event_files;
pub(crate) mod event_queue;
pub(crate) mod event_reader;
pub(crate) mod eventfd;
pub(crate) mod events;
pub(crate) mod faults;
pub(crate) mod file;
pub(crate) mod management;
pub(crate) mod mapping;
pub(crate) mod open_file;
pub(crate) mod options;
mod shared;
pub(crate) mod shared_pages;
pub(crate) mod subscriptions;
pub(crate) mod sysfs;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

pub use builder::DeviceBuilder;
pub(crate) use shared::{DeviceShared, errno};

use crate::chardev::objects::object::Object;
use crate::chardev::rdma_cm::RdmaCm;
use crate::core::{AsyncKind, Core, EventObject};
use crate::locking::lock;
use faults::Fault;
use file::FileShared;
use open_file::OpenFile;
use options::GidEntry;
use sysfs::Sysfs;

/// A software ConnectX with its kernel driver, running in this process.
///
/// The device exists until this handle and all open files are dropped. A program of the crate
/// `uverbs` opens it with `Device::from_soft`. Without that crate, as a program uses the kernel's
/// interface:
///
/// ```
/// use uverbs_soft::chardev::SoftDevice;
/// let device = SoftDevice::builder("soft0").without_wire().build()?;
/// let file = device.open();
/// assert_eq!(device.sysfs().read("class/infiniband/soft0/node_type"), Some("1: CA\n"));
/// # drop(file);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SoftDevice {
    pub(crate) shared: Arc<DeviceShared>,
}

impl fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftDevice").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl SoftDevice {
    /// A builder for a device with this RDMA device name (such as `mlx5_0`).
    pub fn builder(name: &str) -> DeviceBuilder {
        DeviceBuilder::new(name)
    }

    /// A device of this name with the defaults: a RoCE ConnectX-6 Dx on the network of the
    /// machine's software devices.
    ///
    /// # Errors
    /// As [`DeviceBuilder::build`].
    pub fn named(name: &str) -> io::Result<Self> {
        Self::builder(name).build()
    }

    /// Opens the device, as open(2) opens `/dev/infiniband/uverbsN`.
    pub fn open(&self) -> OpenFile {
        let file = Arc::new(FileShared::new(self.shared.clone()));
        let mut files = lock(&self.shared.files);
        files.retain(|known| known.strong_count() > 0);
        files.push(Arc::downgrade(&file));
        OpenFile::new(file)
    }

    /// The connection manager of only this device, behind `/dev/infiniband/rdma_cm`. It exists as
    /// long as one of its handles or files does; until then, calls return the same one.
    ///
    /// # Errors
    /// As [`RdmaCm::new`]: `AlreadyExists` if another connection manager serves the device.
    pub fn rdma_cm(&self) -> io::Result<RdmaCm> {
        let mut known = lock(&self.shared.manager);
        if let Some(manager) = known.upgrade() {
            return Ok(manager);
        }
        let manager = RdmaCm::new(std::slice::from_ref(self))?;
        *known = manager.downgrade();
        Ok(manager)
    }

    /// The RDMA device name.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The device's files in sysfs, with the current values of counters.
    pub fn sysfs(&self) -> Sysfs {
        let mut tree = Sysfs::of(&self.shared.options);
        let counters = self.inspect(|core| core.counters()).unwrap_or_default();
        tree.set_hw_counters(&self.shared.options, &counters);
        tree
    }

    /// A counter of the port, by its name in the directory `hw_counters` of sysfs:
    /// `duplicate_request`, `local_ack_timeout_err`, `out_of_buffer`, `out_of_sequence` or
    /// `resp_local_length_error`. `None` for other names; a ConnectX has more of them.
    pub fn hw_counter(&self, name: &str) -> Option<u64> {
        self.shared.hw_counter(name)
    }

    /// The GUID of the device.
    pub fn node_guid(&self) -> [u8; 8] {
        self.shared.options.node_guid
    }

    /// The GID table.
    pub fn gids(&self) -> &[GidEntry] {
        &self.shared.options.gids
    }

    /// The port's LID; 0 on RoCE.
    pub fn lid(&self) -> u16 {
        self.shared.options.lid
    }

    /// Raises an asynchronous event. An event that reports an error state also puts the object in
    /// that state, a port event changes the answer to port queries.
    ///
    /// # Errors
    /// EINVAL if there is no such object, EIO in a child process.
    pub fn raise(&self, kind: AsyncKind, object: EventObject) -> Result<(), Errno> {
        self.shared.core(|core| core.inject_event(kind, object))
    }

    /// Makes the port receive frames as if from the wire, at these times of the device in
    /// nanoseconds: timestamps of free-running queues are these numbers, unless the counter was set
    /// ([`DeviceBuilder::counter_now`]). When this returns, all frames are stored in receives or
    /// lost, so a program that polls afterwards sees the same in every run. The iterator has ended
    /// before the first of them is received.
    ///
    /// # Errors
    /// EIO in a child process.
    pub fn receive_frames<'a>(
        &self,
        frames: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), Errno> {
        // Not under the lock of the device, because the iterator may use the device.
        let frames: Vec<_> = frames.into_iter().collect();
        self.shared.control(|machine| {
            for (at, frame) in frames {
                machine.core.receive_frame(at, frame);
            }
            Ok(())
        })
    }

    /// Makes an ioctl or mmap fail, once. Any number of faults may be pending.
    ///
    /// ```
    /// use nix::errno::Errno;
    /// use nix::libc::{MAP_SHARED, PROT_WRITE};
    /// use uverbs_soft::chardev::{Fault, Moment, SoftDevice};
    ///
    /// let device = SoftDevice::builder("soft0").without_wire().build()?;
    /// let file = device.open();
    /// device.inject(Fault { moment: Moment::Mapping(0), errno: Errno::ENOMEM });
    /// assert_eq!(file.backing(4096, PROT_WRITE, MAP_SHARED, 0), Err(Errno::ENOMEM));
    /// assert_eq!(device.clear_faults(), 0, "it has taken effect");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// A program of the crate `uverbs` opens the device with `Device::from_soft`. With
    /// `Moment::Call(0)` the next verb that it calls fails, because most verbs are one ioctl.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.add(fault);
    }

    /// Cancels the faults that have not taken effect, and returns their number.
    pub fn clear_faults(&self) -> usize {
        self.shared.faults.clear()
    }

    /// The number of kernel objects (handles) of all open files. Some belong to no object of the
    /// program: the library keeps doorbell pages of failed or destroyed queue pairs for the
    /// context's next ones, until the context is closed.
    pub fn handle_count(&self) -> usize {
        self.shared.files().iter().map(|file| file.lock().handles.iter().count()).sum()
    }

    /// The number of protection domains, CQs, QPs, memory regions and SRQs of all open files, by
    /// their names in RDMA netlink (`type2str` in core/restrack.c).
    pub fn object_counts(&self) -> [(&'static str, usize); 5] {
        let files = self.shared.files();
        let count = |is_one: fn(&Object) -> bool| {
            let of_file = |file: &Arc<FileShared>| {
                file.lock().handles.iter().filter(|(_, entry)| is_one(&entry.object)).count()
            };
            files.iter().map(of_file).sum()
        };
        [
            ("pd", count(|object| matches!(object, Object::Pd(_)))),
            ("cq", count(|object| matches!(object, Object::Cq(_)))),
            ("qp", count(|object| matches!(object, Object::Qp(_)))),
            ("mr", count(|object| matches!(object, Object::Mr(_)))),
            ("srq", count(|object| matches!(object, Object::Srq(_)))),
        ]
    }

    /// The number of ioctls of all open files so far.
    pub fn ioctl_count(&self) -> u64 {
        self.shared.faults.calls()
    }

    /// Removes the device as hot-unplug does. Its objects are destroyed. Asynchronous event files
    /// deliver DEVICE_FATAL and no more events; a further read blocks, as with the kernel.
    /// Completion channels end. Every ioctl fails with EIO, except those that destroy objects.
    /// Mapped pages stay mapped without effect.
    pub fn remove(&self) {
        if self.shared.is_orphan() {
            return;
        }
        if !self.shared.removed.swap(true, Ordering::AcqRel) {
            self.shared.files().iter().for_each(|file| file.disassociate());
            self.shared.tell_agent_of_removal();
        }
    }

    /// Whether [`remove`](Self::remove) has been called.
    pub fn is_removed(&self) -> bool {
        self.shared.is_removed()
    }

    /// Inspects the state machine, for tests and diagnosis. The access is read-only, because the
    /// device accesses the memory of this process: code that created a key or a queue here could
    /// make the device write anywhere. `look` must not call the device, which would wait for it.
    ///
    /// ```compile_fail,E0596
    /// # let device = uverbs_soft::chardev::SoftDevice::named("soft0").unwrap();
    /// device.inspect(|core| core.create_pd());
    /// ```
    ///
    /// # Errors
    /// EIO in a child process.
    pub fn inspect<R>(&self, look: impl FnOnce(&Core) -> R) -> Result<R, Errno> {
        self.shared.control(|machine| Ok(look(&machine.core)))
    }
}
