//! The receiving end of dynamic connections (DC), and the data that initiators need.

use uverbs_mlx5::queue_state::Shape;
use uverbs_mlx5::user_index::QueueHandle;
use uverbs_uapi::mlx5::{CreateQp as DriverRequest, QpFlags};

use super::attributes::QpAttributes;
use super::core::{Core, Parents};
use super::create::{Creation, Parents as Handles};
use super::ece::{self, Ece, EceState};
use super::endpoint::Endpoint;
use super::modify::QpInfo;
use super::path::{LocalPath, PathOptions, Requirement};
use super::safe::Slots;
use super::{QpType, State};
use crate::cq::CqHandle;
use crate::device::context::Context;
use crate::device::identity::identity_methods;
use crate::device::layer::{Layer, Raw};
use crate::error::{Error, ErrorKind, Result};
use crate::host::events::{Observer, Wait};
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::memory::flight::Serial;
use crate::memory::pd::ProtectionDomain;
use crate::srq::SrqHandle;

const VERB: &str = "create_qp";

/// A DC target (DCT): the receiving end of dynamic connections. Any number of initiators
/// ([`Dci`](crate::qp_type::Dci)) that know its access key send to it.
///
/// Receives come from a shared receive queue and complete to one completion queue, with the
/// initiator's number in each completion. A target posts nothing.
///
/// ```no_run
/// use uverbs::qp::{DcTarget, PathOptions, PostFlags};
/// use uverbs::{op, qp_type::Dci};
/// # type Outcome = Result<(), Box<dyn std::error::Error>>;
/// # fn example(pd: &uverbs::ProtectionDomain, slot: uverbs::Slot) -> Outcome {
/// let context = pd.context();
/// let (cq, srq) = (context.create_cq(256).build()?, pd.create_srq(128).build()?);
/// let key = 0x7a3f_91c2_0be4_d865; // as hard to guess as a password
/// let target = pd.create_dc_receiver(cq.handle(), srq.handle(), key, PathOptions::default())?;
/// let bytes = target.endpoint().to_bytes(); // 56 bytes for every initiator
///
/// let mut initiator = pd.create_qp::<Dci>(cq.handle(), cq.handle()).build()?;
/// initiator.activate()?;
/// let there = uverbs::DcEndpoint::from_bytes(&bytes)?;
/// let ah = pd.create_ah(&initiator.address_of(&there.endpoint)?)?;
/// let address = ah.dc_target_at(&there);
/// initiator.post_send(op::To(DcTarget(&address), op::Send), slot, PostFlags::SIGNALED)?;
/// # Ok(())
/// # }
/// ```
///
/// The device makes the target when it moves to RTR. That is its last state; it can only be
/// destroyed. A refused request moves its initiator to ERR, never the target.
#[derive(Debug)]
#[doc(alias = "DCT")]
#[doc(alias = "MLX5DV_DCTYPE_DCT")]
pub struct DcReceiver {
    core: Core,
    access_key: u64,
}

/// The data that an initiator needs to send to a DC target.
///
/// # Byte encoding
/// [`DcEndpoint::to_bytes`] gives 56 bytes: the 48 bytes of its [`Endpoint`] with the target's
/// number as queue pair number, and the access key, big endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcEndpoint {
    /// Port and number of the target. Its PSN is unused.
    pub endpoint: Endpoint,
    /// The key that initiators have to present. Every host that knows it can send to the target.
    pub access_key: u64,
}

impl DcEndpoint {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = Endpoint::BYTES + 8;

    /// The fixed encoding described at [`DcEndpoint`].
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Endpoint::BYTES].copy_from_slice(&self.endpoint.to_bytes());
        bytes[Endpoint::BYTES..].copy_from_slice(&self.access_key.to_be_bytes());
        bytes
    }

    /// Decodes the fixed encoding. The bytes come from a peer, so every field is checked.
    ///
    /// # Errors
    /// `InvalidInput` with the invalid field.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let endpoint = Endpoint::from_bytes(&std::array::from_fn(|at| bytes[at]))?;
        let key = std::array::from_fn(|at| bytes[Endpoint::BYTES + at]);
        Ok(Self { endpoint, access_key: u64::from_be_bytes(key) })
    }
}

impl ProtectionDomain {
    /// Makes a DC target in RTR. It receives from initiators that know `access_key`, into `srq`,
    /// with completions to `cq`. Of `path` it uses port, GID, partition, access rights, MTU, RNR
    /// timer, service level and traffic class.
    ///
    /// The path MTU has to be the same at the target and at its initiators.
    ///
    /// # Errors
    /// `Unsupported` if the device has no dynamic connections; `NotFound` without a usable GID;
    /// `InvalidInput` for an XRC shared receive queue; errors of the kernel.
    #[doc(alias = "mlx5dv_create_qp")]
    pub fn create_dc_receiver<L: Layer>(
        &self,
        cq: &CqHandle<L>,
        srq: &SrqHandle<L>,
        access_key: u64,
        path: PathOptions,
    ) -> Result<DcReceiver> {
        let mut made = self.make_dc_receiver(cq, srq, access_key, path, Requirement::Needed)?;
        let core = &mut made.core;
        core.modify(&core.path.to_init())?;
        core.move_to_rtr(None)?;
        Ok(made)
    }

    /// As [`ProtectionDomain::create_dc_receiver`], in RESET, for a program that makes both changes
    /// of state with [`DcReceiver::modify`]. The port needs no usable GID.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_dc_receiver`].
    pub fn create_dc_receiver_in_reset(
        &self,
        cq: &CqHandle<Raw>,
        srq: &SrqHandle<Raw>,
        access_key: u64,
    ) -> Result<DcReceiver> {
        let path = PathOptions::default();
        self.make_dc_receiver(cq, srq, access_key, path, Requirement::Optional)
    }

    fn make_dc_receiver<L: Layer>(
        &self,
        cq: &CqHandle<L>,
        srq: &SrqHandle<L>,
        access_key: u64,
        path: PathOptions,
        gid: Requirement,
    ) -> Result<DcReceiver> {
        let context = self.context().clone();
        context.commands().require_opener(VERB)?;
        context.require_same(VERB, cq.context(), "completion queue")?;
        context.require_same(VERB, srq.context(), "shared receive queue")?;
        if srq.is_xrc() {
            let cause = "an XRC shared receive queue has a completion queue of its own";
            return Err(Error::invalid(VERB, cause));
        }
        let path = LocalPath::resolve(&context, QpType::DcTarget, path, gid)?;
        let user = register(self, &context, cq, srq)?;
        let events = context.register(Observer::Queue(user.clone()));
        events.set_name("DC target");
        let handles = Handles {
            pd: Some(self.kernel_handle()),
            send_cq: Some(cq.kernel_handle()),
            receive_cq: Some(cq.kernel_handle()),
            srq: Some(srq.kernel_handle()),
            ..Handles::default()
        };
        let driver = DriverRequest {
            // For a DC target this field holds the access key.
            sq_buf_addr: access_key,
            flags: QpFlags::TYPE_DCT,
            uidx: user.user_index(),
            ece_options: ece::at_creation(&context),
            ..DriverRequest::default()
        };
        let kind = QpType::DcTarget.of_kernel();
        let creation = Creation::without_queues(events.id(), kind, handles, driver);
        let created = creation.send(&context)?;
        let parents = Parents {
            pd: Some(self.clone()),
            receive_cq: Some(cq.clone().into_shared()),
            srq: Some(srq.clone().into_shared()),
            ..Parents::default()
        };
        // The device assigns the number at RTR; the number in this answer is meaningless.
        let numbers = [created.handle, 0];
        let mut core = Core::in_reset(context, QpType::DcTarget, numbers, events, path, parents);
        core.queue = Some(user);
        core.ece = EceState { wanted: None, granted: created.ece };
        Ok(DcReceiver { core, access_key })
    }
}

/// Registers the target for its completions.
fn register<L: Layer>(
    pd: &ProtectionDomain,
    context: &Context,
    cq: &CqHandle<L>,
    srq: &SrqHandle<L>,
) -> Result<QueueHandle> {
    let serial = Serial::new(VERB)?;
    let mut slots = L::if_safe(|| Slots::new(serial, pd, [cq.number(); 2], false));
    let user_context = L::get(&mut slots).map_or(0, |_| serial.get());
    let shape = Shape { send_wqebbs: 0, recv_wqes: 0, shared_receive: false };
    let users = context.inner().users(L::TAKES_SLOTS);
    let user = users
        .register(shape, &[cq.monitor()], Some(srq.user()), user_context)
        .map_err(|error| Error::new(VERB, ErrorKind::Refused, error.to_string()))?;
    if let Some(slots) = L::get(&mut slots) {
        slots.mark(&user);
    }
    Ok(user)
}

impl DcReceiver {
    identity_methods! { core }

    /// The target's number, 24 bits. The device chooses it at RTR; 0 before.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// The key that initiators have to present.
    pub fn access_key(&self) -> u64 {
        self.access_key
    }

    /// The data that an initiator needs to send to it.
    pub fn endpoint(&self) -> DcEndpoint {
        DcEndpoint { endpoint: self.core.endpoint(), access_key: self.access_key }
    }

    /// The state as this process knows it.
    pub fn state(&self) -> State {
        self.core.known_state()
    }

    /// Makes one of its two changes of state: to INIT with port, partition and access rights, or to
    /// RTR with path, MTU and RNR timer.
    ///
    /// # Errors
    /// `InvalidInput`, without asking the kernel, with the attributes that are missing or not
    /// allowed; errors of the kernel. On an error nothing has changed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<()> {
        self.core.modify(attributes)
    }

    /// Asks the device for state, access rights, port, partition, MTU, RNR timer and the path of
    /// responses. The other fields of the answer are 0.
    ///
    /// # Errors
    /// EINVAL before RTR; other errors of the kernel.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.core.query()
    }

    /// As [`QueuePair::query_ece`](super::QueuePair::query_ece).
    ///
    /// # Errors
    /// As for [`QueuePair::query_ece`](super::QueuePair::query_ece).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.ece.query(&self.core.context)
    }

    /// As [`QueuePair::set_ece`](super::QueuePair::set_ece), for the change to RTR.
    ///
    /// # Errors
    /// As for [`QueuePair::set_ece`](super::QueuePair::set_ece).
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        self.core.ece.set(&self.core.context, ece)
    }

    destroy_methods! {
        "ibv_destroy_qp",
        "`Deadlock` if this thread holds an event of it; errors of the kernel. It is returned \
         unchanged."
    }
}

impl Destroy for DcReceiver {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}
