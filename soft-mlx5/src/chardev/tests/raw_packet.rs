//! Raw packet QPs and flow rules, created by a program's requests.

use nix::errno::Errno;
use uverbs_uapi::enums::{DriverId, FlowAttrType, FlowSpecType, QpType};
use uverbs_uapi::flags::FlowFlags;
use uverbs_uapi::mlx5::flow::FlowCountersDesc;
use uverbs_uapi::objects::counters;
use uverbs_uapi::request::Request;
use uverbs_uapi::write::flow::{
    CreateFlow, CreateFlowResp, DestroyFlow, FlowAttr, FlowEthFilter, FlowSpecActionCount,
    FlowSpecEth, FlowSpecHdr,
};
use uverbs_uapi::write::{WriteCmd, WriteCommand};
use zerocopy::{Immutable, IntoBytes};

use super::bench::*;

/// A rule with space for one spec.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Rule {
    head: CreateFlow,
    part: [u8; 40],
}

impl WriteCommand for Rule {
    const COMMAND: WriteCmd = CreateFlow::COMMAND;
    type Response = CreateFlowResp;
}

fn head(qp_handle: u32, size: usize) -> CreateFlow {
    let flow_attr = FlowAttr {
        size: size as u16,
        num_of_specs: u8::from(size != 0),
        port: 1,
        ..FlowAttr::default()
    };
    CreateFlow { qp_handle, flow_attr, ..CreateFlow::default() }
}

fn ethernet() -> [u8; 40] {
    let hdr = FlowSpecHdr { kind: FlowSpecType::ETH, size: 40, reserved: 0 };
    let mask = FlowEthFilter { dst_mac: [0xff; 6], ..FlowEthFilter::default() };
    let spec = FlowSpecEth { hdr, val: mask, mask };
    spec.as_bytes().try_into().unwrap()
}

pub(super) struct Setting {
    pub(super) client: Client,
    pub(super) qp: u32,
    _memory: [Memory; 2],
    _uar: Uar,
}

pub(super) fn setting(device: &super::super::SoftDevice) -> (Setting, u32) {
    let client = Client::open(device);
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let ud = QpRequest { qp_type: QpType::UD, ..QpRequest::rc(&ring, &uar, pd, cq) };
    let ud = client.create_qp(&ud).unwrap().handle;
    let raw = QpRequest { qp_type: QpType::RAW_PACKET, ..QpRequest::rc(&ring, &uar, pd, cq) };
    let qp = client.create_qp(&raw).unwrap();
    let info = device.inspect(|core| core.query_qp(crate::core::Qpn(qp.qpn))).unwrap().unwrap();
    let send = info.params.send_ring.unwrap().buffer.locate(0, 1).unwrap().0;
    assert_eq!(send, ring.at(1024), "rings of their own");
    (Setting { client, qp: qp.handle, _memory: [ring, cq_memory], _uar: uar }, ud)
}

/// A rule for broadcast frames.
pub(super) fn rule_for_broadcast(client: &Client, qp: u32) -> Result<CreateFlowResp, Errno> {
    client.write(&Rule { head: head(qp, 40), part: ethernet() })
}

#[test]
fn rules_keep_their_queue_pair_and_are_freed_with_their_file() {
    let device = builder().build().unwrap();
    let (setting, _) = setting(&device);
    let client = &setting.client;
    let rule = Rule { head: head(setting.qp, 40), part: ethernet() };
    let made = client.write(&rule).unwrap();
    assert_eq!(client.destroy_qp(setting.qp), Err(Errno::EBUSY));
    let flow_handle = made.flow_handle;
    assert_eq!(client.write(&DestroyFlow { comp_mask: 0, flow_handle }), Ok(()));
    assert_eq!(client.write(&DestroyFlow { comp_mask: 0, flow_handle }), Err(Errno::ENOENT));
    client.write(&rule).unwrap();
    let counts = || device.inspect(|core| core.counts().qps).unwrap();
    assert_eq!(counts(), 2);
    drop(setting);
    assert_eq!(counts(), 0);
}

#[test]
fn rules_are_checked_as_the_kernel_checks_them() {
    let device = builder().build().unwrap();
    let (setting, ud) = setting(&device);
    let client = &setting.client;
    let with = |change: &dyn Fn(&mut CreateFlow), part: [u8; 40]| {
        let mut head = head(setting.qp, 40);
        change(&mut head);
        let made = client.write(&Rule { head, part })?;
        client.write(&DestroyFlow { comp_mask: 0, flow_handle: made.flow_handle })
    };
    let good = ethernet();
    assert_eq!(with(&|_| (), good), Ok(()));
    assert_eq!(with(&|head| head.comp_mask = 1, good), Err(Errno::EINVAL));
    assert_eq!(with(&|head| head.qp_handle = 99, good), Err(Errno::ENOENT));
    assert_eq!(with(&|head| head.qp_handle = ud, good), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(&|head| head.flow_attr.port = 2, good), Err(Errno::EINVAL));
    assert_eq!(with(&|head| head.flow_attr.priority = 16, good), Err(Errno::ENOMEM));
    assert_eq!(with(&|head| head.flow_attr.size = 44, good), Err(Errno::ENOSPC));
    assert_eq!(with(&|head| head.flow_attr.num_of_specs = 2, good), Err(Errno::EINVAL));
    let flags = FlowFlags::EGRESS;
    assert_eq!(with(&|head| head.flow_attr.flags = flags, good), Err(Errno::EOPNOTSUPP));
    // `mlx5_ib_create_flow` does not know a flag at bit 0, although ib_core accepts it.
    let flags = FlowFlags::from_bits_retain(1);
    assert_eq!(with(&|head| head.flow_attr.flags = flags, good), Err(Errno::EINVAL));
    let sniffer = FlowAttrType::SNIFFER;
    assert_eq!(with(&|head| head.flow_attr.kind = sniffer, good), Ok(()));
    let part = |at: usize, value: u8| {
        let mut part = good;
        part[at] = value;
        part
    };
    assert_eq!(with(&|_| (), part(4, 7)), Err(Errno::EINVAL), "shorter than its head");
    assert_eq!(with(&|_| (), part(4, 38)), Err(Errno::EINVAL), "rest of two bytes");
    assert_eq!(with(&|_| (), part(6, 1)), Err(Errno::EINVAL), "reserved");
    assert_eq!(with(&|_| (), part(0, 0x50)), Err(Errno::EOPNOTSUPP), "a tunnel");
    let default = |head: &mut CreateFlow| {
        head.flow_attr.kind = FlowAttrType::ALL_DEFAULT;
        (head.flow_attr.size, head.flow_attr.num_of_specs) = (0, 0);
    };
    assert_eq!(with(&default, good), Ok(()));
    let watching = |head: &mut CreateFlow| {
        default(head);
        head.flow_attr.flags = FlowFlags::DONT_TRAP;
    };
    assert_eq!(with(&watching, good), Err(Errno::EINVAL));
}

/// A rule with a counter, and the driver's part of the request.
struct Counting<'a> {
    set: u32,
    /// Counter sets in the driver's part, and the counters attached to each.
    sets: u32,
    points: &'a [FlowCountersDesc],
}

impl Counting<'_> {
    fn make(&self, setting: &Setting) -> Result<u32, Errno> {
        let hdr = FlowSpecHdr { kind: FlowSpecType::ACTION_COUNT, size: 16, reserved: 0 };
        let mut part = [0; 40];
        let count = FlowSpecActionCount { hdr, handle: self.set, reserved1: 0 };
        part[..16].copy_from_slice(count.as_bytes());
        let rule = Rule { head: head(setting.qp, 16), part };
        let mut driver = vec![0; 24];
        driver[..4].copy_from_slice(&self.sets.to_ne_bytes());
        driver[8..16].copy_from_slice(&(self.points.as_ptr() as u64).to_ne_bytes());
        driver[16..20].copy_from_slice(&(self.points.len() as u32).to_ne_bytes());
        if self.sets == 0 {
            driver.fill(0);
        }
        let mut response = CreateFlowResp::default();
        let mut request = Request::write(DriverId::MLX5, &rule, &mut response);
        request.driver_data(&driver, &mut []).unwrap();
        setting.client.run(&mut request)?;
        Ok(response.flow_handle)
    }
}

#[test]
fn the_first_rule_of_a_counter_set_defines_its_counters() {
    let device = builder().build().unwrap();
    let (setting, _) = setting(&device);
    let client = &setting.client;
    let mut request = Request::<counters::create::Call>::new(DriverId::MLX5);
    request.new_handle(counters::create::HANDLE);
    client.run(&mut request).unwrap();
    let set = request.created(counters::create::HANDLE).unwrap();
    let bytes_at = |index| FlowCountersDesc { description: 1, index };
    let points = [bytes_at(0), FlowCountersDesc { description: 0, index: 2 }];
    let unknown = [FlowCountersDesc { description: 2, index: 0 }];
    let make = |sets, points| Counting { set, sets, points }.make(&setting);
    assert_eq!(make(0, &points), Err(Errno::EINVAL), "nothing is attached");
    assert_eq!(make(2, &points), Err(Errno::EINVAL), "one set per rule");
    assert_eq!(make(1, &unknown), Err(Errno::EINVAL));
    assert_eq!(Counting { set: 99, sets: 1, points: &points }.make(&setting), Err(Errno::ENOENT));
    let first = make(1, &points).unwrap();
    assert_eq!(make(1, &points), Err(Errno::EINVAL), "it is told already");
    let second = make(0, &[]).unwrap();
    let end = || {
        let mut request = Request::<counters::destroy::Call>::new(DriverId::MLX5);
        request.handle(counters::destroy::HANDLE, set);
        client.run(&mut request)
    };
    let read = |room: usize| {
        let mut values = vec![7u64; room];
        let mut request = Request::<counters::read::Call>::new(DriverId::MLX5);
        request.handle(counters::read::HANDLE, set);
        request.output_bytes(counters::read::BUFF, values.as_mut_bytes()).unwrap();
        let sent = client.run(&mut request);
        sent.map(|()| values)
    };
    assert_eq!(read(2), Err(Errno::EINVAL), "index 2 needs three values");
    assert_eq!(read(4), Ok(vec![0; 4]));
    assert_eq!(end(), Err(Errno::EBUSY));
    for flow_handle in [first, second] {
        assert_eq!(client.write(&DestroyFlow { comp_mask: 0, flow_handle }), Ok(()));
    }
    assert_eq!(read(4), Err(Errno::EINVAL), "no rule is left");
    assert_eq!(end(), Ok(()));
}

#[test]
fn rings_begin_in_the_first_half_of_a_page() {
    let (_device, client) = alone();
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(2), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let raw = |sends| {
        let request =
            QpRequest { qp_type: QpType::RAW_PACKET, ..QpRequest::rc(&ring, &uar, pd, cq) };
        client.create_qp(&QpRequest { sends, ..request }).map(drop)
    };
    assert_eq!(raw(1984), Ok(()));
    assert_eq!(raw(2048), Err(Errno::EINVAL));
    assert_eq!(raw(4096), Ok(()));
}

#[test]
fn an_infiniband_port_refuses_raw_packet_queue_pairs() {
    let device = builder().infiniband().build().unwrap();
    let client = Client::open(&device);
    let (uar, ring, cq_memory) = (client.uar(), Memory::pages(1), Memory::pages(2));
    let pd = client.alloc_pd();
    let cq = client.create_cq(&cq_memory, &uar, None, 0).unwrap().handle;
    let raw = QpRequest { qp_type: QpType::RAW_PACKET, ..QpRequest::rc(&ring, &uar, pd, cq) };
    assert_eq!(client.create_qp(&raw).map(drop), Err(Errno::EINVAL));
}

/// It would wait for its own command if that held the device while the iterator runs.
#[test]
fn frames_may_come_from_an_iterator_that_uses_the_device() {
    let (device, client) = alone();
    let before = device.inspect(|core| core.counts().pds).unwrap();
    let frame = [0; 60];
    let frames = (1..4).map(|at| {
        client.alloc_pd();
        (at, &frame[..])
    });
    assert_eq!(device.receive_frames(frames), Ok(()));
    assert_eq!(device.inspect(|core| core.counts().pds), Ok(before + 3));
}
