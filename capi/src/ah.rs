//! Address handles, including those created from completions.

use std::ffi::c_int;
use std::sync::Arc;

use uverbs::gid::GidEntry;
use uverbs::{AddressHandle, DatagramAddress, DcAddress, GidKind};
use uverbs_mlx5::format::RoutingHeader;

use crate::abi::*;
use crate::attributes;
use crate::context::Context;
use crate::pd::Pd;
use crate::query::words;
use crate::result::{destroy_and_free, failed, null, pointer, refused};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    base: ibv_ah,
    library: Option<AddressHandle>,
    /// The address in the format of requests, without a queue pair.
    wire: DatagramAddress,
    #[allow(dead_code, reason = "held for its lifetime")]
    user: Arc<()>,
}

impl Ah {
    /// The address of a queue pair behind the handle; `None` for a null pointer.
    ///
    /// # Safety
    /// `ah` is null, or from [`create_ah`] and not destroyed.
    #[inline(always)]
    pub(crate) unsafe fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Option<DatagramAddress> {
        // SAFETY: `base` is at offset 0.
        let ah = unsafe { ah.cast::<Self>().as_ref() }?;
        Some(ah.wire.for_datagram(qpn, qkey))
    }

    /// The address of a DC target behind the handle; `None` for a null pointer.
    ///
    /// # Safety
    /// As for [`Ah::datagram`].
    #[inline(always)]
    pub(crate) unsafe fn dc_target(ah: *mut ibv_ah, number: u32, key: u64) -> Option<DcAddress> {
        // SAFETY: the caller's promise.
        let ah = unsafe { ah.cast::<Self>().as_ref() }?;
        Some(ah.wire.for_dc(number, key))
    }

    /// A pointer to the address in the format of requests; `None` for a null pointer.
    ///
    /// # Safety
    /// As for [`Ah::datagram`].
    pub(crate) unsafe fn wire(ah: *mut ibv_ah) -> Option<*const DatagramAddress> {
        // SAFETY: the caller's promise.
        Some(&raw const unsafe { ah.cast::<Self>().as_ref() }?.wire)
    }
}

/// `ibv_create_ah`.
pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's domain and struct.
    let (domain, attr) = unsafe { (Pd::of(pd), &*attr) };
    let Some(library) = domain.domain() else { return null(libc::EINVAL) };
    let base = ibv_ah { context: domain.base.context, pd, handle: 0 };
    let user = domain.users.clone();
    pointer(library.create_ah(&attributes::address(attr)).map(|library| {
        let wire = library.datagram(0, 0);
        Box::new(Ah { base, library: Some(library), wire, user })
    }))
}

/// `ibv_destroy_ah`.
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's object, boxed when it was made. No other thread uses it now.
    unsafe { destroy_and_free(ah.cast::<Ah>(), |ah| &mut ah.library, AddressHandle::destroy) }
}

/// `ibv_init_ah_from_wc`: the address that answers a received datagram.
pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    into: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's context and completion.
    let (context, wc) = unsafe { (Context::of(context), &*wc) };
    let mut attr = attributes::c_address(&uverbs::AddressVector {
        port,
        lid: wc.slid,
        service_level: wc.sl,
        source_path_bits: wc.dlid_path_bits,
        ..uverbs::AddressVector::default()
    });
    let mut result = Ok(());
    if wc.wc_flags & wc_flags::GRH != 0 {
        attr.is_global = 1;
        // SAFETY: the caller's header.
        let grh = unsafe { grh.cast::<[u8; RoutingHeader::BYTES]>().as_ref() };
        result = grh.ok_or(libc::EINVAL).and_then(|grh| route(context, port, grh, &mut attr.grh));
    }
    // SAFETY: the caller's struct, to be written. libibverbs also writes it if it fails.
    unsafe { write_padded(&attr, into) };
    result.map_or_else(
        |errno| {
            refused(errno);
            -1
        },
        |()| 0,
    )
}

/// Writes the route back to the sender of a datagram, or as much of it as libibverbs writes before
/// it fails with this errno.
fn route(
    context: &Context,
    port: u8,
    grh: &[u8; RoutingHeader::BYTES],
    into: &mut ibv_global_route,
) -> Result<(), c_int> {
    if !RoutingHeader::is_ipv4(grh) {
        into.flow_label = u32::from_be_bytes([0, grh[1], grh[2], grh[3]]) & 0xf_ffff;
        if grh[0] >> 4 == 6 {
            if grh[24] == 0xff {
                return Err(libc::EINVAL);
            }
            into.dgid = words(std::array::from_fn(|place| grh[8 + place]));
        }
    }
    let header = RoutingHeader::parse(grh).ok_or(libc::EPROTONOSUPPORT)?;
    let table = context.library.gid_table(port).map_err(|error| failed(&error))?;
    // A multicast packet names no GID of this port, so an answer to it has no source GID.
    let is_own = |entry: &&GidEntry| {
        entry.gid.0 == header.destination && (entry.kind == GidKind::RoceV2) == header.is_udp
    };
    let own = table.iter().find(is_own).ok_or(libc::EINVAL)?;
    *into = ibv_global_route {
        dgid: words(header.source),
        flow_label: header.flow_label,
        sgid_index: own.index as u8,
        hop_limit: header.hop_limit,
        traffic_class: header.traffic_class,
    };
    Ok(())
}

/// `ibv_create_ah_from_wc`.
pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = attributes::c_address(&uverbs::AddressVector::default());
    // SAFETY: the caller's objects, and a struct of ours.
    unsafe {
        if init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        create_ah(pd, &raw mut attr)
    }
}
