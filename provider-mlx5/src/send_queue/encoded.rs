//! Requests that the caller has encoded.

use super::encode::{Image, Promised};
use super::wide::{WideBlock, wide};
use super::{Batch, SendQueue, Transport};
use crate::format::Opcode;
use crate::mmio::Register;
use crate::queue_state::{Kind, NO_START};
use crate::request::{Octoword, PostError, PostFlags};

/// Octowords of the longest request: control segments count them in six bits.
const MAX_OCTOWORDS: usize = 63;
const MAX_BLOCKS: usize = MAX_OCTOWORDS.div_ceil(4);

/// A request to be copied to the ring.
pub(super) struct Encoded {
    image: [WideBlock; MAX_BLOCKS],
    blocks: usize,
    is_key_change: bool,
}

impl Image for Encoded {
    fn image(&self) -> &[WideBlock] {
        self.image.get(..self.blocks).unwrap_or_default()
    }
}

impl Encoded {
    /// # Errors
    /// [`PostError::BadOpcode`] unless there are as many bytes as the control segment says.
    pub(super) fn of(wqe: &[u8]) -> Result<Self, PostError> {
        let octowords = wqe.len() / size_of::<Octoword>();
        let count = wqe.get(7).map_or(0, |count| usize::from(count & MAX_OCTOWORDS as u8));
        if octowords == 0 || octowords != count || wqe.len() % size_of::<Octoword>() != 0 {
            return Err(PostError::BadOpcode);
        }
        let mut image = [[wide([0; 2]); 4]; MAX_BLOCKS];
        let lanes = image.iter_mut().flatten();
        for (lane, bytes) in lanes.zip(wqe.chunks_exact(size_of::<Octoword>())) {
            *lane = wide(octoword(bytes));
        }
        let [[control, ..], ..] = &mut image;
        let own = octoword(wqe);
        let [modifier, _, _, opcode, .., length] = own[0].to_ne_bytes();
        *control = wide([u64::from_ne_bytes([modifier, 0, 0, opcode, 0, 0, 0, length]), own[1]]);
        let is_key_change = opcode == Opcode::UMR.0;
        Ok(Self { image, blocks: octowords.div_ceil(4), is_key_change })
    }
}

impl<T: Transport, R: Register> SendQueue<T, R> {
    /// From now on the completion of a request that the caller has encoded
    /// ([`Batch::build_encoded`]) has the opcode [`ENCODED`](crate::completion_queue::ENCODED)
    /// instead of the request's own.
    #[doc(hidden)]
    pub fn tell_encoded(&mut self) {
        self.state().tell_encoded();
    }
}

impl<T: Transport, R: Register> Batch<'_, T, R> {
    /// Builds a request that the caller has encoded. The next one has this fence, unless it asks
    /// for a stronger one. If `TOLD`, its completion may tell that the caller has encoded it.
    pub(super) fn enter_encoded<const TOLD: bool>(
        &mut self,
        wr_id: u64,
        encoded: Promised<&Encoded>,
        fence: u8,
    ) -> Result<(), PostError> {
        let at = self.next().at();
        let queue = self.queue_mut();
        let start = queue.place_at(at);
        let is_told = TOLD && queue.state().tells_encoded();
        let id = if is_told { NO_START } else { wr_id };
        let mut next = queue.build_image(start, id, encoded.image(), PostFlags::empty(), None)?;
        next.fence = fence;
        if is_told {
            queue.state().set_encoded(start.head, wr_id);
        }
        if encoded.is_key_change {
            queue.state().set_send_kind(start.head, Kind::Key as u8);
        }
        let next = queue.resume(next);
        self.go_on(next);
        Ok(())
    }
}

/// The first sixteen bytes.
fn octoword(bytes: &[u8]) -> Octoword {
    [0, 8].map(|start| {
        let word = bytes.get(start..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    })
}
