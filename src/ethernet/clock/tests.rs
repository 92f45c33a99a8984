use super::*;

#[test]
fn real_time_is_seconds_and_nanoseconds() {
    let time = Timestamp::<RealTime>::from_raw(100 << 32 | 5);
    assert_eq!((time.seconds(), time.nanoseconds()), (100, 100_000_000_005));
    assert_eq!(time.time(), UNIX_EPOCH + Duration::new(100, 5));
}
