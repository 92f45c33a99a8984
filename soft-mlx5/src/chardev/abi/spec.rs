//! The attributes of each method: the declarations of uverbs_ioctl.h (`UVERBS_ATTR_*`) as data.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::objects::kind::{
    Const, Enum, Fd, Flags, Handle, Handles, In, NewFd, NewHandle, Out,
};
use uverbs_uapi::objects::{Attr, AttrId, MethodId, ObjectId};

use super::call::Call;
use crate::chardev::objects::object::Kind;

/// One method of one object: its attributes, and the handler that runs once they are checked.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) object: ObjectId,
    pub(crate) method: MethodId,
    pub(crate) attributes: &'static [Attribute],
    pub(crate) run: fn(&mut Call<'_>) -> Result<(), Errno>,
    pub(crate) since: Since,
}

/// Which kernels have a method; older ones answer EPROTONOSUPPORT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// Every kernel that has the ioctl interface.
    Always,
    /// Kernels that create CQs, QPs and SRQs natively (from 5.4 and 5.10) and so also have the
    /// native query methods.
    Native,
    /// Kernels with dynamic UARs (from 5.7).
    DynamicUar,
    /// Kernels with DEVX, on devices whose firmware has user contexts (`devx_is_supported`).
    Devx,
    /// As `Devx`, on devices that pace packets (`pp_is_supported`).
    Pacing,
}

/// One attribute that a method knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute {
    pub(crate) id: AttrId,
    pub(crate) mandatory: bool,
    pub(crate) form: Form,
}

/// How an attribute is passed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Bytes for the kernel, inline up to 8.
    In(Size),
    /// The number of an element, and as many bytes as that element has, inline up to 8.
    Choice(&'static [u16]),
    /// A buffer for bytes from the kernel.
    Out(Size),
    /// A handle.
    Handle(Kind, Access),
    /// A handle of any kind of object, which the method uses.
    AnyHandle,
    /// Handles of up to this many objects, which the method uses.
    Handles(Kind, usize),
    /// A descriptor of an event file of this kind.
    Descriptor(Kind, Access),
}

/// Bounds of a buffer, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) min: u16,
    pub(crate) known: u16,
    /// Bytes beyond `known` are accepted if they are zero. If false, a longer buffer is refused.
    pub(crate) zero_trailing: bool,
}

/// What a method does with the object of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    New,
    Destroy,
}

/// The driver's own request, passed to every verb that has one (`UVERBS_ATTR_UHW_IN`).
pub(crate) const UHW_IN: AttrId = AttrId(1 << 12);
/// The driver's own response (`UVERBS_ATTR_UHW_OUT`).
pub(crate) const UHW_OUT: AttrId = AttrId(UHW_IN.0 + 1);

impl Attribute {
    const fn mandatory(id: AttrId, form: Form) -> Self {
        Self { id, mandatory: true, form }
    }

    /// The same attribute, optional.
    pub(crate) const fn optional(self) -> Self {
        Self { mandatory: false, ..self }
    }

    /// The same attribute, mandatory.
    pub(crate) const fn required(self) -> Self {
        Self { mandatory: true, ..self }
    }

    /// `UVERBS_ATTR_PTR_IN` of a type of `size` bytes.
    pub(crate) const fn input<M>(id: Attr<M, In>, size: usize) -> Self {
        Self::mandatory(id.id(), Form::In(Size::exactly(size)))
    }

    /// `UVERBS_ATTR_PTR_OUT` of a type of `size` bytes.
    pub(crate) const fn output<M>(id: Attr<M, Out>, size: usize) -> Self {
        Self::mandatory(id.id(), Form::Out(Size::exactly(size)))
    }

    /// `UVERBS_ATTR_PTR_IN` of a struct that may grow (`UVERBS_ATTR_STRUCT`).
    pub(crate) const fn input_struct<M>(id: Attr<M, In>, min: usize, known: usize) -> Self {
        Self::mandatory(id.id(), Form::In(Size::growing(min, known)))
    }

    /// `UVERBS_ATTR_PTR_OUT` of a struct that may grow.
    pub(crate) const fn output_struct<M>(id: Attr<M, Out>, min: usize, known: usize) -> Self {
        Self::mandatory(id.id(), Form::Out(Size::growing(min, known)))
    }

    /// `UVERBS_ATTR_PTR_IN` of at least `min` bytes.
    pub(crate) const fn input_min<M>(id: Attr<M, In>, min: usize) -> Self {
        Self::mandatory(id.id(), Form::In(Size::at_least(min)))
    }

    /// `UVERBS_ATTR_PTR_IN` of `min` to `max` bytes.
    pub(crate) const fn input_between<M>(id: Attr<M, In>, min: usize, max: usize) -> Self {
        let size = Size { min: min as u16, known: max as u16, zero_trailing: false };
        Self::mandatory(id.id(), Form::In(size))
    }

    /// `UVERBS_ATTR_PTR_OUT` of at least `min` bytes.
    pub(crate) const fn output_min<M>(id: Attr<M, Out>, min: usize) -> Self {
        Self::mandatory(id.id(), Form::Out(Size::at_least(min)))
    }

    /// `UVERBS_ATTR_ENUM_IN`, with the bytes of each element.
    pub(crate) const fn choice<M>(id: Attr<M, Enum>, elements: &'static [u16]) -> Self {
        Self::mandatory(id.id(), Form::Choice(elements))
    }

    /// `UVERBS_ATTR_CONST_IN`: always 8 bytes.
    pub(crate) const fn constant<M>(id: Attr<M, Const>) -> Self {
        Self::mandatory(id.id(), Form::In(Size::exactly(8)))
    }

    /// `UVERBS_ATTR_FLAGS_IN`: 4 or 8 bytes, optional unless [`required`](Self::required).
    pub(crate) const fn flags<M>(id: Attr<M, Flags>) -> Self {
        Self {
            id: id.id(),
            mandatory: false,
            form: Form::In(Size { min: 4, known: 8, zero_trailing: false }),
        }
    }

    /// `UVERBS_ATTR_IDR` of an object that the method uses.
    pub(crate) const fn handle<M>(id: Attr<M, Handle>, kind: Kind) -> Self {
        Self::mandatory(id.id(), Form::Handle(kind, Access::Read))
    }

    /// `UVERBS_ATTR_IDR` of an object of any kind (`UVERBS_IDR_ANY_OBJECT`).
    pub(crate) const fn any_handle<M>(id: Attr<M, Handle>) -> Self {
        Self::mandatory(id.id(), Form::AnyHandle)
    }

    /// `UVERBS_ATTR_IDRS_ARR` of one to `most` objects that the method uses.
    pub(crate) const fn handles<M>(id: Attr<M, Handles>, kind: Kind, most: usize) -> Self {
        Self::mandatory(id.id(), Form::Handles(kind, most))
    }

    /// `UVERBS_ATTR_IDR` of the object that the method creates.
    pub(crate) const fn new_handle<M>(id: Attr<M, NewHandle>, kind: Kind) -> Self {
        Self::mandatory(id.id(), Form::Handle(kind, Access::New))
    }

    /// `UVERBS_ATTR_IDR` of the object that the method destroys.
    pub(crate) const fn destroy<M>(id: Attr<M, Handle>, kind: Kind) -> Self {
        Self::mandatory(id.id(), Form::Handle(kind, Access::Destroy))
    }

    /// `UVERBS_ATTR_FD` of an event file.
    pub(crate) const fn descriptor<M>(id: Attr<M, Fd>, kind: Kind) -> Self {
        Self::mandatory(id.id(), Form::Descriptor(kind, Access::Read))
    }

    /// `UVERBS_ATTR_FD` of an event file that the method creates.
    pub(crate) const fn new_descriptor<M>(id: Attr<M, NewFd>, kind: Kind) -> Self {
        Self::mandatory(id.id(), Form::Descriptor(kind, Access::New))
    }

    /// First half of `UVERBS_ATTR_UHW`.
    pub(crate) const fn driver_in() -> Self {
        Self::mandatory(UHW_IN, Form::In(Size::at_least(0))).optional()
    }

    /// Second half of `UVERBS_ATTR_UHW`.
    pub(crate) const fn driver_out() -> Self {
        Self::mandatory(UHW_OUT, Form::Out(Size::at_least(0))).optional()
    }
}

impl Size {
    const fn exactly(size: usize) -> Self {
        Self { min: size as u16, known: size as u16, zero_trailing: false }
    }

    const fn growing(min: usize, known: usize) -> Self {
        Self { min: min as u16, known: known as u16, zero_trailing: true }
    }

    const fn at_least(min: usize) -> Self {
        Self { min: min as u16, known: u16::MAX, zero_trailing: false }
    }
}
