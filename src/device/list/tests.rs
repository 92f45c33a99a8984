use super::*;

#[test]
fn the_error_names_an_unknown_device() {
    let error = device("mlx5_77").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("mlx5_77"), "{error}");
}

#[cfg(not(feature = "soft"))]
#[test]
fn the_software_device_is_unsupported_unless_built_in() {
    assert_eq!(device("soft").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn the_error_of_several_devices_has_one_cure() {
    let refused = |name: &str, cure: &str| {
        Error::new("open_device", ErrorKind::Permission, name).cure_with(cure)
    };
    let error = none_opened(vec![refused("mlx5_0 is not mlx5", ""), refused("mlx5_1", "chmod")]);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.contains("mlx5_0") && text.contains("mlx5_1"), "{text}");
    assert_eq!(text.matches("cure: ").count(), 1, "{text}");
    assert!(error.cure().starts_with("chmod, or set UVERBS_DEVICE"), "{text}");
    assert!(none_opened(Vec::new()).to_string().contains("modprobe"));
}
