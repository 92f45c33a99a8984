//! What mlx5 adds to the generic objects.

use crate::objects::macros::objects;

objects! {
    /// The device as seen by one open file; no instances of it are created.
    device = 0 UVERBS_OBJECT_DEVICE {
        /// What mlx5 adds to the query: the whole
        /// [`AllocUcontextResp`](crate::mlx5::AllocUcontextResp).
        query_context extends crate::objects::device::query_context = 4 UVERBS_METHOD_QUERY_CONTEXT {
            RESP_UCTX: required Out = 0x1000 MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
        }
        /// The vport of a port (switchdev and steering).
        query_port = 0x1000 MLX5_IB_METHOD_QUERY_PORT {
            PORT_NUM: required In = 0x1000 MLX5_IB_ATTR_QUERY_PORT_PORT_NUM,
            RESP: required Out = 0x1001 MLX5_IB_ATTR_QUERY_PORT,
        }
        /// Sysfs path of the Data Direct PCI function.
        get_data_direct_sysfs_path = 0x1001 MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH {
            PATH: required Out = 0x1000 MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH,
        }
    }

    /// Protection domain; allocated by a write command.
    pd = 1 UVERBS_OBJECT_PD {
        /// Hardware number of a protection domain.
        query = 0x1000 MLX5_IB_METHOD_PD_QUERY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_QUERY_PD_HANDLE,
            RESP_PDN: required Out = 0x1001 MLX5_IB_ATTR_QUERY_PD_RESP_PDN,
        }
    }

    /// Completion queue.
    cq = 3 UVERBS_OBJECT_CQ {
        /// What mlx5 adds to CQ creation.
        create extends crate::objects::cq::create = 0 UVERBS_METHOD_CQ_CREATE {
            UAR_INDEX: optional In = 0x1002 MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX,
            DBR_BUF_UMEM: optional In = 0x1003 MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM,
        }
    }

    /// Queue pair.
    qp = 4 UVERBS_OBJECT_QP {
        /// What mlx5 adds to QP creation.
        create extends crate::objects::qp::create = 0 UVERBS_METHOD_QP_CREATE {
            DBR_BUF_UMEM: optional In = 0x1002 MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM,
        }
    }

    /// Memory region.
    mr = 7 UVERBS_OBJECT_MR {
        /// What mlx5 adds to dma-buf registration.
        reg_dmabuf extends crate::objects::mr::reg_dmabuf = 4 UVERBS_METHOD_REG_DMABUF_MR {
            MLX5_ACCESS_FLAGS: optional Flags = 0x1000 MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
        }
    }

    /// Flow steering rule.
    flow = 9 UVERBS_OBJECT_FLOW {
        /// Adds a rule in the device format.
        create = 0x1000 MLX5_IB_METHOD_CREATE_FLOW {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_CREATE_FLOW_HANDLE,
            MATCH_VALUE: required In = 0x1001 MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE,
            DEST_QP: optional Handle = 0x1002 MLX5_IB_ATTR_CREATE_FLOW_DEST_QP,
            DEST_DEVX: optional Handle = 0x1003 MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX,
            MATCHER: required Handle = 0x1004 MLX5_IB_ATTR_CREATE_FLOW_MATCHER,
            ARR_FLOW_ACTIONS: optional Handles = 0x1005 MLX5_IB_ATTR_CREATE_FLOW_ARR_FLOW_ACTIONS,
            TAG: optional In = 0x1006 MLX5_IB_ATTR_CREATE_FLOW_TAG,
            ARR_COUNTERS_DEVX: optional Handles = 0x1007 MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX,
            ARR_COUNTERS_DEVX_OFFSET: optional In = 0x1008 MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET,
            FLAGS: optional Flags = 0x1009 MLX5_IB_ATTR_CREATE_FLOW_FLAGS,
        }
        /// Removes a rule.
        destroy = 0x1001 MLX5_IB_METHOD_DESTROY_FLOW {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DESTROY_FLOW_HANDLE,
        }
    }

    /// Action that flow rules refer to.
    flow_action = 13 UVERBS_OBJECT_FLOW_ACTION {
        /// What mlx5 adds to ESP actions.
        esp_create extends crate::objects::flow_action::esp_create = 0 UVERBS_METHOD_FLOW_ACTION_ESP_CREATE {
            FLAGS: optional Flags = 0x1000 MLX5_IB_ATTR_CREATE_FLOW_ACTION_FLAGS,
        }
        /// Creates a header rewrite action.
        create_modify_header = 0x1000 MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_CREATE_MODIFY_HEADER_HANDLE,
            ACTIONS_PRM: required In = 0x1001 MLX5_IB_ATTR_CREATE_MODIFY_HEADER_ACTIONS_PRM,
            FT_TYPE: required Const = 0x1002 MLX5_IB_ATTR_CREATE_MODIFY_HEADER_FT_TYPE,
        }
        /// Creates an encapsulation or decapsulation action.
        create_packet_reformat = 0x1001 MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_HANDLE,
            TYPE: required Const = 0x1001 MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_TYPE,
            FT_TYPE: required Const = 0x1002 MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_FT_TYPE,
            DATA_BUF: optional In = 0x1003 MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_DATA_BUF,
        }
    }

    /// Device memory.
    dm = 14 UVERBS_OBJECT_DM {
        /// What mlx5 adds to device memory allocation.
        alloc extends crate::objects::dm::alloc = 0 UVERBS_METHOD_DM_ALLOC {
            RESP_START_OFFSET: required Out = 0x1000 MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET,
            RESP_PAGE_INDEX: optional Out = 0x1001 MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX,
            REQ_TYPE: optional Const = 0x1002 MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE,
        }
        /// Maps the address that performs an operation on device memory.
        map_op_addr = 0x1000 MLX5_IB_METHOD_DM_MAP_OP_ADDR {
            REQ_HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE,
            REQ_OP: required In = 0x1001 MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP,
            RESP_START_OFFSET: required Out = 0x1002 MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET,
            RESP_PAGE_INDEX: optional Out = 0x1003 MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX,
        }
        /// Where device memory is mapped, and its length.
        query = 0x1001 MLX5_IB_METHOD_DM_QUERY {
            REQ_HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE,
            RESP_START_OFFSET: required Out = 0x1001 MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET,
            RESP_PAGE_INDEX: required Out = 0x1002 MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX,
            RESP_LENGTH: required Out = 0x1003 MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH,
        }
    }
}
