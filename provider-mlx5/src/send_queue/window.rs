//! Memory windows: binding, unbinding, and invalidating keys, as user-mode memory registration
//! (UMR) requests.
//!
//! The next request may use the key that such a request changes. So it carries the small fence,
//! whether it is posted by the same call or a later one.

use super::operation::Operation;
use super::sealed::Sealed;
use crate::format::{
    Klm, MkeyContextSegment as Mkey, Opcode, U16, U32, U64, UmrControlSegment as Umr,
};
use crate::queue_state::Kind;
use crate::request::{Octoword, PostError, octoword, word};

/// The two types of memory windows (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound to a protection domain.
    Type1,
    /// Bound to a queue pair: only it may use the key.
    Type2,
}

bitflags::bitflags! {
    /// What the remote side may do with a window. The values are the mkey context's own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WindowAccess: u8 {
        /// Local writes.
        const LOCAL_WRITE = Mkey::ACCESS_LOCAL_WRITE;
        /// Remote reads.
        const REMOTE_READ = Mkey::ACCESS_REMOTE_READ;
        /// Remote writes.
        const REMOTE_WRITE = Mkey::ACCESS_REMOTE_WRITE;
        /// Remote atomics.
        const REMOTE_ATOMIC = Mkey::ACCESS_ATOMIC;
    }
}

/// Binds a window to a range of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct BindWindow {
    /// The window's present key.
    pub window: u32,
    /// Its type.
    pub window_type: WindowType,
    /// The key it has from now on: equal to `window` but for the low byte.
    pub new_rkey: u32,
    /// Local key of the memory region.
    pub lkey: u32,
    /// First address, in the region's address space.
    pub address: u64,
    /// Length in bytes, 1 to 2 GiB. (No bytes: [`UnbindWindow`].)
    pub length: u64,
    /// What the remote side may do.
    pub access: WindowAccess,
    /// Whether the window's addresses start at 0 instead of `address`.
    pub zero_based: bool,
}

/// Unbinds a window: a bind of no bytes.
#[derive(Clone, Copy, Debug)]
pub struct UnbindWindow {
    /// The window's present key.
    pub window: u32,
    /// Its type.
    pub window_type: WindowType,
    /// The key it has from now on: equal to `window` but for the low byte.
    pub new_rkey: u32,
}

/// Makes a key unusable until it is bound again.
#[derive(Clone, Copy, Debug)]
pub struct LocalInvalidate(
    /// The key.
    pub u32,
);

/// Octowords of the control, mkey and translation segments.
const CONTROL: usize = 3;
const MKEY: usize = 4;
const TRANSLATION: usize = 4;

/// The most bytes that one translation entry covers.
const MAX_LENGTH: u64 = 1 << 31;

#[inline(always)]
fn control(window_type: WindowType, entries: u16, flags: u8, mask: u64) -> Umr {
    let qpn_mask = if window_type == WindowType::Type2 { Umr::MASK_QPN } else { 0 };
    Umr {
        flags: Umr::FLAG_TRANSLATION_OFFSET | Umr::FLAG_INLINE | flags,
        klm_octowords: U16::new(Umr::octowords_for(entries)),
        mkey_mask: U64::new(Umr::MASK_FREE | Umr::MASK_KEY | qpn_mask | mask),
        ..Umr::default()
    }
}

/// Octoword `index` of a segment of several.
#[inline(always)]
fn part<S: zerocopy::IntoBytes + zerocopy::Immutable>(segment: &S, index: usize) -> Octoword {
    let bytes = segment.as_bytes();
    [word(bytes, 16 * index), word(bytes, 16 * index + 8)]
}

impl Sealed for BindWindow {}
impl Sealed for UnbindWindow {}
impl Sealed for LocalInvalidate {}

impl BindWindow {
    #[inline(always)]
    fn control(&self) -> Umr {
        let type2 = self.window_type == WindowType::Type2;
        let flags = if type2 { Umr::FLAG_CHECK_NOT_FREE } else { 0 };
        let mask = Umr::MASK_LENGTH
            | Umr::MASK_START_ADDRESS
            | Umr::MASK_LOCAL_WRITE
            | Umr::MASK_REMOTE_READ
            | Umr::MASK_REMOTE_WRITE
            | Umr::MASK_ATOMIC;
        control(self.window_type, 1, flags, mask)
    }

    #[inline(always)]
    fn mkey(&self, qpn: u32) -> Mkey {
        let owner = match self.window_type {
            WindowType::Type1 => Mkey::ANY_QPN,
            WindowType::Type2 => qpn,
        };
        Mkey {
            access_flags: self.access.bits(),
            qpn_mkey: U32::new(owner << 8 | self.new_rkey & 0xff),
            start_address: U64::new(if self.zero_based { 0 } else { self.address }),
            length: U64::new(self.length),
            ..Mkey::default()
        }
    }

    #[inline(always)]
    fn translation(&self) -> Klm {
        Klm {
            byte_count: U32::new(self.length as u32),
            mkey: U32::new(self.lkey),
            address: U64::new(self.address),
        }
    }
}

impl Operation for BindWindow {
    type Held = Self;
    const OPCODE: Opcode = Opcode::UMR;
    const OCTOWORDS: usize = CONTROL + MKEY + TRANSLATION;
    const FENCES_NEXT: bool = true;

    fn immediate(&self) -> U32 {
        U32::new(self.window)
    }

    #[inline(always)]
    fn octoword(&self, index: usize, qpn: u32) -> Octoword {
        match index {
            0..CONTROL => part(&self.control(), index),
            CONTROL..7 => part(&self.mkey(qpn), index - CONTROL),
            7 => octoword(self.translation()),
            _ => [0; 2],
        }
    }

    fn check(&self) -> Result<(), PostError> {
        match self.length {
            1..=MAX_LENGTH => Ok(()),
            _ => Err(PostError::WindowTooLong),
        }
    }

    fn kind(&self) -> u8 {
        Kind::Bind as u8
    }
}

/// Octoword `index` of the segments that free a key.
#[inline(always)]
fn free_octoword(window_type: WindowType, new_rkey: u32, index: usize) -> Octoword {
    let type2 = window_type == WindowType::Type2;
    let flags = if type2 { Umr::FLAG_CHECK_QPN } else { 0 };
    let mkey = Mkey {
        free: Mkey::FREE,
        qpn_mkey: U32::new(Mkey::ANY_QPN << 8 | new_rkey & 0xff),
        ..Mkey::default()
    };
    match index {
        0..CONTROL => part(&control(window_type, 0, flags, 0), index),
        _ => part(&mkey, index - CONTROL),
    }
}

impl Operation for UnbindWindow {
    type Held = Self;
    const OPCODE: Opcode = Opcode::UMR;
    const OCTOWORDS: usize = CONTROL + MKEY;
    const FENCES_NEXT: bool = true;

    fn immediate(&self) -> U32 {
        U32::new(self.window)
    }

    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        free_octoword(self.window_type, self.new_rkey, index)
    }

    fn kind(&self) -> u8 {
        Kind::Bind as u8
    }
}

impl Operation for LocalInvalidate {
    type Held = Self;
    const OPCODE: Opcode = Opcode::UMR;
    const OCTOWORDS: usize = CONTROL + MKEY;
    const FENCES_NEXT: bool = true;

    fn immediate(&self) -> U32 {
        U32::new(self.0)
    }

    #[inline(always)]
    fn octoword(&self, index: usize, _: u32) -> Octoword {
        free_octoword(WindowType::Type2, 0, index)
    }

    fn kind(&self) -> u8 {
        Kind::LocalInvalidate as u8
    }
}
