use super::*;

#[test]
fn the_counter_is_updated_while_a_context_has_it_mapped() {
    let clock = ClockPages::new(101, 0).unwrap();
    assert_eq!((clock.shown(), clock.next_update(101)), (101, None));
    clock.watch();
    assert_eq!(clock.next_update(101), Some(101 + PERIOD));
    clock.unwatch();
    assert_eq!(clock.next_update(101), None);
}

#[test]
fn the_counter_is_big_endian_and_the_sign_even() {
    let clock = ClockPages::new(0x0102_0304_0506_0708, 0).unwrap();
    assert_eq!(u32::from_be(clock.pages().half(0).load(Ordering::Relaxed)), 0x0102_0304);
    assert_eq!(u32::from_be(clock.pages().half(4).load(Ordering::Relaxed)), 0x0506_0708);
    assert_eq!(clock.pages().half(SIGN).load(Ordering::Relaxed) % 2, 0);
    let cycles = clock.pages().word(CYCLES).load(Ordering::Relaxed);
    assert_eq!(cycles, 0x0102_0304_0506_0708 & TIMER_MASK);
}

#[test]
fn a_counter_may_start_at_any_value() {
    let clock = ClockPages::new(1000, TIMER_MASK).unwrap();
    assert_eq!(clock.shown(), 1000);
    assert_eq!(clock.pages().word(CYCLES).load(Ordering::Relaxed), 999);
    let low = u32::from_be(clock.pages().half(4).load(Ordering::Relaxed));
    assert_eq!(u64::from(low), (TIMER_MASK + 1000) & 0xffff_ffff);
}
