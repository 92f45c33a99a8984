//! A program at the character device: raw requests through the ABI crate's encoder, and the
//! program's memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, QpType, SrqType};
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::mlx5::{self, CqFlags, LibCaps, QpFlags, UarAllocType};
use uverbs_uapi::objects::{Method, async_event, cq, device, qp, srq};
use uverbs_uapi::request::Request;
use uverbs_uapi::write::qp::QpCap;
use uverbs_uapi::write::{WriteCommand, comp_channel, mr, pd};
use zerocopy::IntoBytes;

use super::super::{DeviceBuilder, OpenFile, SoftDevice};

/// Time limit of a wait for the device, which is reached only if there is a defect.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn builder() -> DeviceBuilder {
    SoftDevice::builder("soft0").without_wire()
}

/// A device of the usual kind, and a program that has it open.
pub(super) fn alone() -> (SoftDevice, Client) {
    let device = builder().build().unwrap();
    let client = Client::open(&device);
    (device, client)
}

/// Waits until `look` returns something.
pub(super) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "no {what}");
        std::thread::yield_now();
    }
}

/// Page-aligned zeroed memory that is only accessed through raw pointers.
pub(super) struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub(super) fn pages(count: usize) -> Self {
        let layout = Layout::from_size_align(count * 4096, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Self { base, layout }
    }

    pub(super) fn at(&self, offset: usize) -> u64 {
        assert!(offset < self.layout.size());
        self.base.as_ptr() as u64 + offset as u64
    }

    pub(super) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: inside the allocation; there are no references into it.
            unsafe { self.base.as_ptr().add(at).write_volatile(*byte) };
        }
    }

    pub(super) fn get<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.layout.size());
        // SAFETY: as in `put`.
        std::array::from_fn(|at| unsafe { self.base.as_ptr().add(offset + at).read_volatile() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; tests destroy the objects over it before.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// An open file with a context.
pub(super) struct Client {
    pub(super) file: OpenFile,
}

impl Client {
    /// Opens the device without a context.
    pub(super) fn bare(device: &SoftDevice) -> Self {
        Self { file: device.open() }
    }

    /// Opens the device with a context of libmlx5's options.
    pub(super) fn open(device: &SoftDevice) -> Self {
        let client = Self::bare(device);
        client.get_context(&context_request(), &mut [0; 72]).unwrap();
        client
    }

    pub(super) fn run<M: Method>(&self, request: &mut Request<'_, M>) -> Result<(), Errno> {
        // SAFETY: the request's outputs are borrowed; memory that it passes by address lives until
        // the end of the test.
        unsafe { self.file.ioctl(request.as_mut_ptr()) }?;
        request.mark_executed();
        Ok(())
    }

    pub(super) fn write<W: WriteCommand>(&self, command: &W) -> Result<W::Response, Errno> {
        self.write_driver(command, &[], &mut [])
    }

    pub(super) fn write_driver<W: WriteCommand>(
        &self,
        command: &W,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<W::Response, Errno> {
        let mut response = zerocopy::FromZeros::new_zeroed();
        let mut request = Request::write(DriverId::MLX5, command, &mut response);
        request.driver_data(input, output).unwrap();
        let result = self.run(&mut request);
        result.map(|()| response)
    }

    pub(super) fn get_context(&self, input: &[u8], output: &mut [u8]) -> Result<u32, Errno> {
        let (mut vectors, mut support) = (0u32, 0u64);
        let mut request = Request::<device::get_context::Call>::new(DriverId::MLX5);
        request.output(device::get_context::NUM_COMP_VECTORS, &mut vectors);
        request.output(device::get_context::CORE_SUPPORT, &mut support);
        request.driver_data(input, output).unwrap();
        self.run(&mut request)?;
        Ok(vectors)
    }

    pub(super) fn alloc_pd(&self) -> u32 {
        let mut pdn = [0; 4];
        let allocated = self.write_driver(&pd::AllocPd::default(), &[], &mut pdn).unwrap();
        assert_ne!(u32::from_ne_bytes(pdn), 0);
        allocated.pd_handle
    }

    pub(super) fn reg_mr(
        &self,
        pd_handle: u32,
        address: u64,
        length: u64,
    ) -> Result<mr::RegMrResp, Errno> {
        self.write(&mr::RegMr {
            start: address,
            hca_va: address,
            length,
            pd_handle,
            access_flags: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            ..mr::RegMr::default()
        })
    }

    pub(super) fn async_events(&self) -> i32 {
        let mut request = Request::<async_event::alloc::Call>::new(DriverId::MLX5);
        request.new_fd(async_event::alloc::HANDLE);
        self.run(&mut request).unwrap();
        request.opened(async_event::alloc::HANDLE).unwrap()
    }

    pub(super) fn comp_channel(&self) -> i32 {
        let made = self.write(&comp_channel::CreateCompChannel::default()).unwrap();
        made.fd as i32
    }

    /// Allocates and maps a UAR.
    pub(super) fn uar(&self) -> Uar {
        use uverbs_uapi::mlx5::object::uar::alloc;
        let (mut offset, mut length, mut page_id) = (0u64, 0u32, 0u32);
        let mut request = Request::<alloc::Call>::new(DriverId::MLX5);
        request.new_handle(alloc::HANDLE);
        request.constant(alloc::TYPE, UarAllocType::BF.0);
        request.output(alloc::MMAP_OFFSET, &mut offset);
        request.output(alloc::MMAP_LENGTH, &mut length);
        request.output(alloc::PAGE_ID, &mut page_id);
        self.run(&mut request).unwrap();
        let handle = request.created(alloc::HANDLE).unwrap();
        let registers = self.map(offset, length as usize, libc::PROT_WRITE).unwrap();
        Uar { handle, page_id, registers: registers.cast() }
    }

    pub(super) fn map(
        &self,
        offset: u64,
        length: usize,
        protection: i32,
    ) -> Result<*mut libc::c_void, Errno> {
        let anywhere = std::ptr::null_mut();
        // SAFETY: no MAP_FIXED.
        unsafe { self.file.mmap(anywhere, length, protection, libc::MAP_SHARED, offset as i64) }
    }

    /// A CQ of 16 entries whose ring is page 0 and whose doorbell record is at the end of page 1 of
    /// `memory`.
    pub(super) fn create_cq(
        &self,
        memory: &Memory,
        uar: &Uar,
        channel: Option<i32>,
        user_handle: u64,
    ) -> Result<Cq, Errno> {
        (0..16).for_each(|entry| memory.put(entry * 64 + 63, &[0xf0]));
        let driver = mlx5::CreateCq {
            buf_addr: memory.at(0),
            db_addr: memory.at(8184),
            cqe_size: 64,
            flags: CqFlags::UAR_PAGE_INDEX,
            uar_page_index: uar.page_id as u16,
            ..mlx5::CreateCq::default()
        };
        let (mut cqe, mut answer) = (0u32, [0; 8]);
        let mut request = Request::<cq::create::Call>::new(DriverId::MLX5);
        request.new_handle(cq::create::HANDLE);
        request.value(cq::create::CQE, 15u32);
        request.value(cq::create::USER_HANDLE, user_handle);
        request.value(cq::create::COMP_VECTOR, 0u32);
        if let Some(fd) = channel {
            request.fd(cq::create::COMP_CHANNEL, fd);
        }
        request.output(cq::create::RESP_CQE, &mut cqe);
        request.driver_data(driver.as_bytes(), &mut answer).unwrap();
        self.run(&mut request)?;
        let handle = request.created(cq::create::HANDLE).unwrap();
        assert_eq!(cqe, 15);
        let [a, b, c, d, ..] = answer;
        Ok(Cq { handle, cqn: u32::from_ne_bytes([a, b, c, d]) })
    }

    pub(super) fn destroy_cq(&self, handle: u32) -> Result<(u32, u32), Errno> {
        let mut response = uverbs_uapi::write::cq::DestroyCqResp::default();
        let mut request = Request::<cq::destroy::Call>::new(DriverId::MLX5);
        request.handle(cq::destroy::HANDLE, handle);
        request.output(cq::destroy::RESP, &mut response);
        self.run(&mut request)?;
        Ok((response.comp_events_reported, response.async_events_reported))
    }

    /// A QP with 4 receives of one entry and 16 send blocks in page 0 of `memory`, doorbell record
    /// at its end.
    pub(super) fn create_qp(&self, asked: &QpRequest<'_>) -> Result<Qp, Errno> {
        let own_ring = asked.srq.is_none();
        let driver = mlx5::CreateQp {
            buf_addr: asked.memory.at(0),
            db_addr: asked.memory.at(4088),
            // Read only for raw packet QPs, which have two separate rings.
            sq_buf_addr: asked.memory.at(asked.sends),
            sq_wqe_count: 16,
            rq_wqe_count: if own_ring { 4 } else { 0 },
            rq_wqe_shift: if own_ring { 4 } else { 0 },
            flags: asked.flags,
            uidx: asked.uidx,
            bfreg_index: asked.uar.page_id,
            ..mlx5::CreateQp::default()
        };
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: if own_ring { 4 } else { 0 },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (mut granted, mut qpn, mut answer) = (QpCap::default(), 0u32, [0; 40]);
        let mut request = Request::<qp::create::Call>::new(DriverId::MLX5);
        request.new_handle(qp::create::HANDLE);
        request.handle(qp::create::PD_HANDLE, asked.pd);
        request.handle(qp::create::SEND_CQ_HANDLE, asked.cq);
        request.handle(qp::create::RECV_CQ_HANDLE, asked.cq);
        if let Some(srq) = asked.srq {
            request.handle(qp::create::SRQ_HANDLE, srq);
        }
        request.value(qp::create::USER_HANDLE, 0x9090u64 + u64::from(asked.uidx));
        request.input(qp::create::CAP, &cap);
        request.constant(qp::create::TYPE, asked.qp_type.0);
        request.output(qp::create::RESP_CAP, &mut granted);
        request.output(qp::create::RESP_QP_NUM, &mut qpn);
        request.driver_data(driver.as_bytes(), &mut answer).unwrap();
        self.run(&mut request)?;
        let handle = request.created(qp::create::HANDLE).unwrap();
        Ok(Qp { handle, qpn })
    }

    pub(super) fn destroy_qp(&self, handle: u32) -> Result<u32, Errno> {
        let mut response = uverbs_uapi::write::qp::DestroyQpResp::default();
        let mut request = Request::<qp::destroy::Call>::new(DriverId::MLX5);
        request.handle(qp::destroy::HANDLE, handle);
        request.output(qp::destroy::RESP, &mut response);
        self.run(&mut request)?;
        Ok(response.events_reported)
    }

    /// A basic SRQ of 7 receives in page 0 of `memory`, doorbell record at its end.
    pub(super) fn create_srq(&self, memory: &Memory, pd: u32) -> Result<u32, Errno> {
        let driver = mlx5::CreateSrq {
            buf_addr: memory.at(0),
            db_addr: memory.at(4088),
            ..mlx5::CreateSrq::default()
        };
        let (mut max_wr, mut max_sge, mut answer) = (0u32, 0u32, [0; 8]);
        let mut request = Request::<srq::create::Call>::new(DriverId::MLX5);
        request.new_handle(srq::create::HANDLE);
        request.handle(srq::create::PD_HANDLE, pd);
        request.constant(srq::create::TYPE, SrqType::BASIC.0);
        request.value(srq::create::USER_HANDLE, 0x5050u64);
        request.value(srq::create::MAX_WR, 7u32);
        request.value(srq::create::MAX_SGE, 1u32);
        request.value(srq::create::LIMIT, 0u32);
        request.output(srq::create::RESP_MAX_WR, &mut max_wr);
        request.output(srq::create::RESP_MAX_SGE, &mut max_sge);
        request.driver_data(driver.as_bytes(), &mut answer).unwrap();
        self.run(&mut request)?;
        let handle = request.created(srq::create::HANDLE).unwrap();
        assert_eq!((max_wr, max_sge), (7, 1));
        Ok(handle)
    }
}

/// The options of a QP.
pub(super) struct QpRequest<'a> {
    pub(super) memory: &'a Memory,
    pub(super) uar: &'a Uar,
    pub(super) pd: u32,
    pub(super) cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) qp_type: QpType,
    pub(super) flags: QpFlags,
    pub(super) uidx: u32,
    /// Offset of the send ring of a raw packet QP in `memory`.
    pub(super) sends: usize,
}

impl<'a> QpRequest<'a> {
    pub(super) fn rc(memory: &'a Memory, uar: &'a Uar, pd: u32, cq: u32) -> Self {
        let flags = QpFlags::UAR_PAGE_INDEX;
        Self { memory, uar, pd, cq, srq: None, qp_type: QpType::RC, flags, uidx: 1, sends: 1024 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cq {
    pub(super) handle: u32,
    pub(super) cqn: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Qp {
    pub(super) handle: u32,
    pub(super) qpn: u32,
}

/// A mapped UAR.
pub(super) struct Uar {
    pub(super) handle: u32,
    pub(super) page_id: u32,
    registers: *mut u8,
}

impl Uar {
    /// Stores 8 bytes to a register.
    pub(super) fn ring(&self, register: usize, bytes: [u8; 8]) {
        assert!(register % 8 == 0 && register + 8 <= 4096);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: inside the mapped page, aligned.
        unsafe {
            self.registers.add(register).cast::<u64>().write_volatile(u64::from_ne_bytes(bytes))
        };
    }
}

impl Drop for Uar {
    fn drop(&mut self) {
        // SAFETY: mapped by `Client::uar`, one page.
        unsafe { libc::munmap(self.registers.cast(), 4096) };
    }
}

/// libmlx5's 32 bytes of a context request, without DEVX.
pub(super) fn context_request() -> [u8; 32] {
    let request = mlx5::AllocUcontextReqV2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        max_cqe_version: 1,
        lib_caps: LibCaps::UAR_4K | LibCaps::DYN_UAR,
        ..mlx5::AllocUcontextReqV2::default()
    };
    let mut bytes = [0; 32];
    bytes.copy_from_slice(request.as_bytes());
    bytes
}

/// Reads one record of `N` bytes without waiting; `None` if there is none.
pub(super) fn read_event<const N: usize>(fd: i32) -> Option<[u8; N]> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    if unsafe { libc::poll(&mut poll, 1, 0) } != 1 || poll.revents & libc::POLLIN == 0 {
        return None;
    }
    let mut record = [0; N];
    // SAFETY: `record` has N bytes.
    let read = unsafe { libc::read(fd, record.as_mut_ptr().cast(), N) };
    assert_eq!(read, N as isize);
    Some(record)
}

/// User handle and type of an asynchronous event.
pub(super) fn read_async(fd: i32) -> Option<(u64, u32)> {
    let record: [u8; 16] = read_event(fd)?;
    let element = u64::from_ne_bytes(record[..8].try_into().unwrap());
    Some((element, u32::from_ne_bytes(record[8..12].try_into().unwrap())))
}
