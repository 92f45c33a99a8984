use super::*;

#[test]
fn registers_lie_in_their_page_and_are_aligned() {
    let answer = |tot_bfregs, bf_reg_size| {
        check_registers(&AllocUcontextResp { tot_bfregs, bf_reg_size, ..Default::default() })
    };
    assert!([0, 16, 512, 1024].iter().all(|&size| answer(0, size).is_ok()));
    assert!([1, 8, 24, 2048, 1 << 31, u32::MAX].iter().all(|&size| answer(0, size).is_err()));
    assert!(answer(16, 512).is_ok() && answer(16, 1024).is_err());
}
