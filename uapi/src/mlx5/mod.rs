//! The mlx5 driver's part of the ABI: its objects and methods, and the private structs of the
//! attributes `UHW_IN` and `UHW_OUT`.
//!
//! The structs grew over time. A kernel that knows a shorter request ignores the rest if it is
//! zero. It fills as much of an answer as both sides know.

mod driver_objects;
mod objects;

pub mod ah;
pub mod context;
pub mod cq;
pub mod device;
pub mod enums;
pub mod flags;
pub mod flow;
pub mod pd;
pub mod qp;
pub mod srq;
pub mod wq;

/// What mlx5 adds to the generic objects, and the objects that only mlx5 has. The shape is that of
/// [`crate::objects`], the ids are in the driver's namespace.
pub mod object {
    pub use super::driver_objects::{
        devx, devx_async_cmd_fd, devx_async_event_fd, devx_obj, devx_umem, flow_matcher, pp,
        steering_anchor, uar, var,
    };
    pub use super::objects::{cq, device, dm, flow, flow_action, mr, pd, qp};
}

pub use ah::CreateAhResp;
pub use context::{AllocUcontextReq, AllocUcontextReqV2, AllocUcontextResp};
pub use cq::{CreateCq, CreateCqResp, ResizeCq};
pub use device::QueryDeviceResp;
pub use enums::{MmapCommand, UarAllocType};
pub use flags::{AllocUcontextFlags, AllocUcontextRespMask, CqFlags, LibCaps, QpFlags, SrqFlags};
pub use pd::{AllocMw, AllocPdResp};
pub use qp::{CreateQp, CreateQpResp, ModifyQp, ModifyQpResp};
pub use srq::{CreateSrq, CreateSrqResp};

pub(crate) const OBJECTS: &[&[crate::objects::ObjectInfo]] =
    &[objects::OBJECTS, driver_objects::OBJECTS];
