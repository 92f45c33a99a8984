//! Software devices, if the environment asks for them.
//!
//! `UVERBS_DEVICE=soft` shows software devices instead of the machine's, `UVERBS_DEVICE=soft,all`
//! shows both. Without the variable there are no software devices. The variables `UVERBS_SOFT_…`
//! configure them; they have the names and values of `uverbs run`'s options.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};

use uverbs::Device;
use uverbs::soft::SoftDevice;
use uverbs::soft::settings::{Settings, Variables};

use crate::environment::{say, variable};

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
    let Some(value) = variable(uverbs::DEVICE_VARIABLE) else { return Shown::Kernel };
    match value.to_string_lossy().as_ref() {
        "soft" | "soft0" => Shown::Soft,
        "soft,all" => Shown::Both,
        "" => Shown::Kernel,
        other => {
            static COMPLAINT: Once = Once::new();
            COMPLAINT.call_once(|| complain_of(other));
            Shown::Kernel
        }
    }
}

/// Says that a value is not understood. The name of a kernel's device is valid: programs of the
/// `uverbs` crate choose their device by it.
fn complain_of(value: &str) {
    if uverbs::devices().iter().all(|device| device.name() != value) {
        let variable = uverbs::DEVICE_VARIABLE;
        say(&format!(
            "{variable} {value} is not understood: it is soft, or soft,all, or a device's name; \
             the kernel's devices are shown"
        ));
    }
}

/// A software device and its entries below `/sys`.
#[derive(Debug)]
pub(crate) struct Soft {
    pub(crate) device: Device,
    pub(crate) sysfs: Arc<uverbs::soft::Sysfs>,
    soft: SoftDevice,
    opened: AtomicBool,
}

/// The settings of all software devices.
fn settings() -> &'static Result<Settings, String> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        Variables::OF_PROGRAMS.all_known()?;
        Settings::from_environment(Variables::OF_PROGRAMS)
    })
}

/// The process's software devices, started at the first call. If they cannot be started, there are
/// none, and standard error says why.
pub(crate) fn devices() -> &'static [Soft] {
    static DEVICES: OnceLock<Vec<Soft>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        start().unwrap_or_else(|cause| {
            say(&format!("no software devices: {cause}"));
            Vec::new()
        })
    })
}

fn start() -> Result<Vec<Soft>, String> {
    let settings = settings().as_ref().map_err(Clone::clone)?;
    (0..settings.devices).map(|index| one(settings, index)).collect()
}

fn one(settings: &Settings, index: u32) -> Result<Soft, String> {
    let soft = settings.build(&format!("soft{index}"), index, None);
    let soft = soft.map_err(|error| error.to_string())?;
    let sysfs = Arc::new(soft.sysfs());
    let device = Device::from_soft(soft.clone());
    Ok(Soft { device, sysfs, soft, opened: AtomicBool::new(false) })
}

/// Starts the clock of a device's timed faults, if it has any and is opened for the first time.
pub(crate) fn opened(device: &Device) {
    if shown() == Shown::Kernel {
        return;
    }
    let Some(soft) = devices().iter().find(|soft| soft.device.name() == device.name()) else {
        return;
    };
    if let (Ok(Settings { faults: Some(faults), .. }), false) =
        (settings(), soft.opened.swap(true, Ordering::Relaxed))
    {
        if let Err(cause) = faults.begin(&soft.soft) {
            say(&format!("no timed faults: {cause}"));
        }
    }
}
