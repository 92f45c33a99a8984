//! Explains what the NIC would do with a WQE.

use super::{Segment, Service, Wqe};
use uverbs_mlx5::format::{
    Fence, MkeyContextSegment, Opcode, RemoteAddressSegment, TagMatchingSegment, UmrControlSegment,
};

impl Wqe {
    /// Describes in sentences what a NIC would do with the WQE on a queue of this service.
    ///
    /// The text assumes that the WQE is legal; [`Wqe::findings`] checks this.
    pub fn explain(&self, service: Service) -> String {
        let parts = [
            self.explain_fence(),
            Some(self.explain_operation(service)),
            self.explain_target(),
            Some(self.explain_completion()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    fn explain_fence(&self) -> Option<String> {
        let waits = match self.control.flags.fence() {
            Fence::SMALL => "earlier UMRs (bind, invalidate) of this queue have taken effect",
            Fence::FENCE => "earlier RDMA reads and atomics of this queue have completed",
            Fence::STRONG_ORDERING => "everything earlier in this queue has completed",
            Fence::SMALL_AND_FENCE => {
                "earlier RDMA reads, atomics and UMRs of this queue have completed"
            }
            _ => return None,
        };
        Some(format!("Waits until {waits}."))
    }

    fn explain_operation(&self, service: Service) -> String {
        let opcode = self.control.opcode();
        let data = self.explain_data();
        match opcode {
            Opcode::NOP => "Does nothing.".into(),
            Opcode::SEND | Opcode::TSO if service == Service::RawEthernet => self.explain_packet(),
            _ if opcode.is_send() => format!(
                "Sends {data} as one message; it consumes a receive WQE at the responder{}.",
                self.explain_immediate()
            ),
            Opcode::RDMA_WRITE => format!("Writes {data} to {}.", self.explain_remote()),
            Opcode::RDMA_WRITE_IMMEDIATE => format!(
                "Writes {data} to {}; it consumes a receive WQE at the responder{}.",
                self.explain_remote(),
                self.explain_immediate()
            ),
            Opcode::RDMA_READ => format!("Reads from {} into {data}.", self.explain_remote()),
            _ if opcode.is_atomic() => self.explain_atomic(),
            Opcode::UMR => self.explain_umr(),
            Opcode::SET_PSV => self.explain_signature(),
            Opcode::TAG_MATCHING => self.explain_tag(),
            _ => match opcode.name() {
                Some(name) => {
                    format!("Executes {name}, which is outside of what is explained here.")
                }
                None => "The opcode is unknown: expect an error CQE.".into(),
            },
        }
    }

    fn explain_data(&self) -> String {
        let gathered: u64 = self.data().map(|data| u64::from(data.byte_count.get())).sum();
        let inline: usize = self
            .segments
            .iter()
            .map(|segment| match segment {
                Segment::Inline(inline) => inline.data().len(),
                _ => 0,
            })
            .sum();
        let entries = self.data().count();
        let areas = match entries {
            1 => format!("{gathered} bytes of one memory area"),
            _ => format!("{gathered} bytes of {entries} memory areas"),
        };
        match (entries, inline) {
            (0, 0) => "no data".into(),
            (0, _) => format!("{inline} bytes of inline data"),
            (_, 0) => areas,
            _ => format!("{inline} bytes of inline data and {areas}, in the order of the segments"),
        }
    }

    fn explain_immediate(&self) -> String {
        let value = self.control.immediate.get();
        match self.control.opcode() {
            Opcode::SEND_INVALIDATE => format!(" and invalidates rkey {value:#010x} there"),
            opcode if opcode.has_immediate() => format!(" and delivers immediate {value:#010x}"),
            _ => String::new(),
        }
    }

    fn explain_remote(&self) -> String {
        match self.remote() {
            Some(remote) => format!(
                "remote address {:#x} under rkey {:#010x}",
                remote.address.get(),
                remote.rkey.get()
            ),
            None => "an unknown remote address (the segment is missing)".into(),
        }
    }

    fn remote(&self) -> Option<&RemoteAddressSegment> {
        self.segments.iter().find_map(|segment| match segment {
            Segment::RemoteAddress(remote) => Some(remote),
            _ => None,
        })
    }

    fn explain_atomic(&self) -> String {
        let remote = self.explain_remote();
        let operands = self.segments.iter().find_map(|segment| match segment {
            Segment::Atomic(atomic) => Some((atomic.compare.get(), atomic.swap_add.get())),
            _ => None,
        });
        match (self.control.opcode(), operands) {
            (Opcode::ATOMIC_COMPARE_SWAP, Some((compare, swap))) => format!(
                "Atomically replaces the 8 bytes at {remote} with {swap:#x} if they are \
                 {compare:#x}; the value before comes back."
            ),
            (Opcode::ATOMIC_FETCH_ADD, Some((_, add))) => format!(
                "Atomically adds {add:#x} to the 8 bytes at {remote}; the value before comes back."
            ),
            _ => format!("Changes {remote} by a masked atomic; the value before comes back."),
        }
    }

    fn explain_packet(&self) -> String {
        let eth = self.segments.iter().find_map(|segment| match segment {
            Segment::Eth(eth) => Some(eth),
            _ => None,
        });
        let Some(eth) = eth else { return "Sends a packet (the segment is missing).".into() };
        let header = eth.header().len();
        let data = self.explain_data();
        let vlan = if eth.segment.inserts_vlan() {
            format!(", with VLAN tag {:#06x} inserted", eth.segment.vlan_tci())
        } else {
            String::new()
        };
        match self.control.opcode() {
            Opcode::TSO => format!(
                "Cuts {data} into packets of {} bytes of payload behind {header} bytes of \
                 header{vlan}.",
                eth.segment.mss
            ),
            _ => format!("Sends one packet: {header} bytes of inline header and {data}{vlan}."),
        }
    }

    fn explain_umr(&self) -> String {
        let key = self.control.immediate.get();
        let mkey = self.segments.iter().find_map(|segment| match segment {
            Segment::MkeyContext(mkey) => Some(mkey),
            _ => None,
        });
        let umr = self.segments.iter().find_map(|segment| match segment {
            Segment::UmrControl(umr) => Some(umr),
            _ => None,
        });
        let (Some(mkey), Some(umr)) = (mkey, umr) else {
            return format!("Changes key {key:#010x} (segments are missing).");
        };
        let takes_free = umr.mkey_mask.get() & UmrControlSegment::MASK_FREE != 0;
        if takes_free && mkey.free & MkeyContextSegment::FREE != 0 {
            return format!("Invalidates key {key:#010x}: no access goes through it afterwards.");
        }
        let low = mkey.qpn_mkey.get() & 0xff;
        format!(
            "Sets up key {:#010x} (from {key:#010x}) for {:#x} bytes from {:#x}, access {:#04x}{}.",
            key & !0xff | low,
            mkey.length.get(),
            mkey.start_address.get(),
            mkey.access_flags,
            match mkey.qpn_mkey.get() >> 8 {
                MkeyContextSegment::ANY_QPN => String::new(),
                qpn => format!(", for QP {qpn:#x} only"),
            }
        )
    }

    fn explain_signature(&self) -> String {
        let psv = self.segments.iter().find_map(|segment| match segment {
            Segment::SetPsv(psv) => Some(psv),
            _ => None,
        });
        let Some(psv) = psv else {
            return "Sets a signature variable (the segment is missing).".into();
        };
        let value = psv.transient_signature.get();
        format!(
            "Sets the protected signature variable {:#x}, from which checks and signatures of a transfer go on, to {value:#018x} \
             (as T10-DIF: guard {:#06x}, application tag {:#06x}, reference tag {:#010x}).",
            psv.psv_index.get(),
            value >> 48,
            value >> 32 & 0xffff,
            value & 0xffff_ffff,
        )
    }

    fn tag(&self) -> Option<&TagMatchingSegment> {
        self.segments.iter().find_map(|segment| match segment {
            Segment::TagMatching(tag) => Some(tag),
            _ => None,
        })
    }

    fn explain_tag(&self) -> String {
        let Some(tag) = self.tag() else {
            return "Changes a tag list (the segment is missing).".into();
        };
        let change = match tag.operation {
            TagMatchingSegment::OPERATION_APPEND => format!(
                "Appends an entry to the tag list: a message whose tag is {:#x} in the bits {:#x} goes into {}. The entry after it \
                 will be number {}.",
                tag.tag.get(),
                tag.mask.get(),
                match self.data().next() {
                    Some(data) if !data.is_terminator() => self.explain_data(),
                    _ => "an empty buffer".into(),
                },
                tag.index
            ),
            TagMatchingSegment::OPERATION_REMOVE => {
                format!("Removes entry {} from the tag list.", tag.index)
            }
            TagMatchingSegment::OPERATION_NOP => "Leaves the tag list as it is.".into(),
            _ => return "The change of the tag list is unknown: expect an error CQE.".into(),
        };
        match tag.flags & TagMatchingSegment::FLAG_SOFTWARE_COUNT {
            0 => change,
            _ => format!("{change} Software has seen {} unexpected messages.", tag.software_count),
        }
    }

    fn explain_target(&self) -> Option<String> {
        self.segments.iter().find_map(|segment| match segment {
            Segment::Address(av) => Some(format!(
                "It goes to {} number {:#x}{}.",
                if av.key.get() & 0xffff_ffff == 0 { "QP" } else { "DCT" },
                av.remote_qpn(),
                if av.has_grh() { " with a global routing header" } else { "" }
            )),
            Segment::Xrc(xrc) => {
                Some(format!("It takes receive WQEs of SRQ {:#x}.", xrc.srqn.get()))
            }
            _ => None,
        })
    }

    fn explain_completion(&self) -> String {
        let flags = self.control.flags;
        let solicited =
            if flags.is_solicited() { " The responder's completion is solicited." } else { "" };
        let asks = |tag: &TagMatchingSegment| tag.flags & TagMatchingSegment::FLAG_COMPLETION != 0;
        let completion = if flags.is_signaled() || self.tag().is_some_and(asks) {
            "A CQE tells when it is done"
        } else {
            "No CQE tells when it is done, only if it fails"
        };
        format!("{completion} (WQE counter {}).{solicited}", self.control.index())
    }
}
