use std::collections::VecDeque;

use super::*;
use crate::prng::Prng;

/// A model of a list according to the documentation, in which each entry has a flag whether it is
/// searched.
struct Model {
    listed: Vec<(u16, TagEntry, bool)>,
    matched: Vec<u16>,
    /// Entries that software may use, in the order in which it uses them.
    free: VecDeque<u16>,
    arrived: u16,
    handled: u16,
}

impl Model {
    fn update_searched(&mut self) {
        if self.arrived == self.handled {
            self.listed.iter_mut().for_each(|(.., searched)| *searched = true);
        }
    }

    fn matching(&self, tag: u64) -> Option<usize> {
        let fits = |entry: &TagEntry| {
            (0..64).all(|bit| {
                let at = |value: u64| value >> bit & 1;
                if at(entry.mask) == 1 { at(tag) == at(entry.tag) } else { at(entry.tag) == 0 }
            })
        };
        self.listed.iter().position(|(_, entry, searched)| *searched && fits(entry))
    }
}

fn random_entry(prng: &mut Prng) -> TagEntry {
    let mask = [u64::MAX, 3, 1, 0][prng.below(4) as usize];
    let len = prng.below(1000) as u32;
    let buffer = prng.chance(800_000).then_some(TagBuffer { address: 1, len, lkey: 2 });
    TagEntry { tag: prng.below(4) & mask, mask, buffer }
}

fn step(list: &mut TagList, model: &mut Model, prng: &mut Prng) {
    match prng.below(6) {
        0 | 1 if model.free.len() > 1 => {
            let entry = random_entry(prng);
            let place = model.free.pop_front().unwrap();
            assert_eq!(list.append(entry, model.free[0]), Some(()));
            model.listed.push((place, entry, false));
            model.update_searched();
        }
        2 => {
            let place = prng.below(list.places.len() as u64 + 2) as u16;
            let known = model.listed.iter().position(|(at, ..)| *at == place);
            assert_eq!(list.remove(place), known.is_some(), "{place}");
            known.into_iter().for_each(|at| _ = model.listed.remove(at));
            model.free.extend(known.map(|_| place));
        }
        3 => {
            model.handled = model.arrived.wrapping_sub(prng.below(2) as u16);
            list.report(model.handled);
            model.update_searched();
        }
        4 if !model.matched.is_empty() => {
            let place = model.matched.remove(prng.below(model.matched.len() as u64) as usize);
            list.complete(place);
            model.free.push_back(place);
        }
        _ => arrive(list, model, prng.below(4)),
    }
}

fn arrive(list: &mut TagList, model: &mut Model, tag: u64) {
    let (found, known) = (list.find(tag), model.matching(tag));
    let expected = known.map(|at| (model.listed[at].0, model.listed[at].1));
    assert_eq!(found.map(|found| (found.place, found.entry)), expected);
    match (found, known) {
        (Some(found), Some(known)) => {
            list.take(found);
            model.matched.push(model.listed.remove(known).0);
        }
        _ => {
            list.count_unexpected();
            model.arrived = model.arrived.wrapping_add(1);
        }
    }
    assert_eq!(list.arrived(), model.arrived);
}

#[test]
fn random_lists_match_as_the_model_does() {
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let log_entries = prng.within(1, 4) as u8;
        let mut list = TagList::new(log_entries);
        // The count of unexpected messages wraps.
        (list.arrived, list.handled) = (0xfff8, 0xfff8);
        let mut model = Model {
            listed: Vec::new(),
            matched: Vec::new(),
            free: (0..1 << log_entries).collect(),
            arrived: 0xfff8,
            handled: 0xfff8,
        };
        for _ in 0..300 {
            step(&mut list, &mut model, &mut prng);
        }
    }
}

#[test]
fn a_place_in_use_or_outside_the_list_takes_no_entry() {
    let entry = TagEntry { tag: 1, mask: 1, buffer: None };
    let mut list = TagList::new(1);
    assert_eq!(list.append(entry, 2), None, "there is no place 2");
    assert_eq!(list.append(entry, 0), Some(()));
    assert_eq!(list.append(entry, 1), None, "place 0 is listed");
    list.take(list.find(1).unwrap());
    assert_eq!(list.append(entry, 1), None, "place 0 is matched");
    assert!(!list.remove(0), "a matched entry cannot be removed");
    list.complete(0);
    assert_eq!(list.append(entry, 1), Some(()));
}
