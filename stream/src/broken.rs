//! Why a stream ended early.

use std::fmt;
use std::io;

use uverbs::cq::Status;

/// Why a stream broke. The [`io::Error`]s of a broken stream contain it ([`io::Error::get_ref`]).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Broken {
    /// The peer, or its kernel, ended the connection before the peer's data ended.
    Disconnected,
    /// A work request failed, with `RetryExceeded` if the peer no longer answers.
    Failed(Status),
    /// The peer violated the protocol.
    Protocol(&'static str),
    /// The device was removed.
    DeviceRemoved,
    /// A verb failed. Its error is the source.
    Verb(uverbs::Error),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the peer disconnected before its data ended"),
            Self::Failed(Status::RetryExceeded) => f.write_str("the peer no longer answers"),
            Self::Failed(status) => write!(f, "the connection failed: {status:?}"),
            Self::Protocol(cause) => write!(f, "the peer violated the protocol: {cause}"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
            Self::Verb(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Verb(error) => Some(error),
            _ => None,
        }
    }
}

impl Broken {
    /// Whether a socket would report a reset.
    pub(crate) fn is_reset(&self) -> bool {
        self.kind() == io::ErrorKind::ConnectionReset
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Disconnected | Self::Failed(_) => io::ErrorKind::ConnectionReset,
            Self::Protocol(_) => io::ErrorKind::InvalidData,
            Self::DeviceRemoved => io::ErrorKind::ConnectionAborted,
            Self::Verb(error) => io::Error::from_raw_os_error(error.errno()).kind(),
        }
    }
}

impl From<&Broken> for io::Error {
    fn from(broken: &Broken) -> Self {
        io::Error::new(broken.kind(), broken.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_that_of_a_socket_s_error() {
        let kind = |broken: Broken| io::Error::from(&broken).kind();
        assert_eq!(kind(Broken::Disconnected), io::ErrorKind::ConnectionReset);
        assert_eq!(kind(Broken::Failed(Status::RetryExceeded)), io::ErrorKind::ConnectionReset);
        assert_eq!(kind(Broken::Protocol("x")), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_source_is_kept() {
        let error = uverbs::Error::from(uverbs::PollError::Overrun);
        let error = io::Error::from(&Broken::Verb(error));
        let broken = error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>()).unwrap();
        let source = std::error::Error::source(broken).unwrap();
        assert!(source.downcast_ref::<uverbs::Error>().is_some());
    }
}
