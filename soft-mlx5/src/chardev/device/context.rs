//! User contexts: GET_CONTEXT in both forms, QUERY_CONTEXT, and the UARs of a new context.
//!
//! Kernel: `UVERBS_METHOD_GET_CONTEXT`, `ib_uverbs_get_context`, and `mlx5_ib_alloc_ucontext`
//! (hw/mlx5/main.c).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use uverbs_mlx5_format::{
    ALL_BLUEFLAME_REGISTERS_PER_UAR, BLUEFLAME_REGISTER_SIZE, BLUEFLAME_REGISTERS_PER_UAR,
};
use uverbs_uapi::mlx5::enums::InlineMode;
use uverbs_uapi::mlx5::flags::{
    AllocUcontextFlags, AllocUcontextRespMask, ClockInfoVersions, CmdsSuppUhw, LibCaps,
};
use uverbs_uapi::mlx5::object::device::query_context as driver_context;
use uverbs_uapi::mlx5::{AllocUcontextReq, AllocUcontextReqV2, AllocUcontextResp};
use uverbs_uapi::objects::device::{get_context, query_context};
use uverbs_uapi::write::context::{GetContext, GetContextResp};
use zerocopy::IntoBytes;

use super::options::Options;
use crate::chardev::abi::call::{Buffers, Call};
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::chardev::objects::object::Kind;
use crate::locking::lock;

const BFREGS_PER_UAR: u32 = BLUEFLAME_REGISTERS_PER_UAR as u32;
const ALL_BFREGS_PER_UAR: u32 = ALL_BLUEFLAME_REGISTERS_PER_UAR as u32;
const MAX_BFREGS: u32 = 512;
const DYNAMIC_BFREGS: u32 = 1024;
const BLUEFLAME_SIZE: u32 = BLUEFLAME_REGISTER_SIZE as u32;
const CACHE_LINE: u32 = 64;
/// `core_support`: optional access flags may be passed
/// (`IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`).
const OPTIONAL_MR_ACCESS: u64 = 1;
/// Register index that means "none" (`MLX5_IB_INVALID_BFREG`).
pub(crate) const NO_BFREG: u32 = 1 << 31;

/// A user context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) cqe_version: u8,
    pub(crate) uars: ContextUars,
    /// Mappings besides the fixed pages, by page offset.
    pub(crate) mappings: BTreeMap<u32, Mapping>,
    /// The user id of the context's firmware commands, if it asked for DEVX.
    pub(crate) devx: Option<u16>,
    /// Whether it has mapped a page of the clock.
    pub(crate) watches_clock: bool,
}

/// The doorbell registers of a context.
#[derive(Debug)]
pub(crate) enum ContextUars {
    /// Each UAR is an object.
    Dynamic,
    /// A fixed set, and slots for pages that mmap(2) allocates.
    Static(StaticUars),
}

#[derive(Debug)]
pub(crate) struct StaticUars {
    /// UAR index by system page; `None` for dynamic ones not mapped yet.
    pub(crate) pages: Vec<Option<u32>>,
    pub(crate) fixed_pages: usize,
    low_latency: u32,
    /// How many QPs use each register.
    users: Arc<Mutex<Vec<u32>>>,
    registers: u32,
    /// Version of the context request: programs of version 0 use only register 0.
    version: u8,
}

/// The memory behind a page offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) memory: Mapped,
    pub(crate) page: u64,
    pub(crate) pages: u64,
}

/// Kinds of memory that a mapping can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    Uar,
    DeviceMemory,
}

pub(crate) const GET_CONTEXT: &[Attribute] = &[
    Attribute::output(get_context::NUM_COMP_VECTORS, 4).optional(),
    Attribute::output(get_context::CORE_SUPPORT, 8).optional(),
    Attribute::driver_in(),
    Attribute::driver_out(),
];

pub(crate) const QUERY_CONTEXT: &[Attribute] = &[
    Attribute::output(query_context::NUM_COMP_VECTORS, 4).optional(),
    Attribute::output(query_context::CORE_SUPPORT, 8).optional(),
    Attribute::output_struct(
        driver_context::RESP_UCTX,
        size_of::<AllocUcontextResp>(),
        size_of::<AllocUcontextResp>(),
    ),
];

/// `UVERBS_METHOD_GET_CONTEXT`.
pub(crate) fn get(call: &mut Call<'_>) -> Result<(), Errno> {
    let vectors = call.file.device.options().completion_vectors;
    call.optional_output(get_context::NUM_COMP_VECTORS, &vectors)?;
    call.optional_output(get_context::CORE_SUPPORT, &OPTIONAL_MR_ACCESS)?;
    create(call)
}

/// `IB_USER_VERBS_CMD_GET_CONTEXT`: also creates the first asynchronous event file.
pub(crate) fn get_by_write(call: &mut Call<'_>) -> Result<(), Errno> {
    let _: GetContext = call.request()?;
    create(call)?;
    let opened = answer(call);
    let unannounced = if opened.is_err() { call.state.context.take() } else { None };
    if let Some(context) = unannounced {
        context.close(&call.file.device);
    }
    opened
}

fn answer(call: &mut Call<'_>) -> Result<(), Errno> {
    let async_fd = call.new_event_file(Kind::AsyncEvent)? as u32;
    let num_comp_vectors = call.file.device.options().completion_vectors;
    call.response(&GetContextResp { async_fd, num_comp_vectors })
}

/// `UVERBS_METHOD_QUERY_CONTEXT`.
pub(crate) fn query(call: &mut Call<'_>) -> Result<(), Errno> {
    let vectors = call.file.device.options().completion_vectors;
    let mut response = response(call.context()?, &call.file.device);
    call.optional_output(query_context::NUM_COMP_VECTORS, &vectors)?;
    call.optional_output(query_context::CORE_SUPPORT, &OPTIONAL_MR_ACCESS)?;
    let attribute = driver_context::RESP_UCTX;
    response.response_length =
        u32::from(call.given(attribute.id())?.length).min(response.as_bytes().len() as u32);
    call.output_struct(attribute, &response)
}

fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    if call.file.device.is_removed() {
        return Err(Errno::EIO);
    }
    if call.state.context.is_some() {
        return Err(Errno::EINVAL);
    }
    let driver = call.driver();
    let options = call.file.device.options();
    let request = read_request(&driver, options)?;
    let context = allocate(&call.file.device, &request, driver.input_length())?;
    let mut response = response(&context, &call.file.device);
    response.response_length = driver.output_length().min(size_of::<AllocUcontextResp>()) as u32;
    if let Err(error) = driver.write_fitting(response.as_bytes()) {
        context.close(&call.file.device);
        return Err(error);
    }
    call.state.context = Some(context);
    Ok(())
}

fn read_request(driver: &Buffers, options: &Options) -> Result<AllocUcontextReqV2, Errno> {
    let length = driver.input_length();
    if length != size_of::<AllocUcontextReq>()
        && length < std::mem::offset_of!(AllocUcontextReqV2, max_cqe_version)
    {
        return Err(Errno::EINVAL);
    }
    let known = options.kernel.context_request;
    // Old kernels refuse a longer request.
    if known < size_of::<AllocUcontextReqV2>() && length > known {
        return Err(Errno::EINVAL);
    }
    let mut request: AllocUcontextReqV2 = driver.read()?;
    if !options.kernel.dynamic_uar {
        request.lib_caps.remove(LibCaps::DYN_UAR);
    }
    if !AllocUcontextFlags::DEVX.contains(request.flags)
        || request.comp_mask != 0
        || request.reserved0 != 0
        || request.reserved1 != 0
        || request.reserved2 != 0
    {
        return Err(Errno::EOPNOTSUPP);
    }
    request.total_num_bfregs =
        request.total_num_bfregs.checked_next_multiple_of(BFREGS_PER_UAR).unwrap_or(0);
    if request.num_low_latency_bfregs > request.total_num_bfregs.wrapping_sub(1) {
        return Err(Errno::EINVAL);
    }
    // Without the capability the firmware has no user contexts (mlx5_ib_devx_create).
    if request.flags.contains(AllocUcontextFlags::DEVX) && !options.kernel.devx {
        return Err(Errno::EINVAL);
    }
    Ok(request)
}

fn allocate(
    device: &DeviceShared,
    request: &AllocUcontextReqV2,
    length: usize,
) -> Result<Context, Errno> {
    let uars = if request.lib_caps.contains(LibCaps::DYN_UAR) {
        ContextUars::Dynamic
    } else {
        let version = if length == size_of::<AllocUcontextReq>() { 0 } else { 2 };
        ContextUars::Static(StaticUars::new(device, request, version)?)
    };
    let devx = if request.flags.contains(AllocUcontextFlags::DEVX) {
        Some(lock(&device.firmware).create_user_context().map_err(|_| Errno::ENOMEM)?)
    } else {
        None
    };
    Ok(Context {
        cqe_version: request.max_cqe_version.min(1),
        uars,
        mappings: BTreeMap::new(),
        devx,
        watches_clock: false,
    })
}

/// `set_ucontext_resp`.
fn response(context: &Context, device: &DeviceShared) -> AllocUcontextResp {
    let (fixed, dynamic) = match &context.uars {
        ContextUars::Dynamic => (0, 0),
        ContextUars::Static(uars) => (uars.fixed_registers(), DYNAMIC_BFREGS),
    };
    AllocUcontextResp {
        qp_tab_size: 1 << Options::LOG_MAX_QP,
        bf_reg_size: BLUEFLAME_SIZE,
        tot_bfregs: fixed,
        cache_line_size: CACHE_LINE,
        max_sq_desc_sz: Options::MAX_SEND_WQE,
        max_rq_desc_sz: Options::MAX_RECV_WQE,
        max_send_wqebb: 1 << Options::LOG_MAX_QP_SIZE,
        max_recv_wr: 1 << Options::LOG_MAX_QP_SIZE,
        max_srq_recv_wr: 1 << Options::LOG_MAX_SRQ_SIZE,
        num_ports: 1,
        comp_mask: response_mask(device.options()),
        cqe_version: context.cqe_version,
        cmds_supp_uhw: CmdsSuppUhw::QUERY_DEVICE | CmdsSuppUhw::CREATE_AH,
        eth_min_inline: inline_mode(device.options()),
        clock_info_versions: ClockInfoVersions::V1,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: dynamic,
        dump_fill_mkey: device.null_key(),
        ..AllocUcontextResp::default()
    }
}

impl Context {
    /// Frees the fixed UARs.
    pub(crate) fn close(self, device: &DeviceShared) {
        if self.watches_clock {
            device.clock().unwatch();
        }
        if let Some(uid) = self.devx {
            // This fails if an object of the context is left. The user id then stays taken, so that
            // no other context can use the object.
            let _ = lock(&device.firmware).destroy_user_context(uid);
        }
        if let ContextUars::Static(uars) = self.uars {
            uars.pages.into_iter().flatten().for_each(|index| device.uars.free(index));
        }
    }

    /// A free page offset for a new mapping of `pages` pages; ENOMEM if there is none.
    pub(crate) fn free_offset(&self, command: u32, pages: u64) -> Result<u32, Errno> {
        let mut candidate = command << 16;
        for (start, mapping) in self.mappings.range(candidate..(command + 1) << 16) {
            if u64::from(candidate) + pages <= u64::from(*start) {
                break;
            }
            candidate = start + mapping.pages as u32;
        }
        if u64::from(candidate) + pages > u64::from((command + 1) << 16) {
            Err(Errno::ENOMEM)
        } else {
            Ok(candidate)
        }
    }

    /// UAR index of the doorbells of CQs that name no UAR.
    pub(crate) fn default_uar(&self) -> Result<u32, Errno> {
        match &self.uars {
            ContextUars::Dynamic => Err(Errno::EINVAL),
            ContextUars::Static(uars) => uars.pages.first().copied().flatten().ok_or(Errno::EINVAL),
        }
    }

    /// The fixed registers; EINVAL where all UARs are objects.
    pub(crate) fn static_uars(&mut self) -> Result<&mut StaticUars, Errno> {
        match &mut self.uars {
            ContextUars::Dynamic => Err(Errno::EINVAL),
            ContextUars::Static(uars) => Ok(uars),
        }
    }
}

impl StaticUars {
    /// `calc_total_bfregs` and `allocate_uars`, with pages of 4 KiB.
    fn new(
        device: &DeviceShared,
        request: &AllocUcontextReqV2,
        version: u8,
    ) -> Result<Self, Errno> {
        let total = request.total_num_bfregs;
        if total == 0 {
            return Err(Errno::EINVAL);
        }
        if total > MAX_BFREGS {
            return Err(Errno::ENOMEM);
        }
        let fixed_pages = (total / BFREGS_PER_UAR) as usize;
        let dynamic_pages = (DYNAMIC_BFREGS / BFREGS_PER_UAR) as usize;
        let mut pages = vec![None; fixed_pages + dynamic_pages];
        for slot in 0..fixed_pages {
            match device.uars.allocate() {
                Ok(index) => pages[slot] = Some(index),
                Err(error) => {
                    pages.into_iter().flatten().for_each(|index| device.uars.free(index));
                    return Err(error);
                }
            }
        }
        let users = Arc::new(Mutex::new(vec![0; total as usize]));
        let low_latency = request.num_low_latency_bfregs;
        Ok(Self { pages, fixed_pages, low_latency, users, registers: total, version })
    }

    fn fixed_registers(&self) -> u32 {
        self.registers
    }

    /// First register that only one QP uses at a time. Registers from 1 up to it are shared.
    fn first_high(&self) -> usize {
        (self.registers.saturating_sub(self.low_latency) as usize).max(1)
    }

    /// Chooses a register for a QP (`alloc_bfreg`): an unused exclusive one, else the least used
    /// shared one, else 0.
    pub(crate) fn take_register(&self) -> Register {
        let mut users = lock(&self.users);
        let index = if self.version >= 2 { self.pick(&users) } else { 0 };
        users[index] += 1;
        Register { users: self.users.clone(), index }
    }

    fn pick(&self, users: &[u32]) -> usize {
        let high = self.first_high();
        let free = (high..users.len()).find(|register| users[*register] == 0);
        let medium = || (1..high).min_by_key(|register| users[*register]);
        free.or_else(medium).unwrap_or(0)
    }

    /// UAR index of a register.
    pub(crate) fn uar_of(&self, register: u32) -> Result<u32, Errno> {
        let page = (register / BFREGS_PER_UAR) as usize;
        self.pages.get(page).copied().flatten().ok_or(Errno::EINVAL)
    }

    /// UAR index of a register that the program allocated by mapping its page
    /// (`bfregn_to_uar_index`, dynamic).
    pub(crate) fn dynamic_uar_of(&self, register: u32) -> Result<u32, Errno> {
        if register > DYNAMIC_BFREGS {
            return Err(Errno::EINVAL);
        }
        let page = self.fixed_pages + (register / BFREGS_PER_UAR) as usize;
        self.pages.get(page).copied().flatten().ok_or(Errno::EINVAL)
    }
}

/// A doorbell register in use by a QP; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Register {
    users: Arc<Mutex<Vec<u32>>>,
    index: usize,
}

impl Register {
    pub(crate) fn index(&self) -> u32 {
        self.index as u32
    }

    /// The index in the response, which also counts the kernel's two registers per UAR
    /// (`adjust_bfregn`).
    pub(crate) fn adjusted(&self) -> u32 {
        self.index() / BFREGS_PER_UAR * ALL_BFREGS_PER_UAR + self.index() % BFREGS_PER_UAR
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        let mut users = lock(&self.users);
        users[self.index] -= 1;
    }
}

/// Valid fields of the response, and features of the device.
fn response_mask(options: &Options) -> AllocUcontextRespMask {
    let mut mask = AllocUcontextRespMask::CORE_CLOCK_OFFSET | AllocUcontextRespMask::DUMP_FILL_MKEY;
    mask.set(AllocUcontextRespMask::ECE, options.connection_options != 0);
    mask.set(AllocUcontextRespMask::REAL_TIME_TS, options.real_time_clock);
    mask
}

fn inline_mode(options: &Options) -> InlineMode {
    match (options.is_roce(), options.inline_headers) {
        (false, _) => InlineMode::NA,
        (true, false) => InlineMode::NONE,
        (true, true) => InlineMode::L2,
    }
}
