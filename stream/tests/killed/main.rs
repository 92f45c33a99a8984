//! The peer's process is killed at each stage of a stream's life. The other end must get the right
//! error or end at once, and keep nothing of the connection. A listener must serve the next client.

/// Runs each function with blocking streams and with tokio streams.
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
