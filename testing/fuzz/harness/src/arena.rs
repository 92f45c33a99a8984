//! Memory at a fixed address, which inputs can contain, with nothing mapped around it.

use std::sync::OnceLock;

/// The address: far from where programs, libraries, stacks and sanitizers live.
pub(crate) const ARENA: usize = 0x2000_0000_0000;
/// Size in bytes. The last page is read-only.
pub(crate) const SIZE: usize = 128 << 10;
/// Size of the first part, which holds queues and regions. The data that requests point at follows.
pub(crate) const QUEUES: usize = 64 << 10;

const PAGE: usize = 4096;

pub(crate) struct Arena {
    base: *mut u8,
}

// SAFETY: accesses go through raw pointers, and harnesses run one at a time.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn get() -> &'static Self {
        static ARENA: OnceLock<Arena> = OnceLock::new();
        ARENA.get_or_init(Self::map)
    }

    fn map() -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        // SAFETY: a new mapping, at an address where no other one is.
        let base =
            unsafe { libc::mmap(ARENA as *mut libc::c_void, SIZE, protection, flags, -1, 0) };
        assert_eq!(base.addr(), ARENA, "the arena's address is taken");
        // SAFETY: the last page of the mapping.
        let closed = unsafe { libc::mprotect(base.byte_add(SIZE - PAGE), PAGE, libc::PROT_READ) };
        assert_eq!(closed, 0);
        Self { base: base.cast() }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < SIZE);
        self.base.wrapping_add(offset)
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE - PAGE);
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: inside the mapping and writable; no reference exists.
            unsafe { self.at(at).write_volatile(*byte) };
        }
    }

    /// The word at `offset`.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= SIZE);
        // SAFETY: inside the mapping, which is always readable.
        unsafe { self.at(offset).cast::<u64>().read_unaligned() }
    }

    /// Fills all writable bytes with zeros. No queue of an earlier run may be left.
    pub(crate) fn clear(&self) {
        // SAFETY: inside the mapping and writable.
        unsafe { self.base.write_bytes(0, SIZE - PAGE) };
    }

    /// The bytes, with every word that is an address of this process's other memory replaced by an
    /// address in the arena.
    ///
    /// The shadow memory of an address sanitizer is so large that two numbers of four bytes are
    /// often an address in it. Such words are replaced only at the offsets in `pointers`.
    pub(crate) fn harmless(&self, bytes: &[u8], pointers: &[usize]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (at, chunk) in (0..).step_by(8).zip(bytes.chunks_exact_mut(8)) {
            let word = chunk.try_into().map_or(0, u64::from_ne_bytes);
            if pointers.contains(&at) || !SHADOW.contains(&word) {
                chunk.copy_from_slice(&self.harmless_word(word).to_ne_bytes());
            }
        }
        bytes
    }

    pub(crate) fn harmless_word(&self, word: u64) -> u64 {
        let outside = !(0x1_0000..1 << 47).contains(&word);
        let inside = (ARENA as u64..(ARENA + SIZE) as u64).contains(&word);
        if outside || inside || !is_mapped(word) { word } else { ARENA as u64 | word & 0xffff }
    }
}

/// The shadow memory of LLVM's address sanitizer on x86-64 Linux.
const SHADOW: std::ops::Range<u64> = 0x7fff_8000..0x1000_7fff_8000;

fn is_mapped(address: u64) -> bool {
    let page = address as usize & !(PAGE - 1);
    let mut residence = 0;
    // SAFETY: queries one page, and has one byte for the answer.
    unsafe { libc::mincore(page as *mut libc::c_void, PAGE, &mut residence) == 0 }
}
