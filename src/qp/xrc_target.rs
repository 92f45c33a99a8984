//! The receiving end of an extended reliable connection.

use uverbs_uapi::enums::QpType as KernelQpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::mlx5::CreateQp as DriverRequest;

use super::attributes::QpAttributes;
use super::core::{Core, Parents};
use super::create::{Creation, Parents as Handles};
use super::endpoint::Endpoint;
use super::modify::QpInfo;
use super::path::{LocalPath, PathOptions, Requirement};
use super::sizes::Capacities;
use super::{QpType, State};
use crate::error::Result;
use crate::host::events::{ObjectId, Observer, Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::srq::SrqHandle;
use crate::srq::xrcd::XrcDomain;

/// "No user index" to the kernel: a target completes nothing itself.
const NO_USER_INDEX: u32 = 0xff_ffff;
pub(super) const NOTHING: Capacities = Capacities {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

/// An XRC target: it receives for every XRC shared receive queue of its domain. It posts and
/// completes nothing itself; messages complete to the completion queue of the shared receive queue
/// that they name.
#[derive(Debug)]
pub struct XrcReceiver {
    core: Core,
}

impl XrcDomain {
    /// Makes an XRC target in INIT.
    ///
    /// # Errors
    /// `NotFound` without a usable GID; what the kernel says.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_receiver(&self, options: PathOptions) -> Result<XrcReceiver> {
        let mut receiver = self.create(options, Requirement::Needed)?;
        receiver.modify(&receiver.core.path.to_init(QpType::XrcReceive))?;
        Ok(receiver)
    }

    /// As [`XrcDomain::create_receiver`], in RESET, for a program that takes every step by
    /// [`XrcReceiver::modify`] and gives every address itself: the port needs no usable GID.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create_receiver_in_reset(&self) -> Result<XrcReceiver> {
        self.create(PathOptions::default(), Requirement::Optional)
    }

    fn create(&self, options: PathOptions, requirement: Requirement) -> Result<XrcReceiver> {
        let context = self.context().clone();
        let path = LocalPath::resolve(&context, QpType::XrcReceive, options, requirement)?;
        let registry = context.inner().events.registry().clone();
        let events = Registered::new([(registry, Observer::Nothing)]);
        let creation = Creation {
            id: events.id(),
            kind: KernelQpType(QpType::XrcReceive as u8),
            parents: Handles { xrcd: Some(self.handle()), ..Handles::default() },
            capacities: NOTHING,
            signal_all: false,
            flags: QpCreateFlags::empty(),
            driver: DriverRequest { uidx: NO_USER_INDEX, ..DriverRequest::default() },
        };
        let created = creation.send(&context)?;
        events.set_name(&format!("QP {:#x}", created.number));
        let parents = Parents { xrcd: Some(self.clone()), ..Parents::default() };
        let numbers = [created.handle, created.number];
        let core = Core::in_reset(context, QpType::XrcReceive, numbers, events, path, parents);
        Ok(XrcReceiver { core })
    }
}

impl XrcReceiver {
    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.core.handle
    }

    /// What events call it.
    pub fn id(&self) -> ObjectId {
        self.core.events.id()
    }

    /// The state as far as this process knows.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// What an initiator needs to connect to it and to send to `srq` through it.
    pub fn endpoint<L>(&self, srq: &SrqHandle<L>) -> Endpoint {
        Endpoint { srqn: srq.number(), ..self.core.endpoint() }
    }

    /// Connects to an initiator.
    ///
    /// # Errors
    /// As [`QueuePair::connect`](super::QueuePair::connect).
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        self.core.connect(Some(peer))
    }

    /// Changes attributes, one step at a time.
    ///
    /// # Errors
    /// As [`QueuePair::modify`](super::QueuePair::modify).
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.core.modify(attributes)
    }

    /// Asks the device for all attributes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn query(&self) -> Result<QpInfo> {
        self.core.query()
    }

    destroy_methods! {
        "`Deadlock` if this thread holds an event of it; what the kernel says. It comes back unharmed."
    }
}

impl Destroy for XrcReceiver {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}
