//! The commands in README.md and docs: the parser must accept each one.

use std::fs;
use std::path::{Path, PathBuf};

use clap::FromArgMatches;

use super::Cli;

/// Words of the docs that a reader replaces, and a value for each.
const PLACEHOLDERS: &[(&str, &str)] = &[("ADDRESS", "192.0.2.1"), ("$seed", "1")];

/// Characters that end a command in a line of a shell.
const ENDS: &[char] = &['#', '|', '&', ';', '`'];

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).expect("docs").map(|page| page.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    docs.chain(["README.md", "CONTRIBUTING.md"].map(|page| root.join(page))).collect()
}

/// The lines in fenced blocks of shell commands.
fn shell_lines(page: &str) -> impl Iterator<Item = &str> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let is_shell = |block: &&str| matches!(block.lines().next(), Some("sh" | "console" | "yaml"));
    blocks.filter(is_shell).flat_map(|block| block.lines().skip(1))
}

/// The words of the command `uverbs` in this line. `None` if it has another command. A prompt, a
/// key of YAML or the head of a loop may precede it.
fn command(line: &str) -> Option<Vec<&str>> {
    let leads = |word: &&str| matches!(*word, "$" | "-" | "run:" | "do");
    let body = line.find("; do ").map_or(line, |at| &line[at + 1..]);
    let words = body.split(ENDS).next()?.split_whitespace().skip_while(leads);
    let value = |word| PLACEHOLDERS.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    let words: Vec<_> = words.map(|word| value(word).unwrap_or(word)).collect();
    let is_ours = |word: &&&str| **word == "uverbs" || word.ends_with("/uverbs");
    words.first().filter(is_ours)?;
    Some(words)
}

fn check(words: &[&str]) -> Result<(), String> {
    let matches = Cli::grammar().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    crate::unused::check(&cli.command, &matches).map_err(|failure| failure.to_string())
}

#[test]
fn the_parser_accepts_each_command_of_the_docs() {
    let mut count = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).expect("UTF-8");
        for line in shell_lines(&page) {
            let Some(words) = command(line) else { continue };
            check(&words).unwrap_or_else(|error| panic!("{}: {line}\n{error}", path.display()));
            count += 1;
        }
    }
    assert!(count > 15, "only {count} commands found");
}

#[test]
fn commands_are_found_in_lines() {
    assert_eq!(command("$ uverbs run -- a b &"), Some(vec!["uverbs", "run", "--", "a", "b"]));
    assert_eq!(
        command("target/release/uverbs info # it"),
        Some(vec!["target/release/uverbs", "info"])
    );
    assert_eq!(command("cargo add uverbs --path x"), None);
    assert!(check(&["uverbs", "perf", "sideways"]).is_err());
}
