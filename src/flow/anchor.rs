//! Steering anchors: ids of the kernel's flow tables, for rules that a program makes by firmware
//! commands ([`Devx`](crate::devx::Devx)).
//!
//! Unconfirmed: the software device has no anchors, and no adapter has run them. The commands are
//! the same as libmlx5's, byte for byte (`.ci/driver-calls.c`).

use uverbs_uapi::mlx5::enums::FlowTableType;
use uverbs_uapi::mlx5::object::steering_anchor::{create, destroy};

use crate::device::context::Context;
use crate::error::{DestroyError, Result};
use crate::host::lifetime::{Kind, Object, object_kind};

const KIND: Kind = object_kind!("destroy_steering_anchor", "steering anchor", destroy::HANDLE);

/// A flow table of the kernel, to which rules may lead by its id.
#[derive(Debug)]
pub struct SteeringAnchor {
    object: Object<Context>,
    id: u32,
}

impl Context {
    /// Makes an anchor of the table in which the kernel puts rules of `priority`.
    ///
    /// # Errors
    /// `Unsupported` for a table that the device lacks, and before Linux 6.0; EPERM without
    /// CAP_NET_RAW; other errors of the kernel.
    #[doc(alias = "mlx5dv_create_steering_anchor")]
    pub fn create_steering_anchor(
        &self,
        table: FlowTableType,
        priority: u16,
    ) -> Result<SteeringAnchor> {
        use create::{Call, FT_ID, FT_TYPE, HANDLE, PRIORITY};
        let mut id = 0u32;
        let mut request = self.commands().request::<Call>();
        request.constant(FT_TYPE, table.0);
        request.value(PRIORITY, priority);
        request.output(FT_ID, &mut id);
        let handle = self.commands().create("create_steering_anchor", request, HANDLE)?;
        Ok(SteeringAnchor { object: Object::new(self.clone(), handle, &KIND), id })
    }
}

impl SteeringAnchor {
    /// The table's id in firmware commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Destroys it.
    ///
    /// # Errors
    /// Errors of the kernel. The error contains it unchanged.
    #[doc(alias = "mlx5dv_destroy_steering_anchor")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.object.destroy().map_err(|error| DestroyError::new(self, error))
    }
}
