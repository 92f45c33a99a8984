//! Completion queues and shared receive queues: creation, changes, limits, the order of
//! destruction.

use nix::errno::Errno;
use uverbs::Buffer;
use uverbs_uapi::enums::SrqType;
use uverbs_uapi::flags::{CqAttrMask, CqCreateFlags, SrqAttrMask};
use uverbs_uapi::mlx5::{self, CqFlags, SrqFlags, UarAllocType};
use uverbs_uapi::objects::{cq, srq};
use uverbs_uapi::write::cq::{CqModeration, DestroyCqResp, ExModifyCq, ResizeCq};
use uverbs_uapi::write::srq::{DestroySrqResp, ModifySrq, QuerySrq};
use uverbs_uapi::write::xrcd::{CloseXrcd, OpenXrcd};
use uverbs_uapi::write::{cq as cq_write, pd};
use zerocopy::IntoBytes;

use crate::memory::NOTHING;
use crate::node::{Node, Source, Uar};
use crate::recorder::Recorder;

/// A node with a PD, a doorbell page, and memory that outlives its queues.
pub(crate) struct Bench {
    pub(crate) node: Node,
    pub(crate) pd: u32,
    pub(crate) uar: Uar,
    memory: Buffer,
}

/// Bytes of memory that each queue gets.
const AREA: usize = 1 << 16;
const AREAS: usize = 8;

impl Bench {
    pub(crate) fn new(source: &Source) -> Self {
        let node = Node::with_context(source);
        let uar = node.uar(UarAllocType::BF).expect("a doorbell page");
        let memory = Buffer::new(AREA * AREAS).expect("memory");
        Self { pd: node.pd(), uar, memory, node }
    }

    /// The start of a queue's memory.
    pub(crate) fn area(&self, number: usize) -> u64 {
        assert!(number < AREAS);
        self.memory.as_ptr() as u64 + (number * AREA) as u64
    }

    /// The doorbell record at the end of a queue's memory.
    pub(crate) fn record(&self, number: usize) -> u64 {
        self.area(number) + AREA as u64 - 8
    }

    pub(crate) fn cq_request(&self, area: usize) -> CqRequest {
        CqRequest {
            driver: mlx5::CreateCq {
                buf_addr: self.area(area),
                db_addr: self.record(area),
                cqe_size: 64,
                flags: CqFlags::UAR_PAGE_INDEX,
                uar_page_index: self.uar.page_id as u16,
                ..Default::default()
            },
            cqe: 15,
            comp_vector: 0,
            flags: CqCreateFlags::empty(),
            channel: None,
            driver_length: size_of::<mlx5::CreateCq>(),
        }
    }

    /// Creates a CQ: its handle, entries and number.
    pub(crate) fn create_cq(&self, asked: &CqRequest) -> Result<MadeCq, Errno> {
        let (mut cqe, mut driver) = (0u32, mlx5::CreateCqResp::default());
        let mut request = Node::request::<cq::create::Call>();
        request.new_handle(cq::create::HANDLE);
        request.value(cq::create::CQE, asked.cqe);
        request.value(cq::create::USER_HANDLE, 0xc0u64);
        request.value(cq::create::COMP_VECTOR, asked.comp_vector);
        if !asked.flags.is_empty() {
            request.flags(cq::create::FLAGS, asked.flags.bits());
        }
        if let Some(fd) = asked.channel {
            request.fd(cq::create::COMP_CHANNEL, fd);
        }
        request.output(cq::create::RESP_CQE, &mut cqe);
        let input = &asked.driver.as_bytes()[..asked.driver_length];
        request.driver_data(input, driver.as_mut_bytes()).expect("short");
        self.node.run(&mut request)?;
        let cq_handle = request.created(cq::create::HANDLE).expect("a handle");
        Ok(MadeCq { cq_handle, cqe, cqn: driver.cqn })
    }

    pub(crate) fn destroy_cq(&self, handle: u32) -> Result<DestroyCqResp, Errno> {
        let mut response = DestroyCqResp::default();
        let mut request = Node::request::<cq::destroy::Call>();
        request.handle(cq::destroy::HANDLE, handle);
        request.output(cq::destroy::RESP, &mut response);
        self.node.run(&mut request)?;
        Ok(response)
    }

    pub(crate) fn srq_request(&self, area: usize) -> SrqRequest {
        SrqRequest {
            driver: mlx5::CreateSrq {
                buf_addr: self.area(area),
                db_addr: self.record(area),
                ..Default::default()
            },
            kind: SrqType::BASIC,
            max_wr: 7,
            max_sge: 1,
            limit: 0,
            xrcd: None,
            cq: None,
            pd: self.pd,
        }
    }

    pub(crate) fn create_srq(&self, asked: &SrqRequest) -> Result<MadeSrq, Errno> {
        let (mut max_wr, mut max_sge, mut srq_number) = (0u32, 0u32, 0u32);
        let mut driver = mlx5::CreateSrqResp::default();
        let mut request = Node::request::<srq::create::Call>();
        request.new_handle(srq::create::HANDLE);
        request.handle(srq::create::PD_HANDLE, asked.pd);
        request.constant(srq::create::TYPE, asked.kind.0);
        request.value(srq::create::USER_HANDLE, 0x50u64);
        request.value(srq::create::MAX_WR, asked.max_wr);
        request.value(srq::create::MAX_SGE, asked.max_sge);
        request.value(srq::create::LIMIT, asked.limit);
        if let Some(xrcd) = asked.xrcd {
            request.handle(srq::create::XRCD_HANDLE, xrcd);
            request.output(srq::create::RESP_SRQ_NUM, &mut srq_number);
        }
        if let Some(cq) = asked.cq {
            request.handle(srq::create::CQ_HANDLE, cq);
        }
        request.output(srq::create::RESP_MAX_WR, &mut max_wr);
        request.output(srq::create::RESP_MAX_SGE, &mut max_sge);
        request.driver_data(asked.driver.as_bytes(), driver.as_mut_bytes()).expect("short");
        self.node.run(&mut request)?;
        let srq_handle = request.created(srq::create::HANDLE).expect("a handle");
        Ok(MadeSrq { srq_handle, max_wr, max_sge, srqn: driver.srqn })
    }

    pub(crate) fn destroy_srq(&self, handle: u32) -> Result<DestroySrqResp, Errno> {
        let mut response = DestroySrqResp::default();
        let mut request = Node::request::<srq::destroy::Call>();
        request.handle(srq::destroy::HANDLE, handle);
        request.output(srq::destroy::RESP, &mut response);
        self.node.run(&mut request)?;
        Ok(response)
    }
}

/// The options of a completion queue.
#[derive(Clone, Copy)]
pub(crate) struct CqRequest {
    pub(crate) driver: mlx5::CreateCq,
    pub(crate) cqe: u32,
    pub(crate) comp_vector: u32,
    pub(crate) flags: CqCreateFlags,
    pub(crate) channel: Option<i32>,
    driver_length: usize,
}

/// The options of a shared receive queue.
#[derive(Clone, Copy)]
pub(crate) struct SrqRequest {
    driver: mlx5::CreateSrq,
    pub(crate) kind: SrqType,
    max_wr: u32,
    max_sge: u32,
    pub(crate) limit: u32,
    pub(crate) xrcd: Option<u32>,
    pub(crate) cq: Option<u32>,
    pd: u32,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "printed")]
pub(crate) struct MadeCq {
    pub(crate) cq_handle: u32,
    cqe: u32,
    cqn: u32,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "printed")]
pub(crate) struct MadeSrq {
    pub(crate) srq_handle: u32,
    max_wr: u32,
    max_sge: u32,
    srqn: u32,
}

pub(crate) fn record(source: &Source, recorder: &mut Recorder) {
    let bench = Bench::new(source);
    completion_queues(&bench, recorder);
    changes(&bench, recorder);
    shared_queues(&bench, recorder);
    extended_shared_queues(&bench, recorder);
}

fn completion_queues(bench: &Bench, recorder: &mut Recorder) {
    let good = bench.cq_request(0);
    let channel = bench.node.channel();
    let driver = good.driver;
    let with = |driver| CqRequest { driver, ..good };
    let variants = [
        ("plain", good),
        ("one entry", CqRequest { cqe: 1, ..good }),
        ("16 entries", CqRequest { cqe: 16, ..good }),
        ("no entry", CqRequest { cqe: 0, ..good }),
        ("too many entries", CqRequest { cqe: 1 << 22, ..good }),
        ("all ones", CqRequest { cqe: u32::MAX, ..good }),
        ("a channel", CqRequest { channel: Some(channel), ..good }),
        ("a wrong descriptor", CqRequest { channel: Some(0), ..good }),
        ("a closed descriptor", CqRequest { channel: Some(9999), ..good }),
        ("vector 7", CqRequest { comp_vector: 7, ..good }),
        ("vector 9999", CqRequest { comp_vector: 9999, ..good }),
        ("timestamps", CqRequest { flags: CqCreateFlags::TIMESTAMP_COMPLETION, ..good }),
        ("overruns ignored", CqRequest { flags: CqCreateFlags::IGNORE_OVERRUN, ..good }),
        ("an unknown flag", CqRequest { flags: CqCreateFlags::from_bits_retain(1 << 9), ..good }),
        ("128 bytes", with(mlx5::CreateCq { cqe_size: 128, ..driver })),
        ("32 bytes", with(mlx5::CreateCq { cqe_size: 32, ..driver })),
        ("compressed", with(mlx5::CreateCq { cqe_comp_en: 1, cqe_comp_res_format: 1, ..driver })),
        ("an unmapped ring", with(mlx5::CreateCq { buf_addr: 0x1000, ..driver })),
        ("an unmapped record", with(mlx5::CreateCq { db_addr: 0x1ff8, ..driver })),
        ("an odd record", with(mlx5::CreateCq { db_addr: driver.db_addr + 1, ..driver })),
        (
            "padded entries",
            with(mlx5::CreateCq { flags: driver.flags | CqFlags::CQE_128B_PAD, ..driver }),
        ),
        (
            "an unknown driver's flag",
            with(mlx5::CreateCq {
                flags: driver.flags | CqFlags::from_bits_retain(1 << 9),
                ..driver
            }),
        ),
        ("no doorbell page", with(mlx5::CreateCq { flags: CqFlags::empty(), ..driver })),
        ("a reserved word", with(mlx5::CreateCq { reserved1: 1, ..driver })),
        ("16 bytes for the driver", CqRequest { driver_length: 16, ..good }),
        ("24 bytes for the driver", CqRequest { driver_length: 24, ..good }),
    ];
    for (name, request) in variants {
        let step = format!("create_cq, {name}");
        if let Some(made) = recorder.answer(&step, bench.create_cq(&request)) {
            recorder.answer(&format!("{step}, destroy"), bench.destroy_cq(made.cq_handle));
        }
    }
    recorder.call("destroy_cq of nothing", bench.destroy_cq(NOTHING));
    recorder.call("destroy_cq of a domain", bench.destroy_cq(bench.pd));
}

fn changes(bench: &Bench, recorder: &mut Recorder) {
    let Ok(made) = bench.create_cq(&bench.cq_request(0)) else { return };
    let resize = |cqe, buf_addr: u64, cqe_size| {
        let driver = mlx5::ResizeCq { buf_addr, cqe_size, ..Default::default() };
        let command = ResizeCq { cq_handle: made.cq_handle, cqe, ..Default::default() };
        bench.node.write_bytes(&command, driver.as_bytes(), &mut [])
    };
    recorder.answer("resize_cq", resize(31, bench.area(1), 64));
    recorder.answer("resize_cq to the same", resize(31, bench.area(2), 64));
    recorder.answer("resize_cq to none", resize(0, bench.area(2), 64));
    recorder.answer("resize_cq to too many", resize(1 << 22, bench.area(2), 64));
    recorder.answer("resize_cq to odd entries", resize(63, bench.area(2), 32));
    recorder.answer("resize_cq to unmapped memory", resize(127, 0x1000, 64));
    let moderate = |cq_handle, attr_mask, cq_count, cq_period| {
        let attr = CqModeration { cq_count, cq_period };
        bench.node.write(&ExModifyCq { cq_handle, attr_mask, attr, reserved: 0 })
    };
    let mask = CqAttrMask::MODERATE;
    for (name, mask, count, period) in [
        ("plain", mask, 8, 16),
        ("off", mask, 0, 0),
        ("longest", mask, 0xffff, 0xfff),
        ("too long", mask, 1, 0x1000),
        ("nothing", CqAttrMask::empty(), 1, 1),
        ("an unknown attribute", CqAttrMask::from_bits_retain(2), 1, 1),
    ] {
        recorder.call(&format!("modify_cq, {name}"), moderate(made.cq_handle, mask, count, period));
    }
    recorder.call("modify_cq of nothing", moderate(NOTHING, mask, 1, 1));
    let arm = cq_write::ReqNotifyCq { cq_handle: made.cq_handle, solicited_only: 0 };
    recorder.call("req_notify_cq", bench.node.write(&arm));
    let dealloc = pd::DeallocPd { pd_handle: made.cq_handle };
    recorder.call("dealloc_pd of a queue", bench.node.write(&dealloc));
    recorder.answer("destroy_cq", bench.destroy_cq(made.cq_handle));
    recorder.call("destroy_cq again", bench.destroy_cq(made.cq_handle));
}

fn shared_queues(bench: &Bench, recorder: &mut Recorder) {
    let good = bench.srq_request(0);
    let driver = good.driver;
    let with = |driver| SrqRequest { driver, ..good };
    let variants = [
        ("plain", good),
        ("100 receives", SrqRequest { max_wr: 100, ..good }),
        ("3 SGEs", SrqRequest { max_sge: 3, ..good }),
        ("4 SGEs", SrqRequest { max_sge: 4, ..good }),
        ("no receive", SrqRequest { max_wr: 0, ..good }),
        ("no SGE", SrqRequest { max_sge: 0, ..good }),
        ("a limit", SrqRequest { limit: 3, ..good }),
        ("too many receives", SrqRequest { max_wr: 1 << 15, ..good }),
        ("all ones", SrqRequest { max_wr: u32::MAX, ..good }),
        ("too many SGEs", SrqRequest { max_sge: 1 << 20, ..good }),
        ("no domain", SrqRequest { pd: NOTHING, ..good }),
        ("an unknown kind", SrqRequest { kind: SrqType(9), ..good }),
        ("tags without a queue", SrqRequest { kind: SrqType::TM, ..good }),
        ("xrc without a domain", SrqRequest { kind: SrqType::XRC, ..good }),
        ("an unmapped ring", with(mlx5::CreateSrq { buf_addr: 0x1000, ..driver })),
        ("an odd record", with(mlx5::CreateSrq { db_addr: driver.db_addr + 1, ..driver })),
        ("signatures", with(mlx5::CreateSrq { flags: SrqFlags::SIGNATURE, ..driver })),
        (
            "an unknown flag",
            with(mlx5::CreateSrq { flags: SrqFlags::from_bits_retain(1 << 9), ..driver }),
        ),
        ("a user index", with(mlx5::CreateSrq { uidx: 5, ..driver })),
        ("a long user index", with(mlx5::CreateSrq { uidx: 1 << 24, ..driver })),
        ("a reserved word", with(mlx5::CreateSrq { reserved1: 1, ..driver })),
    ];
    for (name, request) in variants {
        let step = format!("create_srq, {name}");
        let Some(made) = recorder.answer(&step, bench.create_srq(&request)) else { continue };
        let query = QuerySrq { srq_handle: made.srq_handle, ..Default::default() };
        recorder.answer(&format!("{step}, query"), bench.node.write(&query));
        recorder.answer(&format!("{step}, destroy"), bench.destroy_srq(made.srq_handle));
    }
    let Ok(made) = bench.create_srq(&good) else { return };
    let modify = |srq_handle, attr_mask, max_wr, srq_limit| {
        bench.node.write(&ModifySrq { srq_handle, attr_mask, max_wr, srq_limit })
    };
    let (limit, size) = (SrqAttrMask::LIMIT, SrqAttrMask::MAX_WR);
    recorder.call("modify_srq, nothing", modify(made.srq_handle, SrqAttrMask::empty(), 0, 0));
    recorder.call("modify_srq, too high a limit", modify(made.srq_handle, limit, 0, 100));
    recorder.call("modify_srq, size", modify(made.srq_handle, size, 15, 0));
    recorder.call(
        "modify_srq, an unknown attribute",
        modify(made.srq_handle, SrqAttrMask::from_bits_retain(4), 0, 0),
    );
    recorder.call("modify_srq of nothing", modify(NOTHING, limit, 0, 0));
    let query = QuerySrq { srq_handle: NOTHING, ..Default::default() };
    recorder.call("query_srq of nothing", bench.node.write(&query));
    recorder.call(
        "dealloc_pd with a shared queue",
        bench.node.write(&pd::DeallocPd { pd_handle: bench.pd }),
    );
    recorder.answer("destroy_srq", bench.destroy_srq(made.srq_handle));
    recorder.call("destroy_srq again", bench.destroy_srq(made.srq_handle));
}

fn extended_shared_queues(bench: &Bench, recorder: &mut Recorder) {
    let open = OpenXrcd { response: 0, fd: u32::MAX, oflags: 0o100 };
    let Ok(domain) = bench.node.write(&open) else { return };
    let xrcd_handle = domain.xrcd_handle;
    let Ok(cq) = bench.create_cq(&bench.cq_request(0)) else { return };
    let good = SrqRequest {
        kind: SrqType::XRC,
        xrcd: Some(xrcd_handle),
        cq: Some(cq.cq_handle),
        ..bench.srq_request(1)
    };
    recorder.call(
        "create_srq, xrc without a queue",
        bench.create_srq(&SrqRequest { cq: None, ..good }),
    );
    recorder.call(
        "create_srq, xrc with a wrong queue",
        bench.create_srq(&SrqRequest { cq: Some(NOTHING), ..good }),
    );
    recorder.call(
        "create_srq, xrc in a wrong domain",
        bench.create_srq(&SrqRequest { xrcd: Some(NOTHING), ..good }),
    );
    let made = recorder.answer("create_srq, xrc", bench.create_srq(&good));
    let close = || bench.node.write(&CloseXrcd { xrcd_handle });
    recorder.call("close_xrcd with a queue", close());
    recorder.call("destroy_cq of a shared queue", bench.destroy_cq(cq.cq_handle));
    if let Some(made) = made {
        recorder.answer("create_srq, xrc, destroy", bench.destroy_srq(made.srq_handle));
    }
    recorder.answer("destroy_cq after its shared queue", bench.destroy_cq(cq.cq_handle));
    recorder.call("close_xrcd after its queue", close());
}
