//! The options of `cargo xtask kernel-test`.

use clap::{Args, ValueEnum};
use uverbs_soft::core::LinkLayer;
use uverbs_soft::wire::Station;
use uverbs_soft_pci::Settings;

use crate::programs;

/// Options of `cargo xtask kernel-test`.
#[derive(Args, Debug)]
pub struct Options {
    /// Kernels to run; all of them by default
    #[arg(long, value_enum)]
    pub(crate) kernel: Vec<KernelChoice>,
    /// Port types to run; all of them by default
    #[arg(long, value_enum)]
    pub(crate) port: Vec<Port>,
    /// What to run; everything by default
    #[arg(long, value_enum)]
    group: Vec<Group>,
    /// Write the kernel's answers to tests/record, with which the software device is compared;
    /// meant for 6.12
    #[arg(long, conflicts_with = "group")]
    pub(crate) record: bool,
    /// Test files of the group "own", as a pattern of their names
    #[arg(long, default_value = programs::ALL)]
    pub(crate) file: String,
    /// Seconds until a guest is stopped
    #[arg(long, default_value_t = 3600)]
    pub(crate) limit: u64,
    /// Run a guest with a failed test once more; the name of the first run's directory gets the
    /// suffix `-first`
    #[arg(long)]
    pub(crate) again: bool,
}

impl Options {
    pub(crate) fn wants(&self, group: Group) -> bool {
        if self.record { group == Group::Record } else { chosen(&self.group).contains(&group) }
    }

    /// Whether only this group is selected.
    pub(crate) fn is_only(&self, group: Group) -> bool {
        !self.record && self.group == [group]
    }

    /// The pattern of the library's test files to build; `None` if none is needed.
    pub(crate) fn files(&self) -> Option<&str> {
        let record = self.wants(Group::Record).then_some("record");
        if self.wants(Group::Own) { Some(&self.file) } else { record }
    }

    /// Whether the command's tests are built.
    pub(crate) fn wants_command_tests(&self) -> bool {
        self.files() == Some(programs::ALL) || self.wants(Group::ConnectionManager)
    }

    /// Whether a guest runs the `uverbs` command.
    pub(crate) fn wants_command(&self) -> bool {
        let (cm, rxe) = (Group::ConnectionManager, Group::SoftRoce);
        let groups = [Group::Own, cm, Group::TwoDevices, Group::TwoGuests, rxe];
        groups.iter().any(|group| self.wants(*group))
    }
}

/// A group of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// Debian's own programs
    Control,
    /// This project's tests and its command
    Own,
    /// The kernel's answers, compared with the recorded ones; a guest of its own
    Record,
    /// Debian's own programs with this project's libibverbs.so.1 instead of Debian's; a guest
    /// of its own
    DropIn,
    /// Debian's programs on rdma_cm and this library's client of it, RoCE only; a guest of its own
    #[value(name = "cm")]
    ConnectionManager,
    /// Two devices that are connected; a guest of its own
    TwoDevices,
    /// Two guests, each with a device, connected over UDP
    TwoGuests,
    /// Software devices of processes against the kernel's own software RoCE, rdma_rxe, RoCE only; a
    /// guest of its own, with 6.12
    #[value(name = "rxe")]
    SoftRoce,
}

/// A Debian kernel, named after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelChoice {
    /// 6.1 of bookworm
    #[value(name = "6.1")]
    Bookworm,
    /// 6.12 of bookworm-backports
    #[value(name = "6.12")]
    BookwormBackports,
    /// The newest, of trixie-backports
    #[value(name = "newest")]
    TrixieBackports,
}

impl KernelChoice {
    pub(crate) fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::BookwormBackports => "bookworm-backports",
            Self::TrixieBackports => "trixie-backports",
        }
    }
}

/// A kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Port {
    /// InfiniBand, addressed by LID
    #[value(name = "ib")]
    InfiniBand,
    /// Ethernet with RoCE v2, addressed by GIDs made from the network device's IP addresses
    Roce,
}

impl Port {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::InfiniBand => "ib",
            Self::Roce => "roce",
        }
    }

    /// A device with this kind of port.
    pub(crate) fn device_at(self, station: Station) -> Settings {
        let link = match self {
            Self::InfiniBand => LinkLayer::InfiniBand,
            Self::Roce => LinkLayer::Ethernet,
        };
        Settings::at(station, link)
    }
}

/// The given values, or all values if none is given.
pub(crate) fn chosen<T: ValueEnum + Copy>(given: &[T]) -> Vec<T> {
    if given.is_empty() { T::value_variants().to_vec() } else { given.to_vec() }
}
