//! Error texts: why a connection failed, or why an address cannot be used.

use std::fmt;
use std::net::SocketAddr;

use nix::errno::Errno;

use crate::error::{Error, ErrorKind};

/// Why a peer refused a connection: the reason of the REJ message (IBTA volume 1, table 109).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The request timed out at the peer, or was withdrawn.
    pub const TIMEOUT: Self = Self(4);
    /// No program listens at the port.
    pub const NO_LISTENER: Self = Self(8);
    /// The peer still knows an earlier connection of the same queue pair.
    pub const STALE: Self = Self(10);
    /// The program refused; its private data say why.
    pub const BY_PROGRAM: Self = Self(28);
    /// The options of enhanced connection establishment do not suit.
    pub const VENDOR_OPTION: Self = Self(35);

    fn text(self) -> &'static str {
        match self.0 {
            1 => "no queue pair left",
            3 => "no resources left",
            4 => "timed out",
            5 => "unsupported request",
            6 => "unknown communication id",
            8 => "no program listens at the port",
            9 => "the transport is not supported",
            10 => "an earlier connection of the same queue pair is still known",
            12 => "no such GID",
            26 => "the MTU is not supported",
            27 => "too many reads and atomics in flight",
            28 => "refused by the program, or the program ended",
            35 => "the vendor's options are not supported",
            _ => "refused",
        }
    }

    fn cure(self) -> &'static str {
        match self {
            Self::NO_LISTENER => "start the server first, or check the port and the port space",
            Self::STALE => "use another queue pair, or wait until its time-wait is over",
            Self::TIMEOUT => "try again; the server may not accept fast enough",
            Self::BY_PROGRAM => "see what the peer's program says, and start it again if it ended",
            _ => "",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reason {})", self.text(), self.0)
    }
}

/// A peer's refusal. As the source of an [`Error`] it has what the peer said:
///
/// ```
/// fn said(error: &uverbs::Error) -> Option<&[u8]> {
///     let source = std::error::Error::source(error)?;
///     Some(&source.downcast_ref::<uverbs::cm::Rejection>()?.private_data)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// The peer's private data: the field of 148 bytes, padded with zeros.
    pub private_data: Vec<u8>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer refused the connection: {}", self.reason)
    }
}

impl std::error::Error for Rejection {}

impl From<Rejection> for Error {
    /// ECONNREFUSED, with the rejection as its source.
    fn from(rejection: Rejection) -> Self {
        let cure = rejection.reason.cure();
        Error::os("connect", Errno::ECONNREFUSED)
            .because(rejection.to_string())
            .cure_with(cure)
            .with_source(rejection)
    }
}

/// The error of an event's status, a negative errno.
pub(super) fn failed(verb: &'static str, status: i32) -> Error {
    explain(Error::os(verb, Errno::from_raw(status.saturating_neg())), None)
}

/// Adds cause and cure to the kernel's error about an address.
pub(super) fn explain(error: Error, address: Option<SocketAddr>) -> Error {
    let error = match address {
        Some(address) => error.asked(address.to_string()),
        None => error,
    };
    let place = address.map_or("the address".to_owned(), |address| address.ip().to_string());
    match Errno::from_raw(error.errno()) {
        Errno::ENODEV => error
            .with_kind(ErrorKind::NotFound)
            .because(format!("no RDMA device has the interface that leads to {place}"))
            .cure_with(ADDRESSES),
        Errno::EADDRNOTAVAIL if is_port_taken(error.verb(), address) => error
            .with_kind(ErrorKind::Busy)
            .because("an id of this machine is bound to the port")
            .cure_with(PORTS),
        Errno::EADDRNOTAVAIL => {
            let has_port = address.is_some_and(|address| address.port() != 0);
            let or = match error.verb() {
                "bind_addr" if has_port => ", or an id at all addresses is bound to the port",
                _ => "",
            };
            error
                .with_kind(ErrorKind::NotFound)
                .because(format!("no RDMA device has the address {place}{or}"))
                .cure_with(ADDRESSES)
        }
        Errno::EINVAL if address.is_some_and(needs_scope) => {
            error.because("a link-local address needs its interface, and none is given").cure_with(
                "add the interface (fe80::1%eth0 in a cm::Address, or a SocketAddrV6's scope id)",
            )
        }
        Errno::EADDRINUSE => error.because("another id is bound to the port").cure_with(PORTS),
        Errno::EACCES => error
            .with_kind(ErrorKind::Permission)
            .because("ports below 1024 are for privileged programs"),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => error
            .because(format!("there is no route to {place}"))
            .cure_with("check the address (ip route get ADDRESS)"),
        Errno::ETIMEDOUT => error
            .with_kind(ErrorKind::TimedOut)
            .because(format!("{place} does not answer; the peer may have ended"))
            .cure_with("check that the peer is up, and that its device is an RDMA device"),
        Errno::ENXIO => error
            .with_kind(ErrorKind::DeviceGone)
            .because("the id's device was removed")
            .cure_with("destroy the id"),
        _ => error,
    }
}

/// Adds the cause to errors of a step towards a peer that may have withdrawn or ended: then the id
/// has another state (EINVAL), or the peer's address does not answer.
pub(super) fn perhaps_ended(error: Error) -> Error {
    let cause = match (Errno::from_raw(error.errno()), error.verb()) {
        (Errno::ETIMEDOUT, _) => format!("{}; the peer may have ended", error.cause()),
        (Errno::EINVAL, "init_qp_attr" | "accept") if error.is_from_kernel() => {
            "the peer may have given up or ended".to_owned()
        }
        _ => return error,
    };
    error.because(cause).cure_with("go on with the next peer, or check that this one still runs")
}

/// Whether EADDRNOTAVAIL means that the port is taken: the kernel returns it if one of the two ids
/// is bound to all addresses (`cma_check_port` in drivers/infiniband/core/cma.c).
fn is_port_taken(verb: &str, address: Option<SocketAddr>) -> bool {
    verb == "listen" || address.is_some_and(|address| address.ip().is_unspecified())
}

/// Whether it is a link-local address without its interface (EINVAL of `cma_bind_addr`).
fn needs_scope(address: SocketAddr) -> bool {
    match address {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(v6) => v6.ip().segments()[0] & 0xffc0 == 0xfe80 && v6.scope_id() == 0,
    }
}

const PORTS: &str = "choose another port, or set_reuse_address on both ids";

const ADDRESSES: &str = "`uverbs info` lists devices with their addresses; UVERBS_SOFT_ADDRESS gives \
                         a software device the address of an interface";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_keeps_what_the_peer_said() {
        let rejection = Rejection { reason: RejectReason::NO_LISTENER, private_data: vec![1, 2] };
        let error = Error::from(rejection.clone());
        assert_eq!(error.errno(), Errno::ECONNREFUSED as i32);
        assert!(error.to_string().contains("start the server"), "{error}");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.downcast_ref::<Rejection>(), Some(&rejection));
    }

    #[test]
    fn an_address_without_device_names_the_way_to_look() {
        let error = Error::os("bind_addr", Errno::EADDRNOTAVAIL);
        let error = explain(error, Some("10.1.2.3:5".parse().unwrap()));
        assert!(error.to_string().contains("no RDMA device has the address 10.1.2.3"), "{error}");
        let cure = error.cure();
        assert!(cure.contains("uverbs info") && cure.contains("UVERBS_SOFT_ADDRESS"), "{error}");
        let error = explain(Error::os("bind_addr", Errno::EADDRNOTAVAIL), "[::]:5".parse().ok());
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(failed("resolve_addr", -110).kind(), ErrorKind::TimedOut);
    }
}
