//! Service records of the subnet administration; kernels newer than Linux 6.12 have them.

use zerocopy::big_endian::{U16, U32, U64};

crate::macros::abi_constants! {
    /// The record is looked up by its id.
    SERVICE_FLAG_ID: u32 = 1 RDMA_USER_CM_IB_SERVICE_FLAG_ID,
    /// The record is looked up by its name.
    SERVICE_FLAG_NAME: u32 = 2 RDMA_USER_CM_IB_SERVICE_FLAG_NAME,
    /// Bytes of a service's name.
    SERVICE_NAME_SIZE: usize = 64 RDMA_USER_CM_IB_SERVICE_NAME_SIZE,
}

crate::macros::abi_structs! {
    /// Names a service.
    struct IbService = "struct rdma_ucm_ib_service", 80 {
        @0 service_id: u64,
        @8 service_name: [u8; SERVICE_NAME_SIZE],
        /// [`SERVICE_FLAG_ID`], [`SERVICE_FLAG_NAME`].
        @72 flags: u32,
        @76 reserved: u32,
    }

    /// Resolves a service to an address.
    struct ResolveIbService = "struct rdma_ucm_resolve_ib_service", 88 {
        @0 id: u32,
        @4 reserved: u32,
        @8 ibs: IbService,
    }

    /// The head of the answer to a query for services. [`ServiceRec`]s follow.
    struct QueryIbServiceResp = "struct rdma_ucm_query_ib_service_resp", 8 {
        /// How many records follow.
        @0 num_service_recs: u32,
        @4 reserved: u32,
    }

    /// The attribute ServiceRecord (IBTA volume 1, 15.2.5.14).
    struct ServiceRec = "struct ib_user_service_rec", 176 {
        /// Service id.
        @0 id: U64,
        @8 gid: [u8; 16],
        @24 pkey: U16,
        @26 reserved: [u8; 2],
        /// Seconds.
        @28 lease: U32,
        @32 key: [u8; 16],
        @48 name: [u8; 64],
        @112 data_8: [u8; 16],
        @128 data_16: [U16; 8],
        @144 data_32: [U32; 4],
        @160 data_64: [U64; 2],
    }
}
