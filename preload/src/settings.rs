//! The settings that `uverbs run` passes to this library in the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use uverbs_soft::chardev::{Kernel, Model, SoftDevice};
use uverbs_soft::fault::FaultPlan;
use uverbs_soft::wire::{Carrier, HostAddress};

use crate::faults::{self, Faults};
use crate::wire;

/// Directory for the directories that the program lists.
pub(crate) const SYSFS: &str = "UVERBS_RUN_SYSFS";
/// Where the trace goes: a file, or `-` for standard error.
pub(crate) const TRACE: &str = "UVERBS_RUN_TRACE";
const DEVICES: &str = "UVERBS_RUN_DEVICES";
const LINK: &str = "UVERBS_RUN_LINK";
const MODEL: &str = "UVERBS_RUN_MODEL";
const KERNEL: &str = "UVERBS_RUN_KERNEL";
const ADDRESS: &str = "UVERBS_RUN_ADDRESS";
const WIRE: &str = "UVERBS_RUN_WIRE";
const FAULTS: &str = "UVERBS_RUN_FAULTS";
const PCAP: &str = "UVERBS_RUN_PCAP";

/// Most nodes that one process may have.
const MOST_DEVICES: u32 = 32;

/// The devices to make.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) devices: u32,
    pub(crate) is_infiniband: bool,
    model: Model,
    kernel: Kernel,
    /// The devices' addresses as a list; the last one's followers are those of further devices.
    pub(crate) addresses: Option<String>,
    pub(crate) carrier: Carrier,
    pub(crate) faults: Option<Faults>,
    pub(crate) pcap: Option<PathBuf>,
}

impl Settings {
    /// Reads the variables; what is not set has the default that `uverbs run --help` states.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let devices = choice(DEVICES, "1", |text| {
            text.parse().ok().filter(|count| (1..=MOST_DEVICES).contains(count))
        })?;
        let is_infiniband = choice(LINK, "roce", |text| match text {
            "roce" => Some(false),
            "ib" => Some(true),
            _ => None,
        })?;
        let model = choice(MODEL, "cx6dx", |text| match text {
            "cx5" => Some(Model::ConnectX5),
            "cx6dx" => Some(Model::ConnectX6Dx),
            "cx7" => Some(Model::ConnectX7),
            _ => None,
        })?;
        let kernel = choice(KERNEL, "current", |text| match text {
            "current" => Some(Kernel::CURRENT),
            "static-uar" => Some(Kernel::STATIC_UAR),
            "write-commands" => Some(Kernel::WRITE_COMMANDS),
            "short-context" => Some(Kernel::SHORT_CONTEXT),
            _ => None,
        })?;
        let addresses =
            if_set(ADDRESS, |text| HostAddress::of_list(text, 0).is_ok().then(|| text.to_owned()))?;
        let carrier = choice(WIRE, "memory", |text| match text {
            "memory" => Some(Carrier::Memory),
            "memory-of-any-user" => Some(Carrier::MemoryOfAnyUser),
            "udp" => Some(Carrier::Udp),
            _ => None,
        })?;
        let faults = if_set(FAULTS, faults::parse)?;
        let pcap = env::var_os(PCAP).map(PathBuf::from);
        Ok(Self { devices, is_infiniband, model, kernel, addresses, carrier, faults, pcap })
    }

    /// Starts device number `index`, named as mlx5_ib names its devices.
    /// A GUID replaces the one that follows from its place on the network.
    pub(crate) fn build(&self, index: u32, guid: Option<[u8; 8]>) -> Result<SoftDevice, String> {
        let builder = SoftDevice::builder(&format!("mlx5_{index}"))
            .index(index)
            .model(self.model)
            .kernel(self.kernel);
        let builder = if self.is_infiniband { builder.infiniband() } else { builder };
        let builder = guid.into_iter().fold(builder, |builder, guid| builder.node_guid(guid));
        let (wire, waker, place) = wire::connect(self, index)?;
        let builder = builder.wire_to_network(wire, waker, place);
        let device = builder.build().map_err(|error| error.to_string())?;
        if let Some(faults) = &self.faults {
            faults.inject_commands(&device);
        }
        Ok(device)
    }

    /// The faults of the devices' packets.
    pub(crate) fn plan(&self) -> Option<&FaultPlan> {
        self.faults.as_ref().map(|faults| &faults.plan)
    }
}

/// The value of a variable that is set.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn choice<T>(
    variable: &str,
    default: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, String> {
    let text = env::var(variable).unwrap_or_else(|_| default.into());
    parse(&text).ok_or_else(|| format!("--{} {text} is not understood", option(variable)))
}

fn if_set<T>(variable: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, String> {
    env::var_os(variable).map_or(Ok(None), |_| choice(variable, "", parse).map(Some))
}

/// The command's option that sets a variable.
fn option(variable: &str) -> String {
    variable.trim_start_matches("UVERBS_RUN_").to_ascii_lowercase()
}
