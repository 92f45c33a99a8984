//! The library's client of the connection manager against librdmacm: `rdma_client` and
//! `rdma_server`, which send each other 16 bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use uverbs::cm::{Connection, Connector, Listener};
use uverbs::cq::Status;
use uverbs::qp::PostFlags;
use uverbs::{Context, PollError, Slab, op};

use crate::PATIENCE;
use crate::peer::Role;
use crate::process::{self, Running};

/// Bytes of a message of both programs.
const BYTES: u32 = 16;

fn open() -> Context {
    uverbs::device("soft").and_then(|device| device.open()).expect("a device")
}

fn run(arguments: &[&str]) -> Running {
    process::build_library();
    Running::start(&mut process::uverbs(&[&["run"], arguments].concat()))
}

/// Both programs are on software devices: a kernel's would need a network with another machine.
pub(crate) fn play(role: Role) {
    if std::env::var_os("UVERBS_TEST_DEVICE").is_some() {
        return;
    }
    match role {
        Role::Server => serve_rdma_client(),
        Role::Client => reach_rdma_server(),
    }
}

fn serve_rdma_client() {
    let context = open();
    let gids = context.gid_table(1).expect("a table");
    let ipv4 = gids.iter().find_map(|entry| entry.gid.ipv4()).expect("an address");
    let builder = Listener::builder().context(&context);
    let mut listener = builder.bind(SocketAddr::new(IpAddr::from(ipv4), 0)).expect("listening");
    let port = listener.local_address().expect("an address").port().to_string();
    let program = run(&["--", "rdma_client", "-s", &ipv4.to_string(), "-p", &port]);
    let mut connection = listener.accept_until(Instant::now() + PATIENCE).expect("it connects");
    let slab = connection.resources.pd.create_slab(2, BYTES).expect("memory");
    connection.qp.post_receive(slab.take().expect("a slot")).expect("posted");
    finished(&mut connection);
    send(&mut connection, &slab);
    finished(&mut connection);
    connection.wait_disconnected(Some(PATIENCE)).expect("it disconnects");
    program.end().success();
}

fn reach_rdma_server() {
    let id = std::process::id();
    let own = Ipv4Addr::new(127, 77, (id >> 8) as u8, (id as u8).clamp(1, 254));
    let address = own.to_string();
    let program = run(&["--address", &address, "--", "rdma_server", "-s", &address, "-p", "7479"]);
    let context = open();
    let mut connection = reach(&context, SocketAddr::new(IpAddr::from(own), 7479));
    let slab = connection.resources.pd.create_slab(2, BYTES).expect("memory");
    connection.qp.post_receive(slab.take().expect("a slot")).expect("posted");
    send(&mut connection, &slab);
    finished(&mut connection);
    finished(&mut connection);
    connection.disconnect().expect("disconnects");
    connection.wait_disconnected(Some(PATIENCE)).expect("it agrees");
    program.end().success();
}

/// Connects once the program listens.
fn reach(context: &Context, address: SocketAddr) -> Connection {
    let connector = Connector::new().context(context).timeout(Duration::from_secs(10));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connector.connect(address) {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

fn send(connection: &mut Connection, slab: &Slab) {
    let mut slot = slab.take().expect("a slot");
    slot.write(&[7; BYTES as usize]).unwrap();
    connection.qp.post_send(op::Send, slot, PostFlags::SIGNALED).expect("posted");
}

fn finished(connection: &mut Connection) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connection.resources.cq.poll() {
            Ok(done) => return assert_eq!(done.completion.status(), Status::Success),
            Err(PollError::Empty) => assert!(Instant::now() < deadline, "the program is silent"),
            Err(error) => panic!("{error}"),
        }
        std::thread::yield_now();
    }
}
