//! Protection domains and everything that names memory.

use super::macros::objects;

objects! {
    /// Protection domain; allocated by a write command.
    pd = 1 UVERBS_OBJECT_PD {
        /// Frees a protection domain.
        destroy = 0 UVERBS_METHOD_PD_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_PD_HANDLE,
        }
    }

    /// Memory region.
    mr = 7 UVERBS_OBJECT_MR {
        /// Registers device memory.
        reg_dm = 0 UVERBS_METHOD_DM_MR_REG {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_REG_DM_MR_HANDLE,
            OFFSET: required In = 1 UVERBS_ATTR_REG_DM_MR_OFFSET,
            LENGTH: required In = 2 UVERBS_ATTR_REG_DM_MR_LENGTH,
            PD_HANDLE: required Handle = 3 UVERBS_ATTR_REG_DM_MR_PD_HANDLE,
            ACCESS_FLAGS: optional Flags = 4 UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS,
            DM_HANDLE: required Handle = 5 UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
            RESP_LKEY: required Out = 6 UVERBS_ATTR_REG_DM_MR_RESP_LKEY,
            RESP_RKEY: required Out = 7 UVERBS_ATTR_REG_DM_MR_RESP_RKEY,
        }
        /// Deregisters a memory region.
        destroy = 1 UVERBS_METHOD_MR_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_MR_HANDLE,
        }
        /// Prefetches pages of on-demand-paging regions.
        advise = 2 UVERBS_METHOD_ADVISE_MR {
            PD_HANDLE: required Handle = 0 UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
            ADVICE: required Const = 1 UVERBS_ATTR_ADVISE_MR_ADVICE,
            FLAGS: required Flags = 2 UVERBS_ATTR_ADVISE_MR_FLAGS,
            SGE_LIST: required In = 3 UVERBS_ATTR_ADVISE_MR_SGE_LIST,
        }
        /// Keys, length and address of a region.
        query = 3 UVERBS_METHOD_QUERY_MR {
            HANDLE: required Handle = 0 UVERBS_ATTR_QUERY_MR_HANDLE,
            RESP_LKEY: required Out = 1 UVERBS_ATTR_QUERY_MR_RESP_LKEY,
            RESP_RKEY: required Out = 2 UVERBS_ATTR_QUERY_MR_RESP_RKEY,
            RESP_LENGTH: required Out = 3 UVERBS_ATTR_QUERY_MR_RESP_LENGTH,
            RESP_IOVA: optional Out = 4 UVERBS_ATTR_QUERY_MR_RESP_IOVA,
        }
        /// Registers a dma-buf.
        reg_dmabuf = 4 UVERBS_METHOD_REG_DMABUF_MR {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
            PD_HANDLE: required Handle = 1 UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
            OFFSET: required In = 2 UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
            LENGTH: required In = 3 UVERBS_ATTR_REG_DMABUF_MR_LENGTH,
            IOVA: required In = 4 UVERBS_ATTR_REG_DMABUF_MR_IOVA,
            FD: required In = 5 UVERBS_ATTR_REG_DMABUF_MR_FD,
            ACCESS_FLAGS: optional Flags = 6 UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
            RESP_LKEY: required Out = 7 UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
            RESP_RKEY: required Out = 8 UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY,
        }
        /// Registers memory by address or file descriptor.
        reg = 5 UVERBS_METHOD_REG_MR {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_REG_MR_HANDLE,
            PD_HANDLE: required Handle = 1 UVERBS_ATTR_REG_MR_PD_HANDLE,
            DMA_HANDLE: optional Handle = 2 UVERBS_ATTR_REG_MR_DMA_HANDLE,
            IOVA: optional In = 3 UVERBS_ATTR_REG_MR_IOVA,
            ADDR: optional In = 4 UVERBS_ATTR_REG_MR_ADDR,
            LENGTH: required In = 5 UVERBS_ATTR_REG_MR_LENGTH,
            ACCESS_FLAGS: required Flags = 6 UVERBS_ATTR_REG_MR_ACCESS_FLAGS,
            FD: optional RawFd = 7 UVERBS_ATTR_REG_MR_FD,
            FD_OFFSET: optional In = 8 UVERBS_ATTR_REG_MR_FD_OFFSET,
            RESP_LKEY: required Out = 9 UVERBS_ATTR_REG_MR_RESP_LKEY,
            RESP_RKEY: required Out = 10 UVERBS_ATTR_REG_MR_RESP_RKEY,
        }
    }

    /// Memory window; allocated by a write command.
    mw = 8 UVERBS_OBJECT_MW {
        /// Frees a memory window.
        destroy = 0 UVERBS_METHOD_MW_DESTROY {
            HANDLE: required Handle = 0 UVERBS_ATTR_DESTROY_MW_HANDLE,
        }
    }

    /// Device memory.
    dm = 14 UVERBS_OBJECT_DM {
        /// Allocates device memory.
        alloc = 0 UVERBS_METHOD_DM_ALLOC {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_ALLOC_DM_HANDLE,
            LENGTH: required In = 1 UVERBS_ATTR_ALLOC_DM_LENGTH,
            ALIGNMENT: required In = 2 UVERBS_ATTR_ALLOC_DM_ALIGNMENT,
        }
        /// Frees device memory.
        free = 1 UVERBS_METHOD_DM_FREE {
            HANDLE: required Handle = 0 UVERBS_ATTR_FREE_DM_HANDLE,
        }
    }

    /// DMA handle: TLP processing hints for a memory region.
    dmah = 17 UVERBS_OBJECT_DMAH {
        /// Allocates a DMA handle.
        alloc = 0 UVERBS_METHOD_DMAH_ALLOC {
            HANDLE: required NewHandle = 0 UVERBS_ATTR_ALLOC_DMAH_HANDLE,
            CPU_ID: optional In = 1 UVERBS_ATTR_ALLOC_DMAH_CPU_ID,
            TPH_MEM_TYPE: optional Enum = 2 UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE,
            PH: optional In = 3 UVERBS_ATTR_ALLOC_DMAH_PH,
        }
        /// Frees a DMA handle.
        free = 1 UVERBS_METHOD_DMAH_FREE {
            HANDLE: required Handle = 0 UVERBS_ATTR_FREE_DMA_HANDLE,
        }
    }

    /// Device memory pages exported as a dma-buf.
    dmabuf = 18 UVERBS_OBJECT_DMABUF {
        /// Exports device memory pages as a dma-buf.
        alloc = 0 UVERBS_METHOD_DMABUF_ALLOC {
            HANDLE: required NewFd = 0 UVERBS_ATTR_ALLOC_DMABUF_HANDLE,
            PGOFF: required In = 1 UVERBS_ATTR_ALLOC_DMABUF_PGOFF,
        }
    }
}
