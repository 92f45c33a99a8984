//! The messages in which both ends describe their rings: private data of the connection request and
//! of its reply.

use uverbs::Remote;
use uverbs::cm::{ReplyData, RequestData};

use crate::config::{MAX_RING, RESERVED};

const MAGIC: [u8; 4] = *b"uvst";
const VERSION: u16 = 1;
const BYTES: usize = 24;

/// A ring that the peer may write to, and how many messages it may send.
///
/// The message has, in big-endian order: the magic number `uvst`, the version (16 bits), the number
/// of posted receives (16 bits), the size of the ring in bytes (32 bits), its key (32 bits) and its
/// address (64 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The address and key of the ring.
    pub(crate) ring: Remote,
    /// The ring's size in bytes.
    pub(crate) bytes: u32,
    /// The number of posted receives, which limits the messages in flight.
    pub(crate) receives: u16,
}

impl Offer {
    fn encode(&self) -> [u8; BYTES] {
        let mut message = [0; BYTES];
        message[..4].copy_from_slice(&MAGIC);
        message[4..6].copy_from_slice(&VERSION.to_be_bytes());
        message[6..8].copy_from_slice(&self.receives.to_be_bytes());
        message[8..12].copy_from_slice(&self.bytes.to_be_bytes());
        message[12..16].copy_from_slice(&self.ring.rkey.to_be_bytes());
        message[16..].copy_from_slice(&self.ring.address.to_be_bytes());
        message
    }

    /// The message of the side that connects.
    pub(crate) fn request(&self) -> RequestData {
        RequestData::of(&self.encode())
    }

    /// The message of the side that accepts.
    pub(crate) fn reply(&self) -> ReplyData {
        ReplyData::of(&self.encode())
    }

    /// Decodes and checks the peer's message. The error describes what is wrong with it.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, &'static str> {
        let message: &[u8; BYTES] = message.first_chunk().ok_or("the private data is too short")?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| message[at + i]));
        let half = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        if message[..4] != MAGIC {
            return Err("the peer does not use the protocol of uverbs-stream");
        }
        if half(4) != VERSION {
            return Err("the peer uses another version of the protocol of uverbs-stream");
        }
        let address = u64::from(word(16)) << 32 | u64::from(word(20));
        let offer =
            Self { ring: Remote::new(address, word(12)), bytes: word(8), receives: half(6) };
        offer.check()
    }

    fn check(self) -> Result<Self, &'static str> {
        if self.bytes == 0 || self.bytes > MAX_RING {
            return Err("the peer's ring has an invalid size");
        }
        if self.ring.address.checked_add(u64::from(self.bytes)).is_none() {
            return Err("the peer's ring does not fit into its address space");
        }
        if u32::from(self.receives) <= RESERVED {
            return Err("the peer has posted too few receives");
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer { ring: Remote::new(0x1234_5678_9abc_d000, 77), bytes: 65536, receives: 128 }
    }

    #[test]
    fn an_offer_is_decoded_as_encoded() {
        assert_eq!(Offer::decode(offer().request().as_bytes()), Ok(offer()));
        let mut padded = offer().reply().as_bytes().to_vec();
        padded.resize(196, 0);
        assert_eq!(Offer::decode(&padded), Ok(offer()));
    }

    #[test]
    fn errors_name_what_is_wrong_with_an_offer() {
        let refused = |change: &dyn Fn(&mut [u8; BYTES])| {
            let mut message = offer().encode();
            change(&mut message);
            Offer::decode(&message).unwrap_err()
        };
        assert!(Offer::decode(&[]).unwrap_err().contains("too short"));
        assert!(refused(&|m| m[0] ^= 1).contains("does not use"));
        assert!(refused(&|m| m[5] = 9).contains("another version"));
        assert!(refused(&|m| m[8..12].fill(0)).contains("invalid size"));
        assert!(refused(&|m| m[8..12].fill(0xff)).contains("invalid size"));
        assert!(refused(&|m| m[16..].fill(0xff)).contains("address space"));
        assert!(refused(&|m| m[6..8].copy_from_slice(&[0, 16])).contains("receives"));
    }
}
