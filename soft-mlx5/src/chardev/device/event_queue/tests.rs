use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};

use super::*;
use crate::signals::SignalsBlocked;

fn queue() -> (Arc<EventQueue>, File) {
    let (queue, fd) = EventQueue::new().unwrap();
    (queue, File::from(fd))
}

fn read(file: &mut File) -> u8 {
    let mut record = [0; 16];
    assert_eq!(file.read(&mut record).unwrap(), 8);
    record[0]
}

fn readable(file: &File) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_read_returns_one_record() {
    let (queue, mut file) = queue();
    queue.push(&[1; 8], None);
    queue.push(&[2; 8], None);
    assert_eq!((read(&mut file), read(&mut file)), (1, 2));
    assert!(!readable(&file));
}

#[test]
fn thousands_of_records_are_read_in_order() {
    let (queue, mut file) = queue();
    let source = Arc::new(Source::default());
    for number in 0..200u8 {
        queue.push(&[number; 8], Some(&source));
    }
    for number in 0..200u8 {
        queue.flush();
        assert_eq!(read(&mut file), number);
    }
    queue.forget(&source);
    assert_eq!(source.reported(), 200);
}

/// At whatever time the device counts the bytes that were read.
#[test]
fn the_next_record_is_written_once_a_long_one_is_read() {
    let (queue, mut file) = queue();
    queue.push(&[1; 8192], None);
    assert_eq!(file.read(&mut [0; 280]).unwrap(), 280);
    queue.lock().count_all_read();
    queue.push(&[2; 8], None);
    assert_eq!(file.read(&mut [0; 16384]).unwrap(), 8192 - 280);
    queue.flush();
    assert_eq!(read(&mut file), 2);
}

#[test]
fn records_of_a_destroyed_object_are_removed() {
    let (queue, mut file) = queue();
    let (dying, other) = (Arc::new(Source::default()), Arc::new(Source::default()));
    queue.push(&[1; 8], Some(&dying));
    queue.push(&[2; 8], Some(&other));
    queue.push(&[3; 8], Some(&dying));
    queue.push(&[4; 8], None);
    assert_eq!(read(&mut file), 1);
    queue.forget(&dying);
    assert_eq!(dying.reported(), 1);
    assert_eq!((read(&mut file), read(&mut file)), (2, 4));
    assert!(!readable(&file));
    queue.forget(&other);
    assert_eq!(other.reported(), 1);
}

#[test]
fn what_was_read_is_counted_where_no_second_reader_can_be_opened() {
    let (queue, mut file) = queue();
    let (dying, other) = (Arc::new(Source::default()), Arc::new(Source::default()));
    for number in 1..=4 {
        queue.push(&[number; 8], Some(if number % 2 == 1 { &dying } else { &other }));
    }
    assert_eq!((read(&mut file), read(&mut file)), (1, 2));
    queue.lock().disown(&dying);
    assert_eq!(dying.reported(), 1, "a destruction waits until as many are acknowledged");
    assert_eq!(read(&mut file), 3);
    queue.forget(&other);
    assert_eq!((dying.reported(), other.reported()), (1, 1));
    assert!(!readable(&file));
}

/// The rest of a long record is returned by later reads, even if other objects are destroyed
/// meanwhile.
#[test]
fn a_long_record_that_was_read_in_part_survives_another_object() {
    let (queue, mut file) = queue();
    let [kept, gone] = [(); 2].map(|()| Arc::new(Source::default()));
    let long: Vec<u8> = (0..2 * LONGEST_PACKET).map(|at| at as u8).collect();
    queue.push(&long, Some(&kept));
    queue.push(&[2; 8], Some(&gone));
    let mut record = vec![0; long.len()];
    file.read_exact(&mut record[..100]).unwrap();
    queue.forget(&gone);
    file.read_exact(&mut record[100..]).unwrap();
    assert!(record == long && !readable(&file));
    queue.push(&long, Some(&kept));
    queue.forget(&kept);
    assert!(!readable(&file) && kept.reported() == 1);
}

/// Takes the record that was passed to the reader directly.
fn take(queue: &EventQueue) -> Option<u8> {
    let mut record = [0; 16];
    queue.take_handed(&mut record).map(|length| {
        assert_eq!(length, 8);
        record[0]
    })
}

#[test]
fn a_thread_is_handed_the_first_record_that_it_raises() {
    let (queue, mut file) = queue();
    let source = Arc::new(Source::default());
    queue.push(&[1; 8], Some(&source));
    queue.expect();
    queue.push(&[2; 8], Some(&source));
    assert!(!queue.has_come(), "an older one is in the pipe");
    assert_eq!((read(&mut file), read(&mut file)), (1, 2));
    queue.expect();
    queue.push(&[3; 8], Some(&source));
    queue.push(&[4; 8], Some(&source));
    assert!(queue.has_come());
    assert!(!queue.push_once(&[5; 8], &source), "two are unread");
    assert_eq!(queue.unread_bytes(), 16);
    assert_eq!((take(&queue), take(&queue), read(&mut file)), (Some(3), None, 4));
    queue.push(&[6; 8], Some(&source));
    assert_eq!(read(&mut file), 6, "it expects none any more");
    queue.forget(&source);
    assert_eq!(source.reported(), 5);
}

#[test]
fn what_another_thread_raises_goes_through_the_pipe() {
    let (queue, mut file) = queue();
    queue.expect();
    std::thread::scope(|scope| {
        scope.spawn(|| queue.push(&[1; 8], None));
    });
    assert!(readable(&file), "a thread that sleeps on the file would not be woken");
    queue.push(&[2; 8], None);
    assert!(!queue.has_come(), "it is newer than the one in the pipe");
    assert_eq!((read(&mut file), read(&mut file)), (1, 2));
}

/// The writer's system call wakes the reader before the queue is unlocked.
#[test]
fn a_reader_to_whom_nothing_was_handed_does_not_wait_for_a_writer() {
    let (queue, _file) = queue();
    let writing = queue.lock();
    let reader = std::thread::spawn({
        let queue = Arc::clone(&queue);
        move || take(&queue)
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(reader.is_finished(), "it waits for the lock");
    drop(writing);
    assert_eq!(reader.join().unwrap(), None);
}

#[test]
fn a_handed_record_of_a_destroyed_object_is_removed() {
    let (queue, file) = queue();
    let [dying, other] = [(); 2].map(|()| Arc::new(Source::default()));
    queue.expect();
    queue.push(&[1; 8], Some(&dying));
    queue.forget(&other);
    assert!(queue.has_come());
    queue.forget(&dying);
    assert_eq!((take(&queue), dying.reported()), (None, 0));
    assert!(!readable(&file));
}

#[test]
fn a_closed_queue_ends_after_its_last_record() {
    let (queue, mut file) = queue();
    queue.push(&[9; 8], None);
    queue.close();
    assert_eq!(read(&mut file), 9);
    assert_eq!(file.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn nothing_is_handed_over_after_the_end_of_the_stream() {
    let (queue, mut file) = queue();
    queue.push(&[1; 8], None);
    queue.close();
    queue.expect();
    queue.push(&[2; 8], None);
    assert!(!queue.has_come());
    assert_eq!(read(&mut file), 1);
}

#[test]
fn a_queue_knows_that_its_reader_is_closed() {
    let (queue, file) = queue();
    assert!(identity(file.as_raw_fd()) == Ok(queue.identity()) && !queue.abandoned());
    drop(file);
    assert!(queue.abandoned());
    queue.push(&[1; 8], None);
}

#[test]
fn a_queue_without_a_reader_keeps_no_records() {
    let (queue, file) = queue();
    (0..100).for_each(|_| _ = queue.push(&[1; 72], None));
    drop(file);
    (0..100).for_each(|_| _ = queue.push(&[1; 72], None));
    assert!(!queue.flush(), "the device's thread would try again for ever");
    assert!(queue.lock().waiting.is_empty());
}

#[test]
fn a_thread_with_blocked_signals_gets_no_sigpipe_later() {
    let (queue, file) = queue();
    drop(file);
    let blocked = SignalsBlocked::new().unwrap();
    queue.push(&[1; 8], None);
    assert!(blocked.all().contains(Signal::SIGPIPE));
    assert!(!signals::is_pending(Signal::SIGPIPE), "it would end the program");
}

/// Drops a queue's reader and pushes, in a thread that blocks SIGPIPE and, with `sent`, has sent
/// itself one before. Returns whether one is pending afterwards.
fn pending_in_a_thread_that_blocks(sent: bool) -> bool {
    let push = move || {
        let (queue, file) = queue();
        drop(file);
        SigSet::from(Signal::SIGPIPE).thread_block().unwrap();
        if sent {
            raise(Signal::SIGPIPE).unwrap();
        }
        queue.push(&[1; 8], None);
        signals::is_pending(Signal::SIGPIPE)
    };
    std::thread::spawn(push).join().unwrap()
}

#[test]
fn a_thread_that_blocks_sigpipe_gets_its_own_only() {
    assert!(!pending_in_a_thread_that_blocks(false), "it would end the program");
    assert!(pending_in_a_thread_that_blocks(true), "the program's own one");
}
