//! Objects, their methods and the methods' attributes: ids, kinds and names.
//!
//! Each method is a module: [`cq::create`] has the id [`METHOD`](cq::create::METHOD), the marker
//! type [`Call`](cq::create::Call) and one constant per attribute. The type of an attribute
//! constant has the method and what the attribute carries ([`kind`]) as parameters, so that an
//! input cannot be passed where the kernel would use it as the address of an output.
//!
//! Ids: `ib_user_ioctl_cmds.h`. What an attribute carries and whether it is required: the method
//! declarations in `drivers/infiniband/core/uverbs_std_types_*.c` (Linux 6.12); for newer
//! attributes, rdma-core's use of them.

mod device_table;
mod event_table;
pub(crate) mod macros;
mod memory_table;
mod queue_table;
mod steering_table;

use core::marker::PhantomData;

pub use device_table::device;
pub use event_table::{async_event, comp_channel, comp_cntr, counters};
pub use memory_table::{dm, dmabuf, dmah, mr, mw, pd};
pub use queue_table::{ah, cq, qp, rwq_ind_tbl, srq, wq, xrcd};
pub use steering_table::{flow, flow_action};

use crate::enums::DriverId;
use crate::macros::{abi_newtype, display_by_name};

abi_newtype! {
    /// A kind of object. Displays as its name; an id in a driver's namespace is taken as mlx5's.
    ObjectId: u16
}
abi_newtype! {
    /// A method, numbered within its object.
    MethodId: u16
}
abi_newtype! {
    /// An attribute, numbered within its method.
    AttrId: u16
}

impl ObjectId {
    /// The object's name; an id in a driver's namespace is taken as mlx5's.
    pub fn name(self) -> Option<&'static str> {
        find_object(DriverId::MLX5, self).map(|object| object.name)
    }
}

display_by_name!(ObjectId);

macro_rules! display_as_number {
    ($($name:ident)*) => { $(
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )* };
}

display_as_number!(MethodId AttrId);

macro_rules! kinds {
    ($( $(#[$meta:meta])* $kind:ident, )*) => {
        /// What an attribute carries, as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AttrKind {
            $( $(#[$meta])* $kind, )*
        }

        /// What an attribute carries, as types: the second parameter of [`Attr`].
        pub mod kind {
            $(
                $(#[$meta])*
                #[derive(Clone, Copy, Debug)]
                pub enum $kind {}
            )*
        }
    };
}

kinds! {
    /// Input bytes: inline up to eight, else through a pointer.
    In,
    /// An input number, always eight bytes inline.
    Const,
    /// Input flags, four or eight bytes inline.
    Flags,
    /// A selector, with input bytes that depend on it.
    Enum,
    /// Output bytes, always through a pointer.
    Out,
    /// Handle of an existing object.
    Handle,
    /// Handle of the object that the method creates; the kernel stores it in the attribute.
    NewHandle,
    /// An array of `u32` handles: inline up to two, else through a pointer.
    Handles,
    /// File descriptor of an existing object.
    Fd,
    /// File descriptor that the method opens; the kernel stores it in the attribute.
    NewFd,
    /// File descriptor that is not one of this device's objects (a dma-buf).
    RawFd,
}

/// A method of an object. Implemented by the `Call` types of this module and of [`crate::mlx5`].
pub trait Method {
    /// The object.
    const OBJECT: ObjectId;
    /// The method.
    const METHOD: MethodId;
    /// The generic attributes (a driver may add to them).
    const ATTRIBUTES: &'static [AttrInfo];
}

/// An attribute of the method `M` that carries a `K`. Only this crate creates them.
pub struct Attr<M, K> {
    id: AttrId,
    of: PhantomData<fn() -> (M, K)>,
}

impl<M, K> Attr<M, K> {
    pub(crate) const fn new(id: u16) -> Self {
        Self { id: AttrId(id), of: PhantomData }
    }

    /// The attribute's number.
    pub const fn id(self) -> AttrId {
        self.id
    }
}

impl<M, K> Clone for Attr<M, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, K> Copy for Attr<M, K> {}

impl<M, K> core::fmt::Debug for Attr<M, K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.id.fmt(f)
    }
}

/// An object in the tables.
#[derive(Clone, Copy, Debug)]
pub struct ObjectInfo {
    /// Number.
    pub id: ObjectId,
    /// Short name, `cq`.
    pub name: &'static str,
    /// Name in the kernel's headers.
    pub c_name: &'static str,
    /// The methods of this namespace.
    pub methods: &'static [MethodInfo],
}

/// A method in the tables.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// Number.
    pub id: MethodId,
    /// Short name, `create`.
    pub name: &'static str,
    /// Name in the kernel's headers.
    pub c_name: &'static str,
    /// The attributes of this namespace.
    pub attributes: &'static [AttrInfo],
}

/// An attribute in the tables.
#[derive(Clone, Copy, Debug)]
pub struct AttrInfo {
    /// Number.
    pub id: AttrId,
    /// Short name, `RESP_CQE`.
    pub name: &'static str,
    /// Name in the kernel's headers.
    pub c_name: &'static str,
    /// What it carries.
    pub kind: AttrKind,
    /// Whether the kernel refuses the method without it.
    pub required: bool,
}

const GENERIC: &[&[ObjectInfo]] = &[
    device_table::OBJECTS,
    memory_table::OBJECTS,
    queue_table::OBJECTS,
    steering_table::OBJECTS,
    event_table::OBJECTS,
];

/// An upper bound of the number of attributes of a method, including the driver's.
#[allow(dead_code, reason = "older compilers do not count what an anonymous constant uses")]
pub(crate) const MAX_ATTRIBUTES: usize = most(GENERIC) + most(crate::mlx5::OBJECTS);

#[allow(dead_code, reason = "as above")]
const fn most(tables: &[&[ObjectInfo]]) -> usize {
    let (mut most, mut table) = (0, 0);
    while table < tables.len() {
        let mut object = 0;
        while object < tables[table].len() {
            let methods = tables[table][object].methods;
            let mut method = 0;
            while method < methods.len() {
                let count = methods[method].attributes.len();
                most = if count > most { count } else { most };
                method += 1;
            }
            object += 1;
        }
        table += 1;
    }
    most
}

/// Every object of the generic namespace, then for mlx5 the objects that the driver extends or
/// adds. An extended object appears twice: with its generic methods and attributes, and with those
/// of the driver.
pub fn all(driver: DriverId) -> impl Iterator<Item = &'static ObjectInfo> {
    let of_driver = if driver == DriverId::MLX5 { crate::mlx5::OBJECTS } else { &[] };
    GENERIC.iter().chain(of_driver).copied().flatten()
}

/// The object with this id.
pub fn find_object(driver: DriverId, object: ObjectId) -> Option<&'static ObjectInfo> {
    all(driver).find(|info| info.id == object)
}

fn methods(
    driver: DriverId,
    object: ObjectId,
    method: MethodId,
) -> impl Iterator<Item = &'static MethodInfo> {
    all(driver)
        .filter(move |info| info.id == object)
        .flat_map(|info| info.methods)
        .filter(move |info| info.id == method)
}

/// The method with this id.
pub fn find_method(
    driver: DriverId,
    object: ObjectId,
    method: MethodId,
) -> Option<&'static MethodInfo> {
    methods(driver, object, method).next()
}

/// All attributes of a method, generic ones first.
pub fn attributes(
    driver: DriverId,
    object: ObjectId,
    method: MethodId,
) -> impl Iterator<Item = &'static AttrInfo> {
    methods(driver, object, method).flat_map(|info| info.attributes)
}

/// The attribute with this id.
pub fn find_attribute(
    driver: DriverId,
    object: ObjectId,
    method: MethodId,
    attr: AttrId,
) -> Option<&'static AttrInfo> {
    attributes(driver, object, method).find(|info| info.id == attr)
}
