use super::*;

#[test]
fn data_longer_than_the_messages_field_is_refused() {
    assert_eq!(RejectData::new(&[7; 148]).unwrap().as_bytes(), [7; 148]);
    let error = RejectData::new(&[7; 149]).unwrap_err();
    assert!(error.to_string().contains("148"), "{error}");
    assert!(LookupReplyData::new(&[0; 137]).is_err());
    assert!(ReplyData::new(&[1; 300]).is_err());
}

#[test]
fn the_field_is_padded() {
    let (field, length) = RequestData::of(b"abc").field();
    assert_eq!((length, &field[..5]), (3, &b"abc\0\0"[..]));
    assert_eq!(received(&field, 5), b"abc\0\0");
}
