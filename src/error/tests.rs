use super::*;

#[test]
fn an_io_error_without_an_errno_keeps_its_cause() {
    let full = io::Error::new(io::ErrorKind::AddrInUse, "every name is taken");
    let error = Error::io("open_device", &full);
    assert_eq!((error.kind(), error.is_from_kernel()), (ErrorKind::Busy, false));
    assert_eq!(error.to_string(), "open_device: every name is taken");
    let error = Error::io("open_device", &io::Error::from_raw_os_error(libc::EMFILE));
    assert!(error.to_string().contains("EMFILE"), "{error}");
}

#[test]
fn an_attribute_is_not_missing_for_want_of_descriptors() {
    for (errno, kind) in [(libc::ENOENT, ErrorKind::NotFound), (libc::EMFILE, ErrorKind::Refused)] {
        let error =
            Error::attribute("query_pkey", "ports/1/pkeys/7", &io::Error::from_raw_os_error(errno));
        assert_eq!((error.kind(), error.errno()), (kind, errno));
    }
    let error = Error::attribute("query_pkey", "ports/1/pkeys/7", &io::ErrorKind::NotFound.into());
    assert!(error.to_string().ends_with(": the device has no such entry"), "{error}");
}

#[test]
fn an_error_is_one_sentence_with_everything_in_it() {
    let error = Error::os("create_cq", Errno::ENOMEM).asked("cqe 64").cure_with("ask for less");
    let text = error.to_string();
    assert!(text.starts_with("create_cq (cqe 64): "), "{text}");
    assert!(text.contains("ENOMEM, errno 12"), "{text}");
    assert!(text.ends_with("cure: ask for less"), "{text}");
    assert_eq!((error.errno(), error.verb()), (12, "create_cq"));
    assert_eq!(format!("{error:?}"), text, "a main that returns an error prints this");
    assert!(format!("{error:#?}").contains("cure: \"ask for less\""));
}

/// Only an EIO of the system means that the device was removed.
#[test]
fn an_error_without_an_errno_keeps_its_cause() {
    let text = "1000 addresses in a row are taken";
    let taken = io::Error::new(io::ErrorKind::AddrInUse, text);
    let error = Error::io("open_device", &taken);
    assert_eq!((error.errno(), error.kind()), (Errno::EADDRINUSE as i32, ErrorKind::Busy));
    assert!(error.to_string().contains(text) && !error.to_string().contains("removed"), "{error}");
    assert!(!error.is_from_kernel());
    let error = Error::io("open_device", &io::Error::other("a reason of its own"));
    assert_eq!(error.to_string(), "open_device: a reason of its own");
    let system = io::Error::from_raw_os_error(Errno::EIO as i32);
    assert!(Error::io("open_device", &system).to_string().contains("was removed"));
}

#[test]
fn only_enomem_is_explained_by_the_memlock_limit() {
    let error = Error::os("reg_mr", Errno::EFAULT).pinning(1 << 40);
    assert!(!error.to_string().contains("MEMLOCK"));
}

#[test]
fn a_limit_that_counts_is_named_with_its_cure() {
    let (cause, cure) = limited(1 << 20, 8 << 20).expect("a limit");
    assert!(cause.contains("1024 KiB") && cause.contains("RLIMIT_MEMLOCK is 8192 KiB"));
    assert!(cure.contains("ulimit -l"), "{cure}");
    assert_eq!(limited(1 << 20, nix::libc::RLIM_INFINITY), None);
}

#[test]
fn eperm_is_explained_by_what_the_verb_needs() {
    let pinned = Error::os("reg_mr", Errno::EPERM);
    assert!(pinned.cause().contains("RLIMIT_MEMLOCK is 0"), "{pinned}");
    let raw = Error::os("create_flow", Errno::EPERM);
    assert!(raw.cure().contains("CAP_NET_RAW"), "{raw}");
}

#[test]
fn an_error_tells_what_it_was_made_of() {
    use std::error::Error as _;
    let posted = Error::from(PostError::Full);
    let source = posted.source().and_then(|source| source.downcast_ref());
    assert_eq!(source, Some(&PostError::Full));
    let destroyed = DestroyError::new((), Error::os("destroy_cq", Errno::EBUSY));
    let verb = destroyed.source().and_then(|error| error.downcast_ref::<Error>()).unwrap();
    let system = verb.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(system.and_then(io::Error::raw_os_error), Some(libc::EBUSY));
    assert!(Error::invalid("modify_qp", "x").source().is_none());
}

#[test]
fn errors_of_files_tell_of_no_device() {
    for errno in [Errno::ENOSPC, Errno::EIO, Errno::EPERM] {
        let error = Error::os("write_recording", errno);
        assert_eq!(
            error.to_string(),
            format!("write_recording: {} ({errno:?}, errno {})", errno.desc(), errno as i32)
        );
    }
}

#[test]
fn an_errno_that_c_has_no_name_for_keeps_its_number() {
    for (number, kind) in [(524, ErrorKind::Unsupported), (4094, ErrorKind::Refused)] {
        let error = Error::io("create_qp", &io::Error::from_raw_os_error(number));
        assert_eq!((error.errno(), error.kind()), (number, kind), "{error}");
        assert!(error.is_from_kernel() && error.to_string().contains(&number.to_string()));
        let system = io::Error::from(error);
        let source = std::error::Error::source(system.get_ref().unwrap()).unwrap();
        let source = source.downcast_ref::<io::Error>().unwrap();
        assert_eq!(source.raw_os_error(), Some(number));
    }
}

#[test]
fn kinds_follow_the_errno() {
    assert_eq!(Error::os("get_event", Errno::EAGAIN).kind(), ErrorKind::WouldBlock);
    assert_eq!(Error::os("dealloc_pd", Errno::EBUSY).kind(), ErrorKind::Busy);
    assert_eq!(Error::invalid("modify_qp", "x").errno(), Errno::EINVAL as i32);
}
