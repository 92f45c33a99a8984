//! Write commands: the commands that predate the ioctl, which now carries them with
//! [`invoke_write`](crate::objects::device::invoke_write).
//!
//! Each module has the structs of one kind of object. [`WriteCommand`] gives the number and the
//! answer of a request. A struct ends where the driver's part begins, which is in the attributes
//! `UHW_IN` and `UHW_OUT`. The `response` address at the head of many requests is for `write(2)`,
//! and zero in the ioctl.
//!
//! Sources: `ib_user_verbs.h`, and the table `uverbs_def_write_intf` of
//! `drivers/infiniband/core/uverbs_cmd.c`.

pub mod ah;
pub mod comp_channel;
pub mod context;
pub mod cq;
pub mod device;
pub mod flow;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
pub mod srq;
pub mod wq;
pub mod xrcd;

use zerocopy::{FromBytes, Immutable, IntoBytes};

crate::macros::abi_enums! {
    /// Number of a write command; extended commands have bit 31 set.
    enum WriteCmd: u32 {
        GET_CONTEXT = 0 IB_USER_VERBS_CMD_GET_CONTEXT,
        QUERY_DEVICE = 1 IB_USER_VERBS_CMD_QUERY_DEVICE,
        QUERY_PORT = 2 IB_USER_VERBS_CMD_QUERY_PORT,
        ALLOC_PD = 3 IB_USER_VERBS_CMD_ALLOC_PD,
        DEALLOC_PD = 4 IB_USER_VERBS_CMD_DEALLOC_PD,
        CREATE_AH = 5 IB_USER_VERBS_CMD_CREATE_AH,
        MODIFY_AH = 6 IB_USER_VERBS_CMD_MODIFY_AH,
        QUERY_AH = 7 IB_USER_VERBS_CMD_QUERY_AH,
        DESTROY_AH = 8 IB_USER_VERBS_CMD_DESTROY_AH,
        REG_MR = 9 IB_USER_VERBS_CMD_REG_MR,
        REG_SMR = 10 IB_USER_VERBS_CMD_REG_SMR,
        REREG_MR = 11 IB_USER_VERBS_CMD_REREG_MR,
        QUERY_MR = 12 IB_USER_VERBS_CMD_QUERY_MR,
        DEREG_MR = 13 IB_USER_VERBS_CMD_DEREG_MR,
        ALLOC_MW = 14 IB_USER_VERBS_CMD_ALLOC_MW,
        BIND_MW = 15 IB_USER_VERBS_CMD_BIND_MW,
        DEALLOC_MW = 16 IB_USER_VERBS_CMD_DEALLOC_MW,
        CREATE_COMP_CHANNEL = 17 IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
        CREATE_CQ = 18 IB_USER_VERBS_CMD_CREATE_CQ,
        RESIZE_CQ = 19 IB_USER_VERBS_CMD_RESIZE_CQ,
        DESTROY_CQ = 20 IB_USER_VERBS_CMD_DESTROY_CQ,
        POLL_CQ = 21 IB_USER_VERBS_CMD_POLL_CQ,
        PEEK_CQ = 22 IB_USER_VERBS_CMD_PEEK_CQ,
        REQ_NOTIFY_CQ = 23 IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
        CREATE_QP = 24 IB_USER_VERBS_CMD_CREATE_QP,
        QUERY_QP = 25 IB_USER_VERBS_CMD_QUERY_QP,
        MODIFY_QP = 26 IB_USER_VERBS_CMD_MODIFY_QP,
        DESTROY_QP = 27 IB_USER_VERBS_CMD_DESTROY_QP,
        POST_SEND = 28 IB_USER_VERBS_CMD_POST_SEND,
        POST_RECV = 29 IB_USER_VERBS_CMD_POST_RECV,
        ATTACH_MCAST = 30 IB_USER_VERBS_CMD_ATTACH_MCAST,
        DETACH_MCAST = 31 IB_USER_VERBS_CMD_DETACH_MCAST,
        CREATE_SRQ = 32 IB_USER_VERBS_CMD_CREATE_SRQ,
        MODIFY_SRQ = 33 IB_USER_VERBS_CMD_MODIFY_SRQ,
        QUERY_SRQ = 34 IB_USER_VERBS_CMD_QUERY_SRQ,
        DESTROY_SRQ = 35 IB_USER_VERBS_CMD_DESTROY_SRQ,
        POST_SRQ_RECV = 36 IB_USER_VERBS_CMD_POST_SRQ_RECV,
        OPEN_XRCD = 37 IB_USER_VERBS_CMD_OPEN_XRCD,
        CLOSE_XRCD = 38 IB_USER_VERBS_CMD_CLOSE_XRCD,
        CREATE_XSRQ = 39 IB_USER_VERBS_CMD_CREATE_XSRQ,
        OPEN_QP = 40 IB_USER_VERBS_CMD_OPEN_QP,
        EX_QUERY_DEVICE = 0x8000_0001
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE",
        EX_CREATE_CQ = 0x8000_0012
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_CQ",
        EX_CREATE_QP = 0x8000_0018
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_QP",
        EX_MODIFY_QP = 0x8000_001a
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP",
        EX_CREATE_FLOW = 0x8000_0032
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_FLOW",
        EX_DESTROY_FLOW = 0x8000_0033
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_FLOW",
        EX_CREATE_WQ = 0x8000_0034
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_WQ",
        EX_MODIFY_WQ = 0x8000_0035
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_WQ",
        EX_DESTROY_WQ = 0x8000_0036
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_WQ",
        EX_CREATE_RWQ_IND_TBL = 0x8000_0037
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL",
        EX_DESTROY_RWQ_IND_TBL = 0x8000_0038
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL",
        EX_MODIFY_CQ = 0x8000_0039
            "IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_CQ",
    }
}

/// A request of a write command.
pub trait WriteCommand: IntoBytes + Immutable {
    /// The command.
    const COMMAND: WriteCmd;
    /// The core part of the answer; `()` where there is none.
    type Response: FromBytes + IntoBytes;
}

macro_rules! write_commands {
    ($( $module:ident::$request:ident => $command:ident -> $response:ty, )*) => { $(
        impl WriteCommand for $module::$request {
            const COMMAND: WriteCmd = WriteCmd::$command;
            type Response = $response;
        }
    )* };
}

write_commands! {
    context::GetContext => GET_CONTEXT -> context::GetContextResp,
    device::QueryDevice => QUERY_DEVICE -> device::QueryDeviceResp,
    device::ExQueryDevice => EX_QUERY_DEVICE -> device::ExQueryDeviceResp,
    device::QueryPort => QUERY_PORT -> device::QueryPortResp,
    pd::AllocPd => ALLOC_PD -> pd::AllocPdResp,
    pd::DeallocPd => DEALLOC_PD -> (),
    ah::CreateAh => CREATE_AH -> ah::CreateAhResp,
    ah::DestroyAh => DESTROY_AH -> (),
    mr::RegMr => REG_MR -> mr::RegMrResp,
    mr::ReregMr => REREG_MR -> mr::ReregMrResp,
    mr::DeregMr => DEREG_MR -> (),
    mw::AllocMw => ALLOC_MW -> mw::AllocMwResp,
    mw::DeallocMw => DEALLOC_MW -> (),
    comp_channel::CreateCompChannel => CREATE_COMP_CHANNEL -> comp_channel::CreateCompChannelResp,
    cq::CreateCq => CREATE_CQ -> cq::CreateCqResp,
    cq::ExCreateCq => EX_CREATE_CQ -> cq::ExCreateCqResp,
    cq::ResizeCq => RESIZE_CQ -> cq::ResizeCqResp,
    cq::ReqNotifyCq => REQ_NOTIFY_CQ -> (),
    cq::DestroyCq => DESTROY_CQ -> cq::DestroyCqResp,
    cq::ExModifyCq => EX_MODIFY_CQ -> (),
    qp::CreateQp => CREATE_QP -> qp::CreateQpResp,
    qp::ExCreateQp => EX_CREATE_QP -> qp::ExCreateQpResp,
    qp::OpenQp => OPEN_QP -> qp::CreateQpResp,
    qp::QueryQp => QUERY_QP -> qp::QueryQpResp,
    qp::ModifyQp => MODIFY_QP -> (),
    qp::ExModifyQp => EX_MODIFY_QP -> qp::ExModifyQpResp,
    qp::DestroyQp => DESTROY_QP -> qp::DestroyQpResp,
    qp::AttachMcast => ATTACH_MCAST -> (),
    qp::DetachMcast => DETACH_MCAST -> (),
    srq::CreateSrq => CREATE_SRQ -> srq::CreateSrqResp,
    srq::CreateXsrq => CREATE_XSRQ -> srq::CreateSrqResp,
    srq::ModifySrq => MODIFY_SRQ -> (),
    srq::QuerySrq => QUERY_SRQ -> srq::QuerySrqResp,
    srq::DestroySrq => DESTROY_SRQ -> srq::DestroySrqResp,
    xrcd::OpenXrcd => OPEN_XRCD -> xrcd::OpenXrcdResp,
    xrcd::CloseXrcd => CLOSE_XRCD -> (),
    wq::ExCreateWq => EX_CREATE_WQ -> wq::ExCreateWqResp,
    wq::ExModifyWq => EX_MODIFY_WQ -> (),
    wq::ExDestroyWq => EX_DESTROY_WQ -> wq::ExDestroyWqResp,
    wq::ExDestroyRwqIndTable => EX_DESTROY_RWQ_IND_TBL -> (),
    flow::CreateFlow => EX_CREATE_FLOW -> flow::CreateFlowResp,
    flow::DestroyFlow => EX_DESTROY_FLOW -> (),
}
