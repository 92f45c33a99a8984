//! Explanations of failed connections and unusable addresses.

use std::fmt;
use std::net::SocketAddr;

use nix::errno::Errno;

use crate::error::{Error, ErrorKind};

/// The reason in a peer's REJ message (IBTA volume 1, table 109).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The request timed out at the peer, or was withdrawn.
    pub const TIMEOUT: Self = Self(4);
    /// No program listens at the port.
    pub const NO_LISTENER: Self = Self(8);
    /// The peer still knows an earlier connection of the same queue pair.
    pub const STALE: Self = Self(10);
    /// The program refused; its private data may have the reason.
    pub const BY_PROGRAM: Self = Self(28);
    /// The peer does not accept the ECE options.
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

/// A peer's refusal. As the source of an [`Error`] it has the peer's private data:
///
/// ```
/// fn private_data(error: &uverbs::Error) -> Option<&[u8]> {
///     let source = std::error::Error::source(error)?;
///     Some(&source.downcast_ref::<uverbs::cm::Rejection>()?.private_data)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The reason.
    pub reason: RejectReason,
    /// The peer's private data, padded with zeros to 148 bytes.
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
    explain(Error::raw(verb, status.saturating_neg()), None)
}

/// Adds cause and cure to the kernel's error about an address.
pub(super) fn explain(error: Error, address: Option<SocketAddr>) -> Error {
    let error = match address {
        Some(address) => error.asked(address.to_string()),
        None => error,
    };
    let place = address.map_or("the peer's address".to_owned(), |address| address.ip().to_string());
    match Errno::from_raw(error.errno()) {
        Errno::ENODEV => error
            .with_kind(ErrorKind::NotFound)
            .because(format!("no RDMA device has the interface that leads to {place}"))
            .cure_with(ADDRESSES),
        Errno::EADDRNOTAVAIL => not_available(error, address),
        Errno::EINVAL if address.is_some_and(needs_scope) => {
            error.because("a link-local address needs its interface, and none is given").cure_with(
                "add the interface (fe80::1%eth0 in a cm::Address, or a SocketAddrV6's scope id)",
            )
        }
        Errno::EADDRINUSE => port_taken(error),
        Errno::EACCES => error
            .with_kind(ErrorKind::Permission)
            .because("ports below 1024 are for privileged programs")
            .cure_with("choose another port, or give the program CAP_NET_BIND_SERVICE"),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => {
            error.because(format!("there is no route to {place}")).cure_with(
                "check the address (ip route get ADDRESS); a software device needs that of an \
                 interface to leave the machine's loopback network (UVERBS_SOFT_ADDRESS)",
            )
        }
        Errno::ETIMEDOUT => error
            .with_kind(ErrorKind::TimedOut)
            .because(format!("{place} does not answer; the peer may have ended"))
            .cure_with("check that the peer is up, and that its device is an RDMA device"),
        _ => error,
    }
}

/// Explains EADDRNOTAVAIL: no device has the address, one of two ids at the port is bound to all
/// addresses (`cma_check_port` in the kernel's cma.c), or no port is left (`cma_alloc_any_port`).
fn not_available(error: Error, address: Option<SocketAddr>) -> Error {
    let all = address.filter(|address| address.ip().is_unspecified());
    let cause = match (all, address) {
        (Some(all), _) if all.port() == 0 => return no_port_left(error),
        (Some(_), _) => return port_taken(error),
        (None, None) if error.verb() == "listen" => return port_taken(error),
        (None, None) => "no RDMA device has the source address".to_owned(),
        (None, Some(own)) if own.port() == 0 => {
            format!("no RDMA device has the address {}, or no port is free", own.ip())
        }
        (None, Some(own)) => format!(
            "no RDMA device has the address {}, or an id at all addresses is bound to the port",
            own.ip()
        ),
    };
    error.with_kind(ErrorKind::NotFound).because(cause).cure_with(ADDRESSES)
}

fn port_taken(error: Error) -> Error {
    error
        .with_kind(ErrorKind::Busy)
        .because("another program or id of this machine has the port")
        .cure_with("choose another port (0 is any free one), or end that program or drop that id")
}

/// As [`explain`], for an id that resolves an address. Resolving first binds the id, to `source`
/// or, without one, to any port.
pub(super) fn explain_resolving(
    error: Error,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Error {
    match (Errno::from_raw(error.errno()), source) {
        (Errno::EADDRNOTAVAIL, None) => no_port_left(error.asked(destination.to_string())),
        (Errno::EADDRNOTAVAIL | Errno::EADDRINUSE | Errno::EACCES, source) => {
            explain(error, source)
        }
        (Errno::EINVAL, Some(source)) if source.is_ipv4() != destination.is_ipv4() => {
            let cause = "one of the two addresses is IPv4, the other IPv6";
            error.asked(format!("{source} to {destination}")).because(cause)
        }
        _ => explain(error, Some(destination)),
    }
}

fn no_port_left(error: Error) -> Error {
    error
        .with_kind(ErrorKind::Busy)
        .because("no local port is free")
        .cure_with("destroy ids, or widen the range (sysctl net.ipv4.ip_local_port_range)")
}

/// Adds cause and cure to ENXIO: the kernel ends all ids of a removed device.
pub(super) fn perhaps_removed(error: Error) -> Error {
    match Errno::from_raw(error.errno()) {
        Errno::ENXIO => error
            .with_kind(ErrorKind::DeviceGone)
            .because("the id's device was removed")
            .cure_with("destroy the id"),
        _ => error,
    }
}

/// Adds the cause to errors of a step whose peer may have given up or ended: then the id has
/// another state (EINVAL), or the peer's address does not answer.
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

/// Whether it is a link-local address without its interface (EINVAL of `cma_bind_addr`).
fn needs_scope(address: SocketAddr) -> bool {
    match address {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(v6) => v6.ip().segments()[0] & 0xffc0 == 0xfe80 && v6.scope_id() == 0,
    }
}

const ADDRESSES: &str = "`uverbs info` lists devices with their addresses; UVERBS_SOFT_ADDRESS gives \
                         a software device the address of an interface";

#[cfg(test)]
mod tests;
