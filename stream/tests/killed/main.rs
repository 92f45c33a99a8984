//! A peer whose process is killed at each stage of a stream's life. The other end gets the error or
//! the end that is right, at once, and nothing of the connection is left there. The next client of
//! a listener is served.

/// Runs each function with blocking streams and with those of tokio.
macro_rules! both {
    ($($test:ident),* $(,)?) => {
        mod blocking {
            use $crate::{end::Blocking, setup::Own};
            $(#[test] fn $test() { super::$test(&Own::new(), &Blocking); })*
        }
        mod tokio {
            use $crate::{end::Tokio, setup::Own};
            $(#[test] fn $test() { super::$test(&Own::new(), &Tokio::new()); })*
        }
    };
}

mod end;
mod established;
mod http2;
mod peer;
#[path = "../../../tests/common/peer.rs"]
mod process;
mod setup;
