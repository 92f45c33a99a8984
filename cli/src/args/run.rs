//! The options of `uverbs run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use uverbs::soft::wire::HostAddress;

/// Checks a list of addresses and returns it unchanged.
fn checked_addresses(list: &str) -> Result<String, String> {
    HostAddress::of_list(list, 0).map(|_| list.to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Number of devices (/dev/infiniband/uverbs0, uverbs1 …)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) devices: u32,
    /// The ports' link layer
    #[arg(long, value_enum, default_value_t = RunLink::Roce)]
    pub(crate) link: RunLink,
    /// The model of the devices
    #[arg(long, value_enum, default_value_t = RunModel::Cx6dx)]
    pub(crate) model: RunModel,
    /// The kernel interface that programs see
    #[arg(long, value_enum, default_value_t = RunKernel::Current)]
    pub(crate) kernel: RunKernel,
    /// The devices' addresses, separated by commas; further devices have the addresses that follow
    /// the last one. Each is an address of any interface of this machine (IPv6 link-local:
    /// fe80::1%eth0); packets are sent as RoCE v2 over UDP [default: UVERBS_SOFT_ADDRESS, else free
    /// ones of 127.18.0.0/16, which only programs on this machine reach]
    #[arg(long, value_name = "ADDRESS[,…]", value_parser = checked_addresses)]
    pub(crate) address: Option<String>,
    /// What carries packets between processes
    #[arg(long, value_enum, default_value_t = RunWire::Memory)]
    pub(crate) wire: RunWire,
    /// Faults to inject, from a seed. Only SEED: every fault that the transport repairs, at low
    /// rates. Otherwise
    /// SEED,drop=%,duplicate=%,corrupt=%,reorder=%,delay=%,ioctl=N:ERRNO,port=MS,remove=MS
    #[arg(long, value_name = "SEED[,FAULT=…]")]
    pub(crate) faults: Option<String>,
    /// Record the packets; every device but the first appends the process id and its number to the
    /// name. FILE may be a FIFO that a program reads
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Write a line for every call to the devices [default: to standard error]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) trace: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunWire {
    /// Shared memory to processes of the same user, RoCE v2 over UDP to others
    Memory,
    /// Shared memory to processes of any user that also have this option, RoCE v2 over UDP to
    /// others
    MemoryOfAnyUser,
    /// Only RoCE v2 over UDP, for tcpdump and Wireshark on the loopback interface
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunLink {
    /// RoCE
    Roce,
    /// InfiniBand
    Ib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunModel {
    /// ConnectX-5
    Cx5,
    /// ConnectX-6 Dx
    Cx6dx,
    /// ConnectX-7
    Cx7,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunKernel {
    /// A current one
    Current,
    /// Doorbell pages are not objects yet (Linux 5.4)
    StaticUar,
    /// Queues are created by write commands (Linux 5.0)
    WriteCommands,
    /// Accepts only the shortest request for a context
    ShortContext,
}
