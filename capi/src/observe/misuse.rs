//! Reports of misuse: use of destroyed objects, and of objects of the wrong kind or context.

use std::collections::HashMap;
use std::ffi::c_int;

use super::{Named, Role};
use crate::environment::say;
use crate::table::Table;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Context,
    Pd,
    Mr,
    Mw,
    Ah,
    Cq,
    Qp,
    Srq,
    Wq,
    IndirectionTable,
    Channel,
    ThreadDomain,
    Xrcd,
    DeviceMemory,
    Counters,
    Flow,
    FlowMatcher,
    FlowAction,
    SteeringAnchor,
    DirectQp,
    Mkey,
    FirmwareObject,
    FirmwareMemory,
    DoorbellPage,
    VirtioDoorbell,
    PacingEntry,
    AnswerChannel,
    EventChannel,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Context => "context",
            Self::Pd => "protection domain",
            Self::Mr => "memory region",
            Self::Mw => "memory window",
            Self::Ah => "address handle",
            Self::Cq => "completion queue",
            Self::Qp => "queue pair",
            Self::Srq => "shared receive queue",
            Self::Wq => "work queue",
            Self::IndirectionTable => "indirection table",
            Self::Channel => "completion channel",
            Self::ThreadDomain => "thread domain",
            Self::Xrcd => "XRC domain",
            Self::DeviceMemory => "device memory",
            Self::Counters => "counters",
            Self::Flow => "steering rule",
            Self::FlowMatcher => "flow matcher",
            Self::FlowAction => "flow action",
            Self::SteeringAnchor => "steering anchor",
            Self::DirectQp => "queue pair of mlx5",
            Self::Mkey => "memory key",
            Self::FirmwareObject => "firmware object",
            Self::FirmwareMemory => "firmware memory",
            Self::DoorbellPage => "doorbell page",
            Self::VirtioDoorbell => "VirtIO doorbell page",
            Self::PacingEntry => "packet pacing entry",
            Self::AnswerChannel => "command channel",
            Self::EventChannel => "event channel",
        }
    }
}

/// An object that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) address: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    kind: Kind,
    /// The context's address.
    context: usize,
    gone: Option<Gone>,
}

/// A destruction that has begun.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// The verb that destroys the object.
    by: &'static str,
    /// Whether it has ended. It may wait for acknowledgements; until then the object can be used.
    is_over: bool,
}

/// The objects that observed verbs created, by address. An unknown address counts as valid.
static OBJECTS: Table<HashMap<usize, Known>> = Table::new();

/// Reports a misuse.
pub(super) fn complain(verb: &str, what: &str) {
    say(&format!("misuse: {verb}: {what}"));
}

fn all_seen(arguments: &[Named<'_>]) -> Vec<(&'static str, Seen)> {
    let mut list = Vec::new();
    for (name, given, argument) in arguments {
        if *given {
            argument.objects(&mut |seen| list.push((*name, seen)));
        }
    }
    list
}

/// Checks the objects of a call. Returns false if the call must not be made.
pub(super) fn begin(verb: &'static str, role: Role, arguments: &[Named<'_>]) -> bool {
    let seen = all_seen(arguments);
    let objects = &mut *OBJECTS.lock();
    let wrong = seen.iter().find_map(|(name, seen)| wrong_alone(objects, role, name, *seen));
    if let Some(what) = wrong.or_else(|| wrong_together(objects, &seen)) {
        complain(verb, &what);
        return false;
    }
    if let (Role::Destroys, Some((_, first))) = (role, seen.first()) {
        if let Some(what) = closed_early(objects, *first) {
            complain(verb, &what);
        }
        super::data::going(verb, *first);
        // Recorded before the call, because another thread may destroy the object during it.
        if let Some(known) = objects.get_mut(&first.address) {
            known.gone = Some(Gone { by: verb, is_over: false });
        }
    }
    true
}

fn wrong_alone(
    objects: &HashMap<usize, Known>,
    role: Role,
    name: &str,
    seen: Seen,
) -> Option<String> {
    let known = objects.get(&seen.address)?;
    let (wanted, is) = (seen.kind.name(), known.kind.name());
    match known.gone {
        Some(Gone { by, .. }) if role == Role::Destroys && known.kind == seen.kind => {
            Some(format!(
                "double destroy: {by} has destroyed this {is} already; a program may destroy an object once"
            ))
        }
        Some(Gone { by, is_over: true }) => {
            Some(format!("use after destroy: {name} was a {is}, which {by} has destroyed"))
        }
        _ if known.kind != seen.kind => {
            Some(format!("{name} is a {is}, and a {wanted} is asked for"))
        }
        _ => None,
    }
}

/// The complaint if the objects of a call do not belong to one context.
fn wrong_together(
    objects: &HashMap<usize, Known>,
    seen: &[(&'static str, Seen)],
) -> Option<String> {
    let context = |seen: &Seen| match seen.kind {
        Kind::Context => Some(seen.address),
        Kind::Device => None,
        _ => objects.get(&seen.address).map(|known| known.context),
    };
    let mut of = seen.iter().filter_map(|(name, seen)| Some((name, seen, context(seen)?)));
    let (first_name, first, first_context) = of.next()?;
    let (name, other, _) = of.find(|(_, _, context)| *context != first_context)?;
    Some(format!(
        "wrong context: the {} ({name}) belongs to another context than the {} ({first_name}); \
         objects work together within one ibv_open_device only",
        other.kind.name(),
        first.kind.name(),
    ))
}

/// The complaint if a context is closed before its objects.
fn closed_early(objects: &HashMap<usize, Known>, first: Seen) -> Option<String> {
    let is_left = |known: &&Known| {
        known.context == first.address && known.kind != Kind::Context && known.gone.is_none()
    };
    let kinds = objects.values().filter(is_left).map(|known| known.kind.name());
    let (count, one) = kinds.fold((0, ""), |(count, one), kind| (count + 1, kind.max(one)));
    (first.kind == Kind::Context && count > 0).then(|| {
        format!(
            "{count} object(s) of the device are left, a {one} among them; they hold it open until \
             they are destroyed"
        )
    })
}

/// Records the object that a call has created, or the result of its destruction.
pub(super) fn end(
    verb: &'static str,
    role: Role,
    arguments: &[Named<'_>],
    made: Option<Seen>,
    is_good: bool,
) {
    let seen = all_seen(arguments);
    let objects = &mut *OBJECTS.lock();
    match (role, made, seen.first()) {
        (Role::Makes, Some(made), first) => {
            let context = first.map_or(0, |(_, first)| match first.kind {
                Kind::Context => first.address,
                Kind::Device => made.address,
                _ => objects.get(&first.address).map_or(0, |known| known.context),
            });
            objects.insert(made.address, Known { kind: made.kind, context, gone: None });
        }
        (Role::Destroys, _, Some((_, first))) => {
            let known = objects.get_mut(&first.address);
            if let Some(known) =
                known.filter(|known| known.gone.is_some_and(|gone| gone.by == verb))
            {
                known.gone = is_good.then_some(Gone { by: verb, is_over: true });
                if is_good {
                    super::data::forget(*first);
                }
            }
        }
        (Role::Uses, _, Some((_, first))) if verb == "ibv_modify_qp" && is_good => {
            super::data::modified(*first);
        }
        _ => {}
    }
}

/// Checks an object that is posted to or polled.
pub(super) fn is_alive(verb: &'static str, seen: Seen) -> Result<(), c_int> {
    match wrong_alone(&OBJECTS.lock(), Role::Uses, "the argument", seen) {
        Some(what) => {
            complain(verb, &what);
            Err(libc::EINVAL)
        }
        None => Ok(()),
    }
}
