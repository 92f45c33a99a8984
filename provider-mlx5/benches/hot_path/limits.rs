//! Instruction counts against the limits that are checked in.
//!
//! Callgrind counts the same instructions each time, so a limit is what was reached when it was
//! set, and a few percent. Another compiler makes other code: then the limits are generous, and the
//! answer says so.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What is allowed beyond what was reached when the limits were set, with another compiler.
const OTHER_COMPILER: f64 = 1.5;

/// Limits in a file of the crate.
pub(crate) struct Limits {
    pub(crate) file: &'static str,
    /// As [`OTHER_COMPILER`], with the same compiler.
    pub(crate) same_compiler: f64,
    /// Whether counts within their limits are printed.
    pub(crate) shows_all: bool,
}

type Counts = Result<BTreeMap<String, f64>, String>;

/// What decides the generated code: the compiler's version, its LLVM's, the target.
pub(crate) fn compiler() -> String {
    let output = Command::new(option_env!("RUSTC").unwrap_or("rustc")).arg("-vV").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let wanted = ["release: ", "LLVM version: ", "host: "];
    let value = |start: &&str| text.lines().find_map(|line| line.strip_prefix(start));
    wanted.iter().filter_map(value).collect::<Vec<_>>().join(" ")
}

impl Limits {
    fn path(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(self.file)
    }

    /// Prints counts beside their limits, and fails if one is exceeded.
    pub(crate) fn check(&self, counts: &Counts) -> ExitCode {
        let counts = match counts {
            Ok(counts) => counts,
            Err(missing) => return skip(missing),
        };
        let text = std::fs::read_to_string(self.path()).expect("the limits are checked in");
        let set_by = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let factor = self.factor(set_by.unwrap_or_default());
        let (mut good, mut checked) = (true, 0);
        println!("{:<34} {:>8} {:>8}", "instructions", "now", "set");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, limit)) = line.rsplit_once(' ') else { continue };
            let (name, limit): (_, f64) = (name.trim(), limit.parse().expect("a number"));
            let now = counts.get(name).copied().unwrap_or(f64::INFINITY);
            let exceeded = now > limit * factor;
            (good, checked) = (good && !exceeded, checked + 1);
            if exceeded || self.shows_all {
                let mark = if exceeded { "  EXCEEDED" } else { "" };
                println!("{name:<34} {now:8.2} {limit:8.2}{mark}");
            }
        }
        println!("{checked} compared");
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// What a count may be, as a multiple of its limit.
    fn factor(&self, set_by: &str) -> f64 {
        let here = compiler();
        if here == set_by {
            return self.same_compiler;
        }
        println!("limits were set by {set_by}; with {here} they are exceeded at {OTHER_COMPILER}");
        OTHER_COMPILER
    }

    /// Makes what is reached now the limits, in this order.
    pub(crate) fn set(&self, counts: &Counts, names: impl Iterator<Item = String>) -> ExitCode {
        let Ok(counts) = counts else { return self.check(counts) };
        let mut text = format!("# {}\n# instructions per operation, loop included\n", compiler());
        for name in names {
            if let Some(count) = counts.get(&name) {
                text += &format!("{name:<33} {count:.2}\n");
            }
        }
        std::fs::write(self.path(), text).expect("the limits are writable");
        self.check(&Ok(counts.clone()))
    }
}

/// Something is missing: fails where nothing may be.
pub(crate) fn skip(why: &str) -> ExitCode {
    eprintln!("skipped: {why}");
    if std::env::var_os("CI").is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
