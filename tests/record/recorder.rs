//! The record: one line `step.field = value` for every field of every response. The same behaviour
//! gives the same lines on every machine.

use std::collections::BTreeSet;
use std::fmt::Debug;

use nix::errno::Errno;

/// Fields with values that the device may choose. The record only contains whether they are zero.
const NUMBERS: &[&str] = &[
    "lkey",
    "rkey",
    "qpn",
    "qp_num",
    "dest_qp_num",
    "srqn",
    "cqn",
    "pdn",
    "page_id",
    "gid",
    "dgid",
    "node_guid",
    "sys_image_guid",
];

/// Lines in the order of the calls.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) lines: Vec<(String, String)>,
    names: BTreeSet<String>,
}

impl Recorder {
    fn line(&mut self, name: String, value: String) {
        assert!(self.names.insert(name.clone()), "{name} is recorded twice");
        self.lines.push((name, value));
    }

    /// Records a call's result; returns its response, if it succeeded.
    pub(crate) fn call<T>(&mut self, step: &str, result: Result<T, Errno>) -> Option<T> {
        let value = result.as_ref().map_or_else(|errno| format!("{errno:?}"), |_| "ok".to_owned());
        self.line(step.to_owned(), value);
        result.ok()
    }

    /// Records a call's result, and every field of its response.
    pub(crate) fn answer<T: Debug>(&mut self, step: &str, result: Result<T, Errno>) -> Option<T> {
        let answer = self.call(step, result)?;
        self.fields(step, &answer);
        Some(answer)
    }

    /// Every field of `value`.
    pub(crate) fn fields(&mut self, step: &str, value: &impl Debug) {
        for (name, value) in leaves(&format!("{value:#?}")) {
            let name =
                if name.is_empty() { step.to_owned() + ".value" } else { format!("{step}.{name}") };
            self.value(&name, &value);
        }
    }

    /// One value.
    pub(crate) fn value(&mut self, name: &str, value: &str) {
        let last = name.rsplit('.').next().unwrap_or(name);
        let is_zero = !value.contains(|c: char| c.is_ascii_hexdigit() && c != '0');
        let is_free = NUMBERS.contains(&last) && !is_zero;
        self.line(name.to_owned(), if is_free { "a number" } else { value }.to_owned());
    }
}

/// The leaves of `{:#?}` output with their paths. Tuples and arrays are one leaf.
fn leaves(text: &str) -> Vec<(String, String)> {
    let mut path: Vec<String> = Vec::new();
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        let (name, value) = line.split_once(": ").unwrap_or(("", line));
        if value.ends_with('{') {
            path.push(name.to_owned());
        } else if line.starts_with('}') {
            path.pop();
        } else {
            let mut value = value.trim_end_matches(',').to_owned();
            let mut depth = opened(&value);
            while depth > 0 {
                let Some(more) = lines.next() else { break };
                let more = more.trim().trim_end_matches(',');
                depth += opened(more);
                let glue = if value.ends_with(['(', '[']) || more.starts_with([')', ']']) {
                    ""
                } else {
                    " "
                };
                value = format!("{value}{glue}{more}");
            }
            let names =
                path.iter().map(String::as_str).chain([name]).filter(|name| !name.is_empty());
            found.push((names.collect::<Vec<_>>().join("."), value));
        }
    }
    found
}

fn opened(text: &str) -> i32 {
    let count = |of: [char; 2]| text.matches(of).count() as i32;
    count(['(', '[']) - count([')', ']'])
}

#[test]
fn structs_become_lines() {
    #[derive(Debug)]
    #[allow(dead_code, reason = "printed")]
    struct Inner {
        lkey: u32,
        bytes: [u8; 3],
    }
    #[derive(Debug)]
    #[allow(dead_code, reason = "printed")]
    struct Outer {
        first: Option<u8>,
        inner: Inner,
        last: u64,
    }
    let mut recorder = Recorder::default();
    let outer = Outer { first: Some(1), inner: Inner { lkey: 77, bytes: [1, 2, 3] }, last: 9 };
    recorder.answer("step", Ok(outer));
    recorder.call::<()>("refused", Err(Errno::EINVAL));
    let lines: Vec<_> =
        recorder.lines.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let expected = [
        "step = ok",
        "step.first = Some(1)",
        "step.inner.lkey = a number",
        "step.inner.bytes = [1 2 3]",
        "step.last = 9",
        "refused = EINVAL",
    ];
    assert_eq!(lines, expected);
}
