//! Explains error CQEs: the meaning of the syndrome, its usual causes, and what to check.

use core::fmt;

use uverbs_mlx5::format::{CqeOpcode, ErrorCqe, Syndrome, VendorSyndrome};

/// The explanation of an error CQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorText {
    /// Which WQE failed.
    pub what: String,
    /// What the syndrome means.
    pub meaning: &'static str,
    /// Likely causes, the most frequent first.
    pub causes: &'static [&'static str],
    /// What to check.
    pub checks: &'static [&'static str],
    /// What is publicly known about the vendor syndrome.
    pub vendor: String,
}

impl ErrorText {
    /// Explains this error CQE.
    pub fn of(cqe: &ErrorCqe) -> Self {
        let what = if cqe.op_own.opcode() == CqeOpcode::REQUESTER_ERROR {
            format!(
                "Send WQE {} of QP {:#x} ({}) failed: {}.",
                cqe.wqe_counter,
                cqe.qpn(),
                cqe.wqe_opcode(),
                cqe.syndrome
            )
        } else {
            format!(
                "Receive WQE {} of QP {:#x} failed: {}.",
                cqe.wqe_counter,
                cqe.qpn(),
                cqe.syndrome
            )
        };
        let (meaning, causes, checks) = syndrome(cqe.syndrome);
        Self { what, meaning, causes, checks, vendor: vendor(cqe.syndrome, cqe.vendor_syndrome) }
    }
}

type Texts = (&'static str, &'static [&'static str], &'static [&'static str]);

fn syndrome(syndrome: Syndrome) -> Texts {
    match syndrome {
        Syndrome::LOCAL_LENGTH
        | Syndrome::LOCAL_QP_OPERATION
        | Syndrome::LOCAL_PROTECTION
        | Syndrome::MW_BIND
        | Syndrome::LOCAL_ACCESS => local(syndrome),
        Syndrome::FLUSHED => (
            "The QP was in the error state already, so this WQE was not executed to its end. It may \
             have taken effect at the remote side.",
            &[
                "an earlier WQE of the same QP failed: its CQE, the first with another syndrome, has \
                 the reason",
                "the program moved the QP to the error state",
                "the peer went away, or the connection manager disconnected",
            ],
            &["the first error CQE of this QP", "asynchronous events of the QP"],
        ),
        Syndrome::TRANSPORT_RETRY_EXCEEDED | Syndrome::RNR_RETRY_EXCEEDED => retried(syndrome),
        _ => remote(syndrome),
    }
}

fn local(syndrome: Syndrome) -> Texts {
    match syndrome {
        Syndrome::LOCAL_LENGTH => (
            "A length does not fit.",
            &[
                "responder: the message is longer than the buffers of the receive WQE",
                "UD: no space for the 40 bytes of routing header in front of the data",
                "requester: a message longer than 2 GiB, or longer than the path MTU on UD",
            ],
            &["the receive WQE's scatter list against what the peer sends", "the path MTU (UD)"],
        ),
        Syndrome::LOCAL_QP_OPERATION => (
            "The device found the QP or the WQE inconsistent when it executed it.",
            &[
                "a malformed WQE: wrong ds, an opcode that this QP does not have",
                "an address handle or remote QP that does not fit the port or protection domain",
                "a WQE overwritten before the device had read it",
            ],
            &[
                "the WQE at this counter, decoded",
                "that only one thread posts to the QP and rings its doorbell register",
            ],
        ),
        Syndrome::LOCAL_PROTECTION => (
            "A scatter/gather entry points outside of what its lkey allows.",
            &[
                "a wrong lkey, or a key of another protection domain",
                "address or length outside of the memory region",
                "the region was deregistered (or re-registered) while the WQE was outstanding",
                "a local write into a region registered without local write",
            ],
            &["lkey, address and length of each entry against the registrations", "lifetimes"],
        ),
        Syndrome::MW_BIND => (
            "A memory window could not be bound or a key not be changed (UMR).",
            &[
                "the window is bound already (type 2), or belongs to another QP",
                "the region lacks the permission to bind windows, or the rights that the window wants",
                "the window lies outside of its region",
            ],
            &["the region's access flags", "the rkey that the bind was given"],
        ),
        _ => (
            "The responder's own memory could not be accessed.",
            &["a receive buffer whose lkey, address or length is wrong"],
            &["the receive WQE at this counter against the registrations"],
        ),
    }
}

fn remote(syndrome: Syndrome) -> Texts {
    match syndrome {
        Syndrome::BAD_RESPONSE => (
            "The responder answered with an opcode that does not fit the request.",
            &["packets of another connection (QP numbers reused too early)", "a broken peer"],
            &["both sides' QP numbers and PSNs", "a packet capture"],
        ),
        Syndrome::REMOTE_INVALID_REQUEST => (
            "The responder refused the request as invalid.",
            &[
                "the message is longer than the receive buffer at the responder",
                "the responder's QP does not allow the operation (access flags of the QP: remote read, \
                 write, atomic)",
                "more RDMA reads or atomics outstanding than max_dest_rd_atomic",
                "an unaligned atomic",
            ],
            &["the responder's qp_access_flags and max_dest_rd_atomic", "its receive sizes"],
        ),
        Syndrome::REMOTE_ACCESS => (
            "The responder refused the access to its memory.",
            &[
                "a wrong, stale or invalidated rkey",
                "address or length outside of the remote region",
                "the remote region lacks remote read, remote write or remote atomic",
                "the remote region and QP are of different protection domains",
            ],
            &["rkey, address and length as the responder registered them, with its access flags"],
        ),
        Syndrome::REMOTE_OPERATION => (
            "The responder could not carry out the request for a reason of its own.",
            &["the responder's receive WQE failed: its own CQE or event has the reason"],
            &["the responder's completions and asynchronous events"],
        ),
        Syndrome::REMOTE_ABORTED => (
            "The operation was aborted.",
            &[
                "a page fault on on-demand paging memory, or a sequence error, aborted a receive on \
                 an SRQ",
            ],
            &["the vendor syndrome"],
        ),
        _ => (
            "The syndrome is not known; verbs report it as a general error.",
            &["a newer device or firmware than this program knows"],
            &["the firmware's release notes"],
        ),
    }
}

/// No retry led to an answer.
fn retried(syndrome: Syndrome) -> Texts {
    match syndrome {
        Syndrome::RNR_RETRY_EXCEEDED => (
            "The responder had no receive WQE, after all retries.",
            &[
                "the responder posts receives too late or too few",
                "an RNR retry count other than 7 (endless) with too short a timer",
            ],
            &["the responder's receive queue (or SRQ) depth", "rnr_retry and min_rnr_timer"],
        ),
        _ => (
            "No acknowledgement came, after all retries.",
            &[
                "the peer's QP is not (or no longer) in RTR or RTS, or its program is gone",
                "wrong address: GID index, destination GID or LID, destination QP number",
                "the network loses packets: no route, MTU mismatch, a firewall on UDP port 4791, \
                 missing flow control",
                "a timeout too short for a congested fabric",
            ],
            &[
                "the peer's QP state and number",
                "the GID index (RoCE v2?) and a ping between the two addresses",
                "both ports' error and discard counters, path MTU, PFC",
                "the QP's timeout and retry count",
            ],
        ),
    }
}

/// Vendor syndromes without a published name, seen together with a syndrome in public reports.
const SEEN: &[(u8, Syndrome)] = &[
    (0x51, Syndrome::LOCAL_PROTECTION),
    (0x52, Syndrome::LOCAL_PROTECTION),
    (0x53, Syndrome::LOCAL_PROTECTION),
    (0x81, Syndrome::TRANSPORT_RETRY_EXCEEDED),
    (0x88, Syndrome::REMOTE_ACCESS),
    (0x8a, Syndrome::REMOTE_INVALID_REQUEST),
    (0xf9, Syndrome::FLUSHED),
];

fn vendor(syndrome: Syndrome, vendor: VendorSyndrome) -> String {
    let known = match vendor {
        VendorSyndrome::ODP_PAGE_FAULT => "a page fault on on-demand paging memory (mlx5dv.h)",
        VendorSyndrome::PSN_ABORT => {
            "a packet sequence error; UCX treats it as retried, not as failed, when it aborts a receive"
        }
        _ if SEEN.contains(&(vendor.0, syndrome)) => {
            "no published meaning; public reports show it together with this syndrome"
        }
        _ => "not known: NVIDIA does not publish the list",
    };
    format!("Vendor syndrome {:#04x}: {known}.", vendor.0)
}

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.meaning)?;
        write!(f, "\nLikely causes: {}.", self.causes.join("; "))?;
        write!(f, "\nCheck: {}.", self.checks.join("; "))?;
        write!(f, "\n{}", self.vendor)
    }
}
