use super::*;

#[test]
fn freed_numbers_are_reused_as_late_as_possible() {
    let mut table = Table::new(16, 1 << 10);
    let first = table.insert_with(|n| n).unwrap();
    assert_eq!(first, 16);
    assert_eq!(table.remove(first), Some(16));
    assert_eq!(table.remove(first), None);
    let next: Vec<u32> = (0..64).map(|_| table.insert_with(|n| n).unwrap()).collect();
    assert!(!next.contains(&first));
    assert_eq!(table.len(), 64);
}

#[test]
fn random_numbers_depend_on_the_seed_and_stay_in_their_range() {
    let table = |seed| RandomTable::new(16..0xff_ffff, 1 << 10, RandomSource::new(seed));
    let numbers = |seed| {
        let mut table = table(seed);
        (0..100).map(|_| table.insert_with(|n| n).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(Some(7)), numbers(Some(7)));
    assert_ne!(numbers(Some(7)), numbers(Some(8)));
    assert_ne!(numbers(None), numbers(None));
    for seed in [Some(7), None] {
        let numbers = numbers(seed);
        assert!(numbers.iter().all(|number| (16..0xff_ffff).contains(number)));
        assert!(numbers.windows(2).any(|pair| pair[1].abs_diff(pair[0]) > 1 << 16));
    }
    let mut table = table(None);
    let number = table.insert_with(|n| n).unwrap();
    assert_eq!(table.get(number), Some(&number));
    assert_eq!((table.remove(number), table.remove(number)), (Some(number), None));
    assert_eq!((table.len(), table.get(number)), (0, None));
}

#[test]
fn a_random_table_is_full_at_its_limit_or_at_half_of_its_range() {
    for (limit, most) in [(3, 3), (100, 8)] {
        let mut table = RandomTable::new(0..16, limit, RandomSource::new(Some(1)));
        assert_eq!((0..20).filter(|_| table.insert_with(|n| n).is_some()).count(), most);
        assert_eq!(table.len(), most);
    }
}

#[test]
fn no_object_gets_a_reserved_number_until_it_is_released() {
    let mut table = RandomTable::new(3..64, 64, RandomSource::new(Some(1)));
    let ranges = [8; 3].map(|length| (table.reserve(length), length));
    let is_reserved = |number: u32| {
        ranges.iter().any(|(first, length)| (*first..first + length).contains(&number))
    };
    assert!(ranges.iter().all(|(first, _)| *first >= 8 && first % 8 == 0));
    assert_eq!((0..64).filter(|number| is_reserved(*number)).count(), 24, "none twice");
    let numbers: Vec<_> = (0..20).filter_map(|_| table.insert_with(|n| n)).collect();
    assert_eq!(numbers.len(), 20);
    assert!(!numbers.iter().any(|number| is_reserved(*number)));
    ranges.iter().for_each(|(first, _)| table.release(*first));
    assert!((0..64).all(|number| !table.is_reserved(number)));
}

#[test]
fn a_full_table_reuses_at_once_and_refuses_more() {
    let mut table = Table::new(0, 2);
    assert_eq!(table.insert_with(|n| n), Some(0));
    assert_eq!(table.insert_with(|n| n), Some(1));
    assert_eq!(table.insert_with(|n| n), None);
    table.remove(0);
    assert_eq!(table.insert_with(|n| n), Some(0));
    assert_eq!(table.get(7), None);
}
