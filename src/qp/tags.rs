//! Changing the tag list of a tag matching shared receive queue.

use super::builder::QpBuilder;
use super::qp_type::Rc;
use super::queue_pair::QueuePair;
use crate::device::address::Mtu;
use crate::device::layer::Raw;
use crate::error::{Error, Result};
use crate::host::events::Wait;
use crate::host::lifetime::{Destroy, destroy_methods};
use crate::srq::SrqHandle;

/// Adds and removes entries of the tag list of a tag matching shared receive queue. Each change may
/// produce a completion, in the completion queue of the shared receive queue.
///
/// Changes are posted to a queue pair that is connected to itself (`create_cmd_qp` of libmlx5).
#[derive(Debug)]
pub struct TagQueue {
    pub(super) qp: QueuePair<Rc, Raw>,
    srq: SrqHandle<Raw>,
}

impl SrqHandle<Raw> {
    /// Makes the queue for changes of the tag list, with at most `changes` outstanding changes.
    ///
    /// # Errors
    /// `InvalidInput` if `changes` is 0, if this queue matches no tags, or if it has or had a tag
    /// queue; errors of creating a queue pair.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_tag_queue(&self, changes: u32) -> Result<TagQueue> {
        const VERB: &str = "create_tag_queue";
        let Some((pd, cq)) = self.tag_parents() else {
            return Err(Error::invalid(VERB, "the shared receive queue matches no tags"));
        };
        if changes == 0 {
            return Err(Error::invalid(VERB, "it holds at least one change at a time"));
        }
        let builder = QpBuilder::new(pd, cq, cq).shared_receive_queue(self);
        let builder = builder.max_send_wr(changes).max_inline_data(0).mtu(Mtu::B256);
        let mut qp: QueuePair<Rc, Raw> = builder.no_scatter_to_cqe().build()?;
        qp.connect(&qp.endpoint())?;
        let Some(command) = &qp.core.queue else { return Err(Error::invalid(VERB, "no queue")) };
        let taken = self.user().set_tag_command(command);
        taken.map_err(|_| Error::invalid(VERB, "its list of tags has, or had, such a queue"))?;
        Ok(TagQueue { qp, srq: self.clone() })
    }
}

impl TagQueue {
    fn leave(&self) {
        self.qp.core.queue.iter().for_each(|command| self.srq.user().clear_tag_command(command));
    }

    destroy_methods! { "ibv_destroy_srq", "errors of the kernel." }
}

impl Destroy for TagQueue {
    fn destroy_in_place(&mut self, wait: Wait) -> Result<()> {
        self.qp.destroy_in_place(wait)?;
        self.leave();
        Ok(())
    }
}

impl Drop for TagQueue {
    fn drop(&mut self) {
        self.leave();
    }
}
