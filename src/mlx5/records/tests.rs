use super::*;

#[test]
fn records_share_pages_and_never_a_cache_line() {
    let records = Records::default();
    let held: Vec<_> = (0..100).map(|_| records.share_page().unwrap()).collect();
    let mut addresses: Vec<_> = held.iter().map(Record::address).collect();
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 64));
    assert!(addresses.iter().all(|address| address % 64 == 0));
    assert_eq!(records.0.lock().unwrap().len(), 28, "two pages of 64");
    drop(held);
    let again = records.share_page().unwrap();
    assert!(addresses.contains(&again.address()));
}
