//! Calls through `syscall(2)`, polls, and calls that fail.

use super::*;

/// UCX patches the C library's `mmap` and makes the system calls through `syscall(2)`.
#[test]
fn calls_through_syscall_reach_the_device() {
    let trace = succeeds("calls::part_syscall");
    assert!(trace.contains("mmap("), "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_syscall() {
    let node = std::ffi::CString::new(NODE).expect("a path");
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, node.as_ptr(), flags, 0) };
    // SAFETY: just created, without another owner.
    let file = unsafe { OwnedFd::from_raw_fd(Errno::result(fd as i32).expect("it opens")) };
    make_context(&file).expect("a context");
    let mut answer = [0u8; 48];
    let mut request = Request::<query_port::Call>::new(DriverId::MLX5);
    request.constant(query_port::PORT_NUM, 1u64);
    request.output_bytes(query_port::RESP, &mut answer).expect("short enough");
    // SAFETY: a whole request, whose buffers live as long as it.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), RDMA_VERBS_IOCTL, request.as_mut_ptr())
    };
    assert_eq!(result, 0);
    // The device's clock page: command 5 of the offset.
    let (length, shared) = (4096usize, libc::MAP_SHARED);
    let map = |fd: i32, offset: i64| {
        let nowhere = std::ptr::null_mut::<u8>();
        // SAFETY: a new mapping.
        unsafe {
            libc::syscall(libc::SYS_mmap, nowhere, length, libc::PROT_READ, shared, fd, offset)
        }
    };
    assert!(map(file.as_raw_fd(), 5 << 20) > 0, "{}", std::io::Error::last_os_error());
    assert_eq!(map(-1, 0), -1);
    assert_eq!(Errno::last(), Errno::EBADF, "calls on other files fail as before");
    // SAFETY: no arguments.
    assert_eq!(unsafe { libc::syscall(libc::SYS_getpid) }, i64::from(std::process::id()));
    let link = c"/sys/class/infiniband/mlx5_0";
    let (at, mut text) = (libc::AT_FDCWD, [0u8; 256]);
    // SAFETY: a plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: C strings, a struct and a buffer of that length.
    unsafe {
        let there = libc::syscall(libc::SYS_newfstatat, at, node.as_ptr(), &raw mut stat, 0);
        assert_eq!((there, stat.st_mode & libc::S_IFMT), (0, libc::S_IFCHR));
        assert_eq!(libc::syscall(libc::SYS_faccessat, at, node.as_ptr(), libc::R_OK), 0);
        let into = text.as_mut_ptr();
        let length = libc::syscall(libc::SYS_readlinkat, at, link.as_ptr(), into, text.len());
        assert!(text[..length as usize].ends_with(b"infiniband/mlx5_0"));
    }
}

/// The handle of libibverbs; `None` if it is not installed, which fails in CI.
fn verbs_library() -> Option<*mut libc::c_void> {
    // SAFETY: a C string; the library's initialisation asks nothing of the caller.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        assert!(env::var_os("CI").is_none(), "libibverbs is not installed");
        println!("skipped: libibverbs is not installed");
        return None;
    }
    Some(library)
}

#[test]
fn polls_that_find_nothing_let_the_device_make_progress() {
    succeeds("calls::part_polling");
}

#[test]
#[ignore = "a part of the program"]
fn part_polling() {
    type Pointer = *mut libc::c_void;
    // Offsets of `<infiniband/verbs.h>` on 64-bit machines: `struct ibv_context` begins with a
    // pointer and the table of operations, of which `poll_cq` is the twelfth.
    const POLL_CQ: usize = 12;
    let Some(library) = verbs_library() else { return };
    // Looks functions up as the dynamic linker does for a program: the preloaded library is first.
    let bound = |name: &std::ffi::CStr| {
        // SAFETY: C strings.
        let (first, own) = unsafe {
            let first = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (first, libc::dlsym(library, name.as_ptr()))
        };
        let function = if first.is_null() { own } else { first };
        assert!(!function.is_null(), "{name:?}");
        function
    };
    // SAFETY: the types that `<infiniband/verbs.h>` declares, as far as arguments are passed.
    unsafe {
        let list: extern "C" fn(*mut i32) -> *mut Pointer =
            std::mem::transmute(bound(c"ibv_get_device_list"));
        let open: extern "C" fn(Pointer) -> *mut Pointer =
            std::mem::transmute(bound(c"ibv_open_device"));
        let create: extern "C" fn(*mut Pointer, i32, Pointer, Pointer, i32) -> Pointer =
            std::mem::transmute(bound(c"ibv_create_cq"));
        let destroy: extern "C" fn(Pointer) -> i32 = std::mem::transmute(bound(c"ibv_destroy_cq"));
        let close: extern "C" fn(*mut Pointer) -> i32 =
            std::mem::transmute(bound(c"ibv_close_device"));
        let null = std::ptr::null_mut();
        for _ in 0..100 {
            let context = open(*list(std::ptr::null_mut()));
            assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
            let place = *context.add(POLL_CQ);
            let mut symbol: libc::Dl_info = std::mem::zeroed();
            assert_ne!(libc::dladdr(place, &raw mut symbol), 0);
            let file = std::ffi::CStr::from_ptr(symbol.dli_fname).to_str().expect("a path");
            assert!(file.ends_with("libuverbs_preload.so"), "{file}");
            let poll: extern "C" fn(Pointer, i32, Pointer) -> i32 = std::mem::transmute(place);
            let queue = create(context, 4, null, null, 0);
            assert!(!queue.is_null(), "{}", std::io::Error::last_os_error());
            let mut completion = [0u64; 16];
            assert!((0..100).all(|_| poll(queue, 1, completion.as_mut_ptr().cast()) == 0));
            assert_eq!((destroy(queue), close(context)), (0, 0));
        }
    }
}

#[test]
fn an_injected_fault_makes_its_call_fail() {
    let (output, trace) = run("calls::part_failing", &[("UVERBS_RUN_FAULTS", "1,ioctl=1:ENOMEM")]);
    assert!(output.status.success(), "{output:?}");
    assert!(trace.contains("DEVICE.GET_CONTEXT") && trace.contains("-1 ENOMEM"), "{trace}");
}

#[test]
#[ignore = "a part of the program"]
fn part_failing() {
    let file = open();
    assert_eq!(make_context(&file), Err(Errno::ENOMEM));
    assert!(make_context(&file).is_ok());
}

#[test]
fn a_wrong_setting_is_reported_before_the_program_starts() {
    let (output, _) = run("calls::part_failing", &[("UVERBS_RUN_LINK", "token-ring")]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "uverbs run: --link token-ring is not understood: it is roce or ib");
}
