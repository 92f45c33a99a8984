//! The firmware's commands about objects: buffers that start with an opcode.
//!
//! The kernel's driver sends them through the command queue of the PCI function, programs through
//! DEVX of the character device. [`FrontEnd`] hides the differences between the two. Each front end
//! also has its own commands, such as those for ports and event queues.

mod address_path;
pub mod bits;
pub mod capability;
pub mod command;
mod completion_queue;
mod counters;
mod dc_target;
mod ethernet;
pub mod event;
pub mod flow_counter;
pub mod flow_table;
pub mod general_object;
pub mod layout;
mod match_value;
mod memory_key;
pub mod numbers;
pub mod page_list;
mod queue_pair;
pub mod record;
mod references;
pub mod refusal;
mod resource;
mod shared_receive;
mod spread;
pub mod table;
pub mod tag_matching;
mod umem;
mod user_context;

use std::collections::{BTreeMap, HashMap};

pub use self::completion_queue::RECORD as CQ_RECORD;
pub use self::counters::SETS;
pub use self::umem::Place;

use self::command::Command;
use self::counters::QueueCounters;
use self::ethernet::Ethernet;
use self::flow_counter::FlowCounters;
use self::flow_table::FlowTables;
use self::numbers::Numbers;
use self::record::Records;
use self::references::{References, no_such};
use self::refusal::Done;
use self::table::CommandSpec;
use self::umem::Umems;
use crate::core::{Core, ObjectId, ObjectKind, Pdn};

/// The questions that commands about objects ask the front end.
pub trait FrontEnd {
    /// Whether this event queue exists.
    ///
    /// # Errors
    /// A refusal if it does not.
    fn check_event_queue(&self, number: u32) -> Done;

    /// Whether this page of doorbell registers is allocated.
    ///
    /// # Errors
    /// A refusal if it is not.
    fn check_uar(&self, number: u32) -> Done;

    /// Whether a user context may use an object that no command of a user context has created.
    ///
    /// # Errors
    /// A refusal if it may not.
    fn check_use(&self, kind: ObjectKind, number: u32) -> Done;

    /// Whether a user context has this receive queue, which no command has created. Objects may
    /// refer to it, but frames reach it only by the rules of verbs.
    fn has_work_queue(&self, _number: u32) -> bool {
        false
    }

    /// The service type of a QP that no command has created, if commands may name it.
    fn service(&self, _qpn: u32) -> Option<u64> {
        None
    }
}

/// The firmware's data of a QP: the driver's code of its service type, whether it is the driver's
/// own, and the port that it was initialized for.
#[derive(Clone, Copy, Debug)]
struct Service {
    code: u64,
    kernels: bool,
    port: u8,
}

/// The firmware's data of the core's objects, and the objects that only the firmware has.
#[derive(Debug)]
pub struct Objects {
    /// Used for protection domain 0, that of the driver's own queues.
    privileged_pd: Pdn,
    /// Event queue of each CQ.
    event_queues: BTreeMap<u32, u32>,
    services: BTreeMap<u32, Service>,
    transport_domains: Numbers,
    user_contexts: Numbers,
    queue_counters: QueueCounters,
    dc_targets: usize,
    umems: Umems,
    ethernet: Ethernet,
    /// User contexts of the objects that their commands have created.
    owners: HashMap<ObjectId, u16>,
    /// Transport interfaces of senders.
    pub tis: Records,
    /// Transport interfaces of receivers.
    pub tir: Records,
    rqt: Records,
    references: References,
    /// Counters of frames.
    pub flow_counters: FlowCounters,
    /// The flow tables.
    pub flows: FlowTables,
    /// First numbers of the ranges of QP numbers that are reserved, and their user contexts.
    reserved: BTreeMap<u32, u16>,
}

impl Objects {
    /// No objects yet. The driver's own queues name protection domain 0, which stands for
    /// `privileged_pd`.
    pub fn new(privileged_pd: Pdn) -> Self {
        Self {
            privileged_pd,
            event_queues: BTreeMap::new(),
            services: BTreeMap::new(),
            transport_domains: Numbers::new("transport domain", 1..1 << 16),
            user_contexts: Numbers::new("user context", 1..SHARED),
            queue_counters: QueueCounters::default(),
            dc_targets: 0,
            umems: Umems::default(),
            ethernet: Ethernet::default(),
            owners: HashMap::new(),
            tis: Records::default(),
            tir: Records::default(),
            rqt: Records::default(),
            references: References::default(),
            flow_counters: FlowCounters::default(),
            flows: FlowTables::default(),
            reserved: BTreeMap::new(),
        }
    }

    /// The event queue that a CQ reports to, if a command created the CQ.
    pub fn event_queue_of(&self, cqn: u32) -> Option<u32> {
        self.event_queues.get(&cqn).copied()
    }

    /// Whether a CQ reports to this event queue.
    pub fn uses_event_queue(&self, number: u32) -> bool {
        self.event_queues.values().any(|used| *used == number)
    }

    /// Whether a QP is the kernel's own.
    pub fn is_kernels(&self, qpn: u32) -> bool {
        self.services.get(&qpn).is_some_and(|service| service.kernels)
    }

    /// Removes the owner and the umems of a destroyed object.
    pub fn release(&mut self, object: ObjectId) {
        self.owners.remove(&object);
        self.umems.release(object);
    }

    /// Names and counts of the objects that still exist.
    pub fn counts(&self) -> [(&'static str, usize); 14] {
        [
            ("transport domains", self.transport_domains.in_use()),
            ("user contexts", self.user_contexts.in_use()),
            ("QPs", self.services.len()),
            ("DCTs", self.dc_targets),
            ("queue counters", self.queue_counters.in_use()),
            ("umems", self.umems.len()),
            ("SQs", self.ethernet.send.len()),
            ("RQs", self.ethernet.receive.len()),
            ("flow counters", self.flow_counters.in_use()),
            ("TISes", self.tis.len()),
            ("TIRs", self.tir.len()),
            ("RQTs", self.rqt.len()),
            ("flow tables", self.flows.len()),
            ("ranges of reserved QP numbers", self.reserved.len()),
        ]
    }
}

/// The driver's number for objects that all user contexts may share (`MLX5_SHARED_RESOURCE_UID`).
/// No context gets this number. Sharing such objects is not modelled.
const SHARED: u32 = 0xffff;

impl Objects {
    /// Whether only commands create such an object. One without an owner is the driver's.
    fn is_only_by_commands(&self, (kind, number): ObjectId) -> bool {
        match kind {
            ObjectKind::TransportDomain
            | ObjectKind::Tis
            | ObjectKind::Tir
            | ObjectKind::Rqt
            | ObjectKind::QueueCounter => true,
            ObjectKind::Qp => self.is_send_queue(number) || self.is_receive_queue(number),
            _ => false,
        }
    }
}

/// The object that a command names by this number. For a key, the number is the index.
fn subject(kind: ObjectKind, number: u32) -> ObjectId {
    if kind == ObjectKind::Mkey { (kind, number << 8) } else { (kind, number) }
}

/// The firmware while it runs a command.
pub struct Firmware<'a> {
    /// The core.
    pub core: &'a mut Core,
    /// The firmware's own data.
    pub objects: &'a mut Objects,
    /// The front end that the command came through.
    pub front: &'a dyn FrontEnd,
}

impl Firmware<'_> {
    /// Runs a command.
    ///
    /// # Errors
    /// A refusal. Nothing has changed then.
    pub fn run(&mut self, spec: &CommandSpec, command: &mut Command<'_>) -> Done {
        command.need(spec.form.input)?;
        command.reply.need(spec.form.output)?;
        if let Some(kind) = spec.subject {
            self.check_uses(command, &[subject(kind, command.number())])?;
        }
        (spec.run)(self, command)
    }

    /// The firmware's data of a QP. One that no command has created has the device's one port.
    fn service(&self, qpn: u32) -> Option<Service> {
        let by_verbs = |code| Service { code, kernels: false, port: 1 };
        let known = self.objects.services.get(&qpn).copied();
        known.or_else(|| self.front.service(qpn).map(by_verbs))
    }

    /// Whether the command's user context may use these objects. The driver may use all.
    ///
    /// # Errors
    /// A refusal if it may not.
    pub fn check_uses(&self, command: &Command<'_>, objects: &[ObjectId]) -> Done {
        if command.user_context() == 0 {
            return Ok(());
        }
        objects.iter().try_for_each(|object| match self.objects.owners.get(object) {
            Some(owner) if *owner == command.user_context() => Ok(()),
            Some(_) => Err(no_such(*object)),
            None if self.objects.is_only_by_commands(*object) => Err(no_such(*object)),
            None => self.front.check_use(object.0, object.1),
        })
    }

    /// Records that a command has created or moved an object, with rings and records in these
    /// places.
    pub fn created(&mut self, command: &Command<'_>, object: ObjectId, places: &[&Place]) {
        if command.user_context() != 0 {
            self.objects.owners.insert(object, command.user_context());
        }
        self.objects.umems.hold(command, object, places);
    }
}
