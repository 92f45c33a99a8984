//! Formats requests.

use std::fmt::Write;

use uverbs_uapi::ioctl::IoctlHdr;
use uverbs_uapi::objects::device;
use uverbs_uapi::view::{AttrView, IoctlView, LONGEST, Payload};
use zerocopy::FromBytes;

use super::names;
use super::payload;

/// A copy of a request from before the call.
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Copies the request at `address`; `None` if no valid request is there.
    pub(super) fn read(address: u64) -> Option<Self> {
        let header = payload::read(address, size_of::<IoctlHdr>())?;
        let length = usize::from(IoctlHdr::read_from_bytes(&header).ok()?.length).min(LONGEST);
        let bytes = payload::read(address, length)?;
        IoctlView::parse(&bytes).ok()?;
        Some(Self { bytes })
    }

    /// Names and values of the attributes. If the call succeeded, outputs are read from the request
    /// at `address`.
    pub(super) fn describe(&self, address: u64, succeeded: bool) -> String {
        let Ok(view) = IoctlView::parse(&self.bytes) else { return String::new() };
        let verb = names::verb(&view);
        let mut text = verb.clone();
        for attribute in view.attributes() {
            let value = value(&view, &verb, &attribute, address, succeeded);
            if let Some(value) = value.filter(|value| value != "{}") {
                let _ = write!(text, " {}={value}", name(&attribute));
            }
        }
        text
    }
}

fn name(attribute: &AttrView) -> String {
    match attribute.info() {
        Some(info) => info.name.to_ascii_lowercase(),
        None => format!("attr_{:#x}", attribute.id().0),
    }
}

/// An attribute's value; `None` for a write command's number, which the verb's name already shows.
fn value(
    view: &IoctlView<'_>,
    verb: &str,
    attribute: &AttrView,
    request: u64,
    succeeded: bool,
) -> Option<String> {
    let invokes = view.object() == device::OBJECT && view.write_command().is_some();
    if invokes && attribute.id() == device::invoke_write::WRITE_CMD.id() {
        return None;
    }
    if attribute.is_new() {
        return Some(new_value(attribute, request, succeeded));
    }
    Some(match attribute.payload() {
        Payload::Handle(handle) => format!("#{handle}"),
        Payload::Fd(fd) => format!("fd {fd}"),
        Payload::Inline { bytes, len } => {
            let bytes = bytes.get(..usize::from(len)).unwrap_or_default();
            payload::text(bytes, names::structure(verb, attribute, bytes.len()))
        }
        Payload::Input { address, len } => elsewhere(verb, attribute, address, len),
        Payload::Output { address, len } if succeeded => elsewhere(verb, attribute, address, len),
        Payload::Output { .. } => "?".into(),
    })
}

fn elsewhere(verb: &str, attribute: &AttrView, address: u64, len: u16) -> String {
    match payload::read(address, usize::from(len)) {
        Some(bytes) => payload::text(&bytes, names::structure(verb, attribute, bytes.len())),
        None => format!("{len} bytes at {address:#x}"),
    }
}

/// A handle or descriptor that the call stored in its attribute.
fn new_value(attribute: &AttrView, request: u64, succeeded: bool) -> String {
    let data = request + attribute.offset() as u64 + DATA_OFFSET;
    let stored = succeeded.then(|| payload::read(data, 8)).flatten();
    match stored.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))) {
        Some(value) if matches!(attribute.payload(), Payload::Fd(_)) => {
            format!("fd {}", value as i32)
        }
        Some(value) => format!("#{value}"),
        None => "?".into(),
    }
}

/// Offset of the data in `struct ib_uverbs_attr`.
const DATA_OFFSET: u64 = 8;
