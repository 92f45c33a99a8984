//! Private data: bytes of the program in the connection manager's messages.

use std::fmt;

use uverbs_uapi::cm::MAX_PRIVATE_DATA;

use crate::error::{Error, Result};

/// Up to `N` bytes of the program that a message carries.
///
/// The peer gets the data padded with zeros to `N` bytes. A program that needs the length has to
/// put it into the data.
///
/// ```
/// use uverbs::cm::{RejectData, RequestData};
/// const HELLO: RequestData = RequestData::of(b"hello");
/// assert_eq!(HELLO.as_bytes(), b"hello");
/// assert!(RequestData::new(&[0; 57]).is_err());
/// assert!(RejectData::new(&[0; 57]).is_ok());
/// ```
/// ```compile_fail
/// const TOO_LONG: uverbs::cm::RequestData = uverbs::cm::RequestData::of(&[0; 57]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

/// For a connection request: 56 bytes. The message has space for 92, of which rdma_cm uses 36
/// (`struct cma_hdr`, drivers/infiniband/core/cma.c).
pub type RequestData = PrivateData<56>;
/// For accepting a connection: 196 bytes.
pub type ReplyData = PrivateData<196>;
/// For a refusal: 148 bytes.
pub type RejectData = PrivateData<148>;
/// For the lookup of a datagram service: 180 bytes.
pub type LookupData = PrivateData<180>;
/// For the answer to a lookup: 136 bytes.
pub type LookupReplyData = PrivateData<136>;

impl<const N: usize> PrivateData<N> {
    /// No data.
    pub const EMPTY: Self = Self { bytes: [0; N], length: 0 };

    /// Data whose length is known at compile time. More than `N` bytes do not compile.
    pub const fn of<const M: usize>(data: &[u8; M]) -> Self {
        const { assert!(M <= N && N <= MAX_PRIVATE_DATA, "too much private data") };
        let mut bytes = [0; N];
        let mut at = 0;
        while at < M {
            bytes[at] = data[at];
            at += 1;
        }
        Self { bytes, length: M as u8 }
    }

    /// Data whose length is known at run time.
    ///
    /// # Errors
    /// `InvalidInput` for more than `N` bytes.
    pub fn new(data: &[u8]) -> Result<Self> {
        let mut bytes = [0; N];
        let Some(used) = bytes.get_mut(..data.len()) else {
            let cause = format!("{} bytes of private data; the message has {N}", data.len());
            return Err(Error::invalid("private_data", cause)
                .cure_with("send the rest over the connection"));
        };
        used.copy_from_slice(data);
        Ok(Self { bytes, length: data.len() as u8 })
    }

    /// The data.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The field of a command, padded with zeros, and the number of used bytes.
    pub(super) fn field(&self) -> ([u8; MAX_PRIVATE_DATA], u8) {
        let mut field = [0; MAX_PRIVATE_DATA];
        field[..N].copy_from_slice(&self.bytes);
        (field, self.length)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_bytes()).finish()
    }
}

/// The private data of an event.
pub(super) fn received(field: &[u8; MAX_PRIVATE_DATA], length: u8) -> Vec<u8> {
    field[..usize::from(length)].to_vec()
}

#[cfg(test)]
mod tests;
