//! Templates of frames: a whole frame in a work request, with fields that change.

use uverbs_mlx5::send_queue::{self as provider, EthernetFrame, template_blocks};

/// Blocks of 64 bytes that the template of a frame takes: the parameter of [`Template`].
///
/// ```
/// use uverbs::ethernet::blocks;
/// assert_eq!(blocks(98), 2);
/// assert_eq!(blocks(226), 4);
/// ```
pub const fn blocks(frame_bytes: usize) -> usize {
    template_blocks::<EthernetFrame<'static>>(frame_bytes)
}

/// A frame that is built once and sent again and again, with other values in its fields: from
/// [`TxQueue::template`](super::TxQueue::template).
///
/// All of it is inside the work request, so sending it names no memory, and every device takes it,
/// those too that want headers inline. `BLOCKS` is at least [`blocks`] of the frame's length; up to
/// 4 go to the device's register at once. It may be sent by any queue of its device.
#[derive(Debug, Clone, Copy)]
pub struct Template<const BLOCKS: usize> {
    pub(super) request: provider::Template<EthernetFrame<'static>, BLOCKS>,
    pub(super) length: usize,
}

/// A field of a frame: a value of type `V` at byte `AT`, counted from the destination address.
/// Numbers travel most significant byte first. Declare it as a constant, and set it by that name:
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

/// What a field can hold: numbers, and arrays of bytes.
pub trait Value: sealed::Put + Copy {}

mod sealed {
    use super::Template;

    pub trait Put: Sized {
        fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool;
    }
}

macro_rules! values {
    ($($number:ty),*) => {$(
        impl sealed::Put for $number {
            #[inline(always)]
            fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool {
                const N: usize = size_of::<$number>();
                to.request.set(provider::Field::<AT, N>, self.to_be_bytes())
            }
        }
        impl Value for $number {}
    )*};
}

values!(u8, u16, u32, u64, u128, i8, i16, i32, i64);

impl<const N: usize> sealed::Put for [u8; N] {
    #[inline(always)]
    fn put<const AT: usize, const BLOCKS: usize>(self, to: &mut Template<BLOCKS>) -> bool {
        to.request.set(provider::Field::<AT, N>, self)
    }
}

impl<const N: usize> Value for [u8; N] {}

impl<const BLOCKS: usize> Template<BLOCKS> {
    /// Gives a field another value. False, and nothing changed, unless all of the field is inside
    /// the frame.
    #[inline(always)]
    pub fn set<V: Value, const AT: usize>(&mut self, _: Field<V, AT>, value: V) -> bool {
        value.put::<AT, BLOCKS>(self)
    }

    /// Bytes of the frame.
    pub fn length(&self) -> usize {
        self.length
    }
}
