//! Hostile programs guess numbers, move ids, and pass bad addresses: no other file is affected.

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};
use uverbs_uapi::cm::address::{Query, ResolveRoute};
use uverbs_uapi::cm::connect::{Disconnect, InitQpAttr, Listen, Notify, Reject};
use uverbs_uapi::cm::event::EventType;
use uverbs_uapi::cm::id::{CreateId, MigrateId, SetOption};
use uverbs_uapi::cm::multicast::{JoinMcast, LeaveMcast};
use uverbs_uapi::cm::{Command, JoinFlags, PortSpace, QueryOption};
use zerocopy::IntoBytes;

use super::rules::{ADDRESS, sockaddr};
use super::{Client, host};

/// The result of a command whose response does not matter.
fn result_of<C: Command>(client: &Client, body: impl FnOnce(u64) -> C) -> Result<(), Errno> {
    client.ask(body).map(drop)
}

/// The results of all commands with an id, for this id.
fn all_commands(client: &Client, id: u32) -> Vec<Result<(), Errno>> {
    let route = ResolveRoute { id, timeout_ms: 1 };
    let attributes = |response| InitQpAttr { response, id, qp_state: 1 };
    let query = |option| result_of(client, move |response| Query { response, id, option });
    let option = SetOption { optval: [0u8].as_ptr() as u64, optlen: 1, id, ..Default::default() };
    let (addr_size, join_flags) = (16, JoinFlags::FULL_MEMBER);
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |response| JoinMcast { response, uid: 1, id, addr_size, join_flags, addr };
    vec![
        client.bind(id, ADDRESS, 0),
        client.send(&route),
        client.send(&Listen { id, backlog: 1 }),
        client.connect(id, 1, 0),
        client.accept(id, 5, 1, 0),
        client.send(&Reject { id, ..Reject::default() }),
        client.send(&Disconnect { id }),
        client.send(&Notify { id, event: uverbs_uapi::enums::EventType::COMM_EST }),
        client.send(&option),
        result_of(client, attributes),
        result_of(client, join),
        query(QueryOption::ADDR),
        query(QueryOption::GID),
        query(QueryOption::PATH),
        client.destroy(id).map(drop),
    ]
}

#[test]
fn no_command_accepts_an_id_of_another_file() {
    let (host, _device) = host(ADDRESS);
    let (server, client, thief) = (Client::open(&host), Client::open(&host), Client::open(&host));
    let listener = server.listener(5300, 8);
    let id = client.connecting(5300, 1);
    let request = server.expect(EventType::CONNECT_REQUEST);
    for (id, errno) in [
        (listener, Errno::EINVAL),
        (id, Errno::EINVAL),
        (request.id, Errno::EINVAL),
        (99, Errno::ENOENT),
        (u32::MAX, Errno::ENOENT),
    ] {
        let answers = all_commands(&thief, id);
        assert!(answers.iter().all(|answer| *answer == Err(errno)), "{id}: {answers:?}");
    }
    server.accept(request.id, 9, 2, 0).unwrap();
    client.expect(EventType::CONNECT_RESPONSE);
    client.accept(id, 0, 0, 0).unwrap();
    server.expect(EventType::ESTABLISHED);
}

/// An id can only be moved from a file of which the process has a descriptor.
#[test]
fn ids_are_moved_only_from_descriptors_of_the_node() {
    let (host, _device) = host(ADDRESS);
    let (one, two) = (Client::open(&host), Client::open(&host));
    let id = one.create(PortSpace::TCP, 1);
    let migrate = |fd| result_of(&two, move |response| MigrateId { response, id, fd });
    let other = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(migrate(std::os::fd::AsRawFd::as_raw_fd(&other) as u32), Err(Errno::EINVAL));
    assert_eq!(migrate(u32::MAX), Err(Errno::ENOENT));
    assert_eq!(migrate(two.descriptor()), Err(Errno::EINVAL), "that file does not have this id");
    assert_eq!(migrate(one.descriptor()), Ok(()));
    assert_eq!(two.destroy(id), Ok(0));
}

/// A program guesses the number of a request that it has not fetched, and destroys it. The next id
/// with this number must survive the listener (`ucma_cleanup_ctx_events`).
#[test]
fn destroying_a_listener_keeps_an_id_that_has_the_number_of_its_request() {
    let (host, _device) = host(ADDRESS);
    let (server, client, other) = (Client::open(&host), Client::open(&host), Client::open(&host));
    let listener = server.listener(5400, 8);
    let id = client.connecting(5400, 1);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let guessed = id + 1;
    assert_eq!(server.destroy(guessed), Ok(0));
    assert_eq!(client.expect(EventType::REJECTED).status(), 28);
    assert_eq!(other.create(PortSpace::TCP, 1), guessed);
    server.destroy(listener).unwrap();
    assert_eq!(other.destroy(guessed), Ok(0));
}

/// The events of a listener move with it, but the ids of its requests do not.
#[test]
fn moving_a_listener_does_not_move_its_requests() {
    let (host, _device) = host(ADDRESS);
    let (one, two, client) = (Client::open(&host), Client::open(&host), Client::open(&host));
    let id = one.listener(5500, 8);
    client.connecting(5500, 1);
    assert_eq!(one.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let fd = one.descriptor();
    result_of(&two, |response| MigrateId { response, id, fd }).unwrap();
    let request = two.expect(EventType::CONNECT_REQUEST);
    assert_eq!(two.accept(request.id, 9, 2, 0), Err(Errno::EINVAL));
    one.accept(request.id, 9, 2, 0).unwrap();
    client.expect(EventType::CONNECT_RESPONSE);
    // Closing the request's own file destroys the request, although its listener is in another
    // file.
    drop(one);
    client.expect(EventType::REJECTED);
}

#[test]
fn a_join_whose_response_cannot_be_written_joins_no_group() {
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    client.set_nonblocking();
    let id = client.create(PortSpace::UDP, 1);
    client.bind(id, ADDRESS, 0).unwrap();
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |response| JoinMcast { response, id, addr_size: 16, addr, ..JoinMcast::default() };
    assert_eq!(client.send(&join(8)), Err(Errno::EFAULT));
    assert_eq!(client.event().err(), Some(Errno::EAGAIN));
    let leave = |response| LeaveMcast { response, id: 0, reserved: 0 };
    assert_eq!(result_of(&client, leave), Err(Errno::ENOENT));
    assert_eq!(client.destroy(id), Ok(0));
}

#[test]
fn numbers_of_groups_are_invalid_in_other_files() {
    let (host, _device) = host(ADDRESS);
    let (client, thief) = (Client::open(&host), Client::open(&host));
    let id = client.create(PortSpace::UDP, 1);
    client.bind(id, ADDRESS, 0).unwrap();
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |response| JoinMcast { response, id, addr_size: 16, addr, ..JoinMcast::default() };
    let member = client.ask(join).unwrap().id;
    let leave = |response| LeaveMcast { response, id: member, reserved: 0 };
    assert_eq!(result_of(&thief, leave), Err(Errno::EINVAL));
    client.expect(EventType::MULTICAST_JOIN);
    assert_eq!(result_of(&client, leave), Ok(()));
}

#[test]
fn a_group_of_a_removed_device_cannot_be_left() {
    let (host, device) = host(ADDRESS);
    let client = Client::open(&host);
    let id = client.create(PortSpace::UDP, 1);
    client.bind(id, ADDRESS, 0).unwrap();
    let addr = sockaddr([239, 1, 2, 3], 0);
    let join = |response| JoinMcast { response, id, addr_size: 16, addr, ..JoinMcast::default() };
    let member = client.ask(join).unwrap().id;
    device.remove();
    client.expect(EventType::MULTICAST_JOIN);
    client.expect(EventType::DEVICE_REMOVAL);
    let leave = |response| LeaveMcast { response, id: member, reserved: 0 };
    assert_eq!(result_of(&client, leave), Err(Errno::ENXIO), "as every command for its id");
    assert_eq!(client.destroy(id), Ok(2));
    assert_eq!(result_of(&client, leave), Err(Errno::ENOENT));
}

/// An event that could not be written is reported by the next call.
#[test]
fn an_event_that_cannot_be_written_is_not_lost() {
    let (host, _device) = host(ADDRESS);
    let (server, client) = (Client::open(&host), Client::open(&host));
    let listener = server.listener(5600, 1);
    client.connecting(5600, 1);
    assert_eq!(server.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let nowhere = uverbs_uapi::cm::event::GetEvent { response: 8 };
    assert_eq!(server.send(&nowhere), Err(Errno::EFAULT));
    server.expect(EventType::CONNECT_REQUEST);
    assert_eq!(server.destroy(listener), Ok(1));
}

/// A process with ten thousand ids ends without destroying them: all numbers are free after it.
#[test]
fn closing_a_file_frees_all_its_numbers() {
    let (host, _device) = host(ADDRESS);
    let (keeps, greedy) = (Client::open(&host), Client::open(&host));
    assert_eq!(keeps.create(PortSpace::TCP, 1), 0);
    for number in 1..=10_000 {
        assert_eq!(greedy.create(PortSpace::TCP, 1), number);
    }
    drop(greedy);
    assert_eq!(keeps.create(PortSpace::TCP, 1), 1);
    assert_eq!(host.shared.lock().contexts.count(), 2);
}

/// Commands of every length, too short and too long: none must affect another id.
#[test]
fn truncated_and_overlong_commands_affect_no_other_id() {
    let (host, _device) = host(ADDRESS);
    let (client, other) = (Client::open(&host), Client::open(&host));
    client.set_nonblocking();
    let kept = other.create(PortSpace::TCP, 1);
    for command in 0..24 {
        for length in (0..400).chain([65_535, 65_543, 70_000]) {
            let input = (length as u16).saturating_sub(8);
            let mut bytes = super::rules::header(command, input, 400).as_bytes().to_vec();
            // The body is all ones: addresses that are not mapped, numbers that no id has.
            bytes.resize(length.max(8), 0xff);
            bytes.truncate(length);
            let mut memory = bytes.clone();
            memory.resize(length + 400, 0xff);
            // SAFETY: `length` bytes and a whole body are readable; the addresses in them are not
            // mapped.
            let written = unsafe {
                use std::os::fd::AsFd;
                client.file.write(client.fd.as_fd(), memory.as_ptr(), length)
            };
            assert!(written.is_err(), "command {command}, {length} bytes");
        }
    }
    assert_eq!(other.destroy(kept), Ok(0));
    let created =
        client.ask(|response| CreateId { response, ps: PortSpace::TCP, ..CreateId::default() });
    assert_eq!(created.unwrap().id, 0);
}

/// The commands are random. Their fields have few different values, so many commands succeed.
#[test]
fn random_commands_leave_no_object() {
    const BODY: usize = 632;
    let (host, _device) = host(ADDRESS);
    let clients = [(); 3].map(|()| Client::open(&host));
    clients.iter().for_each(Client::set_nonblocking);
    let mut prng = crate::prng::Prng::new(17);
    let mut scratch = vec![0u8; 4096];
    let (mut succeeded, answer) = ([0; 23], scratch.as_mut_ptr() as u64);
    let storages = [[127, 0, 0, 1], ADDRESS, [0; 4], [239, 1, 2, 3]].map(|ip| sockaddr(ip, 5700));
    for _ in 0..40_000 {
        // Most ids are not destroyed at once.
        let command = [prng.below(23) as u32, 0, 12, 20, 21, 4][prng.below(6) as usize];
        let mut body = [0; BODY];
        for word in body.chunks_exact_mut(4) {
            let value = [0, 1, 2, prng.below(20) as u32, prng.next() as u32];
            word.copy_from_slice(&value[prng.below(5) as usize].to_ne_bytes());
        }
        let mut put = |at: usize, field: &[u8]| body[at..at + field.len()].copy_from_slice(field);
        let address = storages[prng.below(4) as usize];
        match command {
            0 => {
                put(8, &answer.to_ne_bytes());
                put(16, &[[6, 1], [0x11, 1], [0x3f, 1]][prng.below(3) as usize]);
            }
            20 => {
                put(4, &[16, 0, 0, 0]);
                put(8, address.as_bytes());
            }
            21 => {
                put(8, &[0, 0, 16, 0, 0, 0, 0, 0]);
                put(16 + 128, address.as_bytes());
            }
            4 | 7 | 10 | 15 => put(0, &(prng.below(20) as u32).to_ne_bytes()),
            6 | 8 | 9 => {}
            _ => put(0, &answer.to_ne_bytes()),
        }
        let mut bytes = super::rules::header(command, BODY as u16, BODY as u16).as_bytes().to_vec();
        bytes.extend(body);
        succeeded[command as usize] +=
            u32::from(clients[prng.below(3) as usize].write(&bytes).is_ok());
    }
    assert!(
        succeeded.iter().filter(|count| **count > 0).count() > 10,
        "only these commands succeeded: {succeeded:?}"
    );
    drop(clients);
    assert_eq!(host.shared.lock().contexts.count(), 0);
}
