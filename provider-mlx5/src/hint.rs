//! Hints to the compiler about what it cannot know of the program.

/// Marks the branch that calls it as rarely taken: the compiler moves the branch out of line, and
/// keeps registers for the other one. The `#[cold]` attribute has that effect before the empty
/// function is inlined.
#[cold]
pub(crate) fn cold_path() {}

/// The condition, which is mostly true. A function that answers whether the fast path is open asks
/// through this: a hint at the caller's branch is lost where the compiler joins that branch with
/// the one in here, and then it keeps no registers for the fast path.
#[inline(always)]
pub(crate) fn likely(condition: bool) -> bool {
    if !condition {
        cold_path();
    }
    condition
}
