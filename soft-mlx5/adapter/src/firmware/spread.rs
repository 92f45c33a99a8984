//! How a transport interface for receivers (TIR) chooses among receive queues.

use super::Objects;
use super::record::{INDIRECT, queue};
use super::refusal::Refusal;
use crate::core::{ObjectKind, Qpn, RSS_KEY, RssHash, Spread, place};
use crate::firmware::bits::Field;
use crate::firmware::layout::ethernet::{rqtc, tirc};

/// Hash functions, `MLX5_RX_HASH_FN_*`.
const TOEPLITZ: u64 = 2;

/// The contexts of a TIR and of its list of receive queues; without a list it has one queue.
struct Receivers<'a> {
    tir: &'a [u8],
    list: Option<&'a [u8]>,
}

impl Receivers<'_> {
    /// How many queues there are: 0 for a list without queues in use, even if it has other entries.
    fn count(&self) -> usize {
        self.list.map_or(1, |list| rqtc::RQT_ACTUAL_SIZE.get32(list) as usize)
    }

    fn queue(&self, place: usize) -> Qpn {
        match self.list {
            Some(list) => queue(list, place),
            None => Qpn(tirc::INLINE_RQN.get32(self.tir)),
        }
    }

    fn hash(&self) -> Option<RssHash> {
        self.list.and_then(|_| hash(self.tir))
    }
}

impl Objects {
    fn receivers(&self, tir: u32) -> Result<Receivers<'_>, Refusal> {
        let tir = &**self.tir.get(ObjectKind::Tir, tir)?;
        let list = match tirc::DISP_TYPE.get(tir) {
            INDIRECT => Some(&**self.rqt.get(ObjectKind::Rqt, tirc::INDIRECT_TABLE.get32(tir))?),
            _ => None,
        };
        Ok(Receivers { tir, list })
    }

    /// The receive queues of a TIR, and the hash that chooses one of them.
    ///
    /// # Errors
    /// A refusal if the TIR or its table of receive queues does not exist, or the table is empty.
    pub fn spread(&self, tir: u32) -> Result<Spread, Refusal> {
        let receivers = self.receivers(tir)?;
        if receivers.count() == 0 {
            return Err(Refusal::parameter("rqt_actual_size", 0));
        }
        let table = (0..receivers.count()).map(|place| receivers.queue(place)).collect();
        Ok(Spread { table, hash: receivers.hash() })
    }

    /// The receive queue of a TIR for a frame, and the frame's hash. The choice is that of
    /// [`Objects::spread`], without building its table.
    pub(super) fn choose(&self, tir: u32, frame: &[u8]) -> Option<(Qpn, Option<(u32, u8)>)> {
        let receivers = self.receivers(tir).ok().filter(|receivers| receivers.count() > 0)?;
        let (place, hash) = place(receivers.hash().as_ref(), frame, receivers.count());
        Some((receivers.queue(place), hash))
    }
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
