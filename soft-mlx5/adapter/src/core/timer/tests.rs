use super::*;

fn pop_due(timers: &mut Timers, now: u64) -> Option<(u64, Owner)> {
    let first = timers.first_due(now)?;
    timers.pop();
    Some(first)
}

#[test]
fn a_postponed_deadline_fires_once_at_the_later_time() {
    let (owner, mut timers, mut deadline) =
        (Owner::Qp(Qpn(1)), Timers::default(), Deadline::default());
    deadline.set(10, owner, &mut timers);
    deadline.set(20, owner, &mut timers);
    assert_eq!(timers.next(), Some(10));
    let (entry, _) = pop_due(&mut timers, 10).unwrap();
    assert!(!deadline.expired(entry, 10, owner, &mut timers));
    assert_eq!(pop_due(&mut timers, 19), None);
    let (entry, _) = pop_due(&mut timers, 20).unwrap();
    assert!(deadline.expired(entry, 20, owner, &mut timers));
    assert_eq!(timers.next(), None);
}

#[test]
fn a_deadline_moved_to_an_earlier_time_fires_early() {
    let (owner, mut timers, mut deadline) =
        (Owner::ErrorWatch, Timers::default(), Deadline::default());
    deadline.set(20, owner, &mut timers);
    deadline.set(5, owner, &mut timers);
    let (entry, _) = pop_due(&mut timers, 5).unwrap();
    assert!(deadline.expired(entry, 5, owner, &mut timers));
    let (entry, _) = pop_due(&mut timers, 20).unwrap();
    assert!(!deadline.expired(entry, 20, owner, &mut timers));
}
