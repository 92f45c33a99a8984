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
