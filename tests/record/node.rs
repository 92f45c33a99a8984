//! An open device node of the kernel or of the software device, for raw requests.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use uverbs::soft::{OpenFile, SoftDevice};
use uverbs_uapi::RDMA_VERBS_IOCTL;
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::mlx5::{self, LibCaps, UarAllocType};
use uverbs_uapi::objects::{Method, async_event, device};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::{WriteCommand, comp_channel, pd};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The device whose nodes are opened.
pub(crate) enum Source {
    Kernel { node: String, attributes: String },
    Soft(Arc<SoftDevice>),
}

impl Source {
    /// The kernel's device of this name.
    pub(crate) fn kernel(name: &str) -> Self {
        let device = uverbs::device(name).expect("UVERBS_TEST_DEVICE names a device");
        let node = device.node().expect("a kernel's device has a node").display().to_string();
        Self::Kernel { node, attributes: format!("/sys/class/infiniband/{name}") }
    }

    pub(crate) fn open(&self) -> Node {
        Node(match self {
            Self::Kernel { node, .. } => {
                let file = File::options().read(true).write(true).open(node);
                Inner::Kernel(file.expect("the node opens"))
            }
            Self::Soft(device) => Inner::Soft(device.open()),
        })
    }

    /// A sysfs attribute of the device, without the newline.
    pub(crate) fn attribute(&self, name: &str) -> String {
        let text = match self {
            Self::Kernel { attributes, .. } => {
                std::fs::read_to_string(Path::new(attributes).join(name)).ok()
            }
            Self::Soft(device) => {
                let path = format!("class/infiniband/{}/{name}", device.name());
                device.sysfs().read(&path).map(str::to_owned)
            }
        };
        text.map_or_else(|| "none".to_owned(), |text| text.trim_end().to_owned())
    }
}

enum Inner {
    Kernel(File),
    Soft(OpenFile),
}

/// An open node.
pub(crate) struct Node(Inner);

/// A command's response, and the driver's part of it.
pub(crate) type Answer<R, D> = Result<(R, D), Errno>;

impl Node {
    pub(crate) fn run<M>(&self, request: &mut Request<'_, M>) -> Result<(), Errno> {
        // SAFETY: the request borrows the memory that it names. Memory that it passes to the device
        // by address lives until the end of the test, longer than the node.
        let result = unsafe {
            match &self.0 {
                Inner::Kernel(file) => Errno::result(libc::ioctl(
                    file.as_raw_fd(),
                    RDMA_VERBS_IOCTL as _,
                    request.as_mut_ptr(),
                ))
                .map(drop),
                Inner::Soft(file) => file.ioctl(request.as_mut_ptr()),
            }
        };
        result.inspect(|()| request.mark_executed())
    }

    /// A request to the method `M`, empty.
    pub(crate) fn request<'a, M: Method>() -> Request<'a, M> {
        Request::new(DriverId::MLX5)
    }

    /// A write command without a driver's part.
    pub(crate) fn write<W: WriteCommand>(&self, command: &W) -> Result<W::Response, Errno> {
        self.write_bytes(command, &[], &mut [])
    }

    /// A write command with the driver's parts.
    pub(crate) fn write_with<W, D>(&self, command: &W, driver: &[u8]) -> Answer<W::Response, D>
    where
        W: WriteCommand,
        D: FromBytes + IntoBytes + Immutable,
    {
        let mut answer = D::new_zeroed();
        let response = self.write_bytes(command, driver, answer.as_mut_bytes())?;
        Ok((response, answer))
    }

    pub(crate) fn write_bytes<W: WriteCommand>(
        &self,
        command: &W,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<W::Response, Errno> {
        let mut response = W::Response::new_zeroed();
        let mut request = Request::write(DriverId::MLX5, command, &mut response);
        request.driver_data(input, output).expect("short");
        self.run(&mut request)?;
        Ok(response)
    }

    /// GET_CONTEXT: completion vectors, core support, the driver's response.
    pub(crate) fn get_context(
        &self,
        input: &[u8],
    ) -> Result<(u32, u64, mlx5::AllocUcontextResp), Errno> {
        let (mut vectors, mut support) = (0u32, 0u64);
        let mut driver = mlx5::AllocUcontextResp::default();
        let mut request = Self::request::<device::get_context::Call>();
        request.output(device::get_context::NUM_COMP_VECTORS, &mut vectors);
        request.output(device::get_context::CORE_SUPPORT, &mut support);
        request.driver_data(input, driver.as_mut_bytes()).expect("short");
        self.run(&mut request)?;
        Ok((vectors, support, driver))
    }

    /// Opens the device with a context of the options that libmlx5 uses, without DEVX.
    pub(crate) fn with_context(source: &Source) -> Self {
        let node = source.open();
        node.get_context(context_request().as_bytes()).expect("a context");
        node
    }

    pub(crate) fn pd(&self) -> u32 {
        self.write_bytes(&pd::AllocPd::default(), &[], &mut [0; 4]).expect("a domain").pd_handle
    }

    pub(crate) fn channel(&self) -> i32 {
        self.write(&comp_channel::CreateCompChannel::default()).expect("a channel").fd as i32
    }

    pub(crate) fn async_events(&self) -> Result<i32, Errno> {
        let mut request = Self::request::<async_event::alloc::Call>();
        request.new_fd(async_event::alloc::HANDLE);
        self.run(&mut request)?;
        Ok(request.opened(async_event::alloc::HANDLE).expect("a descriptor"))
    }

    /// Allocates a doorbell page: handle, page id, length.
    pub(crate) fn uar(&self, kind: UarAllocType) -> Result<Uar, Errno> {
        use uverbs_uapi::mlx5::object::uar::alloc;
        let (mut mmap_offset, mut length, mut page_id) = (0u64, 0u32, 0u32);
        let mut request = Self::request::<alloc::Call>();
        request.new_handle(alloc::HANDLE);
        request.constant(alloc::TYPE, kind.0);
        request.output(alloc::MMAP_OFFSET, &mut mmap_offset);
        request.output(alloc::MMAP_LENGTH, &mut length);
        request.output(alloc::PAGE_ID, &mut page_id);
        self.run(&mut request)?;
        let handle = request.created(alloc::HANDLE).expect("a handle");
        Ok(Uar { handle, page_id, length })
    }
}

/// A doorbell page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uar {
    pub(crate) handle: u32,
    pub(crate) page_id: u32,
    #[allow(dead_code, reason = "printed")]
    pub(crate) length: u32,
}

pub(crate) fn context_request() -> mlx5::AllocUcontextReqV2 {
    mlx5::AllocUcontextReqV2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        max_cqe_version: 1,
        lib_caps: LibCaps::UAR_4K | LibCaps::DYN_UAR,
        ..Default::default()
    }
}

/// Reads the next record of an event descriptor; `None` if there is none yet.
pub(crate) fn read_event<const N: usize>(fd: i32) -> Option<[u8; N]> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    if unsafe { libc::poll(&mut poll, 1, 0) } != 1 {
        return None;
    }
    let mut record = [0; N];
    // SAFETY: space for N bytes.
    let read = unsafe { libc::read(fd, record.as_mut_ptr().cast(), N) };
    (read == N as isize).then_some(record)
}
