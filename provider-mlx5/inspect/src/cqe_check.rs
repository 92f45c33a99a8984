//! Checks CQEs.

use super::{Cqe, CqeBody, Finding};
use uverbs_mlx5::format::{self, CqeFormat, CqeOpcode, ErrorCqe};

impl Cqe {
    /// What is illegal or suspicious.
    ///
    /// `lap` is the owner bit that the poller expects, if it is known: the bit of the consumer
    /// index above those that index the ring.
    pub fn findings(&self, lap: Option<bool>) -> Vec<Finding> {
        let mut found = Vec::new();
        owner(self, lap, &mut found);
        match &self.body {
            CqeBody::Completion(cqe) => completion(self, cqe, &mut found),
            CqeBody::Error(cqe) => error(cqe, &mut found),
            CqeBody::SignatureError(_) => {}
        }
        found
    }
}

fn owner(cqe: &Cqe, lap: Option<bool>, found: &mut Vec<Finding>) {
    let op_own = cqe.op_own();
    let end = cqe.encode().len() - 1;
    if op_own.opcode().name().is_none() {
        found.push(Finding::illegal(end, format!("opcode {} is not known", op_own.opcode().0)));
    }
    if lap.is_some_and(|lap| lap != op_own.owner()) {
        let text = "the owner bit is that of another lap: the device has not written this CQE yet, or \
                    the consumer index is a lap off";
        found.push(Finding::illegal(end, text));
    }
}

fn completion(whole: &Cqe, cqe: &format::Cqe, found: &mut Vec<Finding>) {
    let start = whole.lower.map_or(0, |lower| lower.len());
    let op_own = cqe.op_own;
    let length = cqe.byte_count.get();
    let room = match op_own.format() {
        CqeFormat::INLINE_32 => 32,
        CqeFormat::INLINE_64 if whole.lower.is_none() => {
            let text = "inline data of up to 64 bytes is before the CQE; in a queue of 64-byte \
                        CQEs that is the CQE before";
            found.push(Finding::illegal(start + 63, text));
            64
        }
        CqeFormat::INLINE_64 => 64,
        CqeFormat::COMPRESSED => {
            if length == 0 {
                let text = "a compressed session of no completions";
                found.push(Finding::illegal(start + 44, text));
            }
            return;
        }
        _ => u32::MAX,
    };
    if length > room {
        let text = format!("{length} bytes of inline data, but there is space for {room}");
        found.push(Finding::illegal(start + 44, text));
    }
    if op_own.opcode() == CqeOpcode::REQUESTER && cqe.wqe_opcode().name().is_none() {
        let text = format!("the send WQE's opcode {:#04x} is not known", cqe.wqe_opcode().0);
        found.push(Finding::illegal(start + 56, text));
    }
    if op_own.opcode() == CqeOpcode::REQUESTER && op_own.is_solicited() {
        let text = "solicited, but only a responder's completion can be";
        found.push(Finding::suspicious(start + 63, text));
    }
}

fn error(cqe: &ErrorCqe, found: &mut Vec<Finding>) {
    if cqe.syndrome.name().is_none() {
        let text = format!(
            "syndrome {:#04x} is not known; verbs report it as a general error",
            cqe.syndrome.0
        );
        found.push(Finding::suspicious(55, text));
    }
    if cqe.op_own.format() != CqeFormat::NO_INLINE {
        found.push(Finding::suspicious(63, "an error with inline data or compressed"));
    }
}
