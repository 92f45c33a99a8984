//! Software devices, if the environment asks for them.
//!
//! `UVERBS_DEVICE=soft` shows software devices instead of the machine's, `UVERBS_DEVICE=soft,all`
//! shows both. Without the variable there are no software devices. The variables `UVERBS_SOFT_…`
//! configure them; they have the names and values of `uverbs run`'s options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uverbs::Device;
use uverbs::soft::SoftDevice;
use uverbs::soft::settings::{Settings, Variables};

use crate::environment::{say, variable};
use crate::table::Table;

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

/// The devices that `UVERBS_DEVICE` selects.
pub(crate) fn shown() -> Shown {
    let Some(value) = variable(uverbs::DEVICE_VARIABLE) else { return Shown::Kernel };
    match value.to_string_lossy().as_ref() {
        "soft" | "soft0" => Shown::Soft,
        "soft,all" => Shown::Both,
        "" => Shown::Kernel,
        other => {
            static COMPLAINED: AtomicBool = AtomicBool::new(false);
            if !COMPLAINED.swap(true, Ordering::Relaxed) {
                complain_of(other);
            }
            Shown::Kernel
        }
    }
}

/// Reports an unknown value. The name of a kernel device is valid, because programs of the `uverbs`
/// crate choose their device by it.
fn complain_of(value: &str) {
    if uverbs::devices().is_ok_and(|all| all.iter().all(|device| device.name() != value)) {
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

/// The software devices of a process, and their settings.
#[derive(Debug, Default)]
struct Started {
    devices: Vec<Soft>,
    settings: Option<Settings>,
}

/// The process's software devices, started at the first call. If they cannot be started, there are
/// none, and the reason goes to standard error.
fn started() -> &'static Started {
    // A child that was forked while a thread started them starts its own.
    static STARTED: Table<Option<&'static Started>> = Table::new();
    STARTED.lock().get_or_insert_with(|| {
        Box::leak(Box::new(start().unwrap_or_else(|cause| {
            say(&format!("no software devices: {cause}"));
            Started::default()
        })))
    })
}

/// The process's software devices.
pub(crate) fn devices() -> &'static [Soft] {
    &started().devices
}

fn start() -> Result<Started, String> {
    Variables::OF_PROGRAMS.all_known()?;
    let settings = Settings::from_environment(Variables::OF_PROGRAMS)?;
    let devices = (0..settings.devices).map(|index| one(&settings, index));
    Ok(Started { devices: devices.collect::<Result<_, _>>()?, settings: Some(settings) })
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
    let started = started();
    let Some(soft) = started.devices.iter().find(|soft| soft.device.name() == device.name()) else {
        return;
    };
    if let (Some(Settings { faults: Some(faults), .. }), false) =
        (&started.settings, soft.opened.swap(true, Ordering::Relaxed))
    {
        if let Err(cause) = faults.begin(&soft.soft) {
            say(&format!("no timed faults: {cause}"));
        }
    }
}
