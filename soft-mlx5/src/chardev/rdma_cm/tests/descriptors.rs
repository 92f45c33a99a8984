//! Tests in a process without free descriptors.

use std::process::Command;

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use uverbs_uapi::cm::PortSpace;
use uverbs_uapi::cm::event::EventType;

use super::rules::ADDRESS;
use super::{Client, host};

/// Set in the process of `without_a_descriptor`.
const ALONE: &str = "UVERBS_TEST_ALONE";

/// Runs alone in a separate process, because the limit is for the whole process.
#[test]
#[ignore = "another test runs it"]
fn without_a_descriptor() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let (host, _device) = host(ADDRESS);
    let client = Client::open(&host);
    client.set_nonblocking();
    let id = client.create(PortSpace::TCP, 7);
    client.ask_for_address(id, ADDRESS, 7471).unwrap();
    assert_eq!(client.poll(PollTimeout::NONE), PollFlags::POLLIN);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    client.expect(EventType::ADDR_RESOLVED);
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::empty(), "it has no event");
    assert_eq!(client.event().unwrap_err(), Errno::EAGAIN);
    client.ask_for_route(id);
    assert_eq!(client.poll(PollTimeout::NONE), PollFlags::POLLIN);
    assert_eq!(client.destroy(id), Ok(1), "its event goes with it");
    assert_eq!(client.poll(PollTimeout::ZERO), PollFlags::empty(), "it has no event");
}

#[test]
fn a_file_without_events_is_not_readable_where_no_file_can_be_opened() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    let name = module_path!().split_once("::").unwrap().1;
    let output = test.args(["--exact", "--ignored", &format!("{name}::without_a_descriptor")]);
    let output = output.env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
