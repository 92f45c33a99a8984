use super::*;

#[test]
fn source_ports_follow_the_flow_label() {
    assert_eq!(flow_label_to_source_port(0), 0xc000);
    assert_eq!(flow_label_to_source_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
}
