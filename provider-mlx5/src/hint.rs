//! What the compiler cannot know of the program.

/// Says that what follows is seldom reached: it is laid out elsewhere, and what it needs takes no
/// registers from the rest. The compiler takes this from the attribute, before the empty function
/// is gone.
#[cold]
pub(crate) fn seldom() {}
