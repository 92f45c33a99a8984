//! The transport headers, byte for byte (specification chapter 9.2 to 9.4, 9.7.5 and annex A14).
//!
//! All fields are big endian and need no alignment, so that a header is viewed in place anywhere
//! in a packet.

use zerocopy::big_endian::{U16, U32, U64};

use super::{Opcode, Psn, Syndrome};

const LOW_24: u32 = 0xff_ffff;

wire_struct! {
    /// Base transport header, 12 bytes, first in every packet.
    pub struct Bth {
        opcode: u8,
        flags: u8,
        pkey: U16,
        destination: U32,
        sequence: U32,
    }
}

impl Bth {
    const SOLICITED: u8 = 0x80;
    const MIGRATED: u8 = 0x40;
    const ACK_REQUEST: u32 = 0x8000_0000;

    /// A header with the migration state "migrated" (the state of a QP without alternate path)
    /// and all flags clear. `destination` is a queue pair number of 24 bits.
    pub fn new(opcode: Opcode, pkey: u16, destination: u32, psn: Psn) -> Self {
        Self {
            opcode: opcode.0,
            flags: Self::MIGRATED,
            pkey: pkey.into(),
            destination: (destination & LOW_24).into(),
            sequence: psn.get().into(),
        }
    }

    /// What kind of packet this is.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.opcode)
    }

    /// Solicited event: the receiver's completion also raises an event on a CQ that is armed for
    /// solicited ones only.
    pub fn solicited(&self) -> bool {
        self.flags & Self::SOLICITED != 0
    }

    /// Sets or clears the solicited event bit.
    pub fn set_solicited(&mut self, on: bool) {
        self.flags = self.flags & !Self::SOLICITED | if on { Self::SOLICITED } else { 0 };
    }

    /// The migration request bit.
    pub fn migrated(&self) -> bool {
        self.flags & Self::MIGRATED != 0
    }

    /// Sets or clears the migration request bit.
    pub fn set_migrated(&mut self, on: bool) {
        self.flags = self.flags & !Self::MIGRATED | if on { Self::MIGRATED } else { 0 };
    }

    /// Bytes of pad after the payload, 0..=3.
    pub fn pad(&self) -> usize {
        (self.flags >> 4 & 3) as usize
    }

    /// Sets the pad count to the low two bits of `pad`.
    pub fn set_pad(&mut self, pad: u8) {
        self.flags = self.flags & !0x30 | (pad & 3) << 4;
    }

    /// Transport header version, 0 in every specification so far.
    pub fn version(&self) -> u8 {
        self.flags & 0xf
    }

    /// Partition key of the sender.
    pub fn pkey(&self) -> u16 {
        self.pkey.get()
    }

    /// Queue pair number of the receiver, 24 bits.
    pub fn destination(&self) -> u32 {
        self.destination.get() & LOW_24
    }

    /// Whether the sender wants this packet acknowledged.
    pub fn ack_request(&self) -> bool {
        self.sequence.get() & Self::ACK_REQUEST != 0
    }

    /// Sets or clears the acknowledge request bit.
    pub fn set_ack_request(&mut self, on: bool) {
        let bit = if on { Self::ACK_REQUEST } else { 0 };
        self.sequence = (self.sequence.get() & !Self::ACK_REQUEST | bit).into();
    }

    /// Packet sequence number.
    pub fn psn(&self) -> Psn {
        Psn::new(self.sequence.get())
    }

    /// Sets the packet sequence number.
    pub fn set_psn(&mut self, psn: Psn) {
        self.sequence = (self.sequence.get() & !LOW_24 | psn.get()).into();
    }
}

wire_struct! {
    /// RDMA extended transport header, 16 bytes: first packet of an RDMA WRITE, every READ request.
    pub struct Reth {
        /// Remote virtual address (offset in the region of a zero-based key).
        pub address: U64,
        /// Remote key.
        pub rkey: U32,
        /// Length of the whole message in bytes, 0..=2^31.
        pub length: U32,
    }
}

impl Reth {
    /// A header of these values in host order.
    pub fn new(address: u64, rkey: u32, length: u32) -> Self {
        Self { address: address.into(), rkey: rkey.into(), length: length.into() }
    }
}

wire_struct! {
    /// Atomic extended transport header, 28 bytes.
    pub struct AtomicEth {
        /// Remote virtual address, a multiple of 8.
        pub address: U64,
        /// Remote key.
        pub rkey: U32,
        /// Compare-and-swap: the new value. Fetch-and-add: what is added.
        pub swap_add: U64,
        /// Compare-and-swap: the value expected. Fetch-and-add: unused.
        pub compare: U64,
    }
}

impl AtomicEth {
    /// A header of these values in host order.
    pub fn new(address: u64, rkey: u32, swap_add: u64, compare: u64) -> Self {
        Self {
            address: address.into(),
            rkey: rkey.into(),
            swap_add: swap_add.into(),
            compare: compare.into(),
        }
    }
}

wire_struct! {
    /// Extended transport header of masked atomics, 48 bytes.
    ///
    /// The InfiniBand specification has none, and what ConnectX devices send is not public: this
    /// format is the software device's own, and only software devices understand it.
    pub struct MaskedAtomicEth {
        /// Remote virtual address, a multiple of the size.
        pub address: U64,
        /// Remote key.
        pub rkey: U32,
        /// Operand size in bytes, 4 or 8.
        pub size: U32,
        /// Compare-and-swap: the new value. Fetch-and-add: what is added.
        pub swap_add: U64,
        /// Compare-and-swap: the value expected. Fetch-and-add: unused.
        pub compare: U64,
        /// Compare-and-swap: bits to change. Fetch-and-add: bits from which no carry propagates.
        pub swap_mask_boundary: U64,
        /// Compare-and-swap: bits to compare. Fetch-and-add: unused.
        pub compare_mask: U64,
    }
}

wire_struct! {
    /// ACK extended transport header, 4 bytes: syndrome and message sequence number.
    pub struct Aeth(U32);
}

impl Aeth {
    /// A header of this syndrome and the low 24 bits of `msn`.
    pub fn new(syndrome: Syndrome, msn: u32) -> Self {
        Self((u32::from(syndrome.encode()) << 24 | msn & LOW_24).into())
    }

    /// What is acknowledged or refused.
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::decode((self.0.get() >> 24) as u8)
    }

    /// Message sequence number: messages completed by the responder, 24 bits.
    pub fn msn(&self) -> u32 {
        self.0.get() & LOW_24
    }
}

wire_struct! {
    /// Atomic ACK extended transport header, 8 bytes.
    pub struct AtomicAckEth {
        /// The value before the operation.
        pub original: U64,
    }
}

wire_struct! {
    /// Datagram extended transport header, 8 bytes.
    pub struct Deth {
        /// Queue key.
        pub qkey: U32,
        source: U32,
    }
}

impl Deth {
    /// A header of this queue key and the low 24 bits of the sender's queue pair number.
    pub fn new(qkey: u32, source: u32) -> Self {
        Self { qkey: qkey.into(), source: (source & LOW_24).into() }
    }

    /// Queue pair number of the sender, 24 bits.
    pub fn source(&self) -> u32 {
        self.source.get() & LOW_24
    }
}

wire_struct! {
    /// Immediate data, 4 bytes that the receiver's completion carries unchanged.
    pub struct ImmDt(pub [u8; 4]);
}

wire_struct! {
    /// Invalidate extended transport header, 4 bytes: the key that the receiver invalidates.
    pub struct Ieth {
        /// The receiver's key.
        pub rkey: U32,
    }
}

wire_struct! {
    /// XRC extended transport header, 4 bytes: the receiver's shared receive queue.
    pub struct XrcEth(U32);
}

impl XrcEth {
    /// A header of the low 24 bits of a shared receive queue number.
    pub fn new(srqn: u32) -> Self {
        Self((srqn & LOW_24).into())
    }

    /// Shared receive queue number, 24 bits.
    pub fn srqn(&self) -> u32 {
        self.0.get() & LOW_24
    }
}

wire_struct! {
    /// Extended transport header of all DC packets, 16 bytes.
    ///
    /// What ConnectX devices send for DC is not public. This format is the software device's own,
    /// and only software devices understand it: an initiator sends CONNECT with the target's access
    /// key; the target answers with a random session number, which all later packets of both ends
    /// carry. So a delayed packet of an earlier session cannot be taken for one of a later session,
    /// and a host that does not know the key gets no session.
    pub struct DcEth {
        /// Requests: the target's access key. Answers: the number of the attempt that the CONNECT
        /// carried, which the initiator chose at random.
        pub key: U64,
        sender: U32,
        /// Number of the session; 0 as long as there is none.
        pub session: U32,
    }
}

impl DcEth {
    /// A header of these values in host order, and the low 24 bits of the sender's number.
    pub fn new(key: u64, sender: u32, session: u32) -> Self {
        Self { key: key.into(), sender: (sender & LOW_24).into(), session: session.into() }
    }

    /// Number of the sending initiator or target, 24 bits.
    pub fn sender(&self) -> u32 {
        self.sender.get() & LOW_24
    }
}

wire_struct! {
    /// Extended transport header of a DC CONNECT, 8 bytes: the software device's own.
    pub struct DcConnectEth {
        /// A random number that the initiator chose when it was created.
        pub incarnation: U32,
        /// Number of the initiator's attempt to connect.
        pub attempt: U32,
    }
}

impl DcConnectEth {
    /// The inverse of [`DcConnectEth::number`].
    pub fn new(number: u64) -> Self {
        Self { incarnation: ((number >> 32) as u32).into(), attempt: (number as u32).into() }
    }

    /// Both parts as one number, which answers repeat.
    pub fn number(&self) -> u64 {
        u64::from(self.incarnation.get()) << 32 | u64::from(self.attempt.get())
    }
}

const _: () = {
    assert!(size_of::<Bth>() == 12);
    assert!(size_of::<DcEth>() == 16);
    assert!(size_of::<DcConnectEth>() == 8);
    assert!(size_of::<Reth>() == 16);
    assert!(size_of::<AtomicEth>() == 28);
    assert!(size_of::<MaskedAtomicEth>() == 48);
    assert!(size_of::<Aeth>() == 4);
    assert!(size_of::<AtomicAckEth>() == 8);
    assert!(size_of::<Deth>() == 8);
    assert!(size_of::<ImmDt>() == 4);
    assert!(size_of::<Ieth>() == 4);
    assert!(size_of::<XrcEth>() == 4);
};
