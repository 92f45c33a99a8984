//! The functions that post and poll exist in two forms: one for every processor of the
//! architecture, and one for processors with AVX, MOVBE and BMI1.
//!
//! By the ABI, programs call these functions through pointers. The pointers are set when a device
//! is opened or a queue is created, so the choice costs nothing per call. Queues and CQEs are
//! big-endian: MOVBE loads or stores a number and swaps its bytes in one instruction. AVX copies 32
//! bytes at a time, and includes the byte shuffle (SSSE3) that turns a CQE into an `ibv_wc`.

use crate::environment::is_set;
use crate::lazy::Lazy;

/// Declares functions in both forms. `[…]` contains the generic parameters. Functions that the body
/// calls must be inlined to use the newer instructions; functions with two forms are called through
/// [`either`].
///
/// `beside` is for functions that must not be inlined into the functions that call them last. It
/// gives the newer form one more feature than its callers have, which prevents inlining.
/// `inline(never)` has no effect on functions with a `target_feature`.
macro_rules! forms {
    (beside $($rest:tt)*) => {
        $crate::forms::forms! { "avx,movbe,bmi1" $($rest)* }
    };
    ($features:literal $(
        $(#[$meta:meta])*
        $vis:vis fn $any:ident / $newer:ident [$($generics:tt)*]
            ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis unsafe extern "C" fn $any<$($generics)*>($($argument: $type),*) $(-> $result)? {
            #[allow(dead_code, reason = "`either!` reads it, and not every body has one")]
            const NEWER: bool = false;
            $body
        }

        $(#[$meta])*
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
        $vis unsafe extern "C" fn $newer<$($generics)*>($($argument: $type),*) $(-> $result)? {
            #[allow(dead_code, reason = "`either!` reads it, and not every body has one")]
            const NEWER: bool = true;
            $body
        }
    )*};
    ($($rest:tt)*) => {
        $crate::forms::forms! { "avx,movbe" $($rest)* }
    };
}

/// In a body of [`forms`]: chooses between the two forms of another function.
macro_rules! either {
    ($any:expr, $newer:expr) => {
        if NEWER { $newer } else { $any }
    };
}
pub(crate) use {either, forms};

/// If this variable is set, the first form is used on every processor.
const BASE: &str = "UVERBS_BASE_INSTRUCTIONS";

/// The form for this processor.
pub(crate) fn pick<F>(any: F, newer: F) -> F {
    if has_newer() { newer } else { any }
}

/// Whether the second form is used. The answer is the same for all functions.
fn has_newer() -> bool {
    static ANSWER: Lazy<bool> = Lazy::new();
    *ANSWER.get_or(|| !is_set(BASE) && is_newer())
}

/// Whether the processor has the features that [`forms`] names.
fn is_newer() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("movbe")
        && is_x86_feature_detected!("bmi1");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
