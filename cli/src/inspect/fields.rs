//! Numbers and bytes in lines of JSON. A number is a JSON number or a string of digits, hexadecimal
//! after `0x`; bytes are a hexadecimal string.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;
use uverbs_mlx5_inspect::parse_hex;

/// A number that fits `T`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number<T>(pub(super) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let wide = match &value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => parse(text),
            _ => None,
        };
        let fits = wide.and_then(|wide| T::try_from(wide).ok());
        fits.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{value} does not fit into {} bits", 8 * size_of::<T>()))
        })
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Any number of bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Hex(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = parse_hex(&text).ok_or_else(|| D::Error::custom("not bytes in hexadecimal"))?;
        Ok(Self(bytes))
    }
}

/// Exactly `N` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HexArray<const N: usize>(pub(super) [u8; N]);

impl<'de, const N: usize> Deserialize<'de> for HexArray<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = Hex::deserialize(from)?.0;
        let length = bytes.len();
        let array = bytes.try_into();
        array
            .map(Self)
            .map_err(|_| D::Error::custom(format!("{length} bytes where there must be {N}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Line {
        value: Number<u32>,
    }

    #[test]
    fn numbers_are_read_from_json_decimal_and_hexadecimal() {
        for text in [r#"{"value": 291}"#, r#"{"value": "291"}"#, r#"{"value": "0x123"}"#] {
            assert_eq!(serde_json::from_str::<Line>(text).expect(text).value.0, 0x123);
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused() {
        for text in [
            r#"{"value": -1}"#,
            r#"{"value": "0x100000000"}"#,
            r#"{"value": 1.5}"#,
            r#"{"value": "x"}"#,
            r#"{"value": null}"#,
        ] {
            serde_json::from_str::<Line>(text).expect_err(text);
        }
    }

    #[test]
    fn an_odd_number_of_digits_and_other_characters_are_refused() {
        assert_eq!(parse_hex("00ff"), Some(vec![0, 255]));
        assert_eq!(parse_hex("0"), None);
        assert_eq!(parse_hex("zz"), None);
        assert_eq!(parse_hex("+1"), None);
    }
}
