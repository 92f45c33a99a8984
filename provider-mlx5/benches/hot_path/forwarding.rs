//! Loads that wait: one that needs bytes of a narrower store right before it cannot have them from
//! the store buffer, and waits until the store has reached the cache (Intel's and AMD's manuals on
//! optimisation, "store forwarding"). Instructions do not show it: one such load doubled the time
//! of a template's post.
//!
//! The program's whole text is read as objdump prints it, each function from top to bottom, as if
//! no jump were taken.

use std::collections::BTreeMap;

/// Instructions after which a store is taken to have reached the cache.
const REACH: usize = 40;

/// What is read: the cases, and functions of the provider.
const HOT: [&str; 9] = [
    "hot_path::cases::",
    "hot_path::frames::",
    "hot_path::grid",
    "hot_path::polls::",
    "hot_poll",
    "hot_recv",
    "hot_template",
    "hot_write",
    "uverbs_mlx5::",
];

/// Functions that may: they make queues or build templates, or store to memory what they post, as a
/// program may that keeps its SGEs or headers there.
const ALLOWED: [&str; 3] = ["::long_template", "frames::Frames::new", "grid::tso"];

/// Bytes of memory: from `base` (a register) plus `start` on.
struct Bytes {
    base: String,
    start: i64,
    length: i64,
}

impl Bytes {
    fn meets(&self, other: &Self) -> bool {
        self.base == other.base
            && self.start < other.start + other.length
            && other.start < self.start + self.length
    }

    fn holds(&self, other: &Self) -> bool {
        self.start <= other.start && other.start + other.length <= self.start + self.length
    }
}

/// What an instruction does with memory, as far as this reading understands.
struct Instruction<'a> {
    verb: &'a str,
    operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    fn new(text: &'a str) -> Self {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let rest = rest.split(['#', '<']).next().unwrap_or_default();
        let mut depth = 0;
        let between = |character: char| {
            depth += i32::from(character == '(') - i32::from(character == ')');
            character == ',' && depth == 0
        };
        let operands = rest.split(between).map(str::trim).filter(|operand| !operand.is_empty());
        Self { verb, operands: operands.collect() }
    }

    fn only_compares(&self) -> bool {
        ["cmp", "test", "lea", "nop", "prefetch", "push"].iter().any(|v| self.verb.starts_with(v))
    }

    /// The memory that it names; whether it loads, and whether it stores there.
    fn memory(&self) -> Option<(Bytes, bool, bool)> {
        let operand = *self.operands.iter().find(|operand| operand.contains('('))?;
        let (offset, base) = operand.strip_suffix(')')?.split_once('(')?;
        if base.contains(',') || self.verb.starts_with("lea") || self.verb.starts_with("nop") {
            return None;
        }
        let start = match offset.strip_prefix('-') {
            Some(below) => -number(below)?,
            None => number(offset)?,
        };
        let last = self.operands.last() == Some(&operand);
        let moves = self.verb.starts_with("mov") || self.verb.starts_with("set");
        let bytes = Bytes { base: whole(base), start, length: self.width() };
        Some((bytes, !(moves && last), last && !self.only_compares()))
    }

    fn width(&self) -> i64 {
        let registers = self.operands.iter().filter(|operand| operand.starts_with('%'));
        match (self.verb, self.verb.as_bytes()) {
            ("movd" | "movss", _) => 4,
            ("movq" | "movlps" | "movhps" | "movsd", _) => 8,
            (_, [b'm', b'o', b'v', b'z' | b's', size @ (b'b' | b'w' | b'l'), _]) => suffix(*size),
            (_, [.., size]) => registers.map(|name| bytes_of(name)).max().unwrap_or(suffix(*size)),
            _ => 8,
        }
    }

    /// The register that it changes.
    fn changed(&self) -> Option<String> {
        let last = self.operands.last().filter(|last| last.starts_with('%'))?;
        (!self.only_compares() || self.verb.starts_with("lea")).then(|| whole(last))
    }
}

fn number(text: &str) -> Option<i64> {
    if text.is_empty() { Some(0) } else { i64::from_str_radix(text.strip_prefix("0x")?, 16).ok() }
}

fn suffix(size: u8) -> i64 {
    match size {
        b'b' => 1,
        b'w' => 2,
        b'l' => 4,
        _ => 8,
    }
}

fn bytes_of(register: &str) -> i64 {
    match register.trim_start_matches('%').as_bytes() {
        [b'x', b'm', b'm', ..] => 16,
        [b'e', ..] | [b'r', .., b'd'] => 4,
        [b'r', .., b'w'] | [_, b'x' | b'i' | b'p'] => 2,
        [b'r', .., b'b'] | [.., b'l' | b'h'] => 1,
        _ => 8,
    }
}

/// One name for a register and its parts.
fn whole(register: &str) -> String {
    let name = register.trim_start_matches('%');
    let numbered = name.strip_prefix('r').map(|rest| rest.trim_end_matches(['d', 'w', 'b']));
    if let Some(number) = numbered.filter(|rest| rest.parse::<u8>().is_ok()) {
        return format!("r{number}");
    }
    let name = name.trim_start_matches(['r', 'e']);
    match name.as_bytes() {
        [letter @ (b'a' | b'b' | b'c' | b'd'), b'l' | b'h' | b'x'] => {
            format!("{}x", char::from(*letter))
        }
        [_, _, b'l'] => name.trim_end_matches('l').to_owned(),
        _ => name.to_owned(),
    }
}

/// A function's loads that wait, each with the store that it waits for.
fn waiting<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(&'a str, &'a str)> {
    let mut stores: Vec<(usize, Bytes, &str)> = Vec::new();
    let mut found = Vec::new();
    for (at, text) in lines.enumerate() {
        let instruction = Instruction::new(text);
        if ["call", "jmp", "ret", "lock"].contains(&instruction.verb) {
            stores.clear();
            continue;
        }
        stores.retain(|(since, ..)| at - since < REACH);
        if let Some((bytes, loads, is_stored)) = instruction.memory() {
            let newest = stores.iter().rev().find(|(_, store, _)| store.meets(&bytes));
            if let Some((.., store)) = newest.filter(|(_, store, _)| loads && !store.holds(&bytes))
            {
                found.push((*store, text));
            }
            if is_stored {
                stores.push((at, bytes, text));
            }
        }
        if let Some(register) = instruction.changed() {
            stores.retain(|(_, store, _)| store.base != register);
        }
    }
    found
}

/// Prints loads that wait; true if there are none, but where they may be.
pub(crate) fn check(listing: &str) -> bool {
    let mut functions = BTreeMap::<&str, Vec<&str>>::new();
    let mut name = "";
    for line in listing.lines() {
        if let Some((_, label)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            name = label;
        } else if let Some((_, text)) = line.split_once(":\t") {
            functions.entry(name).or_default().push(text);
        }
    }
    let ours =
        |name: &&str| HOT.iter().any(|prefix| name.trim_start_matches('<').starts_with(prefix));
    let mut good = true;
    for (name, lines) in functions.iter().filter(|(name, _)| ours(name)) {
        if ALLOWED.iter().any(|allowed| name.contains(allowed)) {
            continue;
        }
        for (store, load) in waiting(lines.iter().copied()) {
            println!("{name}: a load waits for a store of fewer bytes: {store}; {load}");
            good = false;
        }
    }
    good
}
