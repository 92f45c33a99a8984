//! Callgrind's client requests. They do nothing outside valgrind.

/// `VG_USERREQ_TOOL_BASE('C', 'T')`: the first of the requests in valgrind/callgrind.h, in its
/// order.
const BASE: u64 = 0x4354_0000;

/// Switches the counting of instructions on or off.
#[inline(always)]
pub(crate) fn toggle_collect() {
    request(BASE + 2, 0);
}

/// Forgets what was counted.
pub(crate) fn zero() {
    request(BASE + 1, 0);
}

/// Writes what was counted into a file of its own, under this name.
pub(crate) fn dump(name: &std::ffi::CStr) {
    request(BASE + 3, name.as_ptr() as u64);
}

#[inline(always)]
fn request(code: u64, argument: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        let request: [u64; 6] = [code, argument, 0, 0, 0, 0];
        // SAFETY: the four rotations add up to 128 bits and leave rdi as it was, and the exchange
        // changes nothing: a no-op that valgrind recognizes (valgrind/valgrind.h, amd64), reading
        // the request that rax points to.
        unsafe {
            core::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") &raw const request,
                inout("rdx") 0u64 => _,
                options(nostack),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (code, argument);
}
