#![allow(unsafe_code)]

#[path = "../../../../../tests/common/child.rs"]
mod child;

use std::io::IoSlice;

use nix::sys::socket::{ControlMessage, sendmsg};

use super::*;
use child::{Outcome, in_child};

/// Sends bytes with `descriptors` duplicates of the socket.
fn send(client: &UnixStream, bytes: &[u8], descriptors: usize) {
    let sent = vec![client.as_raw_fd(); descriptors];
    let rights = [ControlMessage::ScmRights(&sent)];
    let rights = if descriptors > 0 { &rights[..] } else { &[] };
    let (socket, bytes) = (client.as_raw_fd(), [IoSlice::new(bytes)]);
    sendmsg::<()>(socket, &bytes, rights, MsgFlags::empty(), None).expect("sent");
}

/// A message of 64 bytes and the connection that receives it.
fn pair() -> (UnixStream, Connection, Vec<u8>) {
    let (client, server) = UnixStream::pair().expect("sockets");
    let message = [&header(1, 2, 0, 0, 48)[..], &[0; 48]].concat();
    (client, Connection::new(server), message)
}

/// The numbers of descriptors of the messages that have arrived.
fn arrived(server: &mut Connection) -> Vec<usize> {
    let next = || server.next().expect("a message").map(|message| message.descriptors.len());
    std::iter::from_fn(next).collect()
}

#[test]
fn descriptors_of_all_parts_of_a_message_are_its_own() {
    let (client, mut server, message) = pair();
    for (part, descriptors) in [(&message[..20], 2), (&message[20..40], 3), (&message[40..], 1)] {
        assert_eq!(arrived(&mut server), []);
        send(&client, part, descriptors);
        assert!(server.receive().expect("bytes"));
    }
    assert_eq!(arrived(&mut server), [6]);
}

#[test]
fn descriptors_go_to_the_message_that_they_came_with() {
    let (client, mut server, message) = pair();
    send(&client, &[&message[..], &message[..30]].concat(), 1);
    assert!(server.receive().expect("bytes"));
    assert_eq!(arrived(&mut server), [0]);
    send(&client, &message[30..], 2);
    assert!(server.receive().expect("bytes"));
    assert_eq!(arrived(&mut server), [3]);
    send(&client, &message, 0);
    assert!(server.receive().expect("bytes"));
    assert_eq!(arrived(&mut server), [0]);
}

#[test]
fn a_message_with_too_many_descriptors_is_refused() {
    for parts in [vec![MAX_DESCRIPTORS + 1], vec![MAX_DESCRIPTORS, 1]] {
        let (client, mut server, message) = pair();
        let mut next = Ok(None);
        for descriptors in parts {
            assert!(next.is_ok());
            send(&client, &message[..8], descriptors);
            assert!(server.receive().expect("bytes"));
            next = server.next();
        }
        let refused = next.expect_err("too many");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}

/// The child has space for one of three descriptors.
#[test]
fn a_process_without_space_for_all_descriptors_keeps_none() {
    let (client, mut server, message) = pair();
    send(&client, &message, 3);
    let outcome = in_child(|| {
        let next = || std::fs::File::open("/dev/null").expect("space").as_raw_fd();
        let first = next();
        let limit = libc::rlimit { rlim_cur: first as u64 + 1, rlim_max: first as u64 + 1 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let error = server.receive().expect_err("not all have arrived");
        assert_eq!(next(), first, "that place is free again");
        assert!(error.to_string().contains("descriptors"), "{error}");
    });
    assert_eq!(outcome, Outcome::Well);
}
