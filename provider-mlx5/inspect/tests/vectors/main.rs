//! Compares this crate with recordings of what libmlx5 wrote and parsed, using the real queues. See
//! `README.md` in this directory.

mod cqe;
mod json;
mod recv;
mod request;
mod send;
mod sizes;

/// Compares every line of a file of vectors with the result of `ours`. `known` are the cases that
/// differ on purpose, with the reasons. It is also an error if one of them does not differ.
fn compare(
    file: &str,
    known: &[(&str, &str)],
    ours: impl Fn(&serde_json::Value) -> Result<(), String>,
) {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for line in file.lines() {
        let vector: serde_json::Value = serde_json::from_str(line).expect("a line is an object");
        let case = vector["case"].as_str().expect("a case has a name");
        let reason = known.iter().find(|(name, _)| *name == case);
        match (ours(&vector), reason) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Ok(()), Some((_, reason))) => {
                wrong.push(format!("{case} agrees, in spite of: {reason}"))
            }
            (Err(difference), None) => wrong.push(format!("{case}: {difference}")),
        }
        seen += 1;
    }
    assert!(seen > known.len(), "the file has vectors");
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Checks that two values are equal; `name` is for the error message.
fn same<T: PartialEq + std::fmt::Debug>(name: &str, ours: T, expected: T) -> Result<(), String> {
    if ours == expected {
        return Ok(());
    }
    Err(format!("{name}: ours {ours:x?}, expected {expected:x?}"))
}

/// Checks that bytes are equal to those of a hex text, except for bytes that libmlx5 did not write
/// (cc).
fn same_bytes(name: &str, ours: &[u8], expected: &str) -> Result<(), String> {
    let expected = json::hex(expected);
    same(&format!("length of {name}"), ours.len(), expected.len())?;
    let differs = |at: &usize| expected[*at] != 0xcc && ours[*at] != expected[*at];
    match (0..ours.len()).find(differs) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{name}: byte {at} is {:02x}, not {:02x}, in\n  ours     {ours:02x?}\n  expected {expected:02x?}",
            ours[at], expected[at]
        )),
    }
}
