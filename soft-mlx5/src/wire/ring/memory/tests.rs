use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::*;

#[test]
fn both_mappings_are_the_same_memory() {
    let (ours, file) = Mapped::create().unwrap();
    let theirs = Mapped::adopt(&file).unwrap();
    drop(file);
    ours.set_control(Control::ProducerSleeps, 3, Ordering::Relaxed);
    ours.set_word(DATA - 1, 5);
    ours.set_word(DATA, 6);
    assert_eq!(theirs.take_control(Control::ProducerSleeps), 3);
    assert_eq!((theirs.word(2 * DATA - 1), theirs.word(0)), (5, 6));
    assert_eq!(ours.control(Control::ProducerSleeps, Ordering::Relaxed), 0);
}

#[test]
fn bytes_wrap_at_the_end() {
    let (ours, file) = Mapped::create().unwrap();
    let theirs = Mapped::adopt(&file).unwrap();
    let bytes: Vec<u8> = (0..4200).map(|at| (at * 7) as u8).collect();
    for at in [0, 1, DATA - 1, DATA - 300, 5 * DATA - 525, 2 * DATA - 526] {
        ours.store(at, &bytes);
        let mut seen = vec![9];
        theirs.load(at, bytes.len(), &mut seen);
        assert_eq!((seen[0], &seen[1..]), (9, &bytes[..]));
        assert_eq!(theirs.word(at + 1).to_ne_bytes(), bytes[8..16]);
    }
    assert_eq!(ours.control(Control::Head, Ordering::Relaxed), 0);
}

#[test]
fn files_that_could_shrink_or_are_too_short_are_refused() {
    let file = |len: usize, seals: SealFlag| {
        let file = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, len as i64).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    };
    assert!(Mapped::adopt(&file(LEN, SealFlag::F_SEAL_SHRINK)).is_ok());
    assert!(Mapped::adopt(&file(LEN, SealFlag::F_SEAL_GROW)).is_err());
    assert!(Mapped::adopt(&file(LEN - 4096, SealFlag::F_SEAL_SHRINK)).is_err());
    // A sealed file cannot be written, so it cannot be mapped for writing.
    let unwritable = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE;
    assert!(Mapped::adopt(&file(LEN, unwritable)).is_err());
    let plain = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Mapped::adopt(&plain.into()).is_err());
}
