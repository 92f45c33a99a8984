//! Packet pacing objects: entries of the device's table of rates, for send queues that firmware
//! commands create. Kernel: hw/mlx5/qos.c, and rl.c of mlx5 core.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_soft_adapter::firmware::layout::command::set_pp_rate_limit_context;
use uverbs_uapi::mlx5::flags::PpAllocFlags;
use uverbs_uapi::mlx5::object::pp::{alloc, destroy};

use super::object::{Kind, Object};
use crate::chardev::abi::call::Call;
use crate::chardev::abi::spec::Attribute;
use crate::chardev::device::DeviceShared;
use crate::locking::lock;

/// Size of the table; that of a real ConnectX is unconfirmed. Entry 0 means no limit.
pub(crate) const ENTRIES: usize = 128;
/// Bytes of an entry's parameters.
const CONTEXT: usize = 48;

/// Parameters of an entry that is in use.
#[derive(Debug)]
struct Rate {
    context: [u8; CONTEXT],
    /// Whether only one object uses it.
    dedicated: bool,
    users: u32,
}

/// The table of rates, from entry 1 on.
#[derive(Debug, Default)]
pub(crate) struct Rates(Vec<Option<Rate>>);

impl Rates {
    /// Takes an entry: a shareable one with these parameters, or a free one; ENOSPC if there is
    /// none (`find_rl_entry`).
    fn take(&mut self, context: [u8; CONTEXT], dedicated: bool) -> Result<usize, Errno> {
        let is_same = |rate: &Rate| !rate.dedicated && rate.context == context;
        let shared = self.0.iter().position(|slot| slot.as_ref().is_some_and(is_same));
        if let Some(index) = shared.filter(|_| !dedicated) {
            self.0[index].as_mut().ok_or(Errno::ENOSPC)?.users += 1;
            return Ok(index + 1);
        }
        let index = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if index >= ENTRIES - 1 {
            return Err(Errno::ENOSPC);
        }
        if index == self.0.len() {
            self.0.push(None);
        }
        self.0[index] = Some(Rate { context, dedicated, users: 1 });
        Ok(index + 1)
    }

    fn give_back(&mut self, index: usize) {
        let Some(slot) = self.0.get_mut(index - 1) else { return };
        if let Some(rate) = slot {
            rate.users -= 1;
        }
        slot.take_if(|rate| rate.users == 0);
    }
}

/// One use of an entry.
#[derive(Debug)]
pub(crate) struct PacingEntry {
    index: usize,
}

impl PacingEntry {
    pub(crate) fn destroy(&self, device: &DeviceShared) {
        lock(&device.rates).give_back(self.index);
    }
}

pub(crate) const ALLOC: &[Attribute] = &[
    Attribute::new_handle(alloc::HANDLE, Kind::Pp),
    Attribute::input_between(alloc::CTX, 1, CONTEXT),
    Attribute::flags(alloc::FLAGS).required(),
    Attribute::output(alloc::INDEX, 2),
];

pub(crate) const DESTROY: &[Attribute] = &[Attribute::destroy(destroy::HANDLE, Kind::Pp)];

/// `MLX5_IB_METHOD_PP_OBJ_ALLOC`.
pub(crate) fn allocate(call: &mut Call<'_>) -> Result<(), Errno> {
    call.context()?.devx.ok_or(Errno::EINVAL)?;
    let context: [u8; CONTEXT] = call.input(alloc::CTX)?;
    let known = PpAllocFlags::DEDICATED_INDEX;
    let flags = PpAllocFlags::from_bits_retain(call.flags(alloc::FLAGS, known.bits())?);
    let rate = set_pp_rate_limit_context::RATE_LIMIT.get32(&context);
    let rates = call.file.device.options().rates();
    if !rates.is_some_and(|rates| rates.contains(&rate)) {
        return Err(Errno::EINVAL);
    }
    let index = lock(&call.file.device.rates).take(context, flags.contains(known))?;
    call.commit(Object::Pp(PacingEntry { index }))?;
    call.output(alloc::INDEX, &(index as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rates_share_an_entry_unless_it_is_dedicated() {
        let mut rates = Rates::default();
        let (slow, fast) = ([1; CONTEXT], [2; CONTEXT]);
        assert_eq!(rates.take(slow, true), Ok(1));
        assert_eq!(rates.take(slow, false), Ok(2));
        assert_eq!(rates.take(slow, false), Ok(2));
        assert_eq!(rates.take(fast, false), Ok(3));
        rates.give_back(2);
        assert_eq!(rates.take(slow, true), Ok(4));
        rates.give_back(2);
        assert_eq!(rates.take(fast, true), Ok(2), "free again");
    }

    #[test]
    fn the_table_is_full_at_its_size() {
        let mut rates = Rates::default();
        for index in 1..ENTRIES {
            assert_eq!(rates.take([0; CONTEXT], true), Ok(index));
        }
        assert_eq!(rates.take([0; CONTEXT], true), Err(Errno::ENOSPC));
        rates.give_back(7);
        assert_eq!(rates.take([0; CONTEXT], true), Ok(7));
    }
}
