//! JSON values as numbers and bytes.

use serde_json::Value;
use uverbs_mlx5::request::Sge;

/// A JSON number, or a hexadecimal string. A missing value is 0.
pub(crate) fn number(value: &Value) -> u64 {
    match value {
        Value::Null => 0,
        Value::String(text) => {
            let digits = text.strip_prefix("0x").expect("a hexadecimal number");
            u64::from_str_radix(digits, 16).expect("a hexadecimal number")
        }
        value => value.as_u64().expect("a number"),
    }
}

/// A 32-bit [`number`].
pub(crate) fn word(value: &Value) -> u32 {
    number(value).try_into().expect("32 bits")
}

/// The bytes of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len() % 2 == 0);
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The `N` bytes of a string of hexadecimal digits.
pub(crate) fn bytes<const N: usize>(value: &Value) -> [u8; N] {
    hex(value.as_str().expect("digits")).try_into().expect("as many bytes")
}

/// A scatter/gather entry.
pub(crate) fn sge(value: &Value) -> Sge {
    Sge::new(number(&value["addr"]), word(&value["len"]), word(&value["lkey"]))
}
