//! Hints to the compiler about what it cannot know of the program.

/// Marks the branch that calls it as rarely taken: the compiler moves the branch out of line, and
/// keeps registers for the other one. The `#[cold]` attribute has that effect before the empty
/// function is inlined.
#[cold]
pub(crate) fn cold_path() {}
