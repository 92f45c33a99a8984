//! Parses faults: `SEED[,NAME=VALUE]…`.
//!
//! `drop`, `duplicate`, `corrupt`, `reorder` and `delay` are percentages of packets;
//! `ioctl=N:ERRNO` fails the Nth ioctl; `port=MS` takes the port down after MS milliseconds and
//! brings it back MS milliseconds later; `remove=MS` removes the device after MS milliseconds. Both
//! times start when the program first opens the device. A seed alone injects, at low rates, every
//! fault that the transport repairs.

use std::time::Duration;

use crate::chardev::{Errno, Fault, Moment, SoftDevice};
use crate::core::{AsyncKind, EventObject};
use crate::fault::FaultPlan;

use crate::runtime::os_thread::OsThread;

/// Shortest and longest delay of late packets, in nanoseconds.
const DELAYS: (u64, u64) = (10_000, 1_000_000);

/// Parts per million in one percent.
const PERCENT: f64 = 10_000.0;

/// The format, for error messages.
pub(super) const FORM: &str = "a number as the seed, then any of drop, duplicate, corrupt, reorder \
                               and delay with a percentage, ioctl=N:ERRNO, port=MS, remove=MS \
                               (7,drop=2.5,ioctl=12:ENOMEM); ERRNO is EINTR, EAGAIN, ENOMEM, EIO \
                               or EPERM";

/// The faults to inject.
#[derive(Debug, Default)]
pub struct Faults {
    /// What happens to packets.
    pub(super) plan: FaultPlan,
    /// Ioctls that fail.
    commands: Vec<Fault>,
    /// Events of the whole device, and their times.
    later: Vec<(Duration, Later)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    PortDown,
    PortUp,
    Removed,
}

impl Faults {
    /// Injects the failing ioctls into a device.
    pub(super) fn inject_commands(&self, device: &SoftDevice) {
        self.commands.iter().for_each(|fault| device.inject(*fault));
    }

    /// Starts the timed events of a device, which the program opens for the first time.
    ///
    /// # Errors
    /// `EAGAIN` if no thread can be created.
    pub fn begin(&self, device: &SoftDevice) -> std::io::Result<()> {
        if self.later.is_empty() {
            return Ok(());
        }
        let (device, later) = (device.clone(), self.later.clone());
        let work = move || later.iter().for_each(|event| raise(&device, event));
        OsThread::spawn("uverbs-faults", work).map(drop)
    }
}

fn raise(device: &SoftDevice, (wait, event): &(Duration, Later)) {
    std::thread::sleep(*wait);
    let port = EventObject::Port(1);
    // This fails only in a forked child, which has no such thread.
    let _ = match event {
        Later::PortDown => device.raise(AsyncKind::PortError, port),
        Later::PortUp => device.raise(AsyncKind::PortActive, port),
        Later::Removed => {
            device.remove();
            Ok(())
        }
    };
}

/// Fails with the reason if the text is not understood.
pub(super) fn parse(text: &str) -> Result<Faults, String> {
    let mut words = text.split(',').peekable();
    let seed = words.next().and_then(|word| word.parse().ok()).ok_or_else(form)?;
    let plan = FaultPlan { seed, delay_range: DELAYS, ..FaultPlan::default() };
    let mut faults = Faults { plan, ..Faults::default() };
    let is_default = words.peek().is_none();
    words.try_for_each(|word| order(&mut faults, word))?;
    if is_default {
        let plan = &mut faults.plan;
        plan.drop = 10_000;
        plan.duplicate = 5_000;
        plan.corrupt = 5_000;
        plan.reorder = 10_000;
        plan.delay = 10_000;
    }
    Ok(faults)
}

fn form() -> String {
    format!("it is {FORM}")
}

fn order(faults: &mut Faults, word: &str) -> Result<(), String> {
    let (name, value) = word.split_once('=').ok_or_else(form)?;
    let time = || value.parse().map(Duration::from_millis).map_err(|_| form());
    match name {
        "ioctl" => faults.commands.push(command(value).ok_or_else(form)?),
        "port" => faults.later.extend([(time()?, Later::PortDown), (time()?, Later::PortUp)]),
        "remove" => faults.later.push((time()?, Later::Removed)),
        _ => {
            *chance(&mut faults.plan, name).ok_or_else(form)? = parts_per_million(name, value)?;
        }
    }
    Ok(())
}

fn chance<'a>(plan: &'a mut FaultPlan, name: &str) -> Option<&'a mut u32> {
    Some(match name {
        "drop" => &mut plan.drop,
        "duplicate" => &mut plan.duplicate,
        "corrupt" => &mut plan.corrupt,
        "reorder" => &mut plan.reorder,
        "delay" => &mut plan.delay,
        _ => return None,
    })
}

fn parts_per_million(name: &str, text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 100.0 => Err(format!("{name}={text} is more than 100 %")),
        Ok(percent) if percent < 0.0 => Err(format!("{name}={text} is less than 0 %")),
        Ok(percent) if !percent.is_nan() => Ok((percent * PERCENT) as u32),
        _ => Err(form()),
    }
}

fn command(text: &str) -> Option<Fault> {
    let (nth, errno) = text.split_once(':')?;
    let nth: u64 = nth.parse().ok()?;
    let errno = match errno {
        "EINTR" => Errno::EINTR,
        "EAGAIN" => Errno::EAGAIN,
        "ENOMEM" => Errno::ENOMEM,
        "EIO" => Errno::EIO,
        "EPERM" => Errno::EPERM,
        _ => return None,
    };
    Some(Fault { moment: Moment::Call(nth.checked_sub(1)?), errno })
}

#[cfg(test)]
mod tests;
