//! Receive side scaling (RSS): a hash of addresses and ports spreads frames over work queues.
//!
//! Three objects are between a steering rule and a receive. An [`RssTarget`] hashes the frames of
//! its steering rules. An [`IndirectionTable`] has a power of two of entries, each of which names a
//! work queue; several entries may name the same one. The low bits of the hash choose the entry.
//! The [`WorkQueue`](super::work_queue::WorkQueue) has the receives, and each completion has the
//! hash ([`receive_hash`](crate::cq::WorkCompletion::receive_hash)).
//!
//! A target hashes frames of one IP version and one protocol. A program that spreads TCP and UDP
//! over IPv4 and IPv6 makes four targets over the same table, each with its own rules. A rule
//! should match only frames that its target hashes: the software device delivers other frames to
//! the first entry's queue; the behaviour of hardware is unconfirmed.
//!
//! The kernel cannot modify tables or targets. [`Spread`](crate::flow::Spread) combines rules,
//! target and table, and redistributes the entries in one call without losing a frame.
//!
//! ```no_run
//! use uverbs::qp::rss::{RssOptions, RssTraffic};
//! let context = uverbs::open_default()?;
//! let pd = context.alloc_pd()?;
//! let cqs = [context.create_cq(512).build()?, context.create_cq(512).build()?];
//! let one = pd.create_wq(cqs[0].handle(), 512).build()?;
//! let two = pd.create_wq(cqs[1].handle(), 512).build()?;
//! let table = context.create_indirection_table(&[one.handle(), two.handle()])?;
//! let mut target = pd.create_rss_target(&table, &RssOptions::new(RssTraffic::Ipv4Udp))?;
//! let rule = target.steer(&uverbs::flow::UdpMulticast::new([239, 1, 2, 3].into(), 14310))?;
//! # drop(rule);
//! # Ok::<(), uverbs::Error>(())
//! ```

use std::sync::Arc;

use uverbs_uapi::enums::QpType as KernelQpType;
pub use uverbs_uapi::mlx5::flags::RxHashFields as RssFields;
use uverbs_uapi::mlx5::flags::RxHashFunctions;
use uverbs_uapi::mlx5::qp::CreateQpRss as DriverRequest;
use uverbs_uapi::objects::rwq_ind_tbl::destroy;
use uverbs_uapi::write::wq::{ExCreateRwqIndTable, ExCreateRwqIndTableResp};
use uverbs_uapi::write::{WriteCmd, WriteCommand};
use zerocopy::{Immutable, IntoBytes};

use super::core::{Core, Parents, SteeringTarget};
use super::create::{Creation, Parents as Handles};
use super::path::{LocalPath, PathOptions, Requirement};
use super::work_queue::WqHandle;
use super::{QpType, create};
use crate::device::context::Context;
use crate::device::identity::identity_methods;
use crate::error::{DestroyError, Error, ErrorKind, Result};
use crate::host::events::{ObjectId, Observer, Wait};
use crate::host::lifetime::{
    Destroy, Kind, Object, destroy_methods, destroy_unshared, object_kind,
};
use crate::memory::pd::ProtectionDomain;

const CREATE_TABLE: &str = "create_rwq_ind_table";
const DESTROY_TABLE: &str = "destroy_rwq_ind_table";
const CREATE: &str = "create_qp";
/// `IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE` is 13.
const MAX_ENTRIES: usize = 1 << 13;
/// Bytes of a Toeplitz key.
pub const RSS_KEY_BYTES: usize = 40;

/// The key of Microsoft's RSS verification suite, which many drivers use. Microsoft publishes its
/// hashes of sample addresses.
pub const DEFAULT_RSS_KEY: [u8; RSS_KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// An indirection table of work queues (`struct ibv_rwq_ind_table`): from
/// [`Context::create_indirection_table`]. It keeps its queues alive. Clones share one table, which
/// is destroyed when the last clone and the last target are dropped.
#[derive(Debug, Clone)]
pub struct IndirectionTable(Arc<Table>);

/// The order of the fields matters: the table is destroyed before its queues.
#[derive(Debug)]
struct Table {
    object: Object<Context>,
    number: u32,
    queues: Box<[WqHandle]>,
}

const TABLE: Kind = object_kind!(DESTROY_TABLE, "indirection table", destroy::HANDLE);

impl Context {
    /// Makes a table with the entries `queues`, in this order.
    ///
    /// # Errors
    /// `InvalidInput` for a number of entries that is not a power of two or exceeds the device's
    /// limit, and for queues of another context; errors of the kernel.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn create_indirection_table(&self, queues: &[&WqHandle]) -> Result<IndirectionTable> {
        self.commands().require_opener(CREATE_TABLE)?;
        self.check_places(queues.len())?;
        for queue in queues {
            self.require_same(CREATE_TABLE, queue.context(), "work queue")?;
        }
        let command = Places::new(queues);
        let made = self
            .commands()
            .write(CREATE_TABLE, &*command)
            .map_err(|error| error.asked(format!("{} places", queues.len())))?;
        let object = Object::new(self.clone(), made.ind_tbl_handle, &TABLE);
        let queues = queues.iter().map(|queue| (*queue).clone()).collect();
        Ok(IndirectionTable(Arc::new(Table { object, number: made.ind_tbl_num, queues })))
    }

    fn check_places(&self, places: usize) -> Result<()> {
        let asked = |cause: String| {
            Err(Error::invalid(CREATE_TABLE, cause).asked(format!("{places} places")))
        };
        if places == 0 {
            return asked("an indirection table has at least one place".to_owned());
        }
        if !places.is_power_of_two() {
            let cause = "the places of an indirection table are a power of two";
            return asked(format!("{cause}: give some queues several places"));
        }
        let most = self.attributes()?.kernel.rss_caps.max_rwq_indirection_table_size as usize;
        if places > most.min(MAX_ENTRIES) {
            return asked(format!("the device has tables of at most {most} places"));
        }
        Ok(())
    }
}

/// The command with the entries. The kernel ignores zeros after them (`uverbs_request_finish`).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Places {
    head: ExCreateRwqIndTable,
    handles: [u32; MAX_ENTRIES],
}

impl Places {
    fn new(queues: &[&WqHandle]) -> Box<Self> {
        let log_ind_tbl_size = queues.len().trailing_zeros();
        let head = ExCreateRwqIndTable { comp_mask: 0, log_ind_tbl_size };
        let mut command = Box::new(Self { head, handles: [0; MAX_ENTRIES] });
        for (place, queue) in command.handles.iter_mut().zip(queues) {
            *place = queue.kernel_handle();
        }
        command
    }
}

impl WriteCommand for Places {
    const COMMAND: WriteCmd = WriteCmd::EX_CREATE_RWQ_IND_TBL;
    type Response = ExCreateRwqIndTableResp;
}

impl IndirectionTable {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.object.parent
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.0.object.handle
    }

    /// The device's number for it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// The queue of each entry.
    pub fn queues(&self) -> &[WqHandle] {
        &self.0.queues
    }

    /// Destroys it (ibv_destroy_rwq_ind_table).
    ///
    /// # Errors
    /// `Busy` while targets or clones hold it; errors of the kernel. The error contains it,
    /// unchanged.
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let name = format!("the table {:#x}", self.number());
        let destroyed = destroy_unshared(&mut self.0, DESTROY_TABLE, ("target", &name), |table| {
            table.object.destroy()
        });
        destroyed.map_err(|error| DestroyError::new(self, error))
    }
}

/// The frames that a target hashes: one IP version, and one protocol if ports are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RssTraffic {
    /// Addresses of IPv4.
    Ipv4,
    /// Addresses and ports of TCP over IPv4.
    Ipv4Tcp,
    /// Addresses and ports of UDP over IPv4.
    Ipv4Udp,
    /// Addresses of IPv6.
    Ipv6,
    /// Addresses and ports of TCP over IPv6.
    Ipv6Tcp,
    /// Addresses and ports of UDP over IPv6.
    Ipv6Udp,
}

impl RssTraffic {
    /// Source and destination fields of this traffic.
    fn fields(self) -> RssFields {
        const V4: RssFields = RssFields::SRC_IPV4.union(RssFields::DST_IPV4);
        const V6: RssFields = RssFields::SRC_IPV6.union(RssFields::DST_IPV6);
        const TCP: RssFields = RssFields::SRC_PORT_TCP.union(RssFields::DST_PORT_TCP);
        const UDP: RssFields = RssFields::SRC_PORT_UDP.union(RssFields::DST_PORT_UDP);
        match self {
            Self::Ipv4 => V4,
            Self::Ipv4Tcp => V4 | TCP,
            Self::Ipv4Udp => V4 | UDP,
            Self::Ipv6 => V6,
            Self::Ipv6Tcp => V6 | TCP,
            Self::Ipv6Udp => V6 | UDP,
        }
    }
}

/// Fields and key of a target's hash (`struct ibv_rx_hash_conf`). The function is Toeplitz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RssOptions {
    fields: RssFields,
    key: [u8; RSS_KEY_BYTES],
    port: u8,
}

impl RssOptions {
    /// Any fields, for combinations that [`RssOptions::new`] does not offer, such as destinations
    /// only. [`ProtectionDomain::create_rss_target`] refuses fields of both IP versions or of two
    /// protocols, and an empty set unless the table has one entry.
    pub const fn with_fields(fields: RssFields) -> Self {
        Self { fields, key: DEFAULT_RSS_KEY, port: 1 }
    }

    /// Source and destination of `traffic`, with [`DEFAULT_RSS_KEY`], on port 1.
    pub fn new(traffic: RssTraffic) -> Self {
        Self::with_fields(traffic.fields())
    }

    /// Sets the key.
    pub const fn key(mut self, key: [u8; RSS_KEY_BYTES]) -> Self {
        self.key = key;
        self
    }

    /// Sets the port of the target's rules, from 1.
    pub const fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Refuses combinations that no mlx5 device hashes (`create_rss_raw_qp_tir`,
    /// drivers/infiniband/hw/mlx5/qp.c).
    fn check(&self, places: usize) -> Result<()> {
        let both = |one: RssTraffic, other: RssTraffic| {
            let (one, other) = (one.fields(), other.fields());
            self.fields.intersects(one.difference(other))
                && self.fields.intersects(other.difference(one))
        };
        if both(RssTraffic::Ipv4, RssTraffic::Ipv6) {
            let cause = "a target hashes addresses of one IP version";
            return Err(Error::invalid(CREATE, cause).cure_with("make a target for each"));
        }
        if both(RssTraffic::Ipv4Tcp, RssTraffic::Ipv4Udp) {
            let cause = "a target hashes ports of one protocol";
            return Err(Error::invalid(CREATE, cause).cure_with("make a target for each"));
        }
        if self.fields.is_empty() && places != 1 {
            let cause = format!("without fields all frames have one place, and there are {places}");
            return Err(Error::invalid(CREATE, cause));
        }
        Ok(())
    }

    fn request(&self) -> DriverRequest {
        let mut rx_hash_key = [0; 128];
        rx_hash_key[..RSS_KEY_BYTES].copy_from_slice(&self.key);
        DriverRequest {
            rx_hash_fields_mask: self.fields,
            rx_hash_function: RxHashFunctions::TOEPLITZ,
            rx_key_len: RSS_KEY_BYTES as u8,
            rx_hash_key,
            ..DriverRequest::default()
        }
    }
}

/// A queue pair without queues of its own, which spreads the frames of its steering rules over a
/// table's work queues: from [`ProtectionDomain::create_rss_target`].
///
/// It has no number and no state; nothing is posted to it or completes on it. Dropping it destroys
/// its rules and itself.
#[derive(Debug)]
pub struct RssTarget {
    core: Core,
}

impl ProtectionDomain {
    /// Makes a target that spreads frames over the queues of `table`.
    ///
    /// # Errors
    /// `InvalidInput` for fields of both IP versions or of two protocols, or for a table of another
    /// context; EPERM without CAP_NET_RAW; `Unsupported` for fields that the device does not hash;
    /// other errors of the kernel.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_rss_target(
        &self,
        table: &IndirectionTable,
        options: &RssOptions,
    ) -> Result<RssTarget> {
        let context = self.context().clone();
        context.commands().require_opener(CREATE)?;
        context.require_same(CREATE, table.context(), "indirection table")?;
        options.check(table.queues().len())?;
        let path = PathOptions { port: options.port, ..PathOptions::default() };
        let path = LocalPath::resolve(&context, QpType::RawPacket, path, Requirement::Optional)?;
        let events = context.register(Observer::Nothing);
        let handle = create_target(self, table, options, events.id())?;
        events.set_name(&format!("RSS target {handle}"));
        let parents =
            Parents { pd: Some(self.clone()), table: Some(table.clone()), ..Parents::default() };
        let numbers = [handle, 0];
        let core = Core::in_reset(context, QpType::RawPacket, numbers, events, path, parents);
        Ok(RssTarget { core })
    }
}

/// Sends the command. Returns the kernel's handle.
fn create_target(
    pd: &ProtectionDomain,
    table: &IndirectionTable,
    options: &RssOptions,
    id: ObjectId,
) -> Result<u32> {
    let handles = (Some(pd.kernel_handle()), Some(table.kernel_handle()));
    let parents = Handles { pd: handles.0, table: handles.1, ..Handles::default() };
    let kind = KernelQpType::RAW_PACKET;
    let creation = Creation::without_queues(id, kind, parents, options.request());
    let made = creation.command(table.context()).map_err(|error| {
        let (fields, places) = (options.fields, table.queues().len());
        let error = create::explain(error, KernelQpType::RAW_PACKET);
        let error = match error.kind() {
            ErrorKind::Unsupported => error.because("the device does not hash these fields"),
            _ => error,
        };
        error.asked(format!("a hash of {fields:?} over {places} places"))
    })?;
    Ok(made.handle)
}

impl RssTarget {
    identity_methods! { core }

    /// The port of its rules, from 1.
    pub fn port(&self) -> u8 {
        self.core.path.options.port
    }

    /// The destination of steering rules.
    pub(crate) fn steering_target(&mut self) -> &mut dyn SteeringTarget {
        &mut self.core
    }

    /// Destroys it as `Drop` does, steering rules first. Does nothing the second time.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.core.end()
    }

    destroy_methods! {
        "ibv_destroy_qp",
        "`Deadlock` if this thread holds an event of it; `Busy` while steering rules lead to it; errors of the kernel. The \
         error contains it unchanged."
    }
}

impl Destroy for RssTarget {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.core.destroy(wait)
    }
}
