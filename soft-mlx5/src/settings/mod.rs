//! Settings of a program's software devices in environment variables, for libraries that a program
//! loads without knowing.

mod faults;
mod recording;
mod wire;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::chardev::{Kernel, Model, SoftDevice};
use crate::wire::{Carrier, HostAddress};
pub use faults::Faults;
pub use recording::{RECORDED, TRACED, is_first, open_output, say_incomplete};

/// A family of variables.
#[derive(Debug, Clone, Copy)]
pub struct Variables {
    /// The prefix of their names.
    pub prefix: &'static str,
    /// Maps a name without the prefix to the name in error messages.
    pub shown: fn(&str) -> String,
}

/// The names without the prefix, and the values of each.
const NAMES: [(&str, &str); 8] = [
    ("DEVICES", "a number from 1 to 32"),
    ("LINK", "roce or ib"),
    ("MODEL", "cx5, cx6dx or cx7"),
    ("KERNEL", "current, static-uar, write-commands or short-context"),
    ("ADDRESS", "an IP address, or several with commas"),
    ("WIRE", "memory, memory-of-any-user or udp"),
    ("FAULTS", faults::FORM),
    ("PCAP", "the name of a file"),
];

/// Most nodes that one process may have.
const MAX_DEVICES: u32 = 32;

/// The devices to create.
#[derive(Debug)]
pub struct Settings {
    /// How many devices there are.
    pub devices: u32,
    /// Whether their links are InfiniBand, not Ethernet.
    pub is_infiniband: bool,
    model: Model,
    kernel: Kernel,
    /// The devices' addresses, separated by commas. If there are more devices, their addresses
    /// follow the last one.
    pub addresses: Option<String>,
    carrier: Carrier,
    /// The faults to inject.
    pub faults: Option<Faults>,
    pcap: Option<PathBuf>,
    token: Option<PathBuf>,
}

impl Settings {
    /// Reads the variables. Unset variables have their defaults.
    ///
    /// # Errors
    /// A text that names the variable whose value is not understood.
    pub fn from_environment(variables: Variables) -> Result<Self, String> {
        let devices = variables.choice("DEVICES", "1", |text| {
            text.parse().ok().filter(|count| (1..=MAX_DEVICES).contains(count))
        })?;
        let is_infiniband = variables.choice("LINK", "roce", |text| match text {
            "roce" => Some(false),
            "ib" => Some(true),
            _ => None,
        })?;
        let model = variables.choice("MODEL", "cx6dx", |text| match text {
            "cx5" => Some(Model::ConnectX5),
            "cx6dx" => Some(Model::ConnectX6Dx),
            "cx7" => Some(Model::ConnectX7),
            _ => None,
        })?;
        let kernel = variables.choice("KERNEL", "current", |text| match text {
            "current" => Some(Kernel::CURRENT),
            "static-uar" => Some(Kernel::STATIC_UAR),
            "write-commands" => Some(Kernel::WRITE_COMMANDS),
            "short-context" => Some(Kernel::SHORT_CONTEXT),
            _ => None,
        })?;
        let addresses = variables.if_set("ADDRESS", |text| {
            HostAddress::of_list(text, 0).is_ok().then(|| text.to_owned())
        })?;
        let carrier = variables.choice("WIRE", "memory", |text| match text {
            "memory" => Some(Carrier::Memory),
            "memory-of-any-user" => Some(Carrier::MemoryOfAnyUser),
            "udp" => Some(Carrier::Udp),
            _ => None,
        })?;
        let faults = variables.value("FAULTS").map(|text| {
            let text = text.to_string_lossy();
            faults::parse(&text).map_err(|cause| variables.misunderstood("FAULTS", &text, &cause))
        });
        let faults = faults.transpose()?;
        let pcap = variables.value("PCAP").map(PathBuf::from);
        let token = None;
        Ok(Self { devices, is_infiniband, model, kernel, addresses, carrier, faults, pcap, token })
    }

    /// All processes with the same token (a file) belong to one run. The first device of a run that
    /// records takes the token, and replaces an older recording.
    pub fn of_run(self, token: Option<PathBuf>) -> Self {
        Self { token, ..self }
    }

    /// Starts device number `index`, with this name. A GUID replaces the one that follows from its
    /// place on the network.
    ///
    /// # Errors
    /// The reason why the device cannot be created, have the address, or record.
    pub fn build(&self, name: &str, index: u32, guid: Option<[u8; 8]>) -> io::Result<SoftDevice> {
        let builder = SoftDevice::builder(name).index(index).model(self.model).kernel(self.kernel);
        let builder = if self.is_infiniband { builder.infiniband() } else { builder };
        let builder = guid.into_iter().fold(builder, |builder, guid| builder.node_guid(guid));
        let ((wire, waker, place), start) = wire::connect(self, index)?;
        let builder = builder.wire_to_network(wire, waker, place);
        let device = builder.build()?;
        start.map_or(Ok(()), wire::begin)?;
        if let Some(faults) = &self.faults {
            faults.inject_commands(&device);
        }
        Ok(device)
    }
}

impl Variables {
    /// The variables for programs of the `uverbs` crate and of the drop-in library.
    pub const OF_PROGRAMS: Self =
        Self { prefix: "UVERBS_SOFT_", shown: |rest| format!("UVERBS_SOFT_{rest}") };

    /// Checks for misspelled names, which would have no effect.
    ///
    /// # Errors
    /// A text that names a variable with the prefix that is not a setting.
    pub fn all_known(self) -> Result<(), String> {
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let is_unknown = |rest: &str| NAMES.iter().all(|(known, _)| *known != rest);
        let unknown = names.filter(|name| name.strip_prefix(self.prefix).is_some_and(is_unknown));
        unknown.min().map_or(Ok(()), |name| {
            let known = NAMES.map(|(rest, _)| self.name(rest)).join(", ");
            Err(format!("{name} is none of {known}"))
        })
    }

    fn name(self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// The value; `None` if it is not set or empty.
    fn value(self, rest: &str) -> Option<OsString> {
        env::var_os(self.name(rest)).filter(|value| !value.is_empty())
    }

    fn choice<T>(
        self,
        rest: &str,
        default: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, String> {
        let text = self.value(rest).unwrap_or_else(|| default.into());
        let text = text.to_string_lossy();
        parse(&text).ok_or_else(|| {
            let takes = NAMES.iter().find(|(name, _)| *name == rest).map_or("", |(_, takes)| takes);
            self.misunderstood(rest, &text, &format!("it is {takes}"))
        })
    }

    fn misunderstood(self, rest: &str, text: &str, cause: &str) -> String {
        format!("{} {text} is not understood: {cause}", (self.shown)(rest))
    }

    fn if_set<T>(
        self,
        rest: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        if self.value(rest).is_some() { self.choice(rest, "", parse).map(Some) } else { Ok(None) }
    }
}
