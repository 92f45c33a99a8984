//! Devices of this machine and open ones: attributes, ports, GIDs, the clock, asynchronous events.

pub mod address;
pub mod attributes;
pub mod clock;
pub(crate) mod context;
pub mod events;
pub mod gid;
pub(crate) mod identity;
mod import;
pub(crate) mod kept;
pub mod layer;
pub(crate) mod limits;
mod list;
mod query;

pub use list::{DEVICE_VARIABLE, Device, DeviceKind, device, devices, devices_below, open_default};
