//! Implements [`Control`] for each of the library's queue pair types.

use std::ffi::c_int;
use std::time::Duration;

use uverbs::events::ObjectId;
use uverbs::flow::{FlowBuilder, MatchedFlowBuilder, Matcher};
use uverbs::qp::{Capacities, DcReceiver, Ece, RateLimit, State, XrcReceiver};
use uverbs::qp_type::{Dci, RawPacket, Rc, Uc, Ud, Xrc};
use uverbs::raw::{QpLayout, QueuePair};
use uverbs::{Error, ErrorKind, Gid, RssTarget};
use uverbs_mlx5::recv_queue::RecvQueue;
use uverbs_mlx5::send_queue::Common;

use crate::post;
use crate::qp::{Control, NO_ECE};
use crate::result::failed;

/// The negotiated options: none if the device has no options, as in libmlx5 (`mlx5_query_ece`).
fn ece(asked: Result<Ece, Error>) -> Result<Ece, c_int> {
    match asked {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(NO_ECE),
        asked => asked.map_err(|error| failed(&error)),
    }
}

macro_rules! common {
    () => {
        fn id(&self) -> ObjectId {
            self.id()
        }
        fn number(&self) -> u32 {
            self.number()
        }
        fn kernel_handle(&self) -> u32 {
            self.kernel_handle()
        }
        fn try_destroy(&mut self) -> Result<(), Error> {
            // SAFETY: after a success it is only dropped.
            unsafe { self.destroy_in_place_within(Duration::ZERO) }
        }
    };
}

macro_rules! queue_pair {
    ($type:ty { $($own:item)* }) => {
        impl Control for QueuePair<$type> {
            common!();
            fn capacities(&self) -> Option<Capacities> {
                Some(self.capacities())
            }
            unsafe fn receive(this: *mut Self) -> *mut Option<RecvQueue> {
                // SAFETY: the caller's promise.
                unsafe { QueuePair::sides(this) }.1
            }
            unsafe fn common(this: *mut Self) -> Option<Common> {
                // SAFETY: the caller's promise; nothing is posted yet.
                let queue = unsafe { (*QueuePair::sides(this).0).as_ref() };
                queue.map(|queue| queue.common(|flags| post::flags(flags.into())))
            }
            fn layout(&self) -> Option<QpLayout> {
                Some(self.layout())
            }
            fn query_ece(&self) -> Result<Ece, c_int> {
                ece(self.query_ece())
            }
            fn set_ece(&mut self, ece: Ece) -> Result<(), c_int> {
                self.set_ece(ece).map_err(|error| failed(&error))
            }
            unsafe fn changed_to(&mut self, state: State) -> Result<(), Error> {
                // SAFETY: the caller's promise.
                unsafe { self.changed_to(state) }
            }
            $($own)*
        }
    };
}

queue_pair!(Rc {});
queue_pair!(Uc {});
queue_pair!(Xrc {});
queue_pair!(Dci {});
queue_pair!(Ud {
    fn multicast(&mut self, group: Gid, lid: u16, attach: bool) -> Result<(), c_int> {
        let done = match attach {
            true => self.attach_multicast(group, lid),
            false => self.detach_multicast(group, lid),
        };
        done.map_err(|error| failed(&error))
    }
});
queue_pair!(RawPacket {
    fn rate_limit(&mut self, limit: RateLimit) -> Result<(), c_int> {
        self.modify_rate_limit(limit).map_err(|error| failed(&error))
    }
    fn create_flow(&mut self) -> Option<FlowBuilder<'_>> {
        Some(self.create_flow())
    }
    fn create_flow_by(&mut self, matcher: &Matcher, value: &[u8]) -> Option<MatchedFlowBuilder<'_>> {
        Some(self.create_flow_by(matcher, value))
    }
});

impl Control for XrcReceiver {
    common!();
}

impl Control for DcReceiver {
    common!();
    fn query_ece(&self) -> Result<Ece, c_int> {
        ece(self.query_ece())
    }
    fn set_ece(&mut self, ece: Ece) -> Result<(), c_int> {
        self.set_ece(ece).map_err(|error| failed(&error))
    }
}

impl Control for RssTarget {
    fn id(&self) -> ObjectId {
        self.id()
    }
    /// An RSS target has no QP number.
    fn number(&self) -> u32 {
        0
    }
    fn kernel_handle(&self) -> u32 {
        self.kernel_handle()
    }
    fn create_flow(&mut self) -> Option<FlowBuilder<'_>> {
        Some(self.create_flow())
    }
    fn create_flow_by(
        &mut self,
        matcher: &Matcher,
        value: &[u8],
    ) -> Option<MatchedFlowBuilder<'_>> {
        Some(self.create_flow_by(matcher, value))
    }
    fn try_destroy(&mut self) -> Result<(), Error> {
        // SAFETY: after a success it is only dropped.
        unsafe { self.destroy_in_place_within(Duration::ZERO) }
    }
}
