use super::*;

#[test]
fn a_rejection_keeps_what_the_peer_said() {
    let rejection = Rejection { reason: RejectReason::NO_LISTENER, private_data: vec![1, 2] };
    let error = Error::from(rejection.clone());
    assert_eq!(error.errno(), Errno::ECONNREFUSED as i32);
    assert!(error.to_string().contains("start the server"), "{error}");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<Rejection>(), Some(&rejection));
}

#[test]
fn what_is_wrong_with_the_own_end_is_not_said_of_the_peer() {
    let (own, to) = ("10.9.9.9:0".parse().ok(), "10.1.2.3:5".parse().unwrap());
    let explained =
        |errno, source| explain_resolving(Error::os("resolve_addr", errno), source, to).to_string();
    let said = explained(Errno::EADDRNOTAVAIL, None);
    assert!(said.contains("no local port is free"), "{said}");
    let said = explained(Errno::EADDRNOTAVAIL, own);
    assert!(said.contains("no RDMA device has the address 10.9.9.9, or no port"), "{said}");
    let said = explained(Errno::EINVAL, "[::1]:0".parse().ok());
    assert!(said.contains("one of the two addresses is IPv4"), "{said}");
    let said = explained(Errno::ENETUNREACH, own);
    assert!(said.contains("no route to 10.1.2.3"), "{said}");
    assert!(said.contains("UVERBS_SOFT_ADDRESS"), "{said}");
    let any = explain(Error::os("bind_addr", Errno::EADDRNOTAVAIL), "0.0.0.0:0".parse().ok());
    assert!(any.to_string().contains("no local port is free"), "{any}");
}

#[test]
fn an_address_without_device_names_the_way_to_look() {
    let error = Error::os("bind_addr", Errno::EADDRNOTAVAIL);
    let error = explain(error, Some("10.1.2.3:5".parse().unwrap()));
    assert!(error.to_string().contains("no RDMA device has the address 10.1.2.3"), "{error}");
    let cure = error.cure();
    assert!(cure.contains("uverbs info") && cure.contains("UVERBS_SOFT_ADDRESS"), "{error}");
    let error = explain(Error::os("bind_addr", Errno::EADDRNOTAVAIL), "[::]:5".parse().ok());
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let error = explain(Error::os("bind_addr", Errno::EADDRINUSE), "10.1.2.3:5".parse().ok());
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.cure().starts_with("choose another port"), "{error}");
    let event = failed("resolve_addr", -99).to_string();
    assert!(event.contains("no RDMA device has the source address"), "{event}");
    assert_eq!(failed("resolve_addr", -110).kind(), ErrorKind::TimedOut);
}
