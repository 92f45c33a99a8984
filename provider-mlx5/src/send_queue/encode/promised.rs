//! What has a program's promise for memory gives parts of it and other forms, which have the
//! promise, too.

#![forbid(unsafe_code)]

use core::borrow::Borrow;
use core::ops::Deref;

use super::{Promised, Request, header};
use crate::request::{PostError, PostFlags};
use crate::send_queue::payload::{Inline, Limits, Payload, SgeList};
use crate::send_queue::wide::WideBlock;
use crate::send_queue::{Operation, Template};

impl<X> Promised<X> {
    /// The same, by reference.
    #[inline(always)]
    pub(in crate::send_queue) fn by_ref(&self) -> Promised<&X> {
        Promised(&self.0)
    }

    /// The same, as what it is lent as.
    #[inline(always)]
    pub(in crate::send_queue) fn lent<Y>(&self) -> Promised<&Y>
    where
        X: Borrow<Y>,
    {
        Promised(self.0.borrow())
    }
}

impl<X> Deref for Promised<X> {
    type Target = X;

    #[inline(always)]
    fn deref(&self) -> &X {
        &self.0
    }
}

impl<P: Payload> Promised<P> {
    /// A request of usual data; `None` if the data is empty, has an empty SGE, or is to be refused.
    /// The operation is lent: passed by value the compiler may pack it into one register.
    #[inline(always)]
    pub(in crate::send_queue) fn usual<O: Operation>(
        &self,
        operation: &O,
        flags: PostFlags,
        limits: &Limits,
    ) -> Option<Promised<Request<O, P>>> {
        let Some(octowords) = self.0.usual(limits, header::<O>()) else {
            crate::hint::cold_path();
            return None;
        };
        Some(Promised(Request { operation: *operation, payload: self.0, octowords, flags }))
    }

    /// [`Request::new`].
    #[inline(always)]
    pub(in crate::send_queue) fn request<'b, O: Operation>(
        self,
        operation: O,
        flags: PostFlags,
        limits: &Limits,
        list: &'b mut SgeList,
    ) -> Result<Promised<Request<O, P::Filled<'b>>>, PostError> {
        Request::new(operation, self.0, flags, limits, list).map(Promised)
    }

    /// A copy, see [`Payload::again`].
    #[inline(always)]
    pub(in crate::send_queue) fn again(&self) -> Self {
        Self(self.0.again())
    }
}

/// A request that was encoded before, but for its index and the queue's number.
pub(crate) trait Image {
    /// Its blocks.
    fn image(&self) -> &[WideBlock];
}

impl<'a, I: Image> Promised<&'a I> {
    /// The blocks of the request.
    #[inline(always)]
    pub(in crate::send_queue) fn image(&self) -> Promised<&'a [WideBlock]> {
        Promised(self.0.image())
    }
}

impl<'a, O: Operation, const N: usize> Promised<&'a Template<O, N>> {
    /// All blocks.
    #[inline(always)]
    pub(in crate::send_queue) fn lanes(&self) -> Promised<&'a [WideBlock; N]> {
        Promised(self.0.lanes())
    }
}

impl<'a, const N: usize> Promised<&'a [WideBlock; N]> {
    /// The first blocks, those that the request takes.
    #[inline(always)]
    pub(in crate::send_queue) fn first(&self, blocks: usize) -> Promised<&'a [WideBlock]> {
        Promised(self.0.get(..blocks).unwrap_or(self.0))
    }
}

impl<I: Iterator> Iterator for Promised<I> {
    type Item = Promised<I::Item>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Promised)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl Promised<()> {
    /// No data.
    pub(in crate::send_queue) const NONE: Self = Self(());
}

impl<'a> Promised<Inline<'a>> {
    /// Data that is copied: nothing has to stay valid.
    #[inline(always)]
    pub(in crate::send_queue) fn to_copy(data: Inline<'a>) -> Self {
        Self(data)
    }
}

impl<X: Copy> Promised<&X> {
    /// A copy.
    #[inline(always)]
    pub(in crate::send_queue) fn copied(&self) -> Promised<X> {
        Promised(*self.0)
    }
}
