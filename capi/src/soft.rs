//! Software devices, if the environment asks for them.
//!
//! `UVERBS_DEVICE=soft` shows software devices instead of the machine's, `UVERBS_DEVICE=soft,all`
//! both. They never appear otherwise. The variables `UVERBS_SOFT_…` say how they are made, with the
//! words of `uverbs run`'s options.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::OnceLock;

use uverbs::Device;
use uverbs::soft::wire::{Carrier, HostAddress};
use uverbs::soft::{Kernel, Model, SoftDevice};

/// Most software devices of a process.
const MOST: u32 = 32;

/// Which devices a program is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Those of the kernel.
    Kernel,
    /// Software devices.
    Soft,
    /// Both.
    Both,
}

/// What `UVERBS_DEVICE` asks for.
pub(crate) fn shown() -> Shown {
    match std::env::var(uverbs::DEVICE_VARIABLE).as_deref() {
        Ok("soft" | "soft0") => Shown::Soft,
        Ok("soft,all") => Shown::Both,
        _ => Shown::Kernel,
    }
}

/// A software device and its entries below `/sys`.
#[derive(Debug, Clone)]
pub(crate) struct Soft {
    pub(crate) device: Device,
    pub(crate) sysfs: Arc<uverbs::soft::Sysfs>,
}

/// The process's software devices, started at the first call; none if they cannot be started, and
/// standard error says why.
pub(crate) fn devices() -> &'static [Soft] {
    static DEVICES: OnceLock<Vec<Soft>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        start().unwrap_or_else(|cause| {
            eprintln!("uverbs: no software devices: {cause}");
            Vec::new()
        })
    })
}

fn start() -> Result<Vec<Soft>, String> {
    let count = number("UVERBS_SOFT_DEVICES", 1)?;
    if !(1..=MOST).contains(&count) {
        return Err(format!("UVERBS_SOFT_DEVICES is 1 to {MOST}"));
    }
    (0..count).map(one).collect()
}

fn one(index: u32) -> Result<Soft, String> {
    let mut builder = SoftDevice::builder(&format!("soft{index}"))
        .index(index)
        .model(model()?)
        .kernel(kernel()?)
        .carrier(carrier()?);
    if choice("UVERBS_SOFT_LINK", "roce", &["roce", "ib"])? == "ib" {
        builder = builder.infiniband();
    }
    if let Ok(list) = std::env::var("UVERBS_SOFT_ADDRESS") {
        let address = HostAddress::of_list(&list, index);
        builder = builder.address(address.map_err(|text| format!("UVERBS_SOFT_ADDRESS: {text}"))?);
    }
    let device = builder.build().map_err(|error| error.to_string())?;
    let sysfs = Arc::new(device.sysfs());
    Ok(Soft { device: Device::from_soft(device), sysfs })
}

fn model() -> Result<Model, String> {
    Ok(match choice("UVERBS_SOFT_MODEL", "cx6dx", &["cx5", "cx6dx", "cx7"])?.as_str() {
        "cx5" => Model::ConnectX5,
        "cx7" => Model::ConnectX7,
        _ => Model::ConnectX6Dx,
    })
}

fn kernel() -> Result<Kernel, String> {
    let known = ["current", "static-uar", "write-commands", "short-context"];
    Ok(match choice("UVERBS_SOFT_KERNEL", "current", &known)?.as_str() {
        "static-uar" => Kernel::STATIC_UAR,
        "write-commands" => Kernel::WRITE_COMMANDS,
        "short-context" => Kernel::SHORT_CONTEXT,
        _ => Kernel::CURRENT,
    })
}

fn carrier() -> Result<Carrier, String> {
    let known = ["memory", "memory-of-any-user", "udp"];
    Ok(match choice("UVERBS_SOFT_WIRE", "memory", &known)?.as_str() {
        "udp" => Carrier::Udp,
        "memory-of-any-user" => Carrier::MemoryOfAnyUser,
        _ => Carrier::Memory,
    })
}

fn choice(variable: &str, default: &str, known: &[&str]) -> Result<String, String> {
    let value = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    if known.contains(&value.as_str()) {
        return Ok(value);
    }
    Err(format!("{variable}={value} is not one of {}", known.join(", ")))
}

fn number<T: FromStr>(variable: &str, default: T) -> Result<T, String> {
    let Ok(value) = std::env::var(variable) else { return Ok(default) };
    value.parse().map_err(|_| format!("{variable}={value} is no number"))
}
