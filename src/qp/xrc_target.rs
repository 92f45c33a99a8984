//! The receiving end of an extended reliable connection (XRC).

use uverbs_uapi::enums::QpType as KernelQpType;
use uverbs_uapi::mlx5::CreateQp as DriverRequest;
use uverbs_uapi::write::qp::OpenQp;

use super::attributes::QpAttributes;
use super::core::{Core, Parents};
use super::create::{Creation, Parents as Handles};
use super::endpoint::Endpoint;
use super::modify::QpInfo;
use super::path::{LocalPath, PathOptions, Requirement};
use super::{QpType, State};
use crate::device::identity::identity_methods;
use crate::error::Result;
use crate::host::events::{Observer, Registered, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::srq::SrqHandle;
use crate::srq::xrcd::XrcDomain;

/// Means "no user index" to the kernel: no completion names the target.
const NO_USER_INDEX: u32 = 0xff_ffff;
const TARGET: KernelQpType = KernelQpType(QpType::XrcReceive as u8);
/// For programs that set every address themselves: the port needs no GID.
const OPTIONAL: Requirement = Requirement::Optional;
const OPEN: &str = "open_qp";

/// An XRC target: it receives for every XRC shared receive queue of its domain. Nothing is posted
/// to it; messages complete to the completion queue of the shared receive queue that they name.
///
/// Contexts that share the domain can open the same target: each can modify it and receives its
/// events. The kernel destroys the target when the last context has destroyed its handle.
#[derive(Debug)]
pub struct XrcReceiver {
    core: Core,
}

impl XrcDomain {
    /// Makes an XRC target in INIT.
    ///
    /// # Errors
    /// `NotFound` without a usable GID; errors of the kernel.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_receiver(&self, options: PathOptions) -> Result<XrcReceiver> {
        let mut receiver = self.create(options, Requirement::Needed)?;
        receiver.core.modify(&receiver.core.path.to_init())?;
        Ok(receiver)
    }

    /// As [`XrcDomain::create_receiver`], in RESET, for a program that makes every change of state
    /// with [`XrcReceiver::modify`]. The port needs no usable GID.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn create_receiver_in_reset(&self) -> Result<XrcReceiver> {
        self.create(PathOptions::default(), OPTIONAL)
    }

    fn create(&self, options: PathOptions, requirement: Requirement) -> Result<XrcReceiver> {
        let context = self.context().clone();
        let path = LocalPath::resolve(&context, QpType::XrcReceive, options, requirement)?;
        let events = context.register(Observer::Nothing);
        let parents = Handles { xrcd: Some(self.handle()), ..Handles::default() };
        let driver = DriverRequest { uidx: NO_USER_INDEX, ..DriverRequest::default() };
        let creation = Creation::without_queues(events.id(), TARGET, parents, driver);
        let created = creation.send(&context)?;
        Ok(self.receiver([created.handle, created.number], events, path))
    }

    /// Opens the XRC target with this number, which this or another context has made in the domain.
    ///
    /// # Errors
    /// `InvalidInput` if the domain has no such target; errors of the kernel.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_receiver(&self, number: u32) -> Result<XrcReceiver> {
        let context = self.context().clone();
        let options = PathOptions::default();
        let resolve = |options| LocalPath::resolve(&context, QpType::XrcReceive, options, OPTIONAL);
        let path = resolve(options)?;
        let events = context.register(Observer::Nothing);
        let command = OpenQp {
            user_handle: events.id().0,
            pd_handle: self.handle(),
            qpn: number,
            qp_type: TARGET,
            ..OpenQp::default()
        };
        let opened = context.commands().write(OPEN, &command).map_err(|error| {
            let error = error.asked(format!("XRC target {number:#x}"));
            if error.errno() != libc::EINVAL {
                return error;
            }
            error.because("the XRC domain has no target of this number")
        })?;
        let mut receiver = self.receiver([opened.qp_handle, number], events, path);
        let port = receiver.refresh()?.port;
        if port != 0 && port != options.port {
            receiver.core.path = resolve(PathOptions { port, ..options })?;
        }
        Ok(receiver)
    }

    fn receiver(&self, numbers: [u32; 2], events: Registered, path: LocalPath) -> XrcReceiver {
        events.set_name(&format!("QP {:#x}", numbers[1]));
        let parents = Parents { xrcd: Some(self.clone()), ..Parents::default() };
        let context = self.context().clone();
        let core = Core::in_reset(context, QpType::XrcReceive, numbers, events, path, parents);
        XrcReceiver { core }
    }
}

impl XrcReceiver {
    identity_methods! { core }

    /// The queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// The state as this process knows it.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// The data that an initiator needs to connect to it and to send to `srq` through it.
    pub fn endpoint<L>(&self, srq: &SrqHandle<L>) -> Endpoint {
        Endpoint { srqn: srq.number(), ..self.core.endpoint() }
    }

    /// Connects to an initiator.
    ///
    /// # Errors
    /// As [`QueuePair::connect`](super::QueuePair::connect).
    pub fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        self.refresh()?;
        self.core.connect("connect", Some(peer))
    }

    /// Changes attributes, one step at a time.
    ///
    /// # Errors
    /// As [`QueuePair::modify`](super::QueuePair::modify).
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        if attributes.current_state.is_none() {
            self.refresh()?;
        }
        self.core.modify(attributes)
    }

    /// Queries the target's state: another context may have changed it.
    fn refresh(&mut self) -> Result<QpInfo> {
        let info = self.core.query()?;
        self.core.state = info.state;
        Ok(info)
    }

    /// Asks the device for all attributes.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn query(&self) -> Result<QpInfo> {
        self.core.query()
    }

    destroy_methods! {
        "ibv_destroy_qp",
        "`Deadlock` if this thread holds an event of it; errors of the kernel. It is returned \
         unchanged."
    }
}

impl Destroy for XrcReceiver {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}
