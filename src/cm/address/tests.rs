use super::*;

#[test]
fn an_address_may_name_an_interface() {
    let found = |text| Address(text).to_socket_addrs().ok()?.next().map(|to| to.to_string());
    assert_eq!(found("10.1.2.3:7471").as_deref(), Some("10.1.2.3:7471"));
    assert_eq!(found("[2001:db8::7]:0").as_deref(), Some("[2001:db8::7]:0"));
    assert_eq!(found("[fe80::1%3]:5").as_deref(), Some("[fe80::1%3]:5"));
    let own = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
    assert_eq!(found("[fe80::1%lo]:5"), Some(format!("[fe80::1%{}]:5", own.trim())));
    for text in ["", "10.1.2.3", "::1:5", "fe80::1%lo:5", "10.1.2.3:port", "[::1]", "[::1]:-1"] {
        assert_eq!(found(text), None, "{text}");
    }
    assert_eq!(found("[fe80::1%no_such]:5"), None);
}

#[test]
fn addresses_survive_the_way() {
    for text in ["10.1.2.3:7471", "[2001:db8::7]:0", "[fe80::1%3]:18515", "0.0.0.0:0"] {
        let address: SocketAddr = text.parse().unwrap();
        let (storage, length) = storage(address);
        assert_eq!(length, if address.is_ipv4() { 16 } else { 28 });
        assert_eq!(socket_address(&storage), Some(address));
    }
    assert_eq!(socket_address(&SockaddrStorage::default()), None);
}
