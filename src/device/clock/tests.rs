use super::*;

/// A clock of 500 MHz, two nanoseconds per tick, with a counter of 40 bits.
fn half_gigahertz() -> Conversion {
    Conversion {
        nanoseconds: 1_000_000,
        ticks: 100,
        fraction: 3 << 19,
        multiplier: 2 << 20,
        shift: 20,
        mask: (1 << 40) - 1,
        update_period: Duration::from_secs(1),
    }
}

#[test]
fn timestamps_lie_on_both_sides_of_the_copy() {
    let conversion = half_gigahertz();
    // The fraction is one and a half nanoseconds.
    assert_eq!(conversion.nanoseconds(100), 1_000_001);
    assert_eq!(conversion.nanoseconds(110), 1_000_021);
    assert_eq!(conversion.nanoseconds(90), 1_000_000 - 18);
    assert_eq!(conversion.wall_time(110), UNIX_EPOCH + Duration::from_nanos(1_000_021));
}

#[test]
fn the_counter_may_have_wrapped() {
    let conversion = Conversion { ticks: (1 << 40) - 5, fraction: 0, ..half_gigahertz() };
    assert_eq!(conversion.nanoseconds(5), 1_000_020);
    assert_eq!(conversion.nanoseconds((1 << 40) - 10), 1_000_000 - 10);
}

#[test]
fn large_distances_do_not_overflow() {
    let conversion = Conversion { mask: u64::MAX >> 1, ticks: 0, ..half_gigahertz() };
    assert_eq!(conversion.nanoseconds(1 << 61), 1_000_000 + (2 << 61) + 1);
}

#[test]
fn a_copy_that_an_update_falls_into_is_none() {
    let sign = AtomicU32::new(6);
    assert_eq!(between_updates(&sign, || Some(1)), Some(1));
    let begun = between_updates(&sign, || Some(sign.fetch_add(1, Ordering::Relaxed)));
    assert_eq!(begun, None, "the kernel began to write");
    assert_eq!(between_updates(&sign, || Some(1)), None, "it is writing");
    let ended = between_updates(&sign, || Some(sign.fetch_add(1, Ordering::Relaxed)));
    assert_eq!(ended, None, "it ended");
    let whole = between_updates(&sign, || Some(sign.fetch_add(2, Ordering::Relaxed)));
    assert_eq!(whole, None, "it wrote all");
    assert_eq!(between_updates(&sign, || Some(1)), Some(1));
    assert_eq!(between_updates::<()>(&sign, || None), None, "the page is too short");
}

#[test]
fn copies_are_begun_again_until_one_is_whole() {
    let mut tries = 0;
    let copy = first_whole(|| {
        tries += 1;
        (tries == TRIES).then_some(half_gigahertz())
    });
    assert_eq!((copy.unwrap(), tries), (half_gigahertz(), TRIES));
    let never = first_whole::<()>(|| None).unwrap_err();
    assert_eq!((never.kind(), never.errno()), (ErrorKind::Busy, libc::EBUSY));
}
