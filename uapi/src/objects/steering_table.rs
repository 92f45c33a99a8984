//! Flow steering rules and their actions.

use super::macros::objects;

objects! {
    /// Flow steering rule.
    flow = 9 UVERBS_OBJECT_FLOW {
        /// Removes a flow rule.
        destroy = 0 UVERBS_METHOD_FLOW_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_FLOW_HANDLE,
        }
    }

    /// Action that flow rules refer to.
    flow_action = 13 UVERBS_OBJECT_FLOW_ACTION {
        /// Creates an ESP action (removed from current kernels; the id stays reserved).
        esp_create = 0 UVERBS_METHOD_FLOW_ACTION_ESP_CREATE {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE,
            ATTRS: required In = 1 UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS,
            ESN: optional In = 2 UVERBS_ATTR_FLOW_ACTION_ESP_ESN,
            KEYMAT: required Enum = 3 UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT,
            REPLAY: optional Enum = 4 UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY,
            ENCAP: optional In = 5 UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP,
        }
        /// Destroys an action.
        destroy = 1 UVERBS_METHOD_FLOW_ACTION_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE,
        }
        /// Changes an ESP action (removed from current kernels; the id stays reserved).
        esp_modify = 2 UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY {
            HANDLE: required Handle = 0 UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE,
            ATTRS: optional In = 1 UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS,
            ESN: optional In = 2 UVERBS_ATTR_FLOW_ACTION_ESP_ESN,
            KEYMAT: optional Enum = 3 UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT,
            REPLAY: optional Enum = 4 UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY,
            ENCAP: optional In = 5 UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP,
        }
    }
}
