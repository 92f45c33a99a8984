//! The connection manager's node.

use std::net::Ipv6Addr;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use uverbs_uapi::cm::event::{EventResp, GetEvent};
use uverbs_uapi::cm::multicast::JoinIpMcast;

use super::*;

#[test]
fn the_connection_managers_node_takes_commands_only() {
    let trace = succeeds("connection_manager::part_connection_manager");
    assert!(trace.contains("rdma_cm CREATE_ID") && trace.contains("rdma_cm close"), "{trace}");
}

/// `RDMA_USER_CM_CMD_CREATE_ID`: header, and a body with the answer's address.
fn create_id(into: &mut u32) -> Vec<u8> {
    let body = CreateId { uid: 1, response: into as *mut u32 as u64, ..CreateId::default() };
    Message::new(&CreateId { ps: PortSpace::TCP, ..body }).as_bytes().to_vec()
}

#[test]
#[ignore = "a part of the program"]
fn part_connection_manager() {
    let version = fs::read_to_string("/sys/class/misc/rdma_cm/abi_version").expect("the ABI");
    assert_eq!(version, "4\n");
    let open = || fs::File::options().read(true).write(true).open("/dev/infiniband/rdma_cm");
    let mut file = open().expect("the node opens");
    assert!(file.metadata().expect("its kind").file_type().is_char_device());
    let mut id = u32::MAX;
    file.write_all(&create_id(&mut id)).expect("an id");
    assert_eq!(id, 0);
    let mut second = file.try_clone().expect("a duplicate");
    second.write_all(&create_id(&mut id)).expect("another id of the same file");
    assert_eq!(id, 1);
    let refused = |error: io::Error| error.raw_os_error();
    assert_eq!(file.read(&mut [0; 8]).map_err(refused), Err(Some(libc::EINVAL)));
    assert_eq!(file.write(&[0; 4]).map_err(refused), Err(Some(libc::EINVAL)));
    let fd: OwnedFd = second.into();
    assert_eq!(ioctl(&fd, std::ptr::null_mut()), Err(Errno::ENOTTY));
    let mut poll =
        libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "neither readable nor writable");
    drop((fd, file));
    let trace = PathBuf::from(env::var_os("UVERBS_RUN_TRACE").expect("a trace"));
    let begin = Instant::now();
    while !fs::read_to_string(&trace).expect("the trace").contains("rdma_cm close\n") {
        assert!(begin.elapsed() < PATIENCE, "the last close went unnoticed");
        std::thread::yield_now();
    }
    open().expect("again").write_all(&create_id(&mut id)).expect("an id");
    assert_eq!(id, 0, "the numbers were given back");
}

#[test]
fn reading_another_file_makes_no_further_system_call() {
    if has_seccomp_filter() {
        println!("skipped: under a seccomp filter no thread can enter strict mode");
        return;
    }
    succeeds("connection_manager::part_reading_others");
}

/// Whether the process has a seccomp filter, as in containers (`Seccomp` of proc_pid_status(5)).
fn has_seccomp_filter() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("the process's status");
    status.lines().any(|line| line == "Seccomp:\t2")
}

/// Reads in a thread in strict seccomp mode, in which any system call except read, write and exit
/// ends the thread.
#[test]
#[ignore = "a part of the program"]
fn part_reading_others() {
    static HAS_READ: AtomicU32 = AtomicU32::new(0);
    static REFUSED: AtomicI32 = AtomicI32::new(0);
    let _file = open_cm();
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    nix::unistd::write(&writer, &[7]).expect("a byte");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tell.send(nix::unistd::gettid()).expect("the test waits");
        drop(tell);
        let mut byte = 0u8;
        // SAFETY: one byte is read into one byte, and the thread ends without unwinding.
        unsafe {
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) != 0 {
                REFUSED.store(Errno::last_raw(), Ordering::Relaxed);
                return;
            }
            libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1);
            HAS_READ.store(byte.into(), Ordering::Relaxed);
            libc::syscall(libc::SYS_exit, 0);
        }
    });
    let thread = told.recv().expect("the thread runs");
    let begin = Instant::now();
    while Path::new(&format!("/proc/self/task/{thread}")).exists() {
        assert!(begin.elapsed() < PATIENCE, "the thread does not end");
        std::thread::yield_now();
    }
    let refused = REFUSED.load(Ordering::Relaxed);
    assert_eq!(refused, 0, "strict mode is refused: {}", Errno::from_raw(refused));
    assert_eq!(HAS_READ.load(Ordering::Relaxed), 7, "it made another system call");
}

#[test]
fn a_node_opened_with_o_nonblock_waits_for_no_event() {
    succeeds("connection_manager::part_not_blocking");
}

#[test]
#[ignore = "a part of the program"]
fn part_not_blocking() {
    let mut options = fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let mut file = options.open("/dev/infiniband/rdma_cm").expect("the node opens");
    let flags = fcntl(&file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).expect("its flags");
    assert!(flags.contains(OFlag::O_NONBLOCK), "{flags:?}");
    let mut event = EventResp::new_zeroed();
    let fetch = GetEvent { response: &raw mut event as u64 };
    let fetched = file.write(Message::new(&fetch).as_bytes());
    assert_eq!(fetched.map_err(|error| error.raw_os_error()), Err(Some(libc::EAGAIN)));
}

/// Linux answers 524 to joining an IPv6 group over RoCE v2 (`cma_iboe_join_multicast`).
#[test]
fn an_error_without_a_name_in_c_reaches_the_program() {
    succeeds("connection_manager::part_nameless_error");
}

#[test]
#[ignore = "a part of the program"]
fn part_nameless_error() {
    let mut file = open_cm();
    let (mut id, mut member) = (u32::MAX, u32::MAX);
    let response = &raw mut id as u64;
    let create = CreateId { response, ps: PortSpace::UDP, ..CreateId::default() };
    file.write_all(Message::new(&create).as_bytes()).expect("an id");
    let to = |address: Ipv6Addr| SockaddrIn6 {
        family: AF_INET6,
        addr: address.octets(),
        ..SockaddrIn6::default()
    };
    let bind = BindIp { addr: to(Ipv6Addr::LOCALHOST), id, ..BindIp::default() };
    file.write_all(Message::new(&bind).as_bytes()).expect("the device's address");
    let addr = to(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 1));
    let join = JoinIpMcast { response: &raw mut member as u64, uid: 1, addr, id };
    let joined = file.write(Message::new(&join).as_bytes());
    assert_eq!(joined.map_err(|error| error.raw_os_error()), Err(Some(524)));
}

/// `RDMA_USER_CM_CMD_BIND_IP`: any address, and a port.
fn bind_port(id: u32, port: u16) -> Vec<u8> {
    let addr = SockaddrIn6 { family: AF_INET6, port: port.into(), ..SockaddrIn6::default() };
    Message::new(&BindIp { addr, id, ..BindIp::default() }).as_bytes().to_vec()
}

fn open_cm() -> fs::File {
    let node = "/dev/infiniband/rdma_cm";
    fs::File::options().read(true).write(true).open(node).expect("the node opens")
}

/// Binds a new id to a port, which only works if no other id has the port.
fn bind_new(file: &mut fs::File, port: u16) -> u32 {
    let mut id = u32::MAX;
    file.write_all(&create_id(&mut id)).expect("an id");
    file.write_all(&bind_port(id, port)).expect("the port is free");
    id
}

#[test]
fn a_close_of_the_connection_managers_node_is_done_when_it_returns() {
    let trace = succeeds("connection_manager::part_closing");
    let [opened, closed] = ["rdma_cm open", "rdma_cm close\n"].map(|l| trace.matches(l).count());
    assert!(opened - closed <= 1, "each but the last is closed once: {opened} {closed}");
}

#[test]
#[ignore = "a part of the program"]
fn part_closing() {
    // Each open closes abandoned files.
    for _ in 0..2000 {
        assert_eq!(bind_new(&mut open_cm(), 4791), 0, "ids were given back");
    }
    // So does each call on an open file.
    let opened: Vec<fs::File> = (0..100).map(|_| open_cm()).collect();
    for mut file in opened {
        bind_new(&mut file, 4791);
    }
    // Several threads close and open at the same time.
    let ports = [4801, 4802, 4803, 4804];
    let threads = ports.map(|port| {
        std::thread::spawn(move || {
            (0..300).for_each(|_| {
                bind_new(&mut open_cm(), port);
            });
        })
    });
    for thread in threads {
        thread.join().expect("each port is free again at once");
    }
}
