//! Bytes to segments.

use zerocopy::FromBytes;

use super::{EthData, InlineData, Segment, Service, TooShort, Wqe};
use uverbs_mlx5::format::{
    AddressVector, ControlSegment, EthSegment, InlineHeader, OCTOWORD, Opcode, RepeatBlock,
    SignatureSegment, U32, UmrControlSegment, extended_atomic_size,
};

impl Wqe {
    /// Reads the WQE at the start of `bytes`, in the layout of a queue of this service.
    ///
    /// The control segment's `ds` is its size. If there are fewer bytes, it decodes these, and
    /// [`Wqe::findings`] reports that the rest is missing. [`Wqe::encode`] returns the same bytes,
    /// whatever they are.
    ///
    /// # Errors
    /// There are fewer than 16 bytes, the size of a control segment.
    pub fn decode(bytes: &[u8], service: Service) -> Result<Self, TooShort> {
        let (control, rest) = ControlSegment::read_from_prefix(bytes)
            .map_err(|_| TooShort { needed: OCTOWORD, got: bytes.len() })?;
        let units = usize::from(control.ds()).saturating_sub(1).min(rest.len() / OCTOWORD);
        let mut reader = Reader { left: &rest[..units * OCTOWORD], segments: Vec::new() };
        reader.wqe(&control, service);
        Ok(Self { control, segments: reader.segments })
    }

    /// Reads a WQE of an unknown queue. Chooses the service with the fewest and least severe
    /// findings; in a tie, the more common one.
    ///
    /// # Errors
    /// There are fewer than 16 bytes, the size of a control segment.
    pub fn guess(bytes: &[u8]) -> Result<(Self, Service), TooShort> {
        let mut best = (Self::decode(bytes, Service::Rc)?, Service::Rc);
        let mut best_score = best.0.badness(Service::Rc);
        for service in Service::ALL {
            let wqe = Self::decode(bytes, service)?;
            let score = wqe.badness(service);
            if score < best_score {
                (best, best_score) = ((wqe, service), score);
            }
        }
        Ok(best)
    }

    fn badness(&self, service: Service) -> usize {
        let weight = |finding: &super::Finding| match finding.severity {
            super::Severity::Illegal => 4,
            super::Severity::Suspicious => 1,
        };
        self.findings(service).iter().map(weight).sum()
    }
}

/// Reads segments from the front. Reading ends (`None`) at an incomplete segment; the remaining
/// bytes become raw segments.
struct Reader<'a> {
    left: &'a [u8],
    segments: Vec<Segment>,
}

impl Reader<'_> {
    fn wqe(&mut self, control: &ControlSegment, service: Service) {
        let opcode = control.opcode();
        // `None` only means that a segment is incomplete. The remaining bytes become raw segments
        // in any case.
        let _ = match opcode {
            Opcode::UMR => self.umr(),
            Opcode::SET_PSV => self.take(Segment::SetPsv),
            Opcode::TAG_MATCHING => self.take(Segment::TagMatching).and_then(|()| self.data()),
            Opcode::SEND | Opcode::TSO if service == Service::RawEthernet => self.eth(),
            _ if opcode.is_send() || opcode.has_remote_address() => self.message(control, service),
            _ => None,
        };
        while !self.left.is_empty() {
            let _ = self.take(Segment::Raw);
        }
    }

    fn message(&mut self, control: &ControlSegment, service: Service) -> Option<()> {
        let opcode = control.opcode();
        if service == Service::Xrc {
            self.take(Segment::Xrc)?;
        }
        if service.has_address() {
            self.address()?;
        }
        if opcode.has_remote_address() && service.has_remote_memory() {
            self.take(Segment::RemoteAddress)?;
            self.operands(opcode, control.opcode_modifier())?;
        }
        self.data()
    }

    fn operands(&mut self, opcode: Opcode, modifier: u8) -> Option<()> {
        let size = extended_atomic_size(modifier);
        match (opcode, size) {
            (Opcode::ATOMIC_COMPARE_SWAP | Opcode::ATOMIC_FETCH_ADD, _) => {
                self.take(Segment::Atomic)
            }
            (Opcode::ATOMIC_MASKED_COMPARE_SWAP, Some(4)) => {
                self.take(Segment::MaskedCompareSwap32)
            }
            (Opcode::ATOMIC_MASKED_COMPARE_SWAP, Some(8)) => {
                self.take(Segment::MaskedCompareSwap64)
            }
            (Opcode::ATOMIC_MASKED_FETCH_ADD, Some(4)) => self.take(Segment::MaskedFetchAdd32),
            (Opcode::ATOMIC_MASKED_FETCH_ADD, Some(8)) => self.take(Segment::MaskedFetchAdd64),
            // Other operand sizes: the public sources do not define their layout well enough.
            _ if opcode.is_atomic() => None,
            _ => Some(()),
        }
    }

    fn address(&mut self) -> Option<()> {
        let (short, _) = self.left.split_first_chunk::<{ AddressVector::BASE_SIZE }>()?;
        let extended = U32::from_bytes([short[8], short[9], short[10], short[11]]);
        if extended.get() & AddressVector::EXTENDED != 0 {
            self.take(Segment::Address)
        } else {
            self.take(Segment::ShortAddress)
        }
    }

    fn eth(&mut self) -> Option<()> {
        let (segment, rest) = EthSegment::read_from_prefix(self.left).ok()?;
        let units = EthSegment::segment_ds(segment.inline_length()) - 1;
        let (rest, left) = rest.split_at((units * OCTOWORD).min(rest.len()));
        self.segments.push(Segment::Eth(EthData { segment, rest: rest.to_vec() }));
        self.left = left;
        self.data()
    }

    fn umr(&mut self) -> Option<()> {
        let (control, _) = UmrControlSegment::read_from_prefix(self.left).ok()?;
        self.take(Segment::UmrControl)?;
        self.take(Segment::MkeyContext)?;
        if control.flags & UmrControlSegment::FLAG_INLINE == 0 {
            return self.data();
        }
        // The field is either the offset of the entries or the length of the signature structures.
        let has_offset = control.flags & UmrControlSegment::FLAG_TRANSLATION_OFFSET != 0;
        let units = if has_offset { 0 } else { usize::from(control.translation_offset.get()) };
        let entries = self.left.len().saturating_sub(units * OCTOWORD);
        self.translation(self.left.len() - entries)?;
        while self.left.len() >= size_of::<SignatureSegment>() {
            self.take(Segment::Signature)?;
        }
        Some(())
    }

    /// Reads translation entries until `behind` bytes are left.
    fn translation(&mut self, behind: usize) -> Option<()> {
        if let Some(entries) = self.repeat_entries() {
            self.take(Segment::Repeat)?;
            for _ in 0..entries {
                self.take(Segment::RepeatEntry)?;
            }
        }
        while self.left.len() > behind {
            self.take(Segment::Klm)?;
        }
        Some(())
    }

    /// The number of entries if an interleaved translation starts here, which its operation shows:
    /// it is at the offset of a plain entry's key.
    fn repeat_entries(&self) -> Option<usize> {
        let (head, rest) = RepeatBlock::read_from_prefix(self.left).ok()?;
        let entries = usize::from(head.entries.get());
        let fits = (1..=rest.len() / OCTOWORD).contains(&entries);
        (head.operation.get() == RepeatBlock::OPERATION && fits).then_some(entries)
    }

    fn data(&mut self) -> Option<()> {
        while let Ok((header, _)) = InlineHeader::read_from_prefix(self.left) {
            if Segment::starts_inline(header.byte_count.get()) {
                self.inline(header);
            } else {
                self.take(Segment::Data)?;
            }
        }
        Some(())
    }

    fn inline(&mut self, header: InlineHeader) {
        let units = InlineHeader::segment_ds(header.length()) as usize;
        let (segment, left) = self.left.split_at((units * OCTOWORD).min(self.left.len()));
        let bytes = segment[size_of::<InlineHeader>()..].to_vec();
        self.segments.push(Segment::Inline(InlineData { header, bytes }));
        self.left = left;
    }

    fn take<T: FromBytes>(&mut self, wrap: fn(T) -> Segment) -> Option<()> {
        let (segment, left) = T::read_from_prefix(self.left).ok()?;
        self.segments.push(wrap(segment));
        self.left = left;
        Some(())
    }
}
