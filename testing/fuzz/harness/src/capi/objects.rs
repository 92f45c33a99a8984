//! The objects of a program, and the order in which they can be destroyed.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use arbitrary::{Result, Unstructured};

use super::Program;
use super::verbs::{below, clear_errno, errno};
use super::work::{GROUPS, LIDS};
use crate::abi::*;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pd,
    Td,
    Mr,
    Mw,
    Dm,
    Ah,
    Channel,
    Cq,
    Srq,
    Xrcd,
    Wq,
    Table,
    Qp,
    Flow,
    Counters,
}

/// A live object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: Kind,
    pub(super) at: *mut c_void,
    /// The objects that it uses, which cannot be destroyed before it.
    pub(super) of: Vec<*mut c_void>,
    /// For a completion queue, unacknowledged events; for a queue pair, groups that it is in.
    pub(super) held: u32,
    /// Whether it is a completion queue from `ibv_create_cq_ex`, or an SRQ with tag matching.
    pub(super) extended: bool,
}

fn one_of<T>(u: &mut Unstructured<'_>, choice: &[*mut c_void]) -> Result<*mut T> {
    Ok(if choice.is_empty() { null_mut() } else { u.choose(choice)?.cast() })
}

impl Program {
    /// The function table in front of a context, which is the same for all contexts.
    pub(super) fn table(&self) -> &'static verbs_context {
        // SAFETY: open as long as the program runs; the functions are static.
        unsafe { below(self.contexts[0]) }
    }

    /// Records the object that a verb created. Returns false if it failed.
    pub(super) fn made<T>(&mut self, kind: Kind, at: *mut T, of: &[*mut c_void]) -> bool {
        if at.is_null() {
            assert!((1..=133).contains(&errno()), "no {kind:?}, and errno {}", errno());
            return false;
        }
        let of = of.iter().copied().filter(|user| !user.is_null()).collect();
        self.objects.push(Object { kind, at: at.cast(), of, held: 0, extended: false });
        true
    }

    /// A live object for a verb's argument; null if there is none. In the debug mode possibly a
    /// destroyed one, whose memory the program does not access.
    pub(super) fn pick<T>(&self, u: &mut Unstructured<'_>, kind: Kind) -> Result<*mut T> {
        if self.checked && u.ratio(1, 8)? {
            return one_of(u, &self.stale(kind));
        }
        self.live(u, kind)
    }

    /// A live object; null if there is none.
    pub(super) fn live<T>(&self, u: &mut Unstructured<'_>, kind: Kind) -> Result<*mut T> {
        let of_kind = self.objects.iter().filter(|object| object.kind == kind);
        one_of(u, &of_kind.map(|object| object.at).collect::<Vec<_>>())
    }

    /// A live object, or null.
    pub(super) fn maybe<T>(&self, u: &mut Unstructured<'_>, kind: Kind) -> Result<*mut T> {
        if u.ratio(1, 3)? { self.live(u, kind) } else { Ok(null_mut()) }
    }

    /// The live object at `at`.
    pub(super) fn object<T>(&mut self, at: *mut T) -> Option<&mut Object> {
        self.objects.iter_mut().find(|object| object.at == at.cast())
    }

    /// Addresses of destroyed objects that were not reused for live objects.
    fn stale(&self, kind: Kind) -> Vec<*mut c_void> {
        let is_taken = |at| self.objects.iter().any(|object| object.at == at);
        let gone = self.gone.iter().filter(|object| object.kind == kind && !is_taken(object.at));
        gone.map(|object| object.at).collect()
    }

    pub(super) fn destroy_one(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.checked && u.ratio(1, 4)? && !self.gone.is_empty() {
            let object = u.choose(&self.gone)?.clone();
            if !self.stale(object.kind).is_empty() && !self.is_live(object.at) {
                assert_eq!(self.call(&object), libc::EINVAL, "{object:?} twice");
            }
            return Ok(());
        }
        if !self.objects.is_empty() {
            let index = u.choose_index(self.objects.len())?;
            self.destroy(index);
        }
        Ok(())
    }

    fn is_live(&self, at: *mut c_void) -> bool {
        self.objects.iter().any(|object| object.at == at)
    }

    /// Destroys an object, unless others use it.
    pub(super) fn destroy(&mut self, index: usize) {
        self.acknowledge();
        let object = self.objects[index].clone();
        let is_member = object.kind == Kind::Qp && object.held > 0;
        let is_used = is_member || self.users(&object).next().is_some();
        clear_errno();
        let answer = self.call(&object);
        // A region to which a window is bound may be busy, and so may the domains of a region whose
        // change failed.
        let is_unclear = |user: &Object| user.kind == Kind::Mr && user.held > 0;
        let is_open = object.kind == Kind::Mr || self.users(&object).any(is_unclear);
        let expected = if is_used { libc::EBUSY } else { 0 };
        let is_right = answer == expected || is_open && [0, libc::EBUSY].contains(&answer);
        assert!(is_right, "{answer} of {object:?} in {:?}", self.objects);
        if answer == 0 {
            self.objects.remove(index);
            self.gone.push(object);
        } else if object.kind == Kind::Qp {
            self.leave(&object);
        }
    }

    fn users<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(|user| user.of.contains(&object.at))
    }

    /// Calls the verb that destroys an object.
    fn call(&self, object: &Object) -> c_int {
        let (v, at) = (self.verbs, object.at);
        // SAFETY: live objects of the right kinds; or destroyed ones, in the mode in which the
        // library refuses these without accessing them.
        unsafe {
            let table = self.table();
            match object.kind {
                Kind::Pd => (v.ibv_dealloc_pd)(at.cast()),
                Kind::Td => (table.dealloc_td)(at.cast()),
                Kind::Mr => (v.ibv_dereg_mr)(at.cast()),
                Kind::Mw => (table.context.ops.dealloc_mw)(at.cast()),
                Kind::Dm => (table.free_dm)(at.cast()),
                Kind::Ah => (v.ibv_destroy_ah)(at.cast()),
                Kind::Channel => (v.ibv_destroy_comp_channel)(at.cast()),
                Kind::Cq => (v.ibv_destroy_cq)(at.cast()),
                Kind::Srq => (v.ibv_destroy_srq)(at.cast()),
                Kind::Xrcd => (table.close_xrcd)(at.cast()),
                Kind::Wq => (table.destroy_wq)(at.cast()),
                Kind::Table => (table.destroy_rwq_ind_table)(at.cast()),
                Kind::Qp => (v.ibv_destroy_qp)(at.cast()),
                Kind::Flow => (table.ibv_destroy_flow)(at.cast()),
                Kind::Counters => (table.destroy_counters)(at.cast()),
            }
        }
    }

    /// Removes a queue pair from all groups.
    fn leave(&mut self, object: &Object) {
        let at = object.at.cast::<ibv_qp>();
        for (group, lid) in GROUPS.iter().flat_map(|group| LIDS.map(|lid| (group, lid))) {
            // SAFETY: a live queue pair, and a GID.
            while unsafe { (self.verbs.ibv_detach_mcast)(at, group, lid) } == 0 {}
        }
        if let Some(object) = self.object(at) {
            object.held = 0;
        }
    }

    /// Acknowledges all events.
    pub(super) fn acknowledge(&mut self) {
        let verbs = self.verbs;
        for object in self.objects.iter_mut().filter(|object| object.kind == Kind::Cq) {
            // SAFETY: a live completion queue.
            unsafe { (verbs.ibv_ack_cq_events)(object.at.cast(), object.held) };
            object.held = 0;
        }
    }
}
