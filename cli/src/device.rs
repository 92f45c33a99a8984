//! Chooses the device that a command uses, and explains the choice.

use std::fmt;

use serde::Serialize;
use uverbs::gid::GidChoice;
use uverbs::soft::SoftDevice;
use uverbs::soft::wire::HostAddress;
use uverbs::{Context, DEVICE_VARIABLE, Device, DeviceKind, ErrorKind, LinkLayer, PortAttributes};

use crate::args::DeviceChoice;
use crate::failure::{Failure, Outcome};

/// The environment variable with the addresses of software devices.
pub(crate) const ADDRESS_VARIABLE: &str = "UVERBS_SOFT_ADDRESS";

/// An open device, one of its ports and one of that port's GIDs.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) context: Context,
    /// Why this device was chosen.
    pub(crate) why: String,
    /// Number of the port, from 1.
    pub(crate) port: u8,
    pub(crate) attributes: PortAttributes,
    pub(crate) gid: GidChoice,
    /// Whether queue pairs are connected through rdma_cm (`--cm`) instead of by exchanged
    /// endpoints.
    pub(crate) by_address: bool,
    /// The software device's address, if the user gave one.
    pub(crate) address: Option<HostAddress>,
}

impl Chosen {
    /// The same choice, with or without connecting through rdma_cm.
    pub(crate) fn by_address(self, by_address: bool) -> Self {
        Self { by_address, ..self }
    }
}

/// Advice in errors if the software device must be requested.
const CURE: &str = "--device soft takes the software device";

/// Opens the requested device, else the first mlx5 device that works. Without any mlx5 device, it
/// opens the software device.
pub(crate) fn choose(choice: &DeviceChoice) -> Outcome<Chosen> {
    choose_or(choice, |why| {
        Ok((uverbs::device("soft")?.open()?, format!("{why}; uverbs info shows more")))
    })
}

/// As [`choose`], for frames of a network: it uses the software device only if that is requested.
pub(crate) fn choose_network(choice: &DeviceChoice) -> Outcome<Chosen> {
    choose_or(choice, |why| Err(Failure::failed(format!("{why}; {CURE}"))))
}

/// Calls `without`, with the reason, if there is no mlx5 device and no other was requested.
fn choose_or(
    choice: &DeviceChoice,
    without: impl FnOnce(&str) -> Outcome<(Context, String)>,
) -> Outcome<Chosen> {
    let (context, why) = match (&choice.address, named(choice.device.as_deref())) {
        (Some(address), _) => at(address, choice.device.as_deref())?,
        (None, Some((name, why))) => (uverbs::device(&name)?.open()?, why),
        (None, None) => first_usable(without)?,
    };
    let (port, attributes) = active_port(&context)?;
    let gid = context.choose_gid(port, choice.gid_index.map(u32::from))?;
    let address = match context.kind() {
        DeviceKind::Kernel => None,
        DeviceKind::Software => choice.address.clone().or_else(address_of_environment),
    };
    Ok(Chosen { context, why, port, attributes, gid, by_address: false, address })
}

/// The first address of `UVERBS_SOFT_ADDRESS`, which a device opened by name has.
fn address_of_environment() -> Option<HostAddress> {
    HostAddress::of_list(&std::env::var(ADDRESS_VARIABLE).ok()?, 0).ok()
}

/// Opens a software device at `address`.
fn at(address: &HostAddress, requested: Option<&str>) -> Outcome<(Context, String)> {
    if let Some(name) = requested.filter(|name| !["soft", "soft0"].contains(name)) {
        let text = format!("--address is for the software device: {name} has its own addresses");
        return Err(Failure::usage(text));
    }
    let device = SoftDevice::builder("soft0").address(address.clone()).build();
    let device = device.map_err(|error| Failure::failed(error.to_string()))?;
    let why = format!("at {address}, asked for by --address");
    Ok((Device::from_soft(device).open()?, why))
}

fn named(requested: Option<&str>) -> Option<(String, String)> {
    if let Some(name) = requested {
        return Some((name.to_owned(), "asked for by --device".to_owned()));
    }
    let name = std::env::var(DEVICE_VARIABLE).ok().filter(|name| !name.is_empty())?;
    Some((name, format!("asked for by {DEVICE_VARIABLE}")))
}

/// Opens the first mlx5 device that works. If there are mlx5 devices but none works, this is an
/// error, because the user expects no other device.
fn first_usable(
    without: impl FnOnce(&str) -> Outcome<(Context, String)>,
) -> Outcome<(Context, String)> {
    let all = uverbs::devices()?;
    let (other, mlx5): (Vec<_>, Vec<_>) = all.iter().partition(|device| is_foreign(device));
    let mut failures = Vec::new();
    for device in mlx5 {
        match usable(device) {
            Ok(context) => return Ok((context, "the first usable kernel device".to_owned())),
            Err(failure) => failures.push(about(device, &failure)),
        }
    }
    if !failures.is_empty() {
        return Err(Failure::failed(format!("{}; {CURE}", failures.join("; "))));
    }
    without(&match other.as_slice() {
        [] => "the kernel has no RDMA device".to_owned(),
        other => format!("the kernel's devices are not mlx5: {}", names(other)),
    })
}

/// A failure with the device's name, unless the failure has it already.
fn about(device: &Device, failure: &Failure) -> String {
    let (name, failure) = (device.name(), failure.to_string());
    if has_word(&failure, name) { failure } else { format!("{name}: {failure}") }
}

/// Whether a text contains this name as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == name)
}

/// Whether the device belongs to another driver than mlx5.
fn is_foreign(device: &Device) -> bool {
    device.check().is_err_and(|error| error.kind() == ErrorKind::NotMlx5)
}

fn names(devices: &[&Device]) -> String {
    devices.iter().map(|device| device.name()).collect::<Vec<_>>().join(", ")
}

fn usable(device: &Device) -> Outcome<Context> {
    let context = device.open()?;
    active_port(&context)?;
    Ok(context)
}

/// The first active port.
fn active_port(context: &Context) -> Outcome<(u8, PortAttributes)> {
    for port in 1..=context.attributes()?.ports() {
        let attributes = context.query_port(port)?;
        if attributes.is_active() {
            return Ok((port, attributes));
        }
    }
    Err(Failure::failed(format!(
        "no port of {} is active: is the cable in, the interface up?",
        context.device().name()
    )))
}

/// The device in a report.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceReport {
    device: String,
    device_kind: String,
    device_reason: String,
    pub(crate) link: String,
}

impl Chosen {
    /// The device, for a report.
    pub(crate) fn report(&self) -> DeviceReport {
        let device = self.context.device();
        DeviceReport {
            device: device.name().to_owned(),
            device_kind: device.kind().to_string(),
            device_reason: self.why.clone(),
            link: self.link_line(),
        }
    }

    /// The device as text, for the first line of a report.
    pub(crate) fn device_line(&self) -> String {
        let kind = match self.context.kind() {
            DeviceKind::Kernel => "real device",
            DeviceKind::Software => "built-in software ConnectX",
        };
        format!("{} ({kind}; {})", self.context.device().name(), self.why)
    }

    /// The link as text.
    pub(crate) fn link_line(&self) -> String {
        let link = match self.attributes.link_layer() {
            LinkLayer::InfiniBand => format!("InfiniBand, LID {}", self.attributes.lid()),
            other => other.to_string(),
        };
        let speed =
            self.attributes.gigabits().map_or(String::new(), |speed| format!(", {speed} Gbit/s"));
        let entry = self.gid.entry;
        format!(
            "port {}, {link}{speed}, MTU {}, GID {} {} ({})",
            self.port,
            self.attributes.active_mtu().bytes(),
            entry.index,
            entry.gid,
            entry.kind
        )
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; {})", self.device, self.device_kind, self.device_reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_another_name_names_no_device() {
        for text in ["mlx5_1", "open mlx5_1: refused", "no port of mlx5_1, mlx5_10"] {
            assert!(has_word(text, "mlx5_1"), "{text}");
        }
        for text in ["", "mlx5_10 is down", "roce_mlx5_1"] {
            assert!(!has_word(text, "mlx5_1"), "{text}");
        }
    }
}
