//! RDMA netlink.

use super::*;

/// `RDMA_NLDEV_CMD_…` and `RDMA_NLDEV_ATTR_…` of rdma/rdma_netlink.h.
const GET: u16 = 1;
const PORT_GET: u16 = 5;
const RES_QP_GET: u16 = 10;
const GET_CHARDEV: u16 = 15;
const DEV_INDEX: u16 = 1;
const PORT_INDEX: u16 = 3;
const CHARDEV_TYPE: u16 = 69;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;

/// A request of RDMA netlink.
fn question(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        body.extend((value.len() as u16 + 4).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(((5u16 << 10) + command).to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend(77u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// Sends a request and returns the first answer.
fn asked(socket: &OwnedFd, question: &[u8]) -> Vec<u8> {
    let fd = socket.as_raw_fd();
    // SAFETY: the length is that of the bytes.
    let sent = unsafe { libc::send(fd, question.as_ptr().cast(), question.len(), 0) };
    assert_eq!(sent, question.len() as isize);
    received(socket)
}

fn received(socket: &OwnedFd) -> Vec<u8> {
    let mut answer = vec![0; 4096];
    // SAFETY: the length is that of the buffer.
    let length = unsafe {
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    answer.truncate(Errno::result(length).expect("an answer") as usize);
    answer
}

fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

#[test]
fn rdma_netlink_answers() {
    succeeds("netlink::part_netlink");
}

#[test]
#[ignore = "a part of the program"]
fn part_netlink() {
    // SAFETY: a number that socket gives is ours, or -1.
    let socket = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA)
    };
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(Errno::result(socket).expect("a socket")) };
    let contains = |answer: &[u8], text: &[u8]| answer.windows(text.len()).any(|part| part == text);
    let answer = asked(&socket, &question(GET, DUMP, &[]));
    assert_eq!(kind(&answer), (5 << 10) + GET);
    assert_eq!(answer[8..12], 77u32.to_ne_bytes(), "the request's number");
    assert!(contains(&answer, b"mlx5_0\0") && contains(&answer, b"roce\0"));
    assert_eq!(kind(&received(&socket)), 3, "NLMSG_DONE");
    let (device, port) = ([0u8; 4], 1u32.to_ne_bytes());
    let answer =
        asked(&socket, &question(PORT_GET, 0, &[(DEV_INDEX, &device), (PORT_INDEX, &port)]));
    assert!(contains(&answer, b"lo\0"));
    let attributes: [(u16, &[u8]); 2] = [(DEV_INDEX, &device), (CHARDEV_TYPE, b"uverbs\0")];
    let answer = asked(&socket, &question(GET_CHARDEV, 0, &attributes));
    assert!(contains(&answer, b"uverbs0\0"));
    let errno = |answer: &[u8]| {
        assert_eq!(kind(answer), 2, "NLMSG_ERROR");
        -i32::from_ne_bytes(answer[16..20].try_into().expect("four bytes"))
    };
    let answer = asked(&socket, &question(RES_QP_GET, DUMP, &[(DEV_INDEX, &device)]));
    assert_eq!(kind(&answer), 3, "NLMSG_DONE: there are none");
    let answer = asked(&socket, &question(RES_QP_GET, 0, &[(DEV_INDEX, &device)]));
    assert_eq!(errno(&answer), libc::EOPNOTSUPP);
    let answer = asked(&socket, &question(PORT_GET, 0, &[(DEV_INDEX, &[9, 0, 0, 0])]));
    assert_eq!(errno(&answer), libc::EINVAL);
    // Not a message: nothing to answer, as with the kernel.
    // SAFETY: the length is that of the bytes.
    assert_eq!(unsafe { libc::send(socket.as_raw_fd(), [1u8; 5].as_ptr().cast(), 5, 0) }, 5);
    drop(socket);
    // SAFETY: as above.
    let other = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
    // SAFETY: just created, without another owner.
    drop(unsafe { OwnedFd::from_raw_fd(Errno::result(other).expect("other sockets are as ever")) });
}
