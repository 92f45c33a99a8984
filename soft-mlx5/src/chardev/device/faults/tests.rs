use super::*;

#[test]
fn a_fault_fails_one_call_with_its_number() {
    let faults = Faults::default();
    let (cq, pd, create) = (ObjectId(3), ObjectId(1), MethodId(0));
    faults.order(Fault { moment: Moment::Call(1), errno: Errno::EINTR });
    faults.order(Fault { moment: Moment::Method(cq, create, 1), errno: Errno::ENOMEM });
    assert_eq!(faults.strike(cq, create), Ok(()));
    assert_eq!(faults.strike(pd, create), Err(Errno::EINTR));
    assert_eq!(faults.strike(cq, create), Err(Errno::ENOMEM));
    assert_eq!(faults.strike(cq, create), Ok(()));
    assert_eq!(faults.calls(), 4);
}

#[test]
fn calls_completed_calls_and_mappings_are_counted_separately() {
    let faults = Faults::default();
    let (cq, create) = (ObjectId(3), MethodId(0));
    faults.order(Fault { moment: Moment::Completed(1), errno: Errno::EFAULT });
    faults.order(Fault { moment: Moment::Mapping(0), errno: Errno::ENOMEM });
    assert_eq!(faults.strike(cq, create), Ok(()));
    assert_eq!(faults.strike_completed(), Ok(()));
    assert_eq!(faults.strike_completed(), Err(Errno::EFAULT));
    assert_eq!(faults.strike_mapping(), Err(Errno::ENOMEM));
    faults.order(Fault { moment: Moment::Mapping(0), errno: Errno::ENOMEM });
    assert_eq!(faults.clear(), 1);
    assert_eq!(faults.strike_mapping(), Ok(()));
}
