//! Templates: whole frames in work requests, with named fields.

use uverbs_mlx5::send_queue::{self as provider, EthernetFrame, template_blocks};

use crate::qp::PostError;

/// The parameter `BLOCKS` of the [`Template`] for a frame of `frame_bytes` bytes, in blocks of 64
/// bytes.
///
/// ```
/// use uverbs::ethernet::blocks;
/// assert_eq!(blocks(98), 2);
/// assert_eq!(blocks(226), 4);
/// ```
pub const fn blocks(frame_bytes: usize) -> usize {
    template_blocks::<EthernetFrame<'static>>(frame_bytes)
}

/// Blocks that the requests of every ring may have.
pub(super) const ALWAYS_BLOCKS: usize = 4;

/// A frame that is built once and sent many times with different values in its fields: from
/// [`TxQueue::template`](super::TxQueue::template).
///
/// The whole frame is inside the work request, so it needs no registered memory, and also works on
/// devices that require inline headers. `BLOCKS` is at least [`blocks`] of the frame's length;
/// requests of up to 4 blocks are written directly to the device's BlueFlame register. Any queue of
/// the device may send it.
#[derive(Debug, Clone, Copy)]
pub struct Template<const BLOCKS: usize> {
    pub(super) request: provider::Template<EthernetFrame<'static>, BLOCKS>,
    pub(super) length: usize,
    pub(super) longest: usize,
}

/// A field of a frame: a value of type `V` at byte `AT`, counted from the destination address.
/// Numbers are big-endian. Declare it as a constant:
///
/// ```
/// use uverbs::ethernet::{Field, Template};
/// const PRICE: Field<u64, 50> = Field::new();
/// const QUANTITY: Field<u32, 58> = Field::new();
/// fn quote(order: &mut Template<2>, price: u64, quantity: u32) -> bool {
///     order.set(PRICE, price) && order.set(QUANTITY, quantity)
/// }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Field<V, const AT: usize>(std::marker::PhantomData<V>);

impl<V, const AT: usize> Field<V, AT> {
    /// The field.
    pub const fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

/// Types of fields: integers and byte arrays.
pub trait Value: sealed::Put + Copy {}

mod sealed {
    use super::Template;

    pub trait Put: Sized {
        fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool;

        fn take<const AT: usize, const BLOCKS: usize>(from: &Template<BLOCKS>) -> Option<Self>;

        /// The sum of the 16-bit words of the field at byte `AT`.
        fn words<const AT: usize>(self) -> u64;
    }
}

/// The sum of the 16-bit words of bytes that start at byte `at` of a frame (RFC 1071).
#[inline(always)]
fn words(at: usize, bytes: &[u8]) -> u64 {
    let word = |(i, byte): (usize, &u8)| u64::from(*byte) << (8 * ((at + i + 1) % 2));
    bytes.iter().enumerate().map(word).sum()
}

/// Folds the sum to 16 bits, in ones' complement.
#[inline(always)]
fn folded(sum: u64) -> u64 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// The checksum at byte `AT` of a frame, for [`Template::patch`].
///
/// In a frame without VLAN tag and IPv4 options, the IPv4 header's checksum is at byte 24, UDP's at
/// byte 40 and TCP's at byte 50.
#[derive(Debug, Clone, Copy)]
pub struct Sum<const AT: usize> {
    /// A checksum of 0 means that there is none (RFC 768).
    zero_is_none: bool,
}

impl<const AT: usize> Sum<AT> {
    /// The checksum of an IPv4 header or of a TCP segment.
    pub const fn new() -> Self {
        const { assert!(AT % 2 == 0, "a checksum is at an even byte") };
        Self { zero_is_none: false }
    }

    /// The checksum of a UDP datagram. A checksum of 0, which means none, stays 0.
    pub const fn udp() -> Self {
        const { assert!(AT % 2 == 0, "a checksum is at an even byte") };
        Self { zero_is_none: true }
    }

    /// The checksum after words with the sum `old` changed to words with the sum `new` (RFC 1624,
    /// equation 3).
    #[inline(always)]
    fn changed(self, was: u16, old: u64, new: u64) -> u16 {
        if self.zero_is_none && was == 0 {
            return 0;
        }
        let sum = u64::from(!was) + (!folded(old) & 0xffff) + folded(new);
        match !(folded(sum) as u16) {
            0 if self.zero_is_none => 0xffff,
            sum => sum,
        }
    }
}

impl<const AT: usize> Default for Sum<AT> {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! values {
    ($($number:ty),*) => {$(
        impl sealed::Put for $number {
            #[inline(always)]
            fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool {
                const N: usize = size_of::<$number>();
                to.request.set(provider::Field::<N, AT>, self.to_be_bytes())
            }

            #[inline(always)]
            fn take<const AT: usize, const BLOCKS: usize>(from: &Template<BLOCKS>) -> Option<Self> {
                const N: usize = size_of::<$number>();
                from.request.get(provider::Field::<N, AT>).map(<$number>::from_be_bytes)
            }

            #[inline(always)]
            fn words<const AT: usize>(self) -> u64 {
                words(AT, &self.to_be_bytes())
            }
        }
        impl Value for $number {}
    )*};
}

values!(u8, u16, u32, u64, u128, i8, i16, i32, i64);

impl<const N: usize> sealed::Put for [u8; N] {
    #[inline(always)]
    fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool {
        to.request.set(provider::Field::<N, AT>, self)
    }

    #[inline(always)]
    fn take<const AT: usize, const BLOCKS: usize>(from: &Template<BLOCKS>) -> Option<Self> {
        from.request.get(provider::Field::<N, AT>)
    }

    #[inline(always)]
    fn words<const AT: usize>(self) -> u64 {
        words(AT, &self)
    }
}

impl<const N: usize> Value for [u8; N] {}

impl<const BLOCKS: usize> Template<BLOCKS> {
    /// Refuses a template of more than `most` blocks, the longest request of a ring. Longer frames
    /// could fill the ring before one of them generates a completion, and so for ever.
    #[inline(always)]
    pub(super) fn check_length(&self, most: usize) -> Result<(), PostError> {
        if BLOCKS > ALWAYS_BLOCKS && blocks(self.longest) > most {
            return Err(PostError::InlineTooLong);
        }
        Ok(())
    }

    /// Sets a field. Returns false and changes nothing unless all of the field is inside the frame.
    #[inline(always)]
    #[must_use]
    pub fn set<V: Value, const AT: usize>(&mut self, _: Field<V, AT>, value: V) -> bool {
        value.put::<AT, BLOCKS>(self)
    }

    /// The value of a field; `None` unless all of it is inside the frame.
    #[inline(always)]
    pub fn get<V: Value, const AT: usize>(&self, _: Field<V, AT>) -> Option<V> {
        V::take::<AT, BLOCKS>(self)
    }

    /// Sets a field and updates a checksum that covers it (RFC 1624), for frames whose checksums
    /// the device does not compute. A TCP or UDP checksum covers its header, its data and the IP
    /// addresses; an IPv4 checksum covers the IPv4 header. The old checksum must be correct, see
    /// [`fill_checksums`](super::fill_checksums). Returns false and changes nothing unless field
    /// and checksum are inside the frame.
    ///
    /// ```
    /// use uverbs::ethernet::{Field, Sum, Template};
    /// const PRICE: Field<u64, 50> = Field::new();
    /// const UDP: Sum<40> = Sum::udp();
    /// fn reprice(order: &mut Template<2>, price: u64) -> bool {
    ///     order.patch(PRICE, price, UDP)
    /// }
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn patch<V: Value, const AT: usize, const SUM: usize>(
        &mut self,
        field: Field<V, AT>,
        value: V,
        sum: Sum<SUM>,
    ) -> bool {
        let at = Field::<u16, SUM>::new();
        let (Some(old), Some(was)) = (self.get(field), self.get(at)) else { return false };
        let now = sum.changed(was, old.words::<AT>(), value.words::<AT>());
        self.set(field, value) && self.set(at, now)
    }

    /// Length of the frame in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Sets the length of the frame to 18 bytes up to [`Template::longest`]. For another length it
    /// returns false and changes nothing. Length fields in the headers are not updated. Sending is
    /// fastest while the frame takes all `BLOCKS` blocks.
    ///
    /// Bytes beyond the end keep their values and return when the frame is made longer, but fields
    /// there cannot be set.
    #[inline(always)]
    #[must_use]
    pub fn set_length(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.longest && self.request.set_length(bytes);
        if fits {
            self.length = bytes;
        }
        fits
    }

    /// The greatest length in bytes: that of the frame it was made with.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// A frame whose start is a template and whose end is in memory: for frames longer than the inline
/// limit, and for ends that never change. It is made by
/// [`TxQueue::template_with_tail`](super::TxQueue::template_with_tail). Only the same queue can
/// send it, because that queue keeps the memory.
#[derive(Debug, Clone, Copy)]
pub struct Tailed<const BLOCKS: usize> {
    pub(super) start: Template<BLOCKS>,
    pub(super) tail: usize,
    /// Identity of the queue that keeps the memory.
    pub(super) queue: u64,
}

/// The parameter `BLOCKS` of the [`Tailed`] frame with `start_bytes` bytes in the template, in
/// blocks of 64 bytes.
///
/// ```
/// use uverbs::ethernet::blocks_with_tail;
/// assert_eq!(blocks_with_tail(42), 2);
/// ```
pub const fn blocks_with_tail(start_bytes: usize) -> usize {
    // Byte 0 is at byte 30 of the request; the tail's segment is aligned to 16 bytes.
    ((30 + start_bytes).div_ceil(16) + 1).div_ceil(4)
}

impl<const BLOCKS: usize> Tailed<BLOCKS> {
    /// Sets a field of the start: see [`Template::set`].
    #[inline(always)]
    #[must_use]
    pub fn set<V: Value, const AT: usize>(&mut self, field: Field<V, AT>, value: V) -> bool {
        self.start.set(field, value)
    }

    /// The value of a field of the start: see [`Template::get`].
    #[inline(always)]
    pub fn get<V: Value, const AT: usize>(&self, field: Field<V, AT>) -> Option<V> {
        self.start.get(field)
    }

    /// Sets a field of the start and updates a checksum: see [`Template::patch`].
    #[inline(always)]
    #[must_use]
    pub fn patch<V: Value, const AT: usize, const SUM: usize>(
        &mut self,
        field: Field<V, AT>,
        value: V,
        sum: Sum<SUM>,
    ) -> bool {
        self.start.patch(field, value, sum)
    }

    /// Length of the frame in bytes.
    pub fn length(&self) -> usize {
        self.start.length + self.tail
    }
}
