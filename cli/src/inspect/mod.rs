//! `uverbs wqe` and `uverbs cqe`: convert work-queue and completion-queue entries to bytes and
//! back.
//!
//! Each JSON line of the input results in one JSON line of output, in the same order; for an
//! invalid line that has its `case` and an `error`. Any other input is a dump of bytes, which is
//! described as text.

mod bytes;
mod completion;
mod completion_dump;
mod decode;
mod encode;
mod fields;
mod work_request;

use std::io::{self, BufRead, Read};

use serde_json::{Map, Value, json};

use crate::args;
use crate::failure::{Context, Outcome};
use crate::output::{hexadecimal, print_json};

pub(crate) use completion::run_encode as cqe_encode;
pub(crate) use completion_dump::run as cqe_decode;
pub(crate) use decode::run as wqe_decode;
pub(crate) use encode::run as wqe_encode;

/// The answer to a line, or the reason why there is none.
type Answer = Result<Map<String, Value>, String>;

/// Runs `uverbs wqe`.
pub(crate) fn wqe(command: &args::Wqe) -> Outcome {
    match command {
        args::Wqe::Encode => wqe_encode(),
        args::Wqe::Decode(arguments) => wqe_decode(arguments),
    }
}

/// Runs `uverbs cqe`.
pub(crate) fn cqe(command: &args::Cqe) -> Outcome {
    match command {
        args::Cqe::Encode => cqe_encode(),
        args::Cqe::Decode(arguments) => cqe_decode(arguments),
    }
}

/// The longest line of JSON.
const LONGEST_LINE: u64 = 16 << 20;

/// Answers every line of standard input as soon as it is read.
fn answer_lines(answer: impl Fn(&Value) -> Answer) -> Outcome {
    answer_lines_of(io::stdin().lock(), answer)
}

fn answer_lines_of(mut input: impl BufRead, answer: impl Fn(&Value) -> Answer) -> Outcome {
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut part = (&mut input).take(LONGEST_LINE);
        let length =
            part.read_until(b'\n', &mut line).context(|| "cannot read standard input".into())?;
        match line.strip_suffix(b"\n") {
            _ if length == 0 => return Ok(()),
            None if length as u64 == LONGEST_LINE => {
                skip_line(&mut input)?;
                let error = format!("a line has at most {LONGEST_LINE} bytes");
                print_json(&with_case(Value::Null, Err(error)))?;
            }
            whole => answer_line(whole.unwrap_or(&line), &answer)?,
        }
    }
}

/// Skips the rest of a line that is too long.
fn skip_line(input: &mut impl BufRead) -> Outcome {
    input.skip_until(b'\n').map(drop).context(|| "cannot read standard input".into())
}

/// Prints the answer to one line.
fn answer_line(line: &[u8], answer: &impl Fn(&Value) -> Answer) -> Outcome {
    let parsed =
        serde_json::from_slice::<Value>(line).map_err(|error| format!("not JSON: {error}"));
    let case =
        parsed.as_ref().ok().and_then(|value| value.get("case")).cloned().unwrap_or(Value::Null);
    let answer = parsed.and_then(|value| match value {
        Value::Object(_) => answer(&value),
        _ => Err("not a JSON object".to_owned()),
    });
    print_json(&with_case(case, answer))
}

fn with_case(case: Value, answer: Answer) -> Map<String, Value> {
    let mut whole = Map::new();
    whole.insert("case".to_owned(), case);
    match answer {
        Ok(members) => whole.extend(members),
        Err(error) => drop(whole.insert("error".to_owned(), Value::String(error))),
    }
    whole
}

/// The members of a JSON object that is written with `json!`.
fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

fn number(value: u64) -> Value {
    json!(format!("{value:#x}"))
}
