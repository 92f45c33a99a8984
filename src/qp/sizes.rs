//! From what a program asks of a queue to the ring that holds it.
//!
//! The rules are the device's and mlx5_ib's (`set_user_buf_size`, `calc_sq_size` in hw/mlx5/qp.c): a send queue
//! is a power of two of 64-byte blocks, a receive queue a power of two of entries whose size is a power of
//! two, the receive queue lies first in the buffer they share, and the whole of each is at least 64 bytes.
//! What is granted always holds: a queue takes at least as many requests as it says, each as large as it
//! says.

#![forbid(unsafe_code)]

use uverbs_mlx5::format::{INLINE_LENGTH_MASK, MAX_DS};
use uverbs_mlx5::send_queue::Service;
use uverbs_uapi::mlx5::context::AllocUcontextResp;

use crate::error::{Error, Result};

const VERB: &str = "create_qp";
const OCTOWORD: u32 = 16;
const BLOCK: u32 = 64;
/// Send rings have at most 2^15 blocks, so that the 16-bit counters in CQEs name a block without doubt.
const MAX_BLOCKS: u32 = 1 << 15;

/// What a program asks of a queue pair, and later what it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Send requests that may be outstanding.
    pub send_requests: u32,
    /// Receives that may be outstanding.
    pub receives: u32,
    /// Pieces of memory per send request.
    pub send_sge: u32,
    /// Pieces of memory per receive.
    pub receive_sge: u32,
    /// Bytes of inline data per send request.
    pub inline_bytes: u32,
}

/// A send ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendRing {
    pub(crate) blocks: u32,
    pub(crate) requests: u32,
    pub(crate) inline_bytes: u32,
}

/// A receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiveRing {
    pub(crate) entries: u32,
    pub(crate) stride: u32,
    pub(crate) sge: u32,
}

impl SendRing {
    pub(crate) const NONE: Self = Self { blocks: 0, requests: 0, inline_bytes: 0 };

    /// A ring for `wanted` of a queue whose longest request has `overhead` octowords before its data.
    pub(crate) fn new(
        service: Service,
        wanted: &Capacities,
        limits: &AllocUcontextResp,
    ) -> Result<Self> {
        if wanted.send_requests == 0 {
            return Ok(Self::NONE);
        }
        let per_request = blocks_per_request(service, wanted, limits)?;
        let most = limits.max_send_wqebb.min(MAX_BLOCKS);
        let blocks = u64::from(wanted.send_requests) * u64::from(per_request);
        let blocks = blocks.next_power_of_two();
        if blocks > u64::from(most) {
            let cause =
                format!("the send queue is too deep: at most {} such requests", most / per_request);
            return Err(
                Error::invalid(VERB, cause).asked(format!("{} sends", wanted.send_requests))
            );
        }
        let blocks = blocks as u32;
        let room = per_request * BLOCK / OCTOWORD - header(service);
        let inline_bytes = (room * OCTOWORD - 4).min(INLINE_LENGTH_MASK);
        Ok(Self { blocks, requests: blocks / per_request, inline_bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.blocks as usize * BLOCK as usize
    }
}

fn header(service: Service) -> u32 {
    1 + service.data_overhead() as u32
}

fn blocks_per_request(
    service: Service,
    wanted: &Capacities,
    limits: &AllocUcontextResp,
) -> Result<u32> {
    let inline = match wanted.inline_bytes {
        0 => 0,
        bytes => bytes.saturating_add(4).div_ceil(OCTOWORD),
    };
    let octowords = header(service).saturating_add(wanted.send_sge.max(1).max(inline));
    let most = (u32::from(limits.max_sq_desc_sz) / OCTOWORD).min(MAX_DS.into());
    if octowords > most || wanted.inline_bytes > INLINE_LENGTH_MASK {
        let room = most.saturating_sub(header(service));
        let cause = format!(
            "a send request holds at most {room} pieces of memory or {} bytes inline",
            (room * OCTOWORD).saturating_sub(4).min(INLINE_LENGTH_MASK)
        );
        let asked = format!("{} pieces, {} bytes inline", wanted.send_sge, wanted.inline_bytes);
        return Err(Error::invalid(VERB, cause).asked(asked));
    }
    Ok(octowords.div_ceil(BLOCK / OCTOWORD))
}

impl ReceiveRing {
    pub(crate) const NONE: Self = Self { entries: 0, stride: 0, sge: 0 };

    /// A ring for `receives` of `sge` pieces.
    pub(crate) fn new(receives: u32, sge: u32, limits: &AllocUcontextResp) -> Result<Self> {
        if receives == 0 {
            return Ok(Self::NONE);
        }
        let most = u32::from(limits.max_rq_desc_sz).min(512) / OCTOWORD;
        if sge > most {
            let cause = format!("a receive holds at most {most} pieces of memory");
            return Err(Error::invalid(VERB, cause).asked(format!("{sge} pieces")));
        }
        if receives > limits.max_recv_wr {
            let cause = format!("the receive queue is too deep: at most {}", limits.max_recv_wr);
            return Err(Error::invalid(VERB, cause).asked(format!("{receives} receives")));
        }
        let stride = (sge.max(1) * OCTOWORD).next_power_of_two();
        let entries = receives.next_power_of_two().max(BLOCK.div_ceil(stride));
        Ok(Self { entries, stride, sge: stride / OCTOWORD })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries as usize * self.stride as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> AllocUcontextResp {
        AllocUcontextResp {
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: 1 << 15,
            max_recv_wr: 1 << 15,
            ..AllocUcontextResp::default()
        }
    }

    fn wanted(send_requests: u32, send_sge: u32, inline_bytes: u32) -> Capacities {
        Capacities { send_requests, receives: 0, send_sge, receive_sge: 0, inline_bytes }
    }

    #[test]
    fn what_is_granted_holds() {
        for service in [Service::Rc, Service::Uc, Service::Ud, Service::Xrc] {
            for sge in [0, 1, 2, 7, 30] {
                for inline in [0, 1, 12, 13, 64, 300] {
                    let ring = SendRing::new(service, &wanted(10, sge, inline), &limits()).unwrap();
                    assert!(ring.requests >= 10 && ring.blocks.is_power_of_two());
                    assert!(ring.inline_bytes >= inline);
                    let data = sge.max((ring.inline_bytes + 4).div_ceil(16));
                    let blocks = (header(service) + data).div_ceil(4);
                    assert!(ring.requests * blocks <= ring.blocks, "{service:?} {sge} {inline}");
                }
            }
        }
    }

    #[test]
    fn too_much_is_refused_with_the_limit() {
        let error = SendRing::new(Service::Rc, &wanted(1 << 20, 1, 0), &limits()).unwrap_err();
        assert!(error.to_string().contains("too deep"), "{error}");
        let error = SendRing::new(Service::Rc, &wanted(1, 63, 0), &limits()).unwrap_err();
        let most = format!("at most {} pieces", 63 - header(Service::Rc));
        assert!(error.to_string().contains(&most), "{error}");
        let error = SendRing::new(Service::Rc, &wanted(1, 1, u32::MAX), &limits()).unwrap_err();
        assert!(error.to_string().contains("bytes inline"), "{error}");
        assert!(ReceiveRing::new(1, 33, &limits()).is_err());
        assert!(ReceiveRing::new(1 << 16, 1, &limits()).is_err());
    }

    #[test]
    fn receive_rings_fill_a_block() {
        let ring = ReceiveRing::new(1, 1, &limits()).unwrap();
        assert_eq!((ring.entries, ring.stride, ring.sge), (4, 16, 1));
        let ring = ReceiveRing::new(100, 3, &limits()).unwrap();
        assert_eq!((ring.entries, ring.stride, ring.sge), (128, 64, 4));
    }
}
