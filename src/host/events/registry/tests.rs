#[path = "../../../../tests/common/child.rs"]
#[allow(clippy::duplicate_mod, reason = "each test module has its own")]
mod child;

use std::sync::mpsc;

use super::*;
use child::{Outcome, in_child_without_system_calls};

fn registry_with_one_event() -> (Arc<Registry>, ObjectId) {
    let registry = Arc::new(Registry::default());
    let id = ObjectId::new();
    registry.register(id, Observer::Nothing);
    registry.set_name(id, "CQ 0x7".into());
    registry.take("get_cq_event", |_| Ok(id), |id| Some(*id), |_, _| ()).unwrap();
    (registry, id)
}

fn destroy(registry: &Arc<Registry>, id: ObjectId, wait: Wait) -> Result<()> {
    destroy_when_idle(std::slice::from_ref(registry), id, "destroy_cq", wait, || Ok(()))
}

#[test]
fn the_same_thread_is_told_instead_of_waiting_for_itself() {
    let (registry, id) = registry_with_one_event();
    let error = destroy(&registry, id, Wait::Forever).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(error.to_string().contains("1 unacknowledged event(s) of CQ 0x7"), "{error}");
    registry.acknowledge(id, Some(thread::current().id()), 1);
    destroy(&registry, id, Wait::Never).unwrap();
}

#[test]
fn a_try_names_what_is_outstanding_and_a_bound_ends() {
    let (registry, id) = registry_with_one_event();
    registry.detach(id, Some(thread::current().id()), 1);
    let error = destroy(&registry, id, Wait::Never).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("1 event(s) of CQ 0x7"), "{error}");
    let bound = Wait::AtMost(Duration::from_millis(1));
    let error = destroy(&registry, id, bound).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn destroy_waits_for_another_threads_acknowledgement() {
    let (registry, id) = registry_with_one_event();
    registry.detach(id, Some(thread::current().id()), 1);
    let (done, finished) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            destroy(&registry, id, Wait::Forever).unwrap();
            done.send(()).unwrap();
        });
        assert!(finished.try_recv().is_err());
        registry.acknowledge(id, None, 1);
        finished.recv().unwrap();
    });
}

/// Only the thread that got an event can acknowledge it, so nothing can once that thread has ended.
#[test]
fn destroy_waits_for_no_thread_that_has_ended() {
    let (registry, id) = thread::spawn(registry_with_one_event).join().unwrap();
    destroy(&registry, id, Wait::Never).unwrap();

    let (end, ended) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let holder = thread::spawn(move || {
        tell.send(registry_with_one_event()).unwrap();
        ended.recv().unwrap();
    });
    let (registry, id) = told.recv().unwrap();
    assert_eq!(destroy(&registry, id, Wait::Never).unwrap_err().kind(), ErrorKind::Busy);
    let destroying = thread::spawn(move || destroy(&registry, id, Wait::Forever));
    end.send(()).unwrap();
    holder.join().unwrap();
    destroying.join().unwrap().unwrap();
}

#[test]
fn a_failed_destroy_forgets_nothing() {
    let (registry, id) = registry_with_one_event();
    registry.acknowledge(id, Some(thread::current().id()), 1);
    let registries = [registry.clone()];
    let refused = || Err::<(), _>(Error::invalid("destroy_cq", "refused"));
    destroy_when_idle(&registries, id, "destroy_cq", Wait::Never, refused).unwrap_err();
    registry.take("get_cq_event", |_| Ok(id), |id| Some(*id), |_, _| ()).unwrap();
    assert!(destroy(&registry, id, Wait::Never).is_err());
}

#[test]
fn events_of_forgotten_objects_count_for_no_object() {
    let (registry, id) = registry_with_one_event();
    registry.unregister(id);
    registry.take("get_cq_event", |_| Ok(id), |id| Some(*id), |_, _| ()).unwrap();
    registry.acknowledge(id, None, 1);
    destroy(&registry, id, Wait::Never).unwrap();
}

#[test]
fn an_acknowledgement_that_no_thread_waits_for_makes_no_system_call() {
    let outcome = in_child_without_system_calls(registry_with_one_event, |(registry, id)| {
        registry.acknowledge(*id, Some(thread::current().id()), 1);
    });
    assert_eq!(outcome, Outcome::Well);
}
