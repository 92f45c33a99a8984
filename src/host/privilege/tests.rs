use super::*;

#[test]
fn it_tells_the_namespace() {
    assert_eq!(has_net_raw("Name:\tx\nCapEff:\t0000000000002000\n"), Some(true));
    assert_eq!(has_net_raw("CapEff:\t000001ffffffdfff\n"), Some(false));
    assert_eq!(has_net_raw("Name:\tx\n"), None);
    assert!(is_initial("         0          0 4294967295\n"));
    assert!(!is_initial("         0       1000          1\n"));
    assert!(explain(Some(true), false).contains("initial user namespace"));
}
