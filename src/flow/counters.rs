//! Counter sets of steering rules.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::mlx5::flow::{CreateFlow, FlowCountersData, FlowCountersDesc};
use uverbs_uapi::objects::counters::{create, destroy, read};
use zerocopy::{Immutable, IntoBytes};

use crate::device::context::Context;
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};

const READ: &str = "read_counters";
const ATTACH: &str = "attach_counters_point_flow";
const DESTROY: &str = "destroy_counters";
const CREATE_FLOW: &str = "create_flow";
/// `MAX_COUNTERS_NUM` of drivers/infiniband/hw/mlx5/counters.c.
const MAX_POINTS: usize = 8191;

/// A set of counters (ibv_create_counters) for steering rules. [`attach`](Self::attach) chooses
/// what each index counts, [`FlowBuilder::count`](crate::flow::FlowBuilder::count) adds the set to
/// a rule, and [`read`](Self::read) returns the values.
///
/// Clones share one set; rules that count into it hold a clone.
///
/// ```no_run
/// # use uverbs::{Context, QueuePair, qp_type::RawPacket};
/// # fn count(context: &Context, qp: &mut QueuePair<RawPacket>) -> uverbs::Result<()> {
/// use uverbs::counters::CounterPoint;
/// let counters = context.create_counters()?;
/// counters.attach(CounterPoint::Packets, 0)?;
/// let rule = qp.create_flow().count(&counters).build()?;
/// let mut values = [0];
/// counters.read(&mut values)?;
/// println!("{} frames", values[0]);
/// # drop(rule);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Counters {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    object: Object<Context>,
    binding: Mutex<Binding>,
}

const KIND: Kind = object_kind!(DESTROY, "counter set", destroy::HANDLE);

/// The attached points, and the number of rules that count into the set.
#[derive(Debug, Default)]
struct Binding {
    points: Vec<FlowCountersDesc>,
    rules: usize,
}

/// A property of a rule's frames that can be counted (`enum ibv_counter_description`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum CounterPoint {
    /// Frames.
    Packets = 0,
    /// Their bytes.
    Bytes = 1,
}

impl Context {
    /// Creates a set of counters.
    ///
    /// # Errors
    /// `Unsupported` if the device or the kernel has none; other errors of the kernel.
    #[doc(alias = "ibv_create_counters")]
    pub fn create_counters(&self) -> Result<Counters> {
        const VERB: &str = "create_counters";
        let request = self.commands().request::<create::Call>();
        let made = self.commands().create(VERB, request, create::HANDLE);
        let handle = made.map_err(|error| match error.kind() {
            ErrorKind::Unsupported => error.because("the device has no counter sets"),
            _ => error,
        })?;
        let object = Object::new(self.clone(), handle, &KIND);
        let inner = Inner { object, binding: Mutex::default() };
        Ok(Counters { inner: Arc::new(inner) })
    }
}

impl Counters {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.object.parent
    }

    pub(crate) fn kernel_handle(&self) -> u32 {
        self.inner.object.handle
    }

    /// # Errors
    /// `ForkedChild` in a forked child: another thread may have held the lock at the fork.
    fn binding(&self, verb: &'static str) -> Result<MutexGuard<'_, Binding>> {
        self.inner.object.parent.commands().require_opener(verb)?;
        Ok(self.inner.binding.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets the value at `index` count `point` (ibv_attach_counters_point_flow without a flow: mlx5
    /// reads the attached points when the first rule is created). Points with the same index are
    /// added up.
    ///
    /// # Errors
    /// `Busy` while a rule counts into the set; `InvalidInput` beyond 8191 points.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach(&self, point: CounterPoint, index: u32) -> Result<()> {
        let mut binding = self.binding(ATTACH)?;
        if binding.rules != 0 {
            let cause = format!("{} steering rule(s) count here already", binding.rules);
            return Err(Error::new(ATTACH, ErrorKind::Busy, cause)
                .cure_with("attach everything before the first rule is made"));
        }
        if binding.points.len() >= MAX_POINTS || index == u32::MAX {
            return Err(Error::invalid(
                ATTACH,
                "a set has 8191 points at most, indices below 2^32 - 1",
            ));
        }
        binding.points.push(FlowCountersDesc { description: point as u32, index });
        Ok(())
    }

    /// Binds the set to a new rule.
    pub(crate) fn bind(&self) -> Result<Bound<'_>> {
        let binding = self.binding(CREATE_FLOW)?;
        if binding.points.is_empty() {
            return Err(Error::invalid(CREATE_FLOW, "the counter set counts nothing")
                .cure_with("attach something first"));
        }
        Ok(Bound { binding })
    }

    /// Removes a destroyed rule from the count.
    pub(crate) fn unbind(&self) {
        // Cannot fail: the rule was just destroyed, so this is not a forked child.
        if let Ok(mut binding) = self.binding(DESTROY) {
            binding.rules = binding.rules.saturating_sub(1);
        }
    }

    /// Reads the first `values.len()` counters.
    ///
    /// # Errors
    /// EINVAL if no rule counts into the set, or for fewer values than the highest attached index
    /// needs; other errors of the kernel.
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        let asked = format!("{} values", values.len());
        let commands = self.inner.object.parent.commands();
        let mut request = commands.request::<read::Call>();
        request.handle(read::HANDLE, self.inner.object.handle);
        request.flags(read::FLAGS, 0u32);
        let stored = request.output_bytes(read::BUFF, values.as_mut_bytes()).map(drop);
        stored.map_err(|error| Error::invalid(READ, error.to_string()))?;
        commands.send(READ, &mut request).map_err(|error| match error.errno() {
            libc::EINVAL => error.asked(asked).because(
                "no steering rule is attached to the set, or it has an index beyond these",
            ),
            _ => error.asked(asked),
        })
    }

    /// Destroys it.
    ///
    /// # Errors
    /// `Busy` while rules count into it or clones exist; errors of the kernel. It is returned
    /// unchanged.
    #[doc(alias = "ibv_destroy_counters")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let destroy = |inner: &mut Inner| inner.object.destroy();
        destroy_unshared(&mut self.inner, DESTROY, ("rule", "the counters"), destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}

/// A set, locked while a rule is created.
pub(crate) struct Bound<'c> {
    binding: MutexGuard<'c, Binding>,
}

impl Bound<'_> {
    /// The driver's part of the rule. The first rule must contain the attached points, later rules
    /// must not (`mlx5_ib_flow_counters_set_data`). The address in it is valid as long as this
    /// value exists.
    pub(crate) fn request(&self) -> DriverRequest {
        let Binding { points, rules } = &*self.binding;
        if *rules != 0 {
            return DriverRequest::default();
        }
        DriverRequest {
            head: CreateFlow { ncounters_data: 1, reserved: 0 },
            data: FlowCountersData {
                counters_data: points.as_ptr().expose_provenance() as u64,
                ncounters: points.len() as u32,
                reserved: 0,
            },
        }
    }

    /// Counts the rule, after the kernel has created it.
    pub(crate) fn keep(&mut self) {
        self.binding.rules += 1;
    }
}

/// The driver's part of a rule. All zeros: no counters.
#[derive(IntoBytes, Immutable, Default)]
#[repr(C)]
pub(crate) struct DriverRequest {
    head: CreateFlow,
    data: FlowCountersData,
}

#[cfg(test)]
impl Counters {
    /// Locks the binding until the result is dropped.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.binding(ATTACH)
    }
}
