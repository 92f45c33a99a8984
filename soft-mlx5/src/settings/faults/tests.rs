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
        assert!(parse(text).is_none(), "{text}");
    }
}
