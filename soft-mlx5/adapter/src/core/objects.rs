//! Commands: create, change, query and destroy objects.

use uverbs_mlx5_format::MiniCqeFormat;

use super::cq::{Cq, CqeSize, Stamps};
use super::env::{Counted, unused};
use super::mkey::{Access, Accessor};
use super::qp::Qp;
use super::srq::Srq;
use super::{
    AsyncKind, Core, CoreError, CqInfo, CqModify, CqParams, Cqn, EventObject, Mkey, MkeyParams,
    ObjectKind, Pdn, QpParams, QpType, Qpn, ReceiveSource, SrqInfo, SrqParams, Srqn, Xrcdn, mkey,
};
use crate::packet::Gid;

fn full(kind: ObjectKind) -> CoreError {
    CoreError::LimitReached { kind }
}

/// Protection domains and XRC domains.
impl Core {
    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> Result<Pdn, CoreError> {
        let number = self.env.pds.insert_with(|_| Counted::default());
        number.map(Pdn).ok_or(full(ObjectKind::Pd))
    }

    /// Destroys a protection domain; [`CoreError::InUse`] while keys, QPs or SRQs belong to it.
    pub fn destroy_pd(&mut self, pd: Pdn) -> Result<(), CoreError> {
        self.env.check_unused(pd.object())?;
        self.env.pds.remove(pd.0);
        Ok(())
    }

    /// Creates an XRC domain.
    pub fn create_xrcd(&mut self) -> Result<Xrcdn, CoreError> {
        let number = self.env.xrcds.insert_with(|_| Counted::default());
        number.map(Xrcdn).ok_or(full(ObjectKind::Xrcd))
    }

    /// Destroys an XRC domain; [`CoreError::InUse`] while QPs or SRQs belong to it.
    pub fn destroy_xrcd(&mut self, xrcd: Xrcdn) -> Result<(), CoreError> {
        self.env.check_unused(xrcd.object())?;
        self.env.xrcds.remove(xrcd.0);
        Ok(())
    }
}

/// Memory keys.
impl Core {
    /// Creates a memory key: region, window or null key. The result is the whole key, including the
    /// variant.
    pub fn create_mkey(&mut self, params: MkeyParams) -> Result<Mkey, CoreError> {
        let pd = params.pd.object();
        self.env.hold(&[pd])?;
        self.env.mkeys.create(params).inspect_err(|_| self.env.release(&[pd]))
    }

    /// A random variant for a key to be created. The device also chooses indices at random, so all
    /// 32 bits of a key are random.
    pub fn mkey_variant(&mut self) -> u8 {
        self.env.mkeys.variant()
    }

    /// The state of a key. Keys are found by their index: the variant does not count, because WQEs
    /// may change it.
    pub fn query_mkey(&self, mkey: Mkey) -> Result<&MkeyParams, CoreError> {
        self.env.mkeys.get(mkey)
    }

    /// Changes the state of a key (re-registration). The index stays the same.
    pub fn modify_mkey(&mut self, mkey: Mkey, params: MkeyParams) -> Result<(), CoreError> {
        self.env.replace_key(mkey, params)
    }

    /// Writes to a key's memory for the firmware.
    pub fn write_mkey(&self, mkey: Mkey, address: u64, from: &[u8]) -> Result<(), CoreError> {
        let params = self.query_mkey(mkey)?;
        let who = Accessor { pd: params.pd, qpn: params.qpn, reserved_lkey: false };
        let (memory, need) = (&*self.env.memory, Access::LOCAL_WRITE);
        let written = self.env.mkeys.write(memory, who, mkey, address, from, need);
        written.map_err(|_| CoreError::bad("mkey", mkey.0.into()))
    }

    /// Destroys a key. Accesses in progress fail from now on.
    pub fn destroy_mkey(&mut self, mkey: Mkey) -> Result<(), CoreError> {
        let params = self.env.mkeys.destroy(mkey)?;
        self.env.release(&[params.pd.object()]);
        Ok(())
    }

    /// Destroys the key of a region; [`CoreError::InUse`] while windows are bound to it.
    pub fn destroy_region(&mut self, mkey: Mkey) -> Result<(), CoreError> {
        unused(mkey.object(), self.env.mkeys.windows(mkey))?;
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
        number.map(Cqn).ok_or(full(ObjectKind::Cq))
    }

    /// Resizes a CQ, or changes its moderation or overrun behaviour.
    pub fn modify_cq(&mut self, cqn: Cqn, change: CqModify) -> Result<(), CoreError> {
        self.env.flush_completions();
        let memory = self.env.memory.clone();
        self.cq_mut(cqn)?.modify(&*memory, change)
    }

    /// Sets the clock behind a CQ's timestamps; by default it is the device's time.
    pub fn stamp_by(&mut self, cqn: Cqn, stamps: Stamps) -> Result<(), CoreError> {
        self.cq_mut(cqn)?.stamp(stamps);
        Ok(())
    }

    /// Compresses the CQ's completions. Called right after creation, for 64-byte entries only.
    pub fn compress(&mut self, cqn: Cqn, format: MiniCqeFormat) -> Result<(), CoreError> {
        let cq = self.cq_mut(cqn)?;
        if cq.cqe_size() != CqeSize::B64 {
            return Err(CoreError::Unsupported("compression of completions of 128 bytes"));
        }
        cq.compress(format);
        Ok(())
    }

    /// The state of a CQ.
    pub fn query_cq(&self, cqn: Cqn) -> Result<CqInfo, CoreError> {
        self.env.cqs.get(cqn.0).map(Cq::info).ok_or(CoreError::missing(cqn.object()))
    }

    /// The QPs that complete to a CQ.
    pub fn qps_of(&self, cqn: Cqn) -> Vec<Qpn> {
        let completes = |qp: &Qp| qp.params.cqs().any(|used| used == cqn);
        let all = self.qps.iter().filter(|(_, qp)| completes(qp));
        all.map(|(number, _)| Qpn(number)).collect()
    }

    /// Destroys a CQ; [`CoreError::InUse`] while QPs or SRQs complete there. Its pending events are
    /// discarded.
    pub fn destroy_cq(&mut self, cqn: Cqn) -> Result<(), CoreError> {
        self.env.check_unused(cqn.object())?;
        self.env.cqs.remove(cqn.0);
        self.forget_events(EventObject::Cq(cqn));
        Ok(())
    }

    /// The host rang the CQ's arm doorbell: reads the arm word of its doorbell record.
    pub fn arm_cq(&mut self, now: u64, cqn: Cqn) -> Result<(), CoreError> {
        self.env.flush_completions();
        let memory = self.env.memory.clone();
        let posted = self.cq_mut(cqn)?.arm(&*memory, now);
        self.env.follow_up(cqn, posted);
        Ok(())
    }

    pub(super) fn cq_mut(&mut self, cqn: Cqn) -> Result<&mut Cq, CoreError> {
        self.env.cqs.get_mut(cqn.0).ok_or(CoreError::missing(cqn.object()))
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
    /// Creates an SRQ: basic, XRC or tag matching.
    pub fn create_srq(&mut self, params: SrqParams) -> Result<Srqn, CoreError> {
        params.check()?;
        let objects = params.objects();
        self.env.hold(&objects)?;
        let number = self.env.srqs.insert_with(|number| Srq::new(number, params));
        number.map(Srqn).ok_or(full(ObjectKind::Srq)).inspect_err(|_| self.env.release(&objects))
    }

    /// Arms an SRQ's limit: one event when fewer WQEs are left. 0 disarms. If fewer are left
    /// already, the event is raised at once.
    pub fn arm_srq(&mut self, srqn: Srqn, limit: u16) -> Result<(), CoreError> {
        let memory = self.env.memory.clone();
        if self.srq_mut(srqn)?.arm(&*memory, limit)? {
            self.env.raise(AsyncKind::SrqLimitReached, EventObject::Srq(srqn));
        }
        Ok(())
    }

    /// The parameters of an SRQ.
    pub fn srq_params(&self, srqn: Srqn) -> Result<&SrqParams, CoreError> {
        let srq = self.env.srqs.get(srqn.0).ok_or(CoreError::missing(srqn.object()))?;
        Ok(&srq.params)
    }

    /// The state of an SRQ.
    pub fn query_srq(&mut self, srqn: Srqn) -> Result<SrqInfo, CoreError> {
        let memory = self.env.memory.clone();
        self.srq_mut(srqn)?.info(&*memory)
    }

    /// Destroys an SRQ; [`CoreError::InUse`] while QPs receive from it. Its pending events are
    /// discarded.
    pub fn destroy_srq(&mut self, srqn: Srqn) -> Result<(), CoreError> {
        self.env.check_unused(srqn.object())?;
        if let Some(srq) = self.env.srqs.remove(srqn.0) {
            self.env.release(&srq.params.objects());
        }
        self.forget_events(EventObject::Srq(srqn));
        Ok(())
    }

    pub(super) fn srq_mut(&mut self, srqn: Srqn) -> Result<&mut Srq, CoreError> {
        self.env.srqs.get_mut(srqn.0).ok_or(CoreError::missing(srqn.object()))
    }
}

/// Queue pairs: creation and destruction.
impl Core {
    /// Creates a QP in RESET.
    pub fn create_qp(&mut self, params: QpParams) -> Result<Qpn, CoreError> {
        params.check()?;
        let (special, objects) = (params.special, params.objects());
        if self.special_slot(special).is_some_and(|slot| slot.is_some()) {
            return Err(full(ObjectKind::Qp));
        }
        self.check_matches_tags(&params)?;
        self.env.hold(&objects)?;
        let number =
            self.qps.insert_with(|number| Box::new(Qp::new(number, params, &mut self.env)));
        let number = number.ok_or(full(ObjectKind::Qp));
        let qpn = number.map(Qpn).inspect_err(|_| self.env.release(&objects))?;
        if let Some(slot) = self.special_slot(special) {
            *slot = Some(qpn);
        }
        Ok(qpn)
    }

    /// Only RC QPs receive from a tag matching SRQ. (Hardware also allows DC targets.)
    fn check_matches_tags(&self, params: &QpParams) -> Result<(), CoreError> {
        let ReceiveSource::Srq(srqn) = params.receive else { return Ok(()) };
        let has_tags = self.env.srqs.get(srqn.0).is_some_and(|srq| srq.tags.is_some());
        if has_tags && params.qp_type != QpType::Rc {
            return Err(CoreError::bad("tag matching SRQ of a QP that is not RC", srqn.0.into()));
        }
        Ok(())
    }

    fn special_slot(&mut self, special: Option<u8>) -> Option<&mut Option<Qpn>> {
        self.special.get_mut(usize::from(special?))
    }

    /// Destroys a QP in any state. Its requests in progress and pending events are discarded.
    /// [`CoreError::InUse`] while it is attached to a multicast group or has a flow rule.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), CoreError> {
        let qp = self.qp_mut(qpn)?;
        unused(qpn.object(), qp.groups + qp.flows)?;
        self.env.flush_completions();
        let Some(mut qp) = self.qps.remove(qpn.0) else { return Ok(()) };
        qp.send_due_answers(&mut self.env);
        qp.abandon_entries(&mut self.env);
        qp.disconnect(&mut self.env);
        if let Some(slot) = self.special_slot(qp.params.special) {
            *slot = None;
        }
        self.env.release(&qp.params.objects());
        self.forget_events(EventObject::Qp(qpn));
        Ok(())
    }

    /// Reserves `length` numbers, a power of two, that no QP gets until they are released.
    pub fn reserve_qpns(&mut self, length: u32) -> u32 {
        self.qps.reserve(length)
    }

    /// Releases numbers that were reserved together, by the first of them.
    pub fn release_qpns(&mut self, first: u32) {
        self.qps.release(first);
    }

    /// Arms a DC target: its next packet with a wrong access key raises an event.
    ///
    /// # Errors
    /// [`CoreError::NotFound`] without such a target.
    pub fn arm_dc_target(&mut self, dctn: Qpn) -> Result<(), CoreError> {
        let is_target = self.qp_mut(dctn)?.arm_for_violation();
        if is_target { Ok(()) } else { Err(CoreError::missing(dctn.object())) }
    }

    /// Attaches a UD QP to a multicast group. A second attach has no effect.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), CoreError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(CoreError::missing(qpn.object()))?;
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
        let qp = self.qps.get_mut(qpn.0).ok_or(CoreError::missing(qpn.object()))?;
        if !self.env.groups.detach(group, qpn) {
            return Err(CoreError::missing((ObjectKind::Multicast, qpn.0)));
        }
        qp.groups -= 1;
        Ok(())
    }

    pub(super) fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut Qp, CoreError> {
        let found = self.qps.get_mut(qpn.0).map(Box::as_mut);
        found.ok_or(CoreError::missing(qpn.object()))
    }

    fn forget_events(&mut self, of: EventObject) {
        self.env.events.retain(|event| match (event, of) {
            (super::Event::Completion { cqn }, EventObject::Cq(gone)) => *cqn != gone,
            (super::Event::Async { object, .. }, _) => *object != of,
            (super::Event::AccessKeyViolation { dctn }, EventObject::Qp(gone)) => *dctn != gone,
            _ => true,
        });
    }
}
