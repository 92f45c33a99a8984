use super::*;

#[test]
fn ack_timeouts_round_up() {
    assert_eq!(AckTimeout::at_least(Duration::from_millis(67)).code(), 14);
    assert_eq!(AckTimeout::at_least(Duration::from_millis(68)).code(), 15);
    assert_eq!(AckTimeout::at_least(Duration::ZERO).code(), 1);
    assert_eq!(AckTimeout::at_least(Duration::from_secs(1_000_000)).code(), 31);
    assert_eq!(AckTimeout::INFINITE.duration(), None);
}

#[test]
fn rnr_timers_round_up() {
    assert_eq!(RnrTimer::at_least(Duration::from_micros(640)).code(), 12);
    assert_eq!(RnrTimer::at_least(Duration::from_micros(641)).code(), 13);
    assert_eq!(RnrTimer::at_least(Duration::from_secs(1)).code(), 0);
    assert_eq!(RnrTimer::from_code(0).duration(), Duration::from_micros(655_360));
}
