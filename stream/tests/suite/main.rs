//! One suite that runs over streams and over TCP, so that a difference in behaviour fails, and
//! tests of features that sockets lack.

mod alone;
mod behaviour;
mod cancelled;
mod dropped;
mod edges;
mod forked;
mod grpc;
mod hostile;
mod http;
mod lending;
mod load;
mod network;
mod peers;
mod random;
mod storms;
mod system_calls;
mod tasks;

/// Runs each function over both networks.
#[macro_export]
macro_rules! both {
    ($($test:ident),* $(,)?) => {
        mod over_rdma {
            $(#[test] fn $test() { super::$test::<$crate::network::Rdma>(); })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test::<$crate::network::Tcp>(); })*
        }
    };
}
