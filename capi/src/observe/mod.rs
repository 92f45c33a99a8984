//! Observing a program's calls: a trace of them (`UVERBS_TRACE`), and reports of misuse
//! (`UVERBS_CHECK`).
//!
//! Control verbs test one flag to learn whether they are observed. For posting and polling, other
//! functions are chosen when a device is opened or a queue pair is created, so calls that are not
//! observed cost nothing more.

mod argument;
mod building;
mod data;
mod gone;
mod misuse;
mod names;
mod trace;
mod words;

use crate::environment::is_set;
use crate::lazy::Lazy;
pub(crate) use argument::{Answer, Argument, Count, MinusOne};
pub(crate) use building::building;
pub(crate) use data::{operations, polling, tag_changes, work_queue_receives};
pub(crate) use gone::{free, free_queue_pair};

/// The observation that the environment requests.
#[derive(Debug)]
struct Wanted {
    trace: Option<trace::Trace>,
    /// Whether posts and completions are traced, too.
    trace_data: bool,
    check: bool,
}

fn wanted() -> &'static Wanted {
    static WANTED: Lazy<Wanted> = Lazy::new();
    WANTED.get_or(|| {
        let trace = trace::Trace::from_environment();
        let trace_data = trace.is_some() && is_set("UVERBS_TRACE_DATA");
        Wanted { trace, trace_data, check: is_set("UVERBS_CHECK") }
    })
}

/// Whether any call is to be observed.
pub(crate) fn is_on() -> bool {
    let wanted = wanted();
    wanted.check || wanted.trace.is_some()
}

/// Whether posting and polling are to be observed.
fn sees_data() -> bool {
    let wanted = wanted();
    wanted.check || wanted.trace_data
}

/// What a verb does with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Uses its arguments.
    Uses,
    /// Creates the object that it returns.
    Makes,
    /// Destroys the first argument.
    Destroys,
}

/// Name of an argument, whether it is an input, and the argument. Outputs are shown after the call.
pub(crate) type Named<'a> = (&'static str, bool, &'a dyn Argument);

/// A call that has begun and not ended.
pub(crate) struct Call<'a> {
    verb: &'static str,
    role: Role,
    arguments: &'a [Named<'a>],
    trace: Option<trace::Entry>,
}

impl<'a> Call<'a> {
    /// Begins a call. If the call is a misuse, reports that on standard error and returns `None`.
    pub(crate) fn begin(
        verb: &'static str,
        role: Role,
        arguments: &'a [Named<'a>],
    ) -> Option<Self> {
        let is_good = !wanted().check || misuse::begin(verb, role, arguments);
        let trace = wanted().trace.as_ref().map(|trace| trace.begin(verb, arguments));
        let call = Self { verb, role, arguments, trace };
        if !is_good {
            call.trace(&"refused as misuse", Some(libc::EINVAL));
            return None;
        }
        Some(call)
    }

    /// Ends a call.
    pub(crate) fn end(self, answer: &impl Answer) {
        let errno = answer.errno();
        if wanted().check {
            misuse::end(self.verb, self.role, self.arguments, answer.object(), errno.is_none());
        }
        self.trace(answer, errno);
    }

    fn trace(self, answer: &dyn Argument, errno: Option<i32>) {
        if let (Some(entry), Some(trace)) = (self.trace, &wanted().trace) {
            trace.end(entry, self.arguments, answer, errno);
        }
    }
}
