use super::*;

#[test]
fn pages_are_whole_and_aligned() {
    let buffer = Buffer::new(5000).unwrap();
    assert_eq!(buffer.len(), 8192);
    assert_eq!(buffer.address() % 4096, 0);
    assert_eq!(Buffer::new(0).unwrap().len(), 4096);
}

/// Whether the line of `/proc/self/smaps` begins a mapping that contains `address`.
fn holds(line: &str, address: u64) -> bool {
    let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
    let parsed = bounds.map(|(start, end)| [start, end].map(|at| u64::from_str_radix(at, 16)));
    matches!(parsed, Some([Ok(start), Ok(end)]) if (start..end).contains(&address))
}

#[test]
fn pages_are_left_out_of_children_where_the_kernel_would_share_them() {
    let buffer = Buffer::new(4096).unwrap();
    buffer.leave_out_of_children().unwrap();
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = all.lines().skip_while(|line| !holds(line, buffer.address()));
    let properties = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    // "Do not copy on fork" of `show_smap_vma_flags` (fs/proc/task_mmu.c).
    assert!(properties.unwrap().split(' ').any(|flag| flag == "dc"), "{properties:?}");
}

#[test]
fn impossible_lengths_fail() {
    assert!(Buffer::new(usize::MAX).is_err());
}

#[repr(align(8))]
struct Aligned([u8; 64]);

#[test]
fn every_alignment_reads_and_writes_the_same_bytes() {
    let mut memory = Aligned([0; 64]);
    // SAFETY: the array outlives the view and is not touched otherwise meanwhile.
    let view = unsafe { MemoryView::new(memory.0.as_mut_ptr(), 64) };
    let data: Vec<u8> = (1..=64).collect();
    for offset in 0..16 {
        for length in 0..=64 - offset {
            view.fill(0, 64, 0).unwrap();
            view.write(offset, &data[..length]).unwrap();
            let mut read = vec![0xff; length];
            view.read(offset, &mut read).unwrap();
            assert_eq!(read, data[..length], "{offset}+{length}");
            let all = view.to_vec();
            assert!(all[..offset].iter().chain(&all[offset + length..]).all(|byte| *byte == 0));
        }
    }
}

/// Accesses of different sizes to the same bytes must not race, so the size depends on the byte,
/// not on the part.
#[test]
fn every_part_reaches_a_byte_in_the_same_way() {
    let mut memory = Aligned([0; 64]);
    // SAFETY: as above.
    let view = unsafe { MemoryView::new(memory.0.as_mut_ptr().add(3), 58) };
    for at in 0..58 {
        let whole = view.word_of(at).map(|(word, first)| (word.as_ptr(), first));
        assert_eq!(whole.is_some(), (5..53).contains(&at), "{at}");
        for (offset, length) in [(at, 1), (at / 2, 58 - at / 2), (at, 58 - at)] {
            let part = view.part(offset, length).unwrap().part(0, length).unwrap();
            let reached = part.word_of(at - offset).map(|(word, first)| (word.as_ptr(), first));
            assert_eq!(reached, whole, "byte {at} by {offset}+{length}");
        }
    }
}

#[test]
fn threads_write_neighbouring_bytes_without_losing_any() {
    let mut memory = Aligned([0; 64]);
    // SAFETY: as above; the threads end before the array does.
    let view = unsafe { MemoryView::new(memory.0.as_mut_ptr(), 64) };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let own = view.part(13 * thread, 13).unwrap();
            scope.spawn(move || {
                for round in 0..2000_u32 {
                    let value = [(round % 251) as u8 + 1; 13];
                    own.write(0, &value).unwrap();
                    let mut read = [0; 13];
                    own.read(0, &mut read).unwrap();
                    assert_eq!(read, value);
                }
            });
        }
    });
    assert!(view.to_vec()[52..].iter().all(|byte| *byte == 0));
}

#[test]
fn nothing_outside_is_reachable() {
    let mut memory = Aligned([0; 64]);
    // SAFETY: as above.
    let view = unsafe { MemoryView::new(memory.0.as_mut_ptr(), 64) };
    assert!(view.read(60, &mut [0; 5]).is_err());
    assert!(view.write(usize::MAX, &[0; 2]).is_err());
    assert!(view.atomic_u64(57).is_err());
    assert!(view.atomic_u64(4).is_err());
    assert!(view.part(8, 57).is_err());
    view.part(8, 56).unwrap().atomic_u64(0).unwrap().store(7, Ordering::Relaxed);
    assert_eq!(view.atomic_u64(8).unwrap().load(Ordering::Relaxed), 7);
}
