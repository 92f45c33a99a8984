//! Older kernels, interrupted commands, limits, forks.

mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::Arc;

use common::{Setup, success};
use nix::errno::Errno;
use uverbs::qp::{Inline, PostFlags};
use uverbs::soft::{Fault, Kernel, Moment, SoftDevice};
use uverbs::{Device, ErrorKind, op};

/// The kernel refuses BlueFlame pages if its start-up test found that writes are not combined.
#[test]
fn missing_write_combining_is_reported() {
    use uverbs_uapi::mlx5::object::uar;
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    assert!(context.combines_writes().unwrap());
    let moment = Moment::Method(uar::OBJECT, uar::alloc::METHOD, 0);
    soft.inject(Fault { moment, errno: Errno::EOPNOTSUPP });
    assert!(!context.combines_writes().unwrap());
    soft.inject(Fault { moment, errno: Errno::ENOMEM });
    assert_eq!(context.combines_writes().unwrap_err().errno(), libc::ENOMEM);
    assert!(context.combines_writes().unwrap());
}

#[test]
fn the_same_program_runs_on_kernels_of_all_ages() {
    let shorter = Kernel { context_request: 24, ..Kernel::WRITE_COMMANDS };
    for kernel in [Kernel::CURRENT, Kernel::STATIC_UAR, Kernel::WRITE_COMMANDS, shorter] {
        let context = common::soft_device(|builder| builder.kernel(kernel)).open();
        let result = context.and_then(program::run);
        assert!(result.is_ok(), "{kernel:?}: {}", result.unwrap_err());
    }
}

#[test]
fn a_kernel_without_user_indices_in_completions_is_too_old() {
    let device = common::soft_device(|builder| builder.kernel(Kernel::SHORT_CONTEXT));
    let error = device.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KernelTooOld, "{error}");
}

#[test]
fn many_queue_pairs_work_on_static_doorbell_pages() {
    let device = common::soft_device(|builder| builder.kernel(Kernel::STATIC_UAR));
    let mut setup = Setup::on(device.open().unwrap());
    assert_eq!(setup.context.alloc_thread_domain().unwrap_err().kind(), ErrorKind::Unsupported);
    let region = setup.region(4096);
    let mut pairs: Vec<_> = (0..40).map(|_| setup.rc_pair()).collect();
    for (index, (a, _)) in pairs.iter_mut().enumerate() {
        let remote = region.remote(index * 8).unwrap();
        // SAFETY: inline data; the region outlives the request.
        unsafe { a.post_send(1, op::Write(remote), Inline(&[7; 8]), PostFlags::SIGNALED).unwrap() };
        success(&mut setup.cq);
    }
}

#[test]
fn without_write_combining_queues_ring_plain_doorbells() {
    use uverbs_uapi::mlx5::object::uar;
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let context = Device::from_shared_soft(soft.clone()).open().unwrap();
    let no_pages = Moment::Method(uar::OBJECT, uar::alloc::METHOD, 0);
    soft.inject(Fault { moment: no_pages, errno: Errno::EOPNOTSUPP });
    let mut setup = Setup::on(context);
    let region = setup.region(4096);
    let (mut a, _b) = setup.rc_pair();
    assert_eq!(soft.clear_faults(), 0, "no BlueFlame page was asked for");
    for index in 0..10 {
        let remote = region.remote(index * 8).unwrap();
        // SAFETY: inline data; the region outlives the request.
        unsafe { a.post_send(1, op::Write(remote), Inline(&[7; 8]), PostFlags::SIGNALED).unwrap() };
        success(&mut setup.cq);
    }
    assert_eq!(region.view().to_vec()[..80], [7; 80]);
}

#[test]
fn interrupted_commands_are_retried() {
    let soft = Arc::new(SoftDevice::builder("soft0").without_wire().build().unwrap());
    let before = soft.ioctl_count();
    let device = Device::from_shared_soft(soft.clone());
    device.open().and_then(program::run).unwrap();
    let commands = soft.ioctl_count() - before;
    for call in 0..commands {
        soft.inject(Fault { moment: Moment::Call(call), errno: Errno::EINTR });
    }
    device.open().and_then(program::run).unwrap();
}

#[test]
fn the_error_names_the_memlock_limit() {
    let device = common::soft_device(|builder| builder.locked_memory(1 << 18));
    let setup = Setup::on(device.open().unwrap());
    let buffer = uverbs::Buffer::new(1 << 20).unwrap();
    let error = setup.pd.register(buffer, common::ALL_ACCESS).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM as i32);
    let named = error.to_string().contains("RLIMIT_MEMLOCK") && error.cure().contains("ulimit");
    assert_eq!(named, memlock_limit_applies(), "{error}");
}

/// Whether this process has a memlock limit and no CAP_IPC_LOCK, which would lift it.
fn memlock_limit_applies() -> bool {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(effective.trim(), 16).unwrap();
    limit.unwrap().0 != nix::libc::RLIM_INFINITY && capabilities >> 14 & 1 == 0
}

#[test]
fn a_forked_child_does_not_destroy_its_parents_objects() {
    let mut setup = Setup::new();
    let (mut a, b) = setup.rc_pair();
    let region = setup.region(4096);
    // SAFETY: the child calls nothing but drops of this library's handles, which do not allocate
    // under a lock that another thread may have held, and _exit.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let forbidden = setup.context.alloc_pd().is_err();
            drop(b);
            // SAFETY: ends the child without running the test harness's exit code.
            unsafe { nix::libc::_exit(if forbidden { 0 } else { 1 }) };
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    // SAFETY: inline data; the region outlives the request.
    unsafe {
        let remote = region.remote(0).unwrap();
        a.post_send(1, op::Write(remote), Inline(b"alive"), PostFlags::SIGNALED).unwrap();
    }
    success(&mut setup.cq);
    assert_eq!(b.query().unwrap().state, uverbs::qp::State::Rts);
}
