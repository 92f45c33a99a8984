//! Templates of the safe layer.

use uverbs_mlx5::request::{PostFlags, Remote};
use uverbs_mlx5::send_queue::{Field, Operation, Template, Write, WriteImmediate};

/// A request with inline data that is built once and posted many times: from
/// [`QueuePair::template`](crate::QueuePair::template).
///
/// Any queue pair whose type has the operation can post it. A template of a raw packet fits only
/// queue pairs of the device that it was made on.
#[derive(Debug, Clone, Copy)]
pub struct InlineTemplate<O: Operation, const BLOCKS: usize = 1> {
    pub(super) template: Template<O, BLOCKS>,
    pub(super) flags: PostFlags,
}

impl<O: Operation, const BLOCKS: usize> InlineTemplate<O, BLOCKS> {
    /// Replaces bytes of the template's data. Returns false and changes nothing if the field is not
    /// inside the data that the template was made with.
    #[inline(always)]
    #[must_use]
    pub fn set<const N: usize, const AT: usize>(
        &mut self,
        field: Field<N, AT>,
        bytes: [u8; N],
    ) -> bool {
        self.template.set(field, bytes)
    }

    /// Replaces the template's data. Returns false and changes nothing unless the length is that of
    /// the data that the template was made with.
    #[inline(always)]
    #[must_use]
    pub fn set_inline(&mut self, data: &[u8]) -> bool {
        self.template.set_inline(data)
    }
}

macro_rules! remote_templates {
    ($($operation:ident),*) => {$(
        impl<const BLOCKS: usize> InlineTemplate<$operation, BLOCKS> {
            /// Replaces the template's remote address and key.
            #[inline(always)]
            pub fn set_remote(&mut self, remote: Remote) {
                self.template.set_remote(remote);
            }
        }
    )*};
}

remote_templates!(Write, WriteImmediate);
