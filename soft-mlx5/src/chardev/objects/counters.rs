//! Counter sets, which count the frames that match flow rules.
//! Kernel: uverbs_std_types_counters.c, `mlx5_ib_flow_counters_set_data` and
//! `mlx5_ib_read_counters` (hw/mlx5/counters.c).
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;
use uverbs_uapi::flags::ReadCountersFlags;
use uverbs_uapi::mlx5::flow::{CreateFlow, FlowCountersData, FlowCountersDesc};
use uverbs_uapi::objects::counters::{create, destroy, read};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::core::{FlowHits, FlowId};
use crate::locking::lock;

/// `MAX_COUNTERS_NUM`.
const MAX_POINTS: u32 = 8191;
/// `IB_COUNTER_PACKETS` and `IB_COUNTER_BYTES`.
const PACKETS: u32 = 0;
const BYTES: u32 = 1;

/// A counter set, shared by its handle and the rules that it counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(Arc<Mutex<Set>>);

#[derive(Debug, Default)]
struct Set {
    /// For each count of a rule, the index under which a read returns it. Empty while no rule uses
    /// the set.
    points: Vec<FlowCountersDesc>,
    rules: Vec<FlowId>,
    /// Counts of destroyed rules: the hardware's counter exists as long as the set.
    past: FlowHits,
}

pub(crate) const CREATE: &[Attribute] = &[Attribute::new_handle(create::HANDLE, Kind::Counters)];

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Counters)];

pub(crate) const READ: &[Attribute] = &[
    Attribute::handle(read::HANDLE, Kind::Counters),
    Attribute::output_min(read::BUFF, 0),
    Attribute::flags(read::FLAGS),
];

/// `UVERBS_METHOD_COUNTERS_CREATE`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<(), Errno> {
    call.commit(Object::Counters(Counters::default())).map(drop)
}

/// `UVERBS_METHOD_COUNTERS_READ`.
pub(crate) fn read(call: &mut Call<'_>) -> Result<(), Errno> {
    let counters = Counters::of(call, call.handle(read::HANDLE)?)?;
    if counters.set().rules.is_empty() {
        return Err(Errno::EINVAL);
    }
    call.flags(read::FLAGS, ReadCountersFlags::PREFER_CACHED.bits())?;
    let capacity = usize::from(call.given(read::BUFF.id())?.length) / size_of::<u64>();
    let values = counters.values(&call.file.device, capacity)?;
    call.output(read::BUFF, values.as_slice())
}

/// The descriptions that a new rule attaches to its counter set, not yet bound.
#[derive(Debug, Default)]
pub(crate) struct Points(Option<Vec<FlowCountersDesc>>);

impl Counters {
    /// The set behind a handle.
    pub(crate) fn of(call: &Call<'_>, handle: u32) -> Result<Self, Errno> {
        call.object(Kind::Counters, handle)?.counters().cloned()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        lock(&self.0)
    }

    fn values(&self, device: &DeviceShared, capacity: usize) -> Result<Vec<u64>, Errno> {
        let set = self.set();
        let mut hits = set.past;
        for rule in &set.rules {
            let more = device.core(|core| core.flow_hits(*rule))?;
            (hits.frames, hits.bytes) = (hits.frames + more.frames, hits.bytes + more.bytes);
        }
        let mut values = vec![0; capacity];
        for point in &set.points {
            let value = values.get_mut(point.index as usize).ok_or(Errno::EINVAL)?;
            *value += if point.description == PACKETS { hits.frames } else { hits.bytes };
        }
        Ok(values)
    }

    /// The first rule of a set must describe the counters, and only the first rule may.
    pub(crate) fn check(&self, points: &Points) -> Result<(), Errno> {
        if self.set().points.is_empty() == points.0.is_some() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Adds a rule whose frames this set counts.
    pub(crate) fn bind(&self, rule: FlowId, points: Points) {
        let mut set = self.set();
        set.points.extend(points.0.into_iter().flatten());
        set.rules.push(rule);
    }

    /// Removes a rule and keeps its counts. Removing the last rule also removes the descriptions.
    pub(crate) fn unbind(&self, rule: FlowId, hits: FlowHits) {
        let mut set = self.set();
        set.rules.retain(|other| *other != rule);
        set.past.frames += hits.frames;
        set.past.bytes += hits.bytes;
        if set.rules.is_empty() {
            set.points.clear();
        }
    }
}

/// The driver's part of a rule (`mlx5_ib_create_flow`).
pub(crate) fn read_points(call: &Call<'_>) -> Result<Points, Errno> {
    let (head, data) = (size_of::<CreateFlow>(), size_of::<FlowCountersData>());
    let driver = call.driver();
    if driver.input_length() == 0 {
        return Ok(Points(None));
    }
    if driver.input_length() < head {
        return Err(Errno::EOPNOTSUPP);
    }
    let whole: [u8; size_of::<CreateFlow>() + size_of::<FlowCountersData>()] = driver.read()?;
    let count = CreateFlow::read_from_bytes(&whole[..head]).map_err(|_| Errno::EINVAL)?;
    if count.ncounters_data > 1 {
        return Err(Errno::EINVAL);
    }
    if !driver.is_clear_from(head + data * count.ncounters_data as usize)? {
        return Err(Errno::EOPNOTSUPP);
    }
    if count.ncounters_data == 0 {
        return Ok(Points(None));
    }
    let data = FlowCountersData::read_from_bytes(&whole[head..]).map_err(|_| Errno::EINVAL)?;
    read_descriptions(call, data).map(|points| Points(Some(points)))
}

fn read_descriptions(
    call: &Call<'_>,
    data: FlowCountersData,
) -> Result<Vec<FlowCountersDesc>, Errno> {
    if data.ncounters > MAX_POINTS {
        return Err(Errno::EINVAL);
    }
    let mut points = vec![FlowCountersDesc::new_zeroed(); data.ncounters as usize];
    call.user.read(data.counters_data, points.as_mut_bytes())?;
    let unknown = points.iter().any(|point| point.description > BYTES);
    if unknown { Err(Errno::EINVAL) } else { Ok(points) }
}
