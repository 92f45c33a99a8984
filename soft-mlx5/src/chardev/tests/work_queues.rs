//! Receive work queues, indirection tables and the queue pairs over them, created by a program's
//! requests.

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, QpType, WqState, WqType};
use uverbs_uapi::flags::{WqAttrMask, WqFlags};
use uverbs_uapi::mlx5::flags::{CreateWqMask, RxHashFields, RxHashFunctions};
use uverbs_uapi::mlx5::qp::CreateQpRss;
use uverbs_uapi::mlx5::wq::CreateWq;
use uverbs_uapi::objects::wq;
use uverbs_uapi::request::Request;
use uverbs_uapi::write::flow::{CreateFlow, DestroyFlow, FlowAttr};
use uverbs_uapi::write::qp::{ExCreateQp, ExModifyQp, QueryQp};
use uverbs_uapi::write::wq::{
    ExCreateRwqIndTable, ExCreateRwqIndTableResp, ExCreateWq, ExDestroyRwqIndTable, ExDestroyWq,
    ExModifyWq,
};
use uverbs_uapi::write::{WriteCmd, WriteCommand};
use zerocopy::{Immutable, IntoBytes};

use super::bench::*;

/// A table of two entries.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Table {
    head: ExCreateRwqIndTable,
    queues: [u32; 2],
}

impl WriteCommand for Table {
    const COMMAND: WriteCmd = WriteCmd::EX_CREATE_RWQ_IND_TBL;
    type Response = ExCreateRwqIndTableResp;
}

fn table(queues: [u32; 2]) -> Table {
    Table { head: ExCreateRwqIndTable { comp_mask: 0, log_ind_tbl_size: 1 }, queues }
}

struct Setting {
    client: Client,
    memory: Memory,
    pd: u32,
    cq: u32,
    _uar: Uar,
    _cq_memory: Memory,
}

impl Setting {
    fn new(device: &super::super::SoftDevice) -> Self {
        let client = Client::open(device);
        let (_uar, memory, _cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
        let pd = client.alloc_pd();
        let cq = client.create_cq(&_cq_memory, &_uar, None, 0).unwrap().handle;
        Self { client, memory, pd, cq, _uar, _cq_memory }
    }

    fn request(&self) -> (ExCreateWq, CreateWq) {
        let core = ExCreateWq {
            pd_handle: self.pd,
            cq_handle: self.cq,
            max_wr: 16,
            max_sge: 1,
            user_handle: 0x3030,
            ..ExCreateWq::default()
        };
        let driver = CreateWq {
            buf_addr: self.memory.at(0),
            db_addr: self.memory.at(4088),
            rq_wqe_count: 16,
            rq_wqe_shift: 4,
            user_index: 5,
            ..CreateWq::default()
        };
        (core, driver)
    }

    fn create_with(
        &self,
        change: impl FnOnce(&mut ExCreateWq, &mut CreateWq),
    ) -> Result<u32, Errno> {
        let (mut core, mut driver) = self.request();
        change(&mut core, &mut driver);
        let mut answer = [0; 8];
        let made = self.client.write_driver(&core, driver.as_bytes(), &mut answer)?;
        assert_eq!((made.max_wr, made.max_sge, answer[0]), (core.max_wr, core.max_sge, 4));
        Ok(made.wq_handle)
    }

    fn create(&self) -> u32 {
        self.create_with(|_, _| ()).unwrap()
    }

    fn destroy(&self, wq_handle: u32) -> Result<(), Errno> {
        self.client.write(&ExDestroyWq { comp_mask: 0, wq_handle }).map(drop)
    }

    fn modify(&self, wq_handle: u32, change: impl FnOnce(&mut ExModifyWq)) -> Result<(), Errno> {
        let attr_mask = WqAttrMask::STATE;
        let mut request = ExModifyWq { attr_mask, wq_handle, ..ExModifyWq::default() };
        change(&mut request);
        self.client.write_driver(&request, &[0; 8], &mut [])
    }

    fn destroy_table(&self, ind_tbl_handle: u32) -> Result<(), Errno> {
        self.client.write(&ExDestroyRwqIndTable { comp_mask: 0, ind_tbl_handle })
    }

    fn spread(
        &self,
        table: u32,
        change: impl FnOnce(&mut ExCreateQp, &mut CreateQpRss),
    ) -> Result<u32, Errno> {
        let mut core = ExCreateQp {
            pd_handle: self.pd,
            qp_type: QpType::RAW_PACKET,
            comp_mask: uverbs_uapi::flags::CreateQpMask::from_bits_retain(1),
            rwq_ind_tbl_handle: table,
            ..ExCreateQp::default()
        };
        let mut driver = CreateQpRss {
            rx_hash_fields_mask: RxHashFields::SRC_IPV4 | RxHashFields::DST_PORT_UDP,
            rx_hash_function: RxHashFunctions::TOEPLITZ,
            rx_key_len: 40,
            ..<CreateQpRss as zerocopy::FromZeros>::new_zeroed()
        };
        change(&mut core, &mut driver);
        let made = self.client.write_driver(&core, driver.as_bytes(), &mut [0; 40])?;
        assert_eq!(made.base.qpn, 0, "it has no number");
        Ok(made.base.qp_handle)
    }
}

#[test]
fn work_queues_are_checked_as_the_kernel_checks_them() {
    let device = builder().build().unwrap();
    let setting = Setting::new(&device);
    let with = |change: &dyn Fn(&mut ExCreateWq, &mut CreateWq)| {
        let made = setting.create_with(|core, driver| change(core, driver))?;
        setting.destroy(made)
    };
    assert_eq!(with(&|_, _| ()), Ok(()));
    assert_eq!(with(&|core, _| core.comp_mask = 1), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(&|core, _| core.wq_type = WqType(1)), Err(Errno::EINVAL));
    assert_eq!(with(&|core, _| core.pd_handle = 99), Err(Errno::ENOENT));
    assert_eq!(with(&|core, _| core.max_wr = 1 << 16), Err(Errno::EINVAL));
    assert_eq!(with(&|core, _| core.create_flags = WqFlags::DELAY_DROP), Err(Errno::EPERM));
    let both = WqFlags::CVLAN_STRIPPING | WqFlags::SCATTER_FCS;
    assert_eq!(with(&|core, _| core.create_flags = both), Ok(()));
    assert_eq!(with(&|_, driver| driver.rq_wqe_count = 0), Err(Errno::EINVAL));
    assert_eq!(with(&|_, driver| driver.rq_wqe_shift = 40), Err(Errno::EINVAL));
    assert_eq!(with(&|_, driver| driver.buf_addr = 0), Err(Errno::EINVAL));
    assert_eq!(with(&|_, driver| driver.user_index = 0xff_ffff), Err(Errno::EINVAL));
    let unknown = CreateWqMask::from_bits_retain(2);
    assert_eq!(with(&|_, driver| driver.comp_mask = unknown), Err(Errno::EOPNOTSUPP));
    let striding = |bytes, strides| {
        with(&|_, driver| {
            driver.comp_mask = CreateWqMask::STRIDING_RQ;
            driver.rq_wqe_shift = 5;
            driver.single_stride_log_num_of_bytes = bytes;
            driver.single_wqe_log_num_of_strides = strides;
        })
    };
    for (bytes, strides) in [(6, 3), (13, 14), (11, 9)] {
        assert_eq!(striding(bytes, strides), Ok(()));
    }
    for (bytes, strides) in [(5, 9), (14, 9), (6, 2), (6, 15), (0, 0)] {
        assert_eq!(striding(bytes, strides), Err(Errno::EINVAL));
    }
    let (core, driver) = setting.request();
    let short = setting.client.write_driver(&core, &driver.as_bytes()[..32], &mut []);
    assert_eq!(short.map(drop), Err(Errno::EINVAL));
}

#[test]
fn the_ioctl_form_creates_the_same_queue() {
    let device = builder().build().unwrap();
    let setting = Setting::new(&device);
    let (_, driver) = setting.request();
    let (mut max_wr, mut max_sge, mut number) = (0u32, 0u32, 0u32);
    let mut request = Request::<wq::create::Call>::new(DriverId::MLX5);
    request.new_handle(wq::create::HANDLE);
    request.handle(wq::create::PD_HANDLE, setting.pd);
    request.handle(wq::create::CQ_HANDLE, setting.cq);
    request.constant(wq::create::TYPE, WqType::RQ.0);
    request.value(wq::create::USER_HANDLE, 7u64);
    request.value(wq::create::MAX_WR, 16u32);
    request.value(wq::create::MAX_SGE, 1u32);
    request.flags(wq::create::FLAGS, WqFlags::empty().bits());
    request.output(wq::create::RESP_MAX_WR, &mut max_wr);
    request.output(wq::create::RESP_MAX_SGE, &mut max_sge);
    request.output(wq::create::RESP_WQ_NUM, &mut number);
    request.driver_data(driver.as_bytes(), &mut []).unwrap();
    setting.client.run(&mut request).unwrap();
    let handle = request.created(wq::create::HANDLE).unwrap();
    assert_eq!((max_wr, max_sge), (16, 1));
    let info = device.inspect(|core| core.query_qp(crate::core::Qpn(number))).unwrap().unwrap();
    assert_eq!(info.params.user_index, 5);
    let mut events_reported = 1u32;
    let mut request = Request::<wq::destroy::Call>::new(DriverId::MLX5);
    request.handle(wq::destroy::HANDLE, handle);
    request.output(wq::destroy::RESP, &mut events_reported);
    setting.client.run(&mut request).unwrap();
    assert_eq!(events_reported, 0);
}

#[test]
fn a_work_queue_makes_only_transitions_that_the_firmware_allows() {
    let device = builder().build().unwrap();
    let setting = Setting::new(&device);
    let queue = setting.create();
    let go = |state| setting.modify(queue, |request| request.wq_state = state);
    assert_eq!(go(WqState::RDY), Ok(()));
    assert_eq!(go(WqState::ERR), Ok(()));
    assert_eq!(go(WqState::RDY), Err(Errno::EINVAL), "only through RESET");
    assert_eq!(go(WqState::RESET), Ok(()));
    assert_eq!(go(WqState(3)), Err(Errno::EINVAL));
    let from = |state| {
        setting.modify(queue, |request| {
            request.attr_mask |= WqAttrMask::CURR_STATE;
            (request.curr_wq_state, request.wq_state) = (state, WqState::RDY);
        })
    };
    assert_eq!(from(WqState::RDY), Err(Errno::EINVAL), "it is in RESET");
    assert_eq!(from(WqState::RESET), Ok(()));
    let nothing = WqAttrMask::empty();
    assert_eq!(setting.modify(queue, |request| request.attr_mask = nothing), Err(Errno::EINVAL));
    let flags = |mask| {
        setting.modify(queue, |request| {
            request.attr_mask = WqAttrMask::FLAGS;
            (request.flags, request.flags_mask) = (mask, mask);
        })
    };
    assert_eq!(flags(WqFlags::CVLAN_STRIPPING), Ok(()));
    assert_eq!(flags(WqFlags::PCI_WRITE_END_PADDING), Err(Errno::EOPNOTSUPP));
    let request =
        ExModifyWq { attr_mask: WqAttrMask::STATE, wq_handle: queue, ..Default::default() };
    let bare = setting.client.write_driver(&request, &[], &mut []);
    assert_eq!(bare, Err(Errno::EINVAL), "the driver's part is mandatory");
}

#[test]
fn tables_keep_their_queues_and_queue_pairs_their_table() {
    let device = builder().build().unwrap();
    let setting = Setting::new(&device);
    let queues = [setting.create(), setting.create()];
    let make = |table: &Table| Ok(setting.client.write(table)?.ind_tbl_handle);
    let mut wrong = table(queues);
    wrong.head.comp_mask = 1;
    assert_eq!(make(&wrong), Err(Errno::EOPNOTSUPP));
    wrong.head = ExCreateRwqIndTable { comp_mask: 0, log_ind_tbl_size: 14 };
    assert_eq!(make(&wrong), Err(Errno::EINVAL));
    wrong.head.log_ind_tbl_size = 2;
    assert_eq!(make(&wrong), Err(Errno::ENOSPC), "two handles of four");
    assert_eq!(make(&table([queues[0], 99])), Err(Errno::ENOENT));
    // One queue may be in several entries.
    let same = make(&table([queues[0]; 2])).unwrap();
    assert_eq!(setting.destroy_table(same), Ok(()));
    let both = make(&table(queues)).unwrap();
    assert_eq!(setting.destroy(queues[1]), Err(Errno::EBUSY));
    let qp = setting.spread(both, |_, _| ()).unwrap();
    assert_eq!(setting.destroy_table(both), Err(Errno::EBUSY));
    let flow_attr = FlowAttr { port: 1, ..FlowAttr::default() };
    let rule = CreateFlow { qp_handle: qp, flow_attr, ..CreateFlow::default() };
    let flow_handle = setting.client.write(&rule).unwrap().flow_handle;
    assert_eq!(setting.client.destroy_qp(qp), Err(Errno::EBUSY));
    setting.client.write(&DestroyFlow { comp_mask: 0, flow_handle }).unwrap();
    let query = QueryQp { qp_handle: qp, ..QueryQp::default() };
    assert_eq!(setting.client.write(&query).map(drop), Err(Errno::ENOSYS));
    let mut modify = ExModifyQp::default();
    modify.base.qp_handle = qp;
    assert_eq!(setting.client.write(&modify).map(drop), Err(Errno::ENOSYS));
    assert_eq!(setting.client.destroy_qp(qp), Ok(0));
    assert_eq!(setting.destroy_table(both), Ok(()));
    assert_eq!(queues.map(|queue| setting.destroy(queue)), [Ok(()); 2]);
    drop(setting);
    assert_eq!(device.inspect(|core| core.counts().qps).unwrap(), 0);
}

#[test]
fn queue_pairs_over_a_table_are_checked_as_the_kernel_checks_them() {
    let device = builder().build().unwrap();
    let setting = Setting::new(&device);
    let queue = setting.create();
    let two = setting.client.write(&table([queue; 2])).unwrap().ind_tbl_handle;
    let with = |change: &dyn Fn(&mut ExCreateQp, &mut CreateQpRss)| {
        let made = setting.spread(two, |core, driver| change(core, driver))?;
        setting.client.destroy_qp(made).map(drop)
    };
    let fields = |fields| with(&|_, driver| driver.rx_hash_fields_mask = fields);
    assert_eq!(with(&|_, _| ()), Ok(()));
    assert_eq!(with(&|core, _| core.rwq_ind_tbl_handle = 99), Err(Errno::EINVAL));
    assert_eq!(with(&|core, _| core.max_recv_wr = 1), Err(Errno::EINVAL));
    assert_eq!(with(&|core, _| core.max_send_wr = 1), Err(Errno::EINVAL));
    assert_eq!(with(&|core, _| core.qp_type = QpType::UD), Err(Errno::EINVAL));
    assert_eq!(with(&|_, driver| driver.rx_key_len = 41), Err(Errno::EINVAL));
    assert_eq!(with(&|_, driver| driver.comp_mask = 1), Err(Errno::EOPNOTSUPP));
    let none = RxHashFunctions::empty();
    assert_eq!(with(&|_, driver| driver.rx_hash_function = none), Err(Errno::EOPNOTSUPP));
    assert_eq!(fields(RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV6), Err(Errno::EINVAL));
    assert_eq!(fields(RxHashFields::SRC_PORT_TCP | RxHashFields::DST_PORT_UDP), Err(Errno::EINVAL));
    assert_eq!(fields(RxHashFields::INNER), Err(Errno::EOPNOTSUPP));
    assert_eq!(fields(RxHashFields::empty()), Err(Errno::EINVAL), "two places");
}

#[test]
fn an_infiniband_port_has_no_work_queues() {
    let device = builder().infiniband().build().unwrap();
    let setting = Setting::new(&device);
    assert_eq!(setting.create_with(|_, _| ()), Err(Errno::EOPNOTSUPP));
}
