//! Formats payloads of a request, with field names if their struct is known.

use std::fmt::Write;
use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use uverbs_uapi::layout::{Field, Struct};

use super::names;

/// Copies memory of this process; `None` if it is not all readable. The pointers of the program are
/// not dereferenced, because they may be invalid.
pub(super) fn read(address: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let remote = [RemoteIoVec { base: usize::try_from(address).ok()?, len: length }];
    let copied = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut bytes)], &remote);
    (copied == Ok(length)).then_some(bytes)
}

/// Fields by name, a number, or hex digits.
pub(super) fn text(bytes: &[u8], structure: Option<&'static Struct>) -> String {
    match structure {
        Some(structure) => fields(bytes, structure),
        None => scalar(bytes),
    }
}

fn fields(bytes: &[u8], structure: &'static Struct) -> String {
    let mut text = String::from("{");
    for field in structure.fields.iter().filter(|field| is_shown(field)) {
        // Older programs use shorter structs.
        let Some(value) = bytes.get(field.offset..field.offset + field.size) else { break };
        let separator = if text.len() > 1 { ", " } else { "" };
        let nested = names::nested(field.name, field.size);
        let value = self::text(value, nested);
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{}={value}", field.name);
    }
    text.push('}');
    text
}

/// Whether the field is shown: not reserved ones, and not `response`, the address for the answer of
/// `write(2)`.
fn is_shown(field: &Field) -> bool {
    !(field.name.starts_with("reserved") || field.name == "response" || field.c_path.is_empty())
}

fn scalar(bytes: &[u8]) -> String {
    let value = match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => return hex(bytes),
    };
    // Hex for values that are probably addresses, masks or keys, decimal for counts and numbers.
    if value < 0x1_0000 { value.to_string() } else { format!("{value:#x}") }
}

/// Most bytes that are shown of a payload.
const LONGEST: usize = 64;

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(LONGEST) {
        let _ = write!(text, "{byte:02x}");
    }
    if bytes.len() > LONGEST {
        let _ = write!(text, "…({} bytes)", bytes.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_names() {
        let structure = names::by_c_name("ib_uverbs_reg_mr_resp").expect("known");
        let mut bytes = [0; 12];
        bytes[0] = 3;
        bytes[4..8].copy_from_slice(&0x0012_3400_u32.to_ne_bytes());
        assert_eq!(text(&bytes, Some(structure)), "{mr_handle=3, lkey=0x123400, rkey=0}");
        assert_eq!(text(&bytes[..4], Some(structure)), "{mr_handle=3}");
    }

    #[test]
    fn what_has_no_name_is_a_number_or_digits() {
        assert_eq!(text(&[1, 0], None), "1");
        assert_eq!(text(&[1, 2, 3], None), "010203");
        assert!(text(&[7; 100], None).ends_with("…(100 bytes)"));
    }

    #[test]
    fn a_wrong_pointer_does_not_crash() {
        assert_eq!(read(8, 16), None);
        let bytes = [1_u8, 2, 3];
        assert_eq!(read(bytes.as_ptr() as u64, 3), Some(vec![1, 2, 3]));
    }
}
