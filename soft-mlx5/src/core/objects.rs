//! Commands: create, change, query and destroy objects.

use super::cq::{Completion, Cq};
use super::env::Counted;
use super::qp::Qp;
use super::srq::Srq;
use super::{
    AsyncKind, Core, CoreError, CqInfo, CqModify, CqParams, Cqn, EventObject, Mkey, MkeyParams,
    ObjectKind, Pdn, QpParams, QpType, Qpn, ReceiveSource, SrqInfo, SrqParams, Srqn, Xrcdn, mkey,
};
use crate::packet::Gid;
use uverbs_mlx5_format::{Cqe, CqeOpcode};

fn missing(kind: ObjectKind, number: u32) -> CoreError {
    CoreError::NotFound { kind, number }
}

fn unused(kind: ObjectKind, number: u32, users: u32) -> Result<(), CoreError> {
    if users == 0 { Ok(()) } else { Err(CoreError::InUse { kind, number, users }) }
}

/// Protection domains and XRC domains.
impl Core {
    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> Result<Pdn, CoreError> {
        let number = self.env.pds.insert_with(|_| Counted::default());
        number.map(Pdn).ok_or(CoreError::LimitReached { kind: ObjectKind::Pd })
    }

    /// Destroys a protection domain; [`CoreError::InUse`] while keys, QPs or SRQs belong to it.
    pub fn destroy_pd(&mut self, pd: Pdn) -> Result<(), CoreError> {
        let users = *self.env.pd_users(pd).ok_or(missing(ObjectKind::Pd, pd.0))?;
        unused(ObjectKind::Pd, pd.0, users)?;
        self.env.pds.remove(pd.0);
        Ok(())
    }

    /// Creates an XRC domain.
    pub fn create_xrcd(&mut self) -> Result<Xrcdn, CoreError> {
        let number = self.env.xrcds.insert_with(|_| Counted::default());
        number.map(Xrcdn).ok_or(CoreError::LimitReached { kind: ObjectKind::Xrcd })
    }

    /// Destroys an XRC domain; [`CoreError::InUse`] while QPs or SRQs belong to it.
    pub fn destroy_xrcd(&mut self, xrcd: Xrcdn) -> Result<(), CoreError> {
        let missing = missing(ObjectKind::Xrcd, xrcd.0);
        let users = *self.env.xrcd_users(xrcd).ok_or(missing)?;
        unused(ObjectKind::Xrcd, xrcd.0, users)?;
        self.env.xrcds.remove(xrcd.0);
        Ok(())
    }

    fn hold_pd(&mut self, pd: Pdn) -> Result<(), CoreError> {
        *self.env.pd_users(pd).ok_or(missing(ObjectKind::Pd, pd.0))? += 1;
        Ok(())
    }

    fn drop_pd(&mut self, pd: Pdn) {
        if let Some(users) = self.env.pd_users(pd) {
            *users -= 1;
        }
    }
}

/// Memory keys.
impl Core {
    /// Creates a memory key: region, window or null key. The result is the whole key, variant
    /// included.
    pub fn create_mkey(&mut self, params: MkeyParams) -> Result<Mkey, CoreError> {
        let pd = params.pd;
        self.hold_pd(pd)?;
        self.env.mkeys.create(params).inspect_err(|_| self.drop_pd(pd))
    }

    /// A random variant for a key to be created. The device chooses indices at random; with the
    /// variant all 32 bits of a key are.
    pub fn mkey_variant(&mut self) -> u8 {
        self.env.mkeys.variant()
    }

    /// The state of a key. Keys are found by their index: the variant does not count, because WQEs
    /// may change it.
    pub fn query_mkey(&self, mkey: Mkey) -> Result<&MkeyParams, CoreError> {
        self.env.mkeys.get(mkey)
    }

    /// Gives a key a new state (re-registration); the index stays.
    pub fn modify_mkey(&mut self, mkey: Mkey, params: MkeyParams) -> Result<(), CoreError> {
        self.env.replace_key(mkey, params)
    }

    /// Destroys a key. Accesses under way fail from here on.
    pub fn destroy_mkey(&mut self, mkey: Mkey) -> Result<(), CoreError> {
        let params = self.env.mkeys.destroy(mkey)?;
        self.drop_pd(params.pd);
        Ok(())
    }

    /// Destroys the key of a region; [`CoreError::InUse`] while windows are bound to it.
    pub fn destroy_region(&mut self, mkey: Mkey) -> Result<(), CoreError> {
        unused(ObjectKind::Mkey, mkey.0, self.env.mkeys.windows(mkey))?;
        self.destroy_mkey(mkey)
    }

    /// The lkey over all of host memory, for QPs created with [`QpParams::reserved_lkey`].
    pub const fn reserved_lkey(&self) -> Mkey {
        mkey::RESERVED_LKEY
    }
}

/// Completion queues.
impl Core {
    /// Creates a CQ.
    pub fn create_cq(&mut self, params: CqParams) -> Result<Cqn, CoreError> {
        params.ring.check()?;
        if params.doorbell_record % 8 != 0 {
            return Err(CoreError::bad("doorbell record address", params.doorbell_record));
        }
        let number = self.env.cqs.insert_with(|number| Cq::new(number, params));
        number.map(Cqn).ok_or(CoreError::LimitReached { kind: ObjectKind::Cq })
    }

    /// Resizes a CQ, or changes its moderation or overrun behaviour.
    pub fn modify_cq(&mut self, cqn: Cqn, change: CqModify) -> Result<(), CoreError> {
        let memory = self.env.memory.clone();
        self.cq_mut(cqn)?.modify(&*memory, change)
    }

    /// The state of a CQ.
    pub fn query_cq(&self, cqn: Cqn) -> Result<CqInfo, CoreError> {
        self.env.cqs.get(cqn.0).map(Cq::info).ok_or(missing(ObjectKind::Cq, cqn.0))
    }

    /// Destroys a CQ; [`CoreError::InUse`] while QPs or SRQs complete there. Events not taken yet
    /// vanish.
    pub fn destroy_cq(&mut self, cqn: Cqn) -> Result<(), CoreError> {
        let users = self.cq_mut(cqn)?.users;
        unused(ObjectKind::Cq, cqn.0, users)?;
        self.env.cqs.remove(cqn.0);
        self.forget_events(EventObject::Cq(cqn));
        Ok(())
    }

    /// The host rang the CQ's arm doorbell: reads the arm word of its doorbell record.
    pub fn arm_cq(&mut self, now: u64, cqn: Cqn) -> Result<(), CoreError> {
        let memory = self.env.memory.clone();
        let posted = self.cq_mut(cqn)?.arm(&*memory, now);
        self.env.follow_up(cqn, posted);
        Ok(())
    }

    /// Writes a CQE on behalf of a queue that the core does not know (an Ethernet queue of a front
    /// end); opcode, format and owner are filled in. `false` if the CQ is in error or does not
    /// exist, so that the completion is lost.
    pub fn complete(&mut self, now: u64, cqn: Cqn, opcode: CqeOpcode, cqe: Cqe) -> bool {
        self.env.now = now;
        self.env.complete(cqn, Completion { cqe, opcode, solicited: false, inline: None })
    }

    /// Writes a CQE on behalf of a queue that the core does not know (a front end's Ethernet
    /// queue). Opcode and solicited bit are those of `cqe`; its format and owner bit do not count.
    /// `false` if the CQ is in error, so that the completion is lost.
    pub fn post_cqe(&mut self, now: u64, cqn: Cqn, cqe: &Cqe) -> Result<bool, CoreError> {
        self.cq_mut(cqn)?;
        self.env.now = now;
        let (opcode, solicited) = (cqe.op_own.opcode(), cqe.op_own.is_solicited());
        let done = Completion { cqe: *cqe, opcode, solicited, inline: None };
        Ok(self.env.complete(cqn, done))
    }

    pub(super) fn cq_mut(&mut self, cqn: Cqn) -> Result<&mut Cq, CoreError> {
        self.env.cqs.get_mut(cqn.0).ok_or(missing(ObjectKind::Cq, cqn.0))
    }

    pub(super) fn moderation_over(&mut self, now: u64, cqn: Cqn) {
        if let Some(cq) = self.env.cqs.get_mut(cqn.0) {
            let posted = cq.expire(now);
            self.env.follow_up(cqn, posted);
        }
    }
}

/// Shared receive queues.
impl Core {
    /// Creates an SRQ, basic or XRC.
    pub fn create_srq(&mut self, params: SrqParams) -> Result<Srqn, CoreError> {
        params.check()?;
        if let Some(xrc) = params.xrc {
            let no_xrcd = missing(ObjectKind::Xrcd, xrc.xrcd.0);
            self.env.xrcds.get(xrc.xrcd.0).ok_or(no_xrcd)?;
            self.cq_mut(xrc.cq)?;
        }
        let pd = params.pd;
        self.hold_pd(pd)?;
        let xrc = params.xrc;
        let Some(number) = self.env.srqs.insert_with(|number| Srq::new(number, params)) else {
            self.drop_pd(pd);
            return Err(CoreError::LimitReached { kind: ObjectKind::Srq });
        };
        if let Some(xrc) = xrc {
            self.env.xrcd_users(xrc.xrcd).into_iter().for_each(|users| *users += 1);
            self.env.cq_users(xrc.cq).into_iter().for_each(|users| *users += 1);
        }
        Ok(Srqn(number))
    }

    /// Arms an SRQ's limit: one event when fewer WQEs are left. 0 disarms. If fewer are left
    /// already, the event comes at once.
    pub fn arm_srq(&mut self, srqn: Srqn, limit: u16) -> Result<(), CoreError> {
        let memory = self.env.memory.clone();
        if self.srq_mut(srqn)?.arm(&*memory, limit)? {
            self.env.raise(AsyncKind::SrqLimitReached, EventObject::Srq(srqn));
        }
        Ok(())
    }

    /// The state of an SRQ.
    pub fn query_srq(&mut self, srqn: Srqn) -> Result<SrqInfo, CoreError> {
        let memory = self.env.memory.clone();
        self.srq_mut(srqn)?.info(&*memory)
    }

    /// Destroys an SRQ; [`CoreError::InUse`] while QPs receive from it. Events not taken yet
    /// vanish.
    pub fn destroy_srq(&mut self, srqn: Srqn) -> Result<(), CoreError> {
        let users = self.srq_mut(srqn)?.users;
        unused(ObjectKind::Srq, srqn.0, users)?;
        let Some(srq) = self.env.srqs.remove(srqn.0) else { return Ok(()) };
        self.drop_pd(srq.params.pd);
        if let Some(xrc) = srq.params.xrc {
            self.env.xrcd_users(xrc.xrcd).into_iter().for_each(|users| *users -= 1);
            self.env.cq_users(xrc.cq).into_iter().for_each(|users| *users -= 1);
        }
        self.forget_events(EventObject::Srq(srqn));
        Ok(())
    }

    pub(super) fn srq_mut(&mut self, srqn: Srqn) -> Result<&mut Srq, CoreError> {
        self.env.srqs.get_mut(srqn.0).ok_or(missing(ObjectKind::Srq, srqn.0))
    }
}

/// Queue pairs: creation and destruction.
impl Core {
    /// Creates a QP in RESET.
    pub fn create_qp(&mut self, params: QpParams) -> Result<Qpn, CoreError> {
        params.check()?;
        self.check_qp_objects(&params)?;
        let held = params.clone();
        let number = self.qps.insert_with(|number| Box::new(Qp::new(number, params)));
        let number = number.ok_or(CoreError::LimitReached { kind: ObjectKind::Qp })?;
        self.count_qp_objects(&held, |users| *users += 1);
        if let Some(slot) = self.special_slot(held.special) {
            *slot = Some(Qpn(number));
        }
        Ok(Qpn(number))
    }

    fn check_qp_objects(&mut self, params: &QpParams) -> Result<(), CoreError> {
        self.env.pds.get(params.pd.0).ok_or(missing(ObjectKind::Pd, params.pd.0))?;
        for cqn in params.cqs() {
            self.cq_mut(cqn)?;
        }
        if let ReceiveSource::Srq(srqn) = params.receive {
            self.srq_mut(srqn)?;
        }
        if self.special_slot(params.special).is_some_and(|slot| slot.is_some()) {
            return Err(CoreError::LimitReached { kind: ObjectKind::Qp });
        }
        match (params.qp_type, params.xrcd) {
            (QpType::XrcTarget, None) => Err(CoreError::bad("XRC domain of an XRC target", 0)),
            (_, Some(xrcd)) => {
                let found = self.env.xrcds.get(xrcd.0);
                found.map(|_| ()).ok_or(missing(ObjectKind::Xrcd, xrcd.0))
            }
            _ => Ok(()),
        }
    }

    fn special_slot(&mut self, special: Option<u8>) -> Option<&mut Option<Qpn>> {
        self.special.get_mut(usize::from(special?))
    }

    fn count_qp_objects(&mut self, params: &QpParams, count: impl Fn(&mut u32)) {
        self.env.pd_users(params.pd).into_iter().for_each(&count);
        for cqn in params.cqs() {
            self.env.cq_users(cqn).into_iter().for_each(&count);
        }
        if let ReceiveSource::Srq(srqn) = params.receive {
            self.env.srq_users(srqn).into_iter().for_each(&count);
        }
        if let Some(xrcd) = params.xrcd {
            self.env.xrcd_users(xrcd).into_iter().for_each(&count);
        }
    }

    /// Destroys a QP in any state. What is under way is forgotten, events not taken yet vanish.
    /// [`CoreError::InUse`] while it is attached to a multicast group or has a flow rule.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), CoreError> {
        let qp = self.qp_mut(qpn)?;
        unused(ObjectKind::Qp, qpn.0, qp.groups + qp.flows)?;
        let params = qp.params.clone();
        if let Some(mut qp) = self.qps.remove(qpn.0) {
            qp.send_promised(&mut self.env);
        }
        if let Some(slot) = self.special_slot(params.special) {
            *slot = None;
        }
        self.count_qp_objects(&params, |users| *users -= 1);
        self.forget_events(EventObject::Qp(qpn));
        Ok(())
    }

    /// Attaches a UD QP to a multicast group. Doing it twice is like doing it once.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), CoreError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(missing(ObjectKind::Qp, qpn.0))?;
        if qp.params.qp_type != QpType::Ud {
            return Err(CoreError::Unsupported("multicast on a QP that is not UD"));
        }
        if self.env.groups.attach(group, qpn)? {
            qp.groups += 1;
        }
        Ok(())
    }

    /// Detaches a QP from a multicast group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), CoreError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(missing(ObjectKind::Qp, qpn.0))?;
        if !self.env.groups.detach(group, qpn) {
            return Err(missing(ObjectKind::Multicast, qpn.0));
        }
        qp.groups -= 1;
        Ok(())
    }

    /// The multicast groups that QPs of this device are attached to, for a wire that has to join
    /// them.
    pub fn multicast_groups(&self) -> impl Iterator<Item = Gid> + '_ {
        self.env.groups.groups()
    }

    pub(super) fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut Qp, CoreError> {
        let found = self.qps.get_mut(qpn.0).map(Box::as_mut);
        found.ok_or(missing(ObjectKind::Qp, qpn.0))
    }

    fn forget_events(&mut self, of: EventObject) {
        self.env.events.retain(|event| match (event, of) {
            (super::Event::Completion { cqn }, EventObject::Cq(gone)) => *cqn != gone,
            (super::Event::Async { object, .. }, _) => *object != of,
            _ => true,
        });
    }
}
