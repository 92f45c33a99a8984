//! Objects that only mlx5 has.

use crate::objects::macros::objects;

objects! {
    /// Raw firmware commands that belong to no object.
    devx = 0x1000 MLX5_IB_OBJECT_DEVX {
        /// A firmware command that neither creates nor changes an object.
        other = 0x1000 MLX5_IB_METHOD_DEVX_OTHER {
            CMD_IN: required In = 0x1000 MLX5_IB_ATTR_DEVX_OTHER_CMD_IN,
            CMD_OUT: required Out = 0x1001 MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT,
        }
        /// Hardware number of a UAR page.
        query_uar = 0x1001 MLX5_IB_METHOD_DEVX_QUERY_UAR {
            USER_IDX: required In = 0x1000 MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX,
            DEV_IDX: required Out = 0x1001 MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX,
        }
        /// Event queue of a completion vector.
        query_eqn = 0x1002 MLX5_IB_METHOD_DEVX_QUERY_EQN {
            USER_VEC: required In = 0x1000 MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC,
            DEV_EQN: required Out = 0x1001 MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN,
        }
        /// Subscribes to firmware events.
        subscribe_event = 0x1003 MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT {
            FD_HANDLE: required Fd = 0x1000 MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE,
            OBJ_HANDLE: optional Handle = 0x1001 MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE,
            TYPE_NUM_LIST: required In = 0x1002 MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST,
            FD_NUM: optional In = 0x1003 MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM,
            COOKIE: optional In = 0x1004 MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE,
        }
    }

    /// Firmware object created by a raw command.
    devx_obj = 0x1001 MLX5_IB_OBJECT_DEVX_OBJ {
        /// Creates a firmware object.
        create = 0x1000 MLX5_IB_METHOD_DEVX_OBJ_CREATE {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE,
            CMD_IN: required In = 0x1001 MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN,
            CMD_OUT: required Out = 0x1002 MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT,
        }
        /// Destroys a firmware object.
        destroy = 0x1001 MLX5_IB_METHOD_DEVX_OBJ_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE,
        }
        /// Runs a modify command on any object.
        modify = 0x1002 MLX5_IB_METHOD_DEVX_OBJ_MODIFY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE,
            CMD_IN: required In = 0x1001 MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN,
            CMD_OUT: required Out = 0x1002 MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT,
        }
        /// Runs a query command on any object.
        query = 0x1003 MLX5_IB_METHOD_DEVX_OBJ_QUERY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE,
            CMD_IN: required In = 0x1001 MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN,
            CMD_OUT: required Out = 0x1002 MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT,
        }
        /// A query whose answer is read from a file descriptor.
        async_query = 0x1004 MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE,
            CMD_IN: required In = 0x1001 MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN,
            FD: required Fd = 0x1002 MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD,
            WR_ID: required In = 0x1003 MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID,
            OUT_LEN: required Const = 0x1004 MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN,
        }
    }

    /// Pinned user memory for firmware objects.
    devx_umem = 0x1002 MLX5_IB_OBJECT_DEVX_UMEM {
        /// Pins user memory.
        reg = 0x1000 MLX5_IB_METHOD_DEVX_UMEM_REG {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE,
            ADDR: required In = 0x1001 MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR,
            LEN: required In = 0x1002 MLX5_IB_ATTR_DEVX_UMEM_REG_LEN,
            ACCESS: optional Flags = 0x1003 MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS,
            OUT_ID: required Out = 0x1004 MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID,
            PGSZ_BITMAP: optional Const = 0x1005 MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP,
            DMABUF_FD: optional RawFd = 0x1006 MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD,
        }
        /// Releases user memory.
        dereg = 0x1001 MLX5_IB_METHOD_DEVX_UMEM_DEREG {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE,
        }
    }

    /// Match mask and priority shared by flow rules.
    flow_matcher = 0x1003 MLX5_IB_OBJECT_FLOW_MATCHER {
        /// Creates a matcher.
        create = 0x1000 MLX5_IB_METHOD_FLOW_MATCHER_CREATE {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE,
            MATCH_MASK: required In = 0x1001 MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK,
            FLOW_TYPE: required Enum = 0x1002 MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE,
            MATCH_CRITERIA: required In = 0x1003 MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA,
            FLOW_FLAGS: optional Flags = 0x1004 MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS,
            FT_TYPE: optional Const = 0x1005 MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE,
            IB_PORT: optional In = 0x1006 MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT,
        }
        /// Destroys a matcher.
        destroy = 0x1001 MLX5_IB_METHOD_FLOW_MATCHER_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE,
        }
    }

    /// File descriptor with the answers of asynchronous queries.
    devx_async_cmd_fd = 0x1004 MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD {
        /// Opens the file descriptor.
        alloc = 0x1000 MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC {
            HANDLE: required NewFd = 0x1000 MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE,
        }
    }

    /// File descriptor with firmware events.
    devx_async_event_fd = 0x1005 MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD {
        /// Opens the file descriptor.
        alloc = 0x1000 MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC {
            HANDLE: required NewFd = 0x1000 MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE,
            FLAGS: required Flags = 0x1001 MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS,
        }
    }

    /// VirtIO doorbell page.
    var = 0x1006 MLX5_IB_OBJECT_VAR {
        /// Allocates a page and returns how to map it.
        alloc = 0x1000 MLX5_IB_METHOD_VAR_OBJ_ALLOC {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE,
            MMAP_OFFSET: required Out = 0x1001 MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET,
            MMAP_LENGTH: required Out = 0x1002 MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH,
            PAGE_ID: required Out = 0x1003 MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID,
            FLAGS: optional Flags = 0x1004 MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS,
        }
        /// Frees the page.
        destroy = 0x1001 MLX5_IB_METHOD_VAR_OBJ_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE,
        }
    }

    /// Packet pacing entry.
    pp = 0x1007 MLX5_IB_OBJECT_PP {
        /// Allocates an entry of the rate limit table.
        alloc = 0x1000 MLX5_IB_METHOD_PP_OBJ_ALLOC {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE,
            CTX: required In = 0x1001 MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX,
            FLAGS: required Flags = 0x1002 MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS,
            INDEX: required Out = 0x1003 MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX,
        }
        /// Frees the entry.
        destroy = 0x1001 MLX5_IB_METHOD_PP_OBJ_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE,
        }
    }

    /// Doorbell (user access region) page.
    uar = 0x1008 MLX5_IB_OBJECT_UAR {
        /// Allocates a page and returns how to map it.
        alloc = 0x1000 MLX5_IB_METHOD_UAR_OBJ_ALLOC {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
            TYPE: required Const = 0x1001 MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE,
            MMAP_OFFSET: required Out = 0x1002 MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
            MMAP_LENGTH: required Out = 0x1003 MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
            PAGE_ID: required Out = 0x1004 MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID,
        }
        /// Frees the page.
        destroy = 0x1001 MLX5_IB_METHOD_UAR_OBJ_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE,
        }
    }

    /// Flow table that rules made elsewhere may jump to.
    steering_anchor = 0x1009 MLX5_IB_OBJECT_STEERING_ANCHOR {
        /// Creates an anchor and returns its table id.
        create = 0x1000 MLX5_IB_METHOD_STEERING_ANCHOR_CREATE {
            HANDLE: required NewHandle = 0x1000 MLX5_IB_ATTR_STEERING_ANCHOR_CREATE_HANDLE,
            FT_TYPE: required Const = 0x1001 MLX5_IB_ATTR_STEERING_ANCHOR_FT_TYPE,
            PRIORITY: required In = 0x1002 MLX5_IB_ATTR_STEERING_ANCHOR_PRIORITY,
            FT_ID: required Out = 0x1003 MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID,
        }
        /// Destroys an anchor.
        destroy = 0x1001 MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY {
            HANDLE: required Handle = 0x1000 MLX5_IB_ATTR_STEERING_ANCHOR_DESTROY_HANDLE,
        }
    }
}
