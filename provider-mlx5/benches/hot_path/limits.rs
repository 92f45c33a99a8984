//! Instruction counts against the limits that are checked in.
//!
//! Callgrind counts the same instructions each time, so a limit is what was reached when it was set, and five percent.
//! Another compiler makes other code: then the limits are generous, and the answer says so.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Beyond what was reached when the limits were set, with the same compiler and with another one.
const SAME_COMPILER: f64 = 1.05;
const OTHER_COMPILER: f64 = 1.5;

type Counts = Result<BTreeMap<String, f64>, String>;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/hot_path/limits.txt")
}

/// What decides the generated code: the compiler's version, its LLVM's, the target.
pub(crate) fn compiler() -> String {
    let output = Command::new(option_env!("RUSTC").unwrap_or("rustc")).arg("-vV").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let wanted = ["release: ", "LLVM version: ", "host: "];
    let value = |start: &&str| text.lines().find_map(|line| line.strip_prefix(start));
    wanted.iter().filter_map(value).collect::<Vec<_>>().join(" ")
}

/// Prints counts beside their limits, and fails if one is exceeded.
pub(crate) fn check(counts: &Counts) -> ExitCode {
    let counts = match counts {
        Ok(counts) => counts,
        Err(missing) => return skip(missing),
    };
    let text = std::fs::read_to_string(file()).expect("the limits are checked in");
    let mut lines = text.lines();
    let set_by = lines.next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let here = compiler();
    let room = if here == set_by { SAME_COMPILER } else { OTHER_COMPILER };
    if here != set_by {
        println!("limits were set by {set_by}; with {here} they are exceeded at {OTHER_COMPILER}");
    }
    let mut good = true;
    println!("{:<24} {:>8} {:>8}", "instructions", "now", "set");
    for line in lines.filter(|line| !line.starts_with('#')) {
        let Some((name, limit)) = line.split_once(char::is_whitespace) else { continue };
        let limit: f64 = limit.trim().parse().expect("a number");
        let now = counts.get(name).copied().unwrap_or(f64::INFINITY);
        let exceeded = now > limit * room;
        good &= !exceeded;
        println!("{name:<24} {now:8.2} {limit:8.2}{}", if exceeded { "  EXCEEDED" } else { "" });
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes what is reached now the limits.
pub(crate) fn set(counts: &Counts) -> ExitCode {
    let Ok(counts) = counts else { return check(counts) };
    let mut text = format!("# {}\n# instructions per operation, loop included\n", compiler());
    for case in super::CASES {
        if let Some(count) = counts.get(case.name) {
            text += &format!("{:<24} {count:.2}\n", case.name);
        }
    }
    std::fs::write(file(), text).expect("the limits are writable");
    check(&Ok(counts.clone()))
}

/// Something is missing: fails where nothing may be.
pub(crate) fn skip(why: &str) -> ExitCode {
    eprintln!("skipped: {why}");
    if std::env::var_os("CI").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
