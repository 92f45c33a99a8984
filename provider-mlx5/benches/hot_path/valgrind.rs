//! Callgrind's client request: switches the counting of instructions on and off. Does nothing outside valgrind.

/// `CALLGRIND_TOGGLE_COLLECT`: VG_USERREQ_TOOL_BASE('C', 'T') + 2, from valgrind/callgrind.h.
const TOGGLE_COLLECT: u64 = 0x4354_0000 + 2;

/// Toggles the collection of events.
#[inline(always)]
pub(crate) fn toggle_collect() {
    #[cfg(target_arch = "x86_64")]
    {
        let request: [u64; 6] = [TOGGLE_COLLECT, 0, 0, 0, 0, 0];
        // SAFETY: the four rotations add up to 128 bits and leave rdi as it was, and the exchange changes nothing: a no-op
        // that valgrind recognizes (valgrind/valgrind.h, amd64), reading the request that rax points to.
        unsafe {
            core::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") &raw const request,
                inout("rdx") 0u64 => _,
                options(nostack),
            );
        }
    }
}
