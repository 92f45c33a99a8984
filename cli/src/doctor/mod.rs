//! `uverbs doctor`: settings of this machine that slow down a busy-polling program, each with its
//! value, the reason why it matters and the command that changes it.
//!
//! It reads settings from sysfs and procfs below one root. Unless the root is another machine's, it
//! also opens the adapter to read its features, and runs `ethtool` and `ip` for settings that are
//! in no file. It changes nothing.

mod device;
mod features;
mod memory;
mod process;
mod processors;
mod programs;
mod rule;
mod system;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::output::{escaped, print, print_pretty_json};
use tree::{Tree, members};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// The setting is right for a busy-polling program.
    Ok,
    /// Worth changing, as `cure` describes.
    Change,
    /// A value for information; no value is right or wrong.
    Note,
    /// The value cannot be read.
    Unknown,
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
struct Check {
    /// The subject: `processor 3`, `mlx5_0`, `memory`.
    subject: String,
    name: &'static str,
    verdict: Verdict,
    value: String,
    /// The file that was read, or the command that shows the setting if no file does.
    source: String,
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Check {
    /// A check of `source` without a result yet.
    fn new(
        subject: impl Into<String>,
        name: &'static str,
        source: impl Into<String>,
        why: &'static str,
    ) -> Self {
        Self {
            subject: subject.into(),
            name,
            verdict: Verdict::Unknown,
            value: "cannot be read".to_owned(),
            source: source.into(),
            why,
            cure: None,
        }
    }

    fn ok(self, value: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, value: value.into(), ..self }
    }

    fn note(self, value: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, value: value.into(), ..self }
    }

    fn change(self, value: impl Into<String>, cure: impl Into<String>) -> Self {
        let (value, cure) = (value.into(), Some(cure.into()));
        Self { verdict: Verdict::Change, value, cure, ..self }
    }

    fn unknown(self, value: impl Into<String>) -> Self {
        Self { value: value.into(), ..self }
    }

    /// `Ok` if the condition holds, else `Change`.
    fn judge(self, is_ok: bool, value: impl Into<String>, cure: impl Into<String>) -> Self {
        if is_ok { self.ok(value) } else { self.change(value, cure) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    /// The number of checks that recommend a change.
    changes: usize,
}

impl Report {
    /// Groups the checks by subject.
    fn of(mut checks: Vec<Check>) -> Self {
        let mut subjects: Vec<String> = Vec::new();
        for check in &checks {
            if !subjects.contains(&check.subject) {
                subjects.push(check.subject.clone());
            }
        }
        checks.sort_by_key(|check| subjects.iter().position(|subject| *subject == check.subject));
        let changes = checks.iter().filter(|check| check.verdict == Verdict::Change).count();
        Self { checks, changes }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &args::Doctor) -> Outcome {
    let tree = Tree::new(arguments.root.as_deref().unwrap_or(Path::new("/")));
    let mut report = examine(&tree, arguments)?;
    if arguments.root.is_none() {
        let devices = device::chosen(&tree, arguments.device.as_deref())?;
        report.checks.extend(devices.iter().flat_map(|device| without_file(&tree, device)));
        report = Report::of(report.checks);
    }
    if arguments.json {
        print_pretty_json(&report)?;
    } else {
        print(text(&report))?;
    }
    match report.changes {
        count if arguments.check && count > 0 => {
            Err(Failure::failed(format!("settings worth changing: {count}")))
        }
        _ => Ok(()),
    }
}

/// Checks of a device whose values are in no file, and which therefore work only on the machine
/// itself.
fn without_file(tree: &Tree, device: &device::Examined) -> Vec<Check> {
    let interfaces = tree.names(device.file("net"));
    let shown = interfaces
        .iter()
        .flat_map(|interface| programs::checks(&device.interface_subject(interface), interface));
    shown.chain(features::of(device)).collect()
}

fn examine(tree: &Tree, arguments: &args::Doctor) -> Outcome<Report> {
    let devices = device::chosen(tree, arguments.device.as_deref())?;
    let polling = polling(tree, arguments.cpus.as_deref())?;
    let mut checks = system::checks(tree);
    checks.extend(memory::checks(tree));
    checks.extend(process::checks(tree));
    checks.extend(polling.iter().flat_map(|&cpu| processors::checks(tree, cpu, &devices)));
    checks.extend(devices.iter().flat_map(|device| device::checks(tree, device, &polling)));
    Ok(Report::of(checks))
}

/// The processors that poll: those of the command line, else the isolated ones.
fn polling(tree: &Tree, wanted: Option<&str>) -> Outcome<BTreeSet<usize>> {
    let Some(wanted) = wanted else { return Ok(system::isolated(tree)) };
    let here = tree.read("sys/devices/system/cpu/present").and_then(|text| members(&text));
    let chosen = members(wanted).filter(|chosen| !chosen.is_empty());
    let chosen = chosen.ok_or_else(|| {
        Failure::usage(format!("--cpus {wanted}: processors are given like 2 or 2,4-7"))
    })?;
    match here.and_then(|here| chosen.difference(&here).next().copied()) {
        Some(absent) => Err(Failure::usage(format!("this machine has no processor {absent}"))),
        None => Ok(chosen),
    }
}

/// The report as text, grouped by subject.
fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let mut subject = "";
    for check in &report.checks {
        if check.subject != subject {
            lines.push(format!("{}{}", if subject.is_empty() { "" } else { "\n" }, check.subject));
            subject = &check.subject;
        }
        lines.extend(lines_of(check));
    }
    lines.push(format!("\nsettings worth changing: {} of {}", report.changes, read_of(report)));
    lines.join("\n")
}

/// The number of settings that were read.
fn read_of(report: &Report) -> usize {
    report.checks.iter().filter(|check| check.verdict != Verdict::Unknown).count()
}

fn lines_of(check: &Check) -> Vec<String> {
    let mark = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Change => "CHANGE",
        Verdict::Note => "note",
        Verdict::Unknown => "?",
    };
    let mut lines = vec![format!("  {mark:<7} {:<33} {}", check.name, escaped(&check.value))];
    if let Some(cure) = &check.cure {
        lines.push(format!("{:44}why:  {}", "", check.why));
        lines.push(format!("{:44}cure: {}", "", escaped(cure)));
    }
    lines
}
