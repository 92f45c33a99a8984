use super::*;

#[test]
fn a_seed_alone_gives_low_rates_of_all_faults() {
    let Faults { plan, commands, later } = parse("7").expect("understood");
    assert_eq!((plan.seed, commands.len(), later.len()), (7, 0, 0));
    assert!(plan.drop > 0 && plan.duplicate > 0 && plan.corrupt > 0 && plan.reorder > 0);
    assert_eq!(plan.mangle, 0, "no transport repairs damage that its checksum does not detect");
}

#[test]
fn only_the_named_faults_occur() {
    let Faults { plan, commands, later } =
        parse("7,drop=0.5,ioctl=3:EINTR,port=20").expect("understood");
    let soon = Duration::from_millis(20);
    assert_eq!(later, [(soon, Later::PortDown), (soon, Later::PortUp)]);
    assert_eq!((plan.drop, plan.duplicate), (5_000, 0));
    assert_eq!(commands, [Fault { moment: Moment::Call(2), errno: Errno::EINTR }]);
}

#[test]
fn invalid_settings_are_refused() {
    for text in
        ["", "x", "1,drop", "1,drop=101", "1,drop=-1", "1,ioctl=0:EINTR", "1,ioctl=1:E", "1,jam=3"]
    {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_percentage_out_of_range_is_named() {
    let cause = |text| parse(text).expect_err("refused");
    assert_eq!(cause("7,drop=200"), "drop=200 is more than 100 %");
    assert_eq!(cause("7,drop=1,delay=-1"), "delay=-1 is less than 0 %");
    for text in ["7,drop=x", "7,drop=NaN", "x"] {
        assert!(cause(text).starts_with("it is a number as the seed"), "{text}");
    }
}
