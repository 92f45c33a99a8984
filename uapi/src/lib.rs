//! The kernel's RDMA ABI: the data of the ioctl of `/dev/infiniband/uverbsN`, of writes to
//! `/dev/infiniband/rdma_cm`, and of reads from event files.
//!
//! Both sides of the character device use this crate: the library that sends commands and the
//! software device that answers them. It makes no system calls, allocates nothing and has no unsafe
//! code.
//!
//! - [`ioctl`]: the header, the attributes and the ioctl's number;
//! - [`objects`]: the id and the name of every generic object, method and attribute; [`mlx5`] has
//!   those of the driver;
//! - [`request`]: builds a request; [`view`]: decodes one;
//! - [`write`](mod@write): the commands that only exist in write form, and their structs;
//! - [`cm`]: the connection manager's commands, structs and events;
//! - [`enums`], [`flags`], [`event`], [`clock`]: the rest of the vocabulary;
//! - [`layout`]: all of it as tables, which the layout test compares with the kernel's headers.
//!
//! Struct and constant names are the kernel's without the prefix; the documentation of each has the
//! kernel's own name. Numbers are in the machine's byte order unless the type is big-endian. Ids
//! and enumerations are open: they also represent values that this crate does not know.
//!
//! The ids and layouts are those of the kernel headers in rdma-core 65; an older kernel knows fewer
//! of them and fails with EPROTONOSUPPORT for the rest. Structs that neither side reads are left
//! out: those for posting and polling through the kernel, which mlx5 does not need, for IPsec, and
//! for flow rules about tunnels and MPLS.

#![no_std]
#![forbid(unsafe_code)]

mod macros;

pub mod clock;
pub mod cm;
pub mod enums;
pub mod event;
pub mod flags;
pub mod ioctl;
pub mod layout;
pub mod mlx5;
pub mod objects;
pub mod request;
pub mod view;
pub mod write;

pub use ioctl::RDMA_VERBS_IOCTL;
pub use request::Request;
pub use view::IoctlView;

const STRUCT_TABLES: &[&[layout::Struct]] = &[
    ioctl::STRUCTS,
    event::STRUCTS,
    clock::STRUCTS,
    write::context::STRUCTS,
    write::device::STRUCTS,
    write::pd::STRUCTS,
    write::mr::STRUCTS,
    write::mw::STRUCTS,
    write::comp_channel::STRUCTS,
    write::cq::STRUCTS,
    write::qp::STRUCTS,
    write::srq::STRUCTS,
    write::ah::STRUCTS,
    write::xrcd::STRUCTS,
    write::wq::STRUCTS,
    write::flow::STRUCTS,
    mlx5::context::STRUCTS,
    mlx5::device::STRUCTS,
    mlx5::pd::STRUCTS,
    mlx5::cq::STRUCTS,
    mlx5::srq::STRUCTS,
    mlx5::qp::STRUCTS,
    mlx5::wq::STRUCTS,
    mlx5::ah::STRUCTS,
    mlx5::flow::STRUCTS,
    cm::STRUCTS,
    cm::id::STRUCTS,
    cm::address::STRUCTS,
    cm::path::STRUCTS,
    cm::connect::STRUCTS,
    cm::event::STRUCTS,
    cm::multicast::STRUCTS,
    cm::service::STRUCTS,
];

const CONSTANT_TABLES: &[&[layout::Constant]] = &[
    ioctl::CONSTANTS,
    ioctl::FLAG_CONSTANTS,
    enums::CONSTANTS,
    flags::CONSTANTS,
    write::CONSTANTS,
    mlx5::enums::CONSTANTS,
    mlx5::flags::CONSTANTS,
    cm::PLAIN,
    cm::CONSTANTS,
    cm::event::CONSTANTS,
    cm::path::CONSTANTS,
    cm::service::CONSTANTS,
];
