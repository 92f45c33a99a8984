//! Decodes a request: names and payloads from arbitrary bytes.
//!
//! Nothing here follows a pointer. [`IoctlView::parse`] makes the checks that the kernel makes on
//! the header; the tables of [`crate::objects`] say what an attribute means.

use core::fmt;

use zerocopy::FromBytes;

use crate::enums::DriverId;
use crate::ioctl::{IoctlAttr, IoctlHdr};
use crate::objects::device::{self, invoke_write};
use crate::objects::{self, Attr, AttrId, AttrInfo, AttrKind, MethodId, ObjectId};
use crate::write::WriteCmd;

const HEADER: usize = size_of::<IoctlHdr>();
const ATTRIBUTE: usize = size_of::<IoctlAttr>();

/// The longest request that the kernel accepts, in bytes: one page. A kernel with larger pages
/// accepts more, which no method needs.
pub const LONGEST: usize = 4096;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewError {
    /// Fewer bytes than the header says, or than a header has. The kernel would read beyond them,
    /// or fail with EFAULT.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The length does not fit the number of attributes, or exceeds a page: EINVAL.
    Length {
        /// Length that the header gives, in bytes.
        length: u16,
        /// Number of attributes that the header gives.
        num_attrs: u16,
    },
    /// A reserved word is not zero: EPROTONOSUPPORT.
    Reserved,
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, given } => {
                write!(f, "only {given} of the request's {needed} bytes")
            }
            Self::Length { length, num_attrs } => {
                write!(f, "a length of {length} bytes does not fit {num_attrs} attributes")
            }
            Self::Reserved => f.write_str("a reserved word is not zero"),
        }
    }
}

impl core::error::Error for ViewError {}

/// A request, as bytes whose header has been checked. Displays as one line with names.
#[derive(Clone, Copy)]
pub struct IoctlView<'b> {
    hdr: IoctlHdr,
    attrs: &'b [u8],
}

impl<'b> IoctlView<'b> {
    /// Checks the header. Bytes after the request are ignored; alignment does not matter.
    pub fn parse(bytes: &'b [u8]) -> Result<Self, ViewError> {
        let truncated = |needed| ViewError::Truncated { needed, given: bytes.len() };
        let (hdr, _) = IoctlHdr::read_from_prefix(bytes).map_err(|_| truncated(HEADER))?;
        let length = Self::length_of(&hdr)?;
        let attrs = bytes.get(HEADER..length).ok_or_else(|| truncated(length))?;
        Ok(Self { hdr, attrs })
    }

    /// Checks only a header, and returns the length of its request in bytes, for readers that fetch
    /// the header first.
    pub fn length_of(hdr: &IoctlHdr) -> Result<usize, ViewError> {
        let length = HEADER + ATTRIBUTE * usize::from(hdr.num_attrs);
        if usize::from(hdr.length) != length || length > LONGEST {
            return Err(ViewError::Length { length: hdr.length, num_attrs: hdr.num_attrs });
        }
        if hdr.reserved1 != 0 || hdr.reserved2 != 0 {
            return Err(ViewError::Reserved);
        }
        Ok(length)
    }

    /// The header.
    pub fn header(&self) -> &IoctlHdr {
        &self.hdr
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.hdr.object_id
    }

    /// The method.
    pub fn method(&self) -> MethodId {
        self.hdr.method_id
    }

    /// The driver whose namespace the request uses.
    pub fn driver(&self) -> DriverId {
        self.hdr.driver_id
    }

    /// The method's name, if the tables have it.
    pub fn method_name(&self) -> Option<&'static str> {
        objects::find_method(self.driver(), self.object(), self.method()).map(|info| info.name)
    }

    /// The attributes, in the request's order.
    pub fn attributes(&self) -> impl Iterator<Item = AttrView> + use<'b> {
        let (driver, object, method) = (self.driver(), self.object(), self.method());
        let raw = self.attrs.chunks_exact(ATTRIBUTE).map(IoctlAttr::read_from_bytes);
        raw.flatten().enumerate().map(move |(index, raw)| AttrView {
            raw,
            index,
            info: objects::find_attribute(driver, object, method, raw.attr_id),
        })
    }

    /// The first attribute with this number.
    pub fn find(&self, id: AttrId) -> Option<AttrView> {
        self.attributes().find(|attr| attr.id() == id)
    }

    /// The attribute. The caller must have checked that the request is one to the method `M`.
    pub fn get<M, K>(&self, attr: Attr<M, K>) -> Option<AttrView> {
        self.find(attr.id())
    }

    /// An attribute number that occurs twice, if there is one; the kernel fails with EINVAL.
    pub fn duplicate(&self) -> Option<AttrId> {
        let ids = || self.attributes().map(|attr| attr.id());
        ids()
            .enumerate()
            .find(|(index, id)| ids().take(*index).any(|other| other == *id))
            .map(|d| d.1)
    }

    /// The write command, if the request invokes one.
    pub fn write_command(&self) -> Option<WriteCmd> {
        let invokes = self.object() == device::OBJECT && self.method() == invoke_write::METHOD;
        let attr = invokes.then(|| self.get(invoke_write::WRITE_CMD)).flatten()?;
        attr.value().map(|command| WriteCmd(command as u32))
    }
}

impl fmt::Display for IoctlView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.object())?;
        match self.method_name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{}", self.method())?,
        }
        if let Some(command) = self.write_command() {
            write!(f, "({command})")?;
        }
        self.attributes().try_for_each(|attr| write!(f, " {attr}"))
    }
}

impl fmt::Debug for IoctlView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoctlView({self})")
    }
}

/// What an attribute carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Input bytes in the attribute itself: the first `len` of them.
    Inline {
        /// The bytes.
        bytes: [u8; 8],
        /// How many of them are input.
        len: u16,
    },
    /// Input bytes at an address.
    Input {
        /// Address.
        address: u64,
        /// Bytes.
        len: u16,
    },
    /// Where output bytes go.
    Output {
        /// Address.
        address: u64,
        /// Bytes.
        len: u16,
    },
    /// Handle of an object; of a new one only after the call.
    Handle(u64),
    /// File descriptor; a new one only after the call.
    Fd(i64),
}

/// An attribute of a request.
#[derive(Clone, Copy, Debug)]
pub struct AttrView {
    raw: IoctlAttr,
    index: usize,
    info: Option<&'static AttrInfo>,
}

impl AttrView {
    /// Number.
    pub fn id(&self) -> AttrId {
        self.raw.attr_id
    }

    /// What the tables say about it.
    pub fn info(&self) -> Option<&'static AttrInfo> {
        self.info
    }

    /// The attribute's binary form.
    pub fn raw(&self) -> &IoctlAttr {
        &self.raw
    }

    /// Offset of the attribute from the start of the request, in bytes: where to store an answer.
    pub fn offset(&self) -> usize {
        HEADER + ATTRIBUTE * self.index
    }

    /// Length in bytes as the sender gave it.
    pub fn len(&self) -> usize {
        usize::from(self.raw.len)
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// The data word: a pointer, inline bytes, a handle or a file descriptor.
    pub fn data(&self) -> u64 {
        self.raw.data
    }

    /// The element that an enum attribute selects.
    pub fn element(&self) -> u8 {
        self.raw.enum_id.to_ne_bytes()[0]
    }

    /// What the attribute carries. An unknown attribute counts as an input, because the request
    /// itself does not say what it is.
    pub fn payload(&self) -> Payload {
        let (address, len) = (self.raw.data, self.raw.len);
        match self.info.map(|info| info.kind) {
            Some(AttrKind::Handle | AttrKind::NewHandle) => Payload::Handle(address),
            Some(AttrKind::Fd | AttrKind::NewFd | AttrKind::RawFd) => Payload::Fd(address as i64),
            Some(AttrKind::Out) => Payload::Output { address, len },
            _ if self.len() <= size_of::<u64>() => {
                Payload::Inline { bytes: address.to_ne_bytes(), len }
            }
            _ => Payload::Input { address, len },
        }
    }

    /// The number in an inline input of 1, 2, 4 or 8 bytes.
    pub fn value(&self) -> Option<u64> {
        let Payload::Inline { bytes, len } = self.payload() else { return None };
        let [a, b, c, d, ..] = bytes;
        match len {
            1 => Some(u64::from(a)),
            2 => Some(u64::from(u16::from_ne_bytes([a, b]))),
            4 => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
            8 => Some(u64::from_ne_bytes(bytes)),
            _ => None,
        }
    }

    /// Whether the answer is to be stored in the attribute: a new handle or file descriptor.
    pub fn is_new(&self) -> bool {
        matches!(self.info.map(|info| info.kind), Some(AttrKind::NewHandle | AttrKind::NewFd))
    }
}

impl fmt::Display for AttrView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info {
            Some(info) => f.write_str(info.name)?,
            None => write!(f, "{}", self.id())?,
        }
        match (self.value(), self.payload()) {
            (Some(value), _) => write!(f, "={value:#x}"),
            (None, Payload::Inline { bytes, len }) => {
                write!(f, "={:02x?}", bytes.get(..usize::from(len)).unwrap_or_default())
            }
            (None, Payload::Input { address, len }) => write!(f, "<{len}@{address:#x}"),
            (None, Payload::Output { address, len }) => write!(f, ">{len}@{address:#x}"),
            (None, Payload::Handle(handle)) => write!(f, "=#{handle}"),
            (None, Payload::Fd(fd)) => write!(f, "=fd{fd}"),
        }
    }
}
