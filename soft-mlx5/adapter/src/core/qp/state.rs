//! The state machine of a QP: modify and query.

use super::super::{AsyncKind, Core, CoreError, EventObject, Qpn};
use super::dc_target::Target;
use super::{AddressPath, MigrationState, Qp, QpAttributes, QpInfo, QpState, QpType, Settings};
use crate::core::env::Env;
use crate::packet::Psn;

impl Core {
    /// Changes a QP's state, properties, or both (`state` may be the current state).
    ///
    /// The transitions are those of the specification's figure "QP state diagram": any state to
    /// RESET and ERR, RESET to INIT, INIT to INIT and RTR, RTR to RTS, RTS to RTS and SQD, SQD to
    /// SQD and RTS, SQE to RTS. PSNs take effect only up to RTS. The front end checks which
    /// properties a transition requires. On error nothing has changed.
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        state: QpState,
        change: &QpAttributes,
    ) -> Result<(), CoreError> {
        self.qp_mut(qpn)?;
        self.env.flush_completions();
        let Some(qp) = self.qps.get_mut(qpn.0) else { return Ok(()) };
        qp.modify(&mut self.env, state, change)
    }

    /// The state of a QP.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, CoreError> {
        let qp = self.qps.get(qpn.0).ok_or(CoreError::missing(qpn.object()))?;
        Ok(qp.info())
    }
}

fn is_legal(from: QpState, to: QpState) -> bool {
    use QpState::*;
    matches!(
        (from, to),
        (_, Reset | Error)
            | (Reset | Init, Init)
            | (Init, ReadyToReceive)
            | (ReadyToReceive, ReadyToSend)
            | (ReadyToSend, ReadyToSend | SendQueueDrain)
            | (SendQueueDrain, SendQueueDrain | ReadyToSend)
            | (SendQueueError, ReadyToSend)
    )
}

impl QpAttributes {
    fn check(&self, env: &Env, qp_type: QpType) -> Result<(), CoreError> {
        let pkeys = env.config.pkeys.len() as u64;
        let bounds = [
            ("P_Key index", self.pkey_index.map(u64::from), pkeys - pkeys.min(1)),
            ("destination QP number", self.destination_qpn.map(u64::from), 0xff_ffff),
            ("receive PSN", self.receive_psn.map(u64::from), 0xff_ffff),
            ("send PSN", self.send_psn.map(u64::from), 0xff_ffff),
            ("RNR NAK timer", self.min_rnr_timer.map(u64::from), 31),
            ("ACK timeout", self.ack_timeout.map(u64::from), 31),
            ("retry count", self.retry_count.map(u64::from), 7),
            ("RNR retry count", self.rnr_retry.map(u64::from), 7),
        ];
        for (what, value, max) in bounds {
            if value.is_some_and(|value| value > max) {
                return Err(CoreError::bad(what, value.unwrap_or_default()));
            }
        }
        for path in self.path.iter().chain(&self.alternate_path) {
            path.check(env)?;
        }
        if self.qkey.is_some() && qp_type != QpType::Ud {
            return Err(CoreError::bad("Q_Key on a QP that is not UD", 0));
        }
        Ok(())
    }
}

impl AddressPath {
    fn check(&self, env: &Env) -> Result<(), CoreError> {
        let gids = &env.config.gids;
        let known = gids.get(usize::from(self.source_gid_index)).is_some_and(|gid| !gid.is_zero());
        if self.global && !known {
            return Err(CoreError::bad("source GID index", self.source_gid_index.into()));
        }
        if self.flow_label > 0xf_ffff {
            return Err(CoreError::bad("flow label", self.flow_label.into()));
        }
        if self.service_level > 15 {
            return Err(CoreError::bad("service level", self.service_level.into()));
        }
        if self.ack_timeout > 31 {
            return Err(CoreError::bad("ACK timeout", self.ack_timeout.into()));
        }
        if usize::from(self.pkey_index) >= env.config.pkeys.len() {
            return Err(CoreError::bad("P_Key index", self.pkey_index.into()));
        }
        Ok(())
    }
}

impl Qp {
    fn modify(
        &mut self,
        env: &mut Env,
        to: QpState,
        change: &QpAttributes,
    ) -> Result<(), CoreError> {
        let from = self.state;
        if !is_legal(from, to) {
            return Err(CoreError::BadTransition { from, to });
        }
        change.check(env, self.params.qp_type)?;
        self.settings.apply(change);
        if change.rate_limit.is_some() {
            self.requester.paced_until = 0;
            self.schedule(env);
        }
        if matches!(from, QpState::Reset | QpState::Init | QpState::ReadyToReceive) {
            self.set_psns(change);
        }
        self.migrate(env, change.migration);
        if matches!(to, QpState::Reset | QpState::Error) {
            self.send_due_answers(env);
        }
        match to {
            QpState::Reset => self.reset(env),
            QpState::Error => self.enter_error(env),
            QpState::ReadyToSend => self.start_sending(env, from),
            QpState::SendQueueDrain if from == QpState::ReadyToSend => {
                self.state = to;
                self.requester.begin_drain();
                self.schedule(env);
            }
            _ => self.state = to,
        }
        Ok(())
    }

    fn set_psns(&mut self, change: &QpAttributes) {
        if let Some(psn) = change.receive_psn {
            self.responder.expect(Psn::new(psn));
        }
        if let Some(psn) = change.send_psn {
            self.requester.start_at(Psn::new(psn));
        }
    }

    fn start_sending(&mut self, env: &mut Env, from: QpState) {
        self.state = QpState::ReadyToSend;
        self.requester.set_retries(self.settings.retry_count, self.settings.rnr_retry);
        if from != QpState::ReadyToSend {
            self.ring(env);
        }
    }

    /// Sets the migration state. If the host requests "migrated" while the state is "armed", the QP
    /// moves to the alternate path now.
    fn migrate(&mut self, env: &mut Env, wanted: Option<MigrationState>) {
        let Some(wanted) = wanted else { return };
        let armed = self.settings.migration != MigrationState::Migrated;
        if wanted == MigrationState::Migrated && armed {
            self.take_alternate_path(env);
        }
        self.settings.migration = wanted;
    }

    /// Makes the alternate path the only one.
    pub(super) fn take_alternate_path(&mut self, env: &mut Env) {
        let timeout = self.settings.path.ack_timeout;
        self.settings.path = AddressPath { ack_timeout: timeout, ..self.settings.alternate_path };
        self.settings.migration = MigrationState::Migrated;
        env.raise(AsyncKind::PathMigrated, EventObject::Qp(self.number));
    }

    fn reset(&mut self, env: &mut Env) {
        self.disconnect(env);
        self.abandon_entries(env);
        self.target.iter_mut().for_each(|target| **target = Target::new());
        self.state = QpState::Reset;
        self.settings = Settings::default();
        self.requester = Default::default();
        self.responder = Default::default();
        self.deadline.clear();
        self.established = false;
    }

    fn info(&self) -> QpInfo {
        QpInfo {
            params: self.params.clone(),
            state: self.state,
            draining: self.state == QpState::SendQueueDrain && !self.requester.is_drained(),
            attributes: self.settings.all(self.requester.next_psn(), self.responder.expected()),
            send_counter: self.requester.counter(),
            receive_counter: self.responder.receive_counter(),
        }
    }
}

impl Settings {
    fn apply(&mut self, change: &QpAttributes) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.qkey, change.qkey);
        set(&mut self.remote_rights, change.remote_rights);
        if let Some(path) = change.path {
            let AddressPath { pkey_index, ack_timeout, .. } = self.path;
            self.path = AddressPath { pkey_index, ack_timeout, ..path };
        }
        set(&mut self.path.pkey_index, change.pkey_index);
        set(&mut self.path.ack_timeout, change.ack_timeout);
        set(&mut self.alternate_path, change.alternate_path);
        set(&mut self.mtu, change.mtu);
        set(&mut self.destination_qpn, change.destination_qpn);
        set(&mut self.max_read_atomic, change.max_read_atomic);
        set(&mut self.max_destination_read_atomic, change.max_destination_read_atomic);
        set(&mut self.min_rnr_timer, change.min_rnr_timer);
        set(&mut self.retry_count, change.retry_count);
        set(&mut self.rnr_retry, change.rnr_retry);
        set(&mut self.drained_event, change.drained_event);
        set(&mut self.rate_limit, change.rate_limit);
    }

    fn all(&self, send_psn: Psn, receive_psn: Psn) -> QpAttributes {
        QpAttributes {
            qkey: Some(self.qkey),
            remote_rights: Some(self.remote_rights),
            pkey_index: Some(self.path.pkey_index),
            path: Some(self.path),
            alternate_path: Some(self.alternate_path),
            mtu: Some(self.mtu),
            destination_qpn: Some(self.destination_qpn),
            receive_psn: Some(receive_psn.get()),
            send_psn: Some(send_psn.get()),
            max_read_atomic: Some(self.max_read_atomic),
            max_destination_read_atomic: Some(self.max_destination_read_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            ack_timeout: Some(self.path.ack_timeout),
            retry_count: Some(self.retry_count),
            rnr_retry: Some(self.rnr_retry),
            migration: Some(self.migration),
            drained_event: Some(self.drained_event),
            rate_limit: Some(self.rate_limit),
        }
    }
}
