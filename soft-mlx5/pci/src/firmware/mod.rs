//! The firmware: commands, and the objects that the core does not have.

mod capability;
mod ethernet;
mod event_queue;
mod events;
mod hca;
mod mad;
mod multicast;
mod nic_vport;
mod pages;
mod port;
mod register;
mod steering;
mod table;
mod uar;
mod vport_counter;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use uverbs_mlx5_format::EventType;

use self::capability::Capabilities;
use self::command::Command;
use self::ethernet::Ethernet;
use self::event_queue::EventQueues;
use self::nic_vport::NicVport;
use self::numbers::Numbers;
use self::pages::PageSupply;
use self::refusal::{Done, Refusal};
use self::table::{CommandSpec, Phase};
use super::Settings;
use super::cable::Cable;
use super::command_queue::{self, Delivery};
use super::guest_memory::GuestMemory;
use super::interrupts::Interrupts;
use super::layout::command::header;
use super::trace::Trace;
use uverbs_soft::core::{Core, CoreConfig, LinkLayer, Mtu, ObjectKind};
use uverbs_soft::packet::Gid;
use uverbs_soft_adapter::firmware::event::Report;
use uverbs_soft_adapter::firmware::table::{self as object_commands, Form};
use uverbs_soft_adapter::firmware::{FrontEnd, Objects, command, numbers, page_list, refusal};

/// Pages of BAR 0 that are UARs. They follow the initialization segment and the MSI-X table.
pub(super) const UARS: std::ops::Range<u32> = 16..8192;

/// The device's one port.
#[derive(Debug)]
pub(super) struct Port {
    link: LinkLayer,
    node_guid: u64,
    port_guid: u64,
    lid: u16,
    /// Largest and current frame payload.
    max_mtu_bytes: u32,
    mtu_bytes: u32,
    /// 1 up, 2 down.
    admin_status: u8,
    /// The flow control register, as the driver wrote it.
    flow_control: Vec<u8>,
    capability_mask: u32,
    description: [u8; register::DESCRIPTION],
}

impl Port {
    fn new(settings: &Settings) -> Self {
        let mut description = [0; register::DESCRIPTION];
        let (max_mtu_bytes, mtu_bytes) = match settings.link {
            LinkLayer::Ethernet => (10_000, u32::from(NETWORK_MTU)),
            LinkLayer::InfiniBand => (Mtu::M4096.bytes(), Mtu::M4096.bytes()),
        };
        let text = b"software ConnectX";
        description[..text.len()].copy_from_slice(text);
        Self {
            link: settings.link,
            node_guid: settings.guid,
            port_guid: settings.guid,
            lid: settings.lid,
            max_mtu_bytes,
            mtu_bytes,
            admin_status: 1,
            flow_control: Vec::new(),
            capability_mask: port::CAPABILITY_MASK,
            description,
        }
    }

    fn is_up(&self) -> bool {
        self.admin_status == 1
    }

    /// Entry `index` of the InfiniBand GID table: entry 0 is the link-local GID of the port, the
    /// others are unused.
    fn gid(&self, index: usize) -> [u8; 16] {
        if index == 0 { Gid::link_local(self.port_guid.to_be_bytes()).0 } else { [0; 16] }
    }
}

/// The command after which the driver waits for an event (`_mlx5_core_destroy_dct`).
const DRAIN_DCT: u16 = 0x712;

/// Initial MTU of the network device, in bytes.
const NETWORK_MTU: u16 = 1500;

/// Where objects send their events, and which UARs exist.
#[derive(Debug)]
struct Doorbells {
    event_queues: EventQueues,
    uars: Numbers,
}

impl FrontEnd for Doorbells {
    fn check_event_queue(&self, number: u32) -> Done {
        let exists = self.event_queues.exists(number);
        if exists { Ok(()) } else { Err(Refusal::no_such("event queue", number)) }
    }

    fn check_uar(&self, number: u32) -> Done {
        self.uars.check(number)
    }

    /// Allows everything: mlx5_ib uses some of its own objects with programs' queues (`c0`, `s1` of
    /// `create_user_qp`), and it is not public which ones the firmware allows.
    fn check_use(&self, _: ObjectKind, _: u32) -> Done {
        Ok(())
    }
}

/// The firmware.
#[derive(Debug)]
pub(super) struct Firmware {
    settings: Settings,
    memory: GuestMemory,
    pub(super) interrupts: Interrupts,
    pub(super) core: Core,
    pub(super) now: u64,
    pub(super) cable: Cable,
    pub(super) trace: Trace,
    phase: Phase,
    issi: u16,
    pages: PageSupply,
    capabilities: Capabilities,
    doorbells: Doorbells,
    port: Port,
    nic_vport: NicVport,
    ethernet: Ethernet,
    objects: Objects,
    /// How often a QP has joined a multicast group.
    memberships: BTreeMap<(u32, Gid), u32>,
}

impl Firmware {
    pub(super) fn new(settings: Settings, memory: GuestMemory, trace: Trace) -> Self {
        let port = Port::new(&settings);
        let (core, objects) = new_core(&port, &memory);
        Self {
            interrupts: Interrupts::new(settings.vectors),
            core,
            objects,
            now: 0,
            cable: Cable::default(),
            trace,
            phase: Phase::Disabled,
            issi: 0,
            pages: PageSupply::default(),
            capabilities: Capabilities::new(settings.link),
            doorbells: Doorbells {
                event_queues: EventQueues::default(),
                uars: Numbers::new("UAR", UARS),
            },
            nic_vport: NicVport::new(settings.guid, NETWORK_MTU),
            ethernet: Ethernet::default(),
            port,
            memberships: BTreeMap::new(),
            memory,
            settings,
        }
    }

    /// Restores the state after power-on, except for the interrupts, which the client manages.
    pub(super) fn reset(&mut self) {
        self.drop_objects();
        let trace = std::mem::take(&mut self.trace);
        let interrupts = std::mem::replace(&mut self.interrupts, Interrupts::new(0));
        let cable = std::mem::take(&mut self.cable);
        let fresh = Self::new(self.settings.clone(), self.memory.clone(), trace);
        *self = Self { interrupts, cable, now: self.now, ..fresh };
    }

    /// Receives the packets and frames that have arrived at the port. True if there may be more.
    pub(super) fn receive(&mut self, now: u64) -> bool {
        self.now = now;
        let mut frames = Vec::new();
        let more = self.cable.receive(now, &mut self.core, &mut frames);
        frames.iter().for_each(|frame| self.receive_frame(frame));
        more
    }

    /// Sends the core's packets and frames.
    pub(super) fn send(&mut self, now: u64) {
        self.send_frames();
        self.cable.send(now, &mut self.core, self.nic_vport.mac());
    }

    /// Executes the commands of the descriptors in `mask`, for which the driver rang the doorbell.
    pub(super) fn command_doorbell(&mut self, queue: u64, mask: u32) {
        for index in (0..32).filter(|index| mask >> index & 1 == 1) {
            // Determined before the command runs: if it creates the command event queue, the driver
            // polls for its end instead of waiting for an event.
            let listeners = self.doorbells.event_queues.listeners(EventType::COMMAND);
            match command_queue::fetch(&self.memory, queue, index) {
                Ok(Some(request)) => {
                    let output = self.execute(&request.input, request.output_length);
                    command_queue::complete(&self.memory, &request, &output);
                }
                Ok(None) => {
                    self.warn(format_args!("command {index} rung but not owned by the hardware"))
                }
                Err(delivery) => self.refuse_delivery(queue, index, delivery),
            }
            for queue in listeners {
                if self.doorbells.event_queues.exists(queue) {
                    self.post_event(queue, &Report::of_commands(1 << index));
                }
            }
        }
    }

    fn refuse_delivery(&mut self, queue: u64, index: u32, delivery: Delivery) {
        self.warn(format_args!("command {index} cannot be delivered: {delivery:?}"));
        command_queue::reject(&self.memory, queue, index, delivery);
    }

    /// Executes one command and returns its output.
    pub(super) fn execute(&mut self, input: &[u8], output_length: usize) -> Vec<u8> {
        let mut command = Command::new(input, output_length);
        let opcode = command.get(header::OPCODE) as u16;
        let (form, outcome) = self.run(opcode, &mut command);
        let (name, fields) = form.map_or(("?", &[][..]), |form| (form.name, form.fields));
        if let Err(refusal) = &outcome {
            command.refuse(refusal);
            tracing::warn!(opcode, command = name, %refusal, "command refused");
        }
        let output = command.reply.output;
        self.trace.command(opcode, name, fields, input, &output, outcome.err());
        output
    }

    /// Runs a command of this front end, or one about objects.
    fn run(&mut self, opcode: u16, command: &mut Command<'_>) -> (Option<&'static Form>, Done) {
        if let Some(spec) = table::find(opcode) {
            let checked = self.check(spec, command);
            let done = checked.and_then(|()| (spec.run)(self, command));
            return (Some(&spec.form), done);
        }
        let Some(spec) = object_commands::find(opcode) else {
            return (None, Err(Refusal::unknown_opcode(opcode)));
        };
        let ready = self.check_phase(spec.form.name, Phase::Initialized);
        let done = ready.and_then(|()| self.object_firmware().run(spec, command));
        if done.is_ok() && opcode == DRAIN_DCT {
            self.announce(&Report::drained(command.number()));
        }
        (Some(&spec.form), done)
    }

    /// The firmware that executes commands about objects.
    pub(super) fn object_firmware(&mut self) -> uverbs_soft_adapter::firmware::Firmware<'_> {
        uverbs_soft_adapter::firmware::Firmware {
            core: &mut self.core,
            objects: &mut self.objects,
            front: &self.doorbells,
        }
    }

    fn check(&self, spec: &CommandSpec, command: &Command<'_>) -> Done {
        self.check_phase(spec.form.name, spec.phase)?;
        command.need(spec.form.input)?;
        command.reply.need(spec.form.output)
    }

    fn check_phase(&self, name: &str, needed: Phase) -> Done {
        if self.phase < needed {
            return Err(Refusal::wrong_state(format!("{name} in state {:?}", self.phase)));
        }
        Ok(())
    }

    /// Whether UAR `number` has been allocated.
    pub(super) fn has_uar(&self, number: u32) -> bool {
        self.doorbells.uars.check(number).is_ok()
    }

    /// Warns about an error of the driver.
    pub(super) fn warn(&mut self, what: fmt::Arguments<'_>) {
        tracing::warn!("{what}");
        self.trace.warning(what);
    }

    /// Names and counts of the objects that still exist; empty if there are none.
    pub(super) fn objects_left(&self) -> String {
        let core = self.core.counts();
        let counts = [
            ("event queues", self.doorbells.event_queues.count()),
            ("UARs", self.doorbells.uars.in_use()),
            // One of them belongs to the firmware.
            ("protection domains", core.pds - 1),
            ("XRC domains", core.xrcds),
            ("memory keys", core.mkeys),
            ("CQs", core.cqs),
            ("SRQs", core.srqs),
            ("multicast memberships", self.memberships.len()),
        ];
        let counts = counts.into_iter().chain(self.objects.counts());
        let left = counts.filter(|(_, count)| *count > 0);
        left.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }

    fn drop_objects(&mut self) {
        self.doorbells.event_queues.clear();
        self.doorbells.uars.clear();
        self.leave_all_groups();
        self.ethernet = Ethernet::default();
        (self.core, self.objects) = new_core(&self.port, &self.memory);
    }
}

fn new_core(port: &Port, memory: &GuestMemory) -> (Core, Objects) {
    let config = CoreConfig {
        link: port.link,
        lid: port.lid,
        frames_by_front_end: true,
        gids: if port.link == LinkLayer::InfiniBand { vec![Gid(port.gid(0))] } else { Vec::new() },
        ..CoreConfig::default()
    };
    let mut core = Core::new(config, Arc::new(memory.clone()));
    // Creating a protection domain in a new core does not fail, and its number is never 0.
    let privileged_pd = core.create_pd().unwrap_or_default();
    (core, Objects::new(privileged_pd))
}
