use super::*;

impl Kept {
    fn number(&self, size: usize) -> Arc<usize> {
        self.block(size, |_| true, || size).expect("no fork")
    }

    fn count(&self, of: fn(&Blocks) -> usize) -> usize {
        self.blocks.lock().expect("no fork").values().map(of).sum()
    }
}

#[test]
fn a_block_without_a_user_is_used_again_by_one_of_its_size() {
    let kept = Kept::default();
    let first = kept.number(4);
    let place = Arc::as_ptr(&first);
    assert_ne!(Arc::as_ptr(&kept.number(4)), place, "it has a user");
    drop(first);
    assert_eq!(*kept.number(5), 5);
    let all = [(); 3].map(|()| kept.number(4));
    assert!(all.iter().any(|block| Arc::as_ptr(block) == place));
}

#[test]
fn many_users_cost_a_constant_number_of_checks_each() {
    let kept = Kept::default();
    let users: Vec<_> = (0..1000).map(|_| kept.number(4)).collect();
    assert!(kept.count(|own| own.checks) <= 2 * users.len());
}

/// Never ready.
#[derive(Debug, Default)]
struct Waits(Arc<std::sync::atomic::AtomicUsize>);

impl Deferred for Waits {
    fn is_ready(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn release(self: Box<Self>) {}
}

#[test]
fn many_releases_that_wait_cost_a_constant_number_of_checks_each() {
    let (kept, checks) = (Kept::default(), Waits::default());
    (0..1000).for_each(|_| kept.defer(Waits(checks.0.clone())));
    assert!(checks.0.load(Ordering::Relaxed) <= 2 * 1000);
    checks.0.store(0, Ordering::Relaxed);
    kept.release_ready();
    assert_eq!(checks.0.load(Ordering::Relaxed), 1000, "`release_ready` checks all");
}

#[test]
fn blocks_do_not_pile_up_beside_many_users() {
    let kept = Kept::default();
    let _users: Vec<_> = (0..100).map(|_| kept.number(4)).collect();
    (0..10_000).for_each(|_| drop(kept.number(4)));
    assert!(kept.count(|own| own.all.len()) <= 202);
    assert!(kept.count(|own| own.checks) <= 30_000);
}
