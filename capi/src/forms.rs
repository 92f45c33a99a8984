//! Two forms of the functions that post and poll: one for every processor of the architecture, and
//! one for processors that have AVX, MOVBE and BMI1.
//!
//! Programs call these functions through pointers, because the ABI says so. The pointers are
//! written when a device is opened and when a queue is created, so choosing costs a call nothing.
//! Queues and CQEs are big-endian: MOVBE loads or stores a number and swaps its bytes at once. AVX
//! copies 32 bytes at a time, and brings the shuffle (of SSSE3) that makes an `ibv_wc` of a CQE.

use std::sync::OnceLock;

use crate::environment::is_set;

/// Declares functions in both forms. `[…]` has the generic parameters. What the body calls has to
/// be inlined to gain from the newer instructions; other functions that have two forms are called
/// by [`either`].
///
/// `beside` is for functions that others call in tail position. `inline(never)` has no effect on
/// functions with a `target_feature`, and a function with more features than its caller is not
/// inlined there.
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
            #[allow(dead_code, reason = "of use to functions that call others")]
            const NEWER: bool = false;
            $body
        }

        $(#[$meta])*
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
        $vis unsafe extern "C" fn $newer<$($generics)*>($($argument: $type),*) $(-> $result)? {
            #[allow(dead_code, reason = "of use to functions that call others")]
            const NEWER: bool = true;
            $body
        }
    )*};
    ($($rest:tt)*) => {
        $crate::forms::forms! { "avx,movbe" $($rest)* }
    };
}

/// In a body of [`forms`]: of two functions the one of the same form.
macro_rules! either {
    ($any:expr, $newer:expr) => {
        if NEWER { $newer } else { $any }
    };
}
pub(crate) use {either, forms};

/// The variable that asks for the first form on every processor.
const BASE: &str = "UVERBS_BASE_INSTRUCTIONS";

/// The form for this processor.
pub(crate) fn pick<F>(any: F, newer: F) -> F {
    if has_newer() { newer } else { any }
}

/// Whether the second form is used: one answer for all functions.
fn has_newer() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !is_set(BASE) && is_newer())
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
