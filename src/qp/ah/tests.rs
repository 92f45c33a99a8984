use super::*;

#[test]
fn source_ports_follow_the_flow_label() {
    assert_eq!(flow_label_to_source_port(0), 0xc000);
    assert_eq!(flow_label_to_source_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
}

#[test]
fn routing_headers_of_both_versions_are_read() {
    let mut grh = [0; GRH_BYTES];
    grh[20] = 0x45;
    grh[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let (source, destination) = grh_addresses(&grh).unwrap();
    assert_eq!(
        (source.to_string(), destination.to_string()),
        ("::ffff:10.0.0.1".into(), "::ffff:10.0.0.2".into())
    );
    grh[0] = 0x60;
    grh[8] = 0xfe;
    assert_eq!(grh_addresses(&grh).unwrap().0.0[0], 0xfe);
    assert!(grh_addresses(&[0; GRH_BYTES]).is_err());
}
