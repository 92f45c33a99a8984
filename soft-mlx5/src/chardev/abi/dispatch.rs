//! The ioctl itself: what `ib_uverbs_ioctl` and its helpers check before a method runs
//! (core/uverbs_ioctl.c).
#![forbid(unsafe_code)]

use std::sync::Arc;

use nix::errno::Errno;
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr};
use zerocopy::FromBytes;

use super::call::{Call, Given};
use super::methods;
use super::spec::{Access, Attribute, Form, Method, Size};
use super::user_memory::{PAGE_SIZE, UserMemory};
use crate::chardev::device::file::FileShared;
use crate::chardev::objects::address_handle::await_neighbour;
use crate::chardev::objects::object::Kind;
use crate::packet::Gid;

const HEADER_SIZE: u64 = size_of::<IoctlHdr>() as u64;
const ATTRIBUTE_SIZE: u64 = size_of::<IoctlAttr>() as u64;

/// Runs one `RDMA_VERBS_IOCTL` whose argument is `address`.
pub(crate) fn ioctl(file: &Arc<FileShared>, address: u64, user: UserMemory) -> Result<(), Errno> {
    let header: IoctlHdr = user.read_value(address)?;
    if u64::from(header.length) > PAGE_SIZE
        || u64::from(header.length) != HEADER_SIZE + u64::from(header.num_attrs) * ATTRIBUTE_SIZE
    {
        return Err(Errno::EINVAL);
    }
    if header.reserved1 != 0 || header.reserved2 != 0 {
        return Err(Errno::EPROTONOSUPPORT);
    }
    if header.driver_id != DriverId::MLX5 {
        return Err(Errno::EINVAL);
    }
    let method = methods::find(header.object_id, header.method_id, file.device.options())
        .ok_or(Errno::EPROTONOSUPPORT)?;
    file.device.faults().count_call(header.object_id, header.method_id)?;

    let mut raw = vec![0u8; usize::from(header.num_attrs) * size_of::<IoctlAttr>()];
    user.read(address + HEADER_SIZE, &mut raw)?;
    let attempt = || attempt(file, method, user, &raw, address + HEADER_SIZE);
    match attempt() {
        (Err(_), Some(destination)) => {
            await_neighbour(&file.device, destination);
            attempt().0
        }
        (result, _) => result,
    }
}

/// Runs the method once. Also returns the destination for which no neighbour has answered yet.
fn attempt(
    file: &Arc<FileShared>,
    method: &'static Method,
    user: UserMemory,
    raw: &[u8],
    address: u64,
) -> (Result<(), Errno>, Option<Gid>) {
    let mut state = file.lock();
    let mut call = Call::new(file, &mut state, user);
    let result = run(&mut call, method, raw, address);
    let silent = call.silent_neighbour;
    (call.finish(result.and_then(|()| file.device.faults().count_completed())), silent)
}

fn run(
    call: &mut Call<'_>,
    method: &'static Method,
    raw: &[u8],
    address: u64,
) -> Result<(), Errno> {
    let mut doomed = None;
    for (index, bytes) in (0u64..).zip(raw.chunks_exact(size_of::<IoctlAttr>())) {
        let attribute = IoctlAttr::read_from_bytes(bytes).map_err(|_| Errno::EINVAL)?;
        set(call, method, attribute, address + index * ATTRIBUTE_SIZE, &mut doomed)?;
    }
    if method.attributes.iter().any(|attribute| attribute.mandatory && !call.has(attribute.id)) {
        return Err(Errno::EINVAL);
    }
    if let Some((kind, handle)) = doomed {
        call.destroy(kind, handle)?;
    }
    (method.run)(call)?;
    call.mark_driver_output()
}

/// Checks one attribute and adds it to the call (`uverbs_set_attr`).
fn set(
    call: &mut Call<'_>,
    method: &Method,
    raw: IoctlAttr,
    address: u64,
    doomed: &mut Option<(Kind, u32)>,
) -> Result<(), Errno> {
    let Some(known) = method.attributes.iter().find(|attribute| attribute.id == raw.attr_id) else {
        return if raw.flags.contains(AttrFlags::MANDATORY) {
            Err(Errno::EPROTONOSUPPORT)
        } else {
            Ok(())
        };
    };
    if call.has(raw.attr_id) {
        return Err(Errno::EINVAL);
    }
    let mut given = Given {
        id: raw.attr_id,
        length: raw.len,
        flags: raw.flags,
        data: raw.data,
        address,
        element: 0,
    };
    check(call, known, raw, &mut given, doomed)?;
    call.add(given);
    Ok(())
}

/// `uverbs_process_attr`.
fn check(
    call: &mut Call<'_>,
    known: &Attribute,
    raw: IoctlAttr,
    given: &mut Given,
    doomed: &mut Option<(Kind, u32)>,
) -> Result<(), Errno> {
    match known.form {
        Form::In(size) => {
            check_tail(call, given, size)?;
            check_length(size, raw)
        }
        Form::Out(size) => check_length(size, raw),
        Form::Choice(elements) => {
            let [element, reserved] = raw.enum_id.to_ne_bytes();
            let known = elements.get(usize::from(element)).ok_or(Errno::EOPNOTSUPP)?;
            given.element = element;
            if reserved != 0 || raw.len != *known { Err(Errno::EINVAL) } else { Ok(()) }
        }
        Form::Handle(kind, access) => {
            let handle = handle(raw)?;
            match access {
                Access::New => {
                    given.data = call.reserve()?.into();
                    call.user.write_value(given.bytes_at(), &given.data)
                }
                Access::Read => call.state.lookup_live(call.file, kind, handle),
                Access::Destroy => {
                    *doomed = Some((kind, handle));
                    call.state.lookup(kind, handle)
                }
            }
        }
        Form::AnyHandle => {
            let handle = handle(raw)?;
            let kind = call.any_object(handle)?.kind();
            call.state.lookup_live(call.file, kind, handle)
        }
        Form::Handles(kind, most) => {
            let count = usize::from(raw.len) / size_of::<u32>();
            let odd = usize::from(raw.len) % size_of::<u32>() != 0;
            if raw.enum_id != 0 || odd || !(1..=most).contains(&count) {
                return Err(Errno::EINVAL);
            }
            let mut handles = call.handles_at(given)?.into_iter();
            handles.try_for_each(|handle| call.state.lookup_live(call.file, kind, handle))
        }
        Form::Descriptor(kind, access) => {
            check_bare(raw)?;
            if access == Access::New {
                given.data = call.new_event_file(kind)? as u64;
                return call.user.write_value(given.bytes_at(), &given.data);
            }
            let fd = i32::try_from(raw.data as i64).map_err(|_| Errno::EINVAL)?;
            call.state.event_queue(fd, kind).map(drop)
        }
    }
}

/// The handle in an attribute. Beyond 32 bits it fails: with EINVAL if negative, else with ENOENT.
fn handle(raw: IoctlAttr) -> Result<u32, Errno> {
    check_bare(raw)?;
    let wrong = if (raw.data as i64) < 0 { Errno::EINVAL } else { Errno::ENOENT };
    u32::try_from(raw.data).map_err(|_| wrong)
}

/// A handle or descriptor is the attribute's data; length and enum id must be 0.
fn check_bare(raw: IoctlAttr) -> Result<(), Errno> {
    if raw.enum_id != 0 || raw.len != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn check_length(size: Size, raw: IoctlAttr) -> Result<(), Errno> {
    if raw.len < size.min || (!size.zero_trailing && raw.len > size.known) || raw.enum_id != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Bytes after the known ones must be zero in attributes that may be longer.
fn check_tail(call: &Call<'_>, given: &Given, size: Size) -> Result<(), Errno> {
    let length = given.length.saturating_sub(size.known);
    if length == 0 || !size.zero_trailing {
        return Ok(());
    }
    let start = given.bytes_at().wrapping_add(size.known.into());
    // The kernel reports an unreadable tail as one that is not clear.
    let is_clear = call.user.is_clear(start, length.into()).unwrap_or(false);
    if is_clear { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}
