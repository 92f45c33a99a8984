use super::*;

#[test]
fn a_fault_fails_one_call_with_its_number() {
    let faults = Faults::default();
    let (cq, pd, create) = (ObjectId(3), ObjectId(1), MethodId(0));
    faults.add(Fault { moment: Moment::Call(1), errno: Errno::EINTR });
    faults.add(Fault { moment: Moment::Method(cq, create, 1), errno: Errno::ENOMEM });
    assert_eq!(faults.count_call(cq, create), Ok(()));
    assert_eq!(faults.count_call(pd, create), Err(Errno::EINTR));
    assert_eq!(faults.count_call(cq, create), Err(Errno::ENOMEM));
    assert_eq!(faults.count_call(cq, create), Ok(()));
    assert_eq!(faults.calls(), 4);
}

#[test]
fn write_commands_are_counted_one_kind_at_a_time() {
    let faults = Faults::default();
    let (create, modify) = (WriteCmd::EX_CREATE_QP, WriteCmd::MODIFY_QP);
    faults.add(Fault { moment: Moment::Command(modify, 1), errno: Errno::EIO });
    assert_eq!(faults.count_command(modify), Ok(()));
    assert_eq!(faults.count_command(create), Ok(()));
    assert_eq!(faults.count_command(modify), Err(Errno::EIO));
    assert_eq!(faults.count_command(modify), Ok(()));
}

#[test]
fn calls_completed_calls_and_mappings_are_counted_separately() {
    let faults = Faults::default();
    let (cq, create) = (ObjectId(3), MethodId(0));
    faults.add(Fault { moment: Moment::Completed(1), errno: Errno::EFAULT });
    faults.add(Fault { moment: Moment::Mapping(0), errno: Errno::ENOMEM });
    assert_eq!(faults.count_call(cq, create), Ok(()));
    assert_eq!(faults.count_completed(), Ok(()));
    assert_eq!(faults.count_completed(), Err(Errno::EFAULT));
    assert_eq!(faults.count_mapping(), Err(Errno::ENOMEM));
    faults.add(Fault { moment: Moment::Mapping(0), errno: Errno::ENOMEM });
    assert_eq!(faults.clear(), 1);
    assert_eq!(faults.count_mapping(), Ok(()));
}
