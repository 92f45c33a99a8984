//! The list of devices, and queries of a device that is not open.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use uverbs::{Device as LibraryDevice, Error};

use crate::abi::ibv_device;
use crate::events::uncancelled;
use crate::result::{failed, null, refused, set_errno};
use crate::soft::{self, Shown, Soft};
use crate::table::Table;

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: the types of mlx5 devices, also on Ethernet.
const CHANNEL_ADAPTER: c_int = 1;
const INFINIBAND: c_int = 0;

/// The part of rdma-core's `struct verbs_device` after the `ibv_device`. Its providers read this
/// part, and see by zeros that the device is not theirs.
type ProviderPart = [u64; 8];

/// A device that a program gets. It is never freed: contexts and programs may keep the pointer, and
/// a process has few devices.
#[repr(C)]
pub(crate) struct Device {
    base: ibv_device,
    provider: ProviderPart,
    pub(crate) library: LibraryDevice,
    sysfs: Option<Arc<uverbs::soft::Sysfs>>,
    index: c_int,
}

/// Devices do not change after creation.
// SAFETY: nothing writes a device after it was made, and its fields are `Send` and `Sync`, except
// for null pointers.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    fn new(library: LibraryDevice, sysfs: Option<Arc<uverbs::soft::Sysfs>>, index: c_int) -> Self {
        let name = library.name();
        let node = match library.node().and_then(Path::file_name) {
            Some(node) => node.to_string_lossy().into_owned(),
            None => format!("uverbs{index}"),
        };
        let base = ibv_device {
            _ops: [ptr::null_mut(); 2],
            node_type: CHANNEL_ADAPTER,
            transport_type: INFINIBAND,
            name: text(name),
            dev_name: text(&node),
            dev_path: text(&format!("/sys/class/infiniband_verbs/{node}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
        };
        Self { base, provider: [0; 8], library, sysfs, index }
    }

    /// Reads an attribute of the device, as sysfs has it below `class/infiniband/NAME`.
    fn attribute(&self, name: &str) -> io::Result<String> {
        let path = format!("class/infiniband/{}/{name}", self.library.name());
        match &self.sysfs {
            Some(tree) => {
                let text = tree.read(&path).ok_or(io::ErrorKind::NotFound)?;
                Ok(text.trim_end().to_owned())
            }
            None => {
                let path = Path::new("/sys").join(path);
                let text = uncancelled(|| std::fs::read_to_string(path))?;
                Ok(text.trim_end().to_owned())
            }
        }
    }

    /// The pointer that programs are given.
    pub(crate) fn as_ptr(&'static self) -> *mut ibv_device {
        ptr::from_ref(self).cast_mut().cast()
    }
}

/// The device behind a program's pointer.
///
/// # Safety
/// `device` is from [`get_device_list`].
pub(crate) unsafe fn of(device: *mut ibv_device) -> &'static Device {
    // SAFETY: devices are never freed, and begin with the `ibv_device`.
    unsafe { &*device.cast() }
}

/// A name as a C array of characters, cut to fit.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    bytes
}

/// The device of this key. The same device has the same address in every list of a process, and in
/// lists of a child that was forked while no thread was listing devices.
fn remember(key: String, make: impl FnOnce() -> Device) -> &'static Device {
    static KNOWN: Table<HashMap<String, &'static Device>> = Table::new();
    KNOWN.lock().entry(key).or_insert_with(|| Box::leak(Box::new(make())))
}

/// The device of an imported context, found by its open file.
pub(crate) fn of_library(library: &LibraryDevice) -> &'static Device {
    let key = format!("{} {:?}", library.name(), library.node());
    remember(key, || Device::new(library.clone(), None, -1))
}

fn kernel_devices() -> Result<Vec<&'static Device>, Error> {
    // A device without a node in this container could not be opened, and one of another driver
    // could not be used.
    let usable = |device: &LibraryDevice| match device.check() {
        Ok(()) => true,
        Err(error) => error.kind() == uverbs::ErrorKind::Permission,
    };
    Ok(uverbs::devices()?.iter().filter(|device| usable(device)).map(of_library).collect())
}

fn soft_devices() -> Vec<&'static Device> {
    let each = |(index, soft): (usize, &Soft)| {
        let make = || Device::new(soft.device.clone(), Some(soft.sysfs.clone()), index as c_int);
        remember(soft.device.name().to_owned(), make)
    };
    soft::devices().iter().enumerate().map(each).collect()
}

fn devices() -> Result<Vec<&'static Device>, Error> {
    match soft::shown() {
        Shown::Kernel => kernel_devices(),
        Shown::Soft => Ok(soft_devices()),
        Shown::Both => Ok([soft_devices(), kernel_devices()?].concat()),
    }
}

/// The text of a file below `/sys`, where a software device has one.
pub(crate) fn soft_sysfs(path: &str) -> Option<String> {
    let path = path.strip_prefix("/sys/")?;
    if soft::shown() == Shown::Kernel {
        return None;
    }
    soft::devices().iter().find_map(|soft| soft.sysfs.read(path).map(str::to_owned))
}

/// `ibv_get_device_list`: a list that ends with a null pointer.
pub(crate) unsafe extern "C" fn get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    // Called before the threads of software devices start, because it takes longer afterwards.
    crate::lock::register();
    let found = uncancelled(devices);
    let devices = found.as_deref().unwrap_or_default();
    if !number.is_null() {
        // SAFETY: the caller's, to be written.
        unsafe { *number = devices.len() as c_int };
    }
    if let Err(error) = &found {
        return null(failed(error));
    }
    // SAFETY: zeroed memory for one pointer more than there are devices.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    for (place, device) in devices.iter().enumerate() {
        // SAFETY: within the list.
        unsafe { *list.add(place) = device.as_ptr() };
    }
    list
}

/// `ibv_free_device_list`.
pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from `get_device_list`, which took it from `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`.
pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller's device.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index`: the number of a software device; −1 for devices of the kernel, whose
/// index is only available through RDMA netlink.
pub(crate) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller's device.
    unsafe { of(device) }.index
}

/// `ibv_get_device_guid`, in network byte order; 0, and errno, if it is not known.
pub(crate) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's device.
    let text = unsafe { of(device) }.attribute("node_guid");
    let guid = text.and_then(|text| parse_guid(&text).ok_or(io::ErrorKind::InvalidData.into()));
    guid.unwrap_or_else(|error| {
        set_errno(error.raw_os_error().unwrap_or(libc::ENODEV));
        0
    })
    .to_be()
}

fn parse_guid(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.replace(':', ""), 16).ok()
}

/// `ibv_get_sysfs_path`.
pub(crate) unsafe extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the text of `directory/file` without its last newline. Returns its
/// length, or −1.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller's strings.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let path = format!("{}/{}", directory.to_string_lossy(), file.to_string_lossy());
    let read = || soft_sysfs(&path).map_or_else(|| std::fs::read(&path), |text| Ok(text.into()));
    let text = match uncancelled(read) {
        Ok(text) => text,
        Err(error) => {
            refused(error.raw_os_error().unwrap_or(libc::EIO));
            return -1;
        }
    };
    // SAFETY: the caller's buffer of `size` bytes.
    unsafe { give_text(&text, buffer, size) }
}

/// `ibv_read_ibdev_sysfs_file`, of which programs use the form without arguments: as
/// [`read_sysfs_file`], below the directory of a device.
pub(crate) unsafe extern "C" fn read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _device: *mut ibv_device,
    _format: *const c_char,
) -> c_int {
    let _ = (buffer, size);
    refused(libc::EOPNOTSUPP);
    -1
}

/// Copies the first `size` bytes of a text, a newline at their end as a zero, and returns their
/// length without it. −1 if they leave no space for a zero, as in libibverbs.
///
/// # Safety
/// `buffer` has `size` bytes.
unsafe fn give_text(text: &[u8], buffer: *mut c_char, size: usize) -> c_int {
    let read = &text[..text.len().min(size)];
    let line = read.strip_suffix(b"\n").unwrap_or(read);
    // SAFETY: within both.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(read.as_ptr(), read.len());
        if line.len() == size {
            return if size == 0 { 0 } else { -1 };
        }
        *buffer.add(line.len()) = 0;
    }
    line.len() as c_int
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::fork::tests::a_child_returns;

    /// A device of a test, as programs get it.
    pub(crate) fn of_soft(soft: &Arc<uverbs::soft::SoftDevice>) -> *mut ibv_device {
        let library = LibraryDevice::from_shared_soft(soft.clone());
        Box::leak(Box::new(Device::new(library, None, 0))).as_ptr()
    }

    fn made() -> Device {
        let soft = uverbs::soft::SoftDevice::builder("soft0").without_wire().build();
        Device::new(LibraryDevice::from_soft(soft.expect("device")), None, 0)
    }

    fn in_the_list() -> &'static Device {
        remember("soft0".to_owned(), made)
    }

    #[test]
    fn a_text_ends_with_its_last_newline_within_the_size() {
        let given = |text: &[u8], size| {
            let mut buffer = [b'.'; 8];
            // SAFETY: no size is larger than the buffer.
            let length = unsafe { give_text(text, buffer.as_mut_ptr().cast(), size) };
            (length, buffer)
        };
        assert_eq!(given(b"abc\n", 8), (3, *b"abc\0...."));
        assert_eq!(given(b"abc\n", 4), (3, *b"abc\0...."));
        assert_eq!(given(b"abc\n", 3), (-1, *b"abc....."));
        assert_eq!(given(b"abc\ndef\n", 4), (3, *b"abc\0...."));
        assert_eq!(given(b"abc\ndef\n", 5), (-1, *b"abc\nd..."));
        assert_eq!(given(b"abc", 4), (3, *b"abc\0...."));
        assert_eq!(given(b"abc", 0), (0, [b'.'; 8]));
    }

    #[test]
    fn a_child_waits_for_no_thread_that_was_listing_devices() {
        let known = in_the_list();
        let ((listing, at_work), (go_on, may_go_on)) = (channel(), channel::<()>());
        let other = thread::spawn(move || {
            remember("soft1".to_owned(), || {
                listing.send(()).expect("main thread");
                let _ = may_go_on.recv();
                made()
            });
        });
        at_work.recv().expect("thread");
        let returns = a_child_returns(|| _ = in_the_list());
        drop(go_on);
        other.join().expect("thread");
        assert!(returns, "a child of a process that was listing devices");
        let same = a_child_returns(|| assert!(std::ptr::eq(known, in_the_list())));
        assert!(same, "a child of a process that was not");
    }
}
