//! Actions of steering rules that change a frame's headers, in the device's format.
//!
//! Unconfirmed: the software device has no such actions, and no adapter has run them. The commands
//! are the same as libmlx5's, byte for byte (`.ci/driver-calls.c`).

use std::sync::Arc;

use uverbs_uapi::mlx5::enums::{FlowTableType, PacketReformatType};
use uverbs_uapi::mlx5::object::flow_action::{create_modify_header, create_packet_reformat};
use uverbs_uapi::objects::flow_action::destroy;

use crate::device::context::Context;
use crate::error::{DestroyError, Error, Result};
use crate::host::lifetime::{Kind, Object, destroy_unshared, object_kind};

const KIND: Kind = object_kind!("destroy_flow_action", "flow action", destroy::HANDLE);

/// An action that changes headers. Clones share one action.
#[derive(Debug, Clone)]
pub struct FlowAction {
    object: Arc<Object<Context>>,
}

impl Context {
    /// Makes an action that rewrites header fields, for rules of `table`. `actions` is in the
    /// device's format (`set_add_copy_action_in_auto` of the PRM).
    ///
    /// # Errors
    /// `Unsupported` if the device lacks it; other errors of the kernel.
    #[doc(alias = "mlx5dv_create_flow_action_modify_header")]
    pub fn create_modify_header(&self, actions: &[u8], table: FlowTableType) -> Result<FlowAction> {
        use create_modify_header::{ACTIONS_PRM, Call, FT_TYPE, HANDLE};
        const VERB: &str = "create_flow_action_modify_header";
        let mut request = self.commands().request::<Call>();
        let stored = request.input_bytes(ACTIONS_PRM, actions).map(drop);
        stored.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        request.constant(FT_TYPE, table.0);
        Ok(FlowAction::new(self, self.commands().create(VERB, request, HANDLE)?))
    }

    /// Makes an action that puts `header` in front of frames, or removes a tunnel's header, for
    /// rules of `table`.
    ///
    /// # Errors
    /// `Unsupported` if the device lacks it; other errors of the kernel.
    #[doc(alias = "mlx5dv_create_flow_action_packet_reformat")]
    pub fn create_packet_reformat(
        &self,
        kind: PacketReformatType,
        header: Option<&[u8]>,
        table: FlowTableType,
    ) -> Result<FlowAction> {
        use create_packet_reformat::{Call, DATA_BUF, FT_TYPE, HANDLE, TYPE};
        const VERB: &str = "create_flow_action_packet_reformat";
        let mut request = self.commands().request::<Call>();
        if let Some(header) = header {
            let stored = request.input_bytes(DATA_BUF, header).map(drop);
            stored.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        }
        request.constant(TYPE, kind.0);
        request.constant(FT_TYPE, table.0);
        Ok(FlowAction::new(self, self.commands().create(VERB, request, HANDLE)?))
    }
}

impl FlowAction {
    fn new(context: &Context, handle: u32) -> Self {
        Self { object: Arc::new(Object::new(context.clone(), handle, &KIND)) }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.object.parent
    }

    /// The kernel's handle.
    pub fn kernel_handle(&self) -> u32 {
        self.object.handle
    }

    /// Destroys it.
    ///
    /// # Errors
    /// `Busy` while rules or clones of it exist; errors of the kernel. The error contains it,
    /// unchanged.
    #[doc(alias = "ibv_destroy_flow_action")]
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        let users = ("rule", "this action");
        destroy_unshared(&mut self.object, KIND.verb, users, Object::destroy)
            .map_err(|error| DestroyError::new(self, error))
    }
}
