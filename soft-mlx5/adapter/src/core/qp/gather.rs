//! Moving a message's bytes between packets and the SGEs of a WQE.

use super::super::env::Env;
use super::super::mkey::{AccessError, Accessor};
use super::super::{Access, Mkey};
use super::wqe::Sge;

/// Calls `visit(address, lkey, part)` for the parts of `sges` that hold bytes `offset..offset +
/// len`. `Err(Bounds)` if the SGEs are too short.
fn parts(
    sges: &[Sge],
    mut offset: u64,
    len: usize,
    mut visit: impl FnMut(u64, Option<Mkey>, std::ops::Range<usize>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut done = 0;
    for sge in sges {
        if done == len {
            break;
        }
        let size = u64::from(sge.len);
        if offset >= size {
            offset -= size;
            continue;
        }
        let now = (size - offset).min((len - done) as u64) as usize;
        visit(sge.address.wrapping_add(offset), sge.lkey.map(Mkey), done..done + now)?;
        done += now;
        offset = 0;
    }
    if done == len { Ok(()) } else { Err(AccessError::Bounds) }
}

impl Env {
    /// Reads message bytes from `offset` on out of the memory of `sges`. The address of an SGE
    /// without lkey is an offset in `inline`.
    pub(super) fn gather(
        &self,
        who: Accessor,
        (sges, inline): (&[Sge], &[u8]),
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), AccessError> {
        let (mkeys, memory) = (&self.mkeys, &*self.memory);
        parts(sges, offset, into.len(), |address, lkey, part| {
            let into = &mut into[part];
            let Some(lkey) = lkey else {
                let found = inline.get(address as usize..).and_then(|rest| rest.get(..into.len()));
                into.copy_from_slice(found.ok_or(AccessError::Bounds)?);
                return Ok(());
            };
            mkeys.read(memory, who, lkey, address, into, Access::LOCAL_READ)
        })
    }

    /// Writes `from` to the memory of `sges`, at message offset `offset`.
    pub(super) fn scatter(
        &self,
        who: Accessor,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
    ) -> Result<(), AccessError> {
        let (mkeys, memory) = (&self.mkeys, &*self.memory);
        parts(sges, offset, from.len(), |address, lkey, part| {
            let lkey = lkey.ok_or(AccessError::Key)?;
            mkeys.write(memory, who, lkey, address, &from[part], Access::LOCAL_WRITE)
        })
    }
}
