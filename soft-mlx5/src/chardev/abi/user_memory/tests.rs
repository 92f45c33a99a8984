use super::*;

fn user() -> UserMemory {
    // SAFETY: the tests pass addresses of their own variables, or ones that are not mapped.
    unsafe { UserMemory::new() }
}

#[test]
fn copies_both_ways() {
    let mut target = [0u8; 4];
    user().write(target.as_mut_ptr() as u64, &[1, 2, 3, 4]).unwrap();
    let mut back = [0u8; 4];
    user().read(target.as_ptr() as u64, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4]);
}

#[test]
fn bad_addresses_are_efault() {
    assert_eq!(user().read(8, &mut [0; 8]), Err(Errno::EFAULT));
    assert_eq!(user().write(8, &[0; 8]), Err(Errno::EFAULT));
    assert_eq!(user().is_clear(8, 1), Err(Errno::EFAULT));
    assert_eq!(user().pin(PAGE_SIZE, 8, false), Err(Errno::EFAULT));
}

#[test]
fn pinning_checks_range_and_access() {
    let page = vec![0u8; 2 * PAGE_SIZE as usize];
    assert_eq!(user().pin(page.as_ptr() as u64, page.len() as u64, true), Ok(()));
    assert_eq!(user().pin(page.as_ptr() as u64, 0, true), Err(Errno::EINVAL));
    assert_eq!(user().pin(u64::MAX - 8, 64, true), Err(Errno::EINVAL));
    static CONSTANT: [u8; 8] = [1; 8];
    assert_eq!(user().pin(CONSTANT.as_ptr() as u64, 8, false), Ok(()));
    assert_eq!(user().pin(CONSTANT.as_ptr() as u64, 8, true), Err(Errno::EFAULT));
}
