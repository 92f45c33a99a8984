//! How a transport interface for receivers (TIR) chooses among receive queues.

use super::Objects;
use super::record::LIST;
use super::refusal::Refusal;
use crate::core::{Qpn, RSS_KEY, RssHash, Spread};
use crate::firmware::bits::{Field, field};
use crate::firmware::layout::ethernet::{rqtc, tirc};

/// How a TIR chooses its receive queue, `MLX5_TIRC_DISP_TYPE_*`.
const INDIRECT: u64 = 1;
/// Hash functions, `MLX5_RX_HASH_FN_*`.
const TOEPLITZ: u64 = 2;

impl Objects {
    /// The receive queues of a TIR, and the hash that chooses one of them.
    ///
    /// # Errors
    /// A refusal if there is no such TIR, or not its table of receive queues.
    pub fn spread(&self, tir: u32) -> Result<Spread, Refusal> {
        let tir = self.tir.get("TIR", tir)?;
        if tirc::DISP_TYPE.get(tir) != INDIRECT {
            let table = [Qpn(tirc::INLINE_RQN.get32(tir))].into();
            return Ok(Spread { table, hash: None });
        }
        let list = self.rqt.get("RQT", tirc::INDIRECT_TABLE.get32(tir))?;
        let table = (0..size(list)).map(|index| entry(list, index)).collect();
        Ok(Spread { table, hash: hash(tir) })
    }

    /// The receive queue of a TIR for a frame, and the frame's hash.
    pub fn choose(&self, tir: u32, frame: &[u8]) -> Option<(Qpn, Option<(u32, u8)>)> {
        let tir = self.tir.get("TIR", tir).ok()?;
        if tirc::DISP_TYPE.get(tir) != INDIRECT {
            return Some((Qpn(tirc::INLINE_RQN.get32(tir)), None));
        }
        let list = self.rqt.get("RQT", tirc::INDIRECT_TABLE.get32(tir)).ok()?;
        let hash = hash(tir).and_then(|hash| hash.of(frame));
        Some((entry(list, hash.map_or(0, |(hash, _)| hash) % size(list)), hash))
    }
}

/// How many queues a list has.
fn size(list: &[u8]) -> u32 {
    rqtc::RQT_ACTUAL_SIZE.get32(list).max(1)
}

fn entry(list: &[u8], index: u32) -> Qpn {
    Qpn(field(LIST + 8, 24).element(index as usize, 32).get32(list))
}

/// The hash of a TIR; `None` if it does not hash.
fn hash(tir: &[u8]) -> Option<RssHash> {
    if tirc::RX_HASH_FN.get(tir) != TOEPLITZ {
        return None;
    }
    let mut key = [0; RSS_KEY];
    for (index, word) in key.chunks_mut(4).enumerate() {
        let field: Field = tirc::RX_HASH_TOEPLITZ_KEY.element(index, 32);
        word.copy_from_slice(&field.get32(tir).to_be_bytes());
    }
    Some(RssHash { key, select: tirc::RX_HASH_FIELD_SELECTOR_OUTER.get32(tir) })
}
