//! Hints to the compiler about which branches are rare.

/// Marks the branch that calls it as rarely taken: the compiler moves the branch out of line, and
/// keeps registers for the other one. The `#[cold]` attribute has that effect before the empty
/// function is inlined.
#[cold]
pub(crate) fn cold_path() {}

/// Returns `condition`, which is usually true. Functions that check for the fast path use it,
/// because a hint in the caller is lost if the compiler merges the caller's branch with the one in
/// the function.
#[inline(always)]
pub(crate) fn likely(condition: bool) -> bool {
    if !condition {
        cold_path();
    }
    condition
}
