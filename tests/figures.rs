//! Figures that the README repeats are those of the tables that the benchmarks print.
//!
//! `UPDATE=1 cargo test --test figures` writes them into the README.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_readme_has_the_tables_instructions_of_a_send() {
    let table = fs::read_to_string(root().join("docs/vs-libmlx5.md")).expect("the table");
    let (ours, rival) = send(&table).expect("a row `| send, one … | ours | libmlx5 |`");
    let figures = format!("takes {ours} instructions where libmlx5 takes {rival}");
    let path = root().join("README.md");
    let readme = fs::read_to_string(&path).expect("README.md");
    let (start, end) = claim(&readme).expect("`takes … instructions where libmlx5 takes …`");
    if std::env::var_os("UPDATE").is_some() {
        let updated = [&readme[..start], &figures, &readme[end..]].concat();
        return fs::write(path, updated).expect("README.md is writable");
    }
    assert_eq!(readme[start..end], figures, "UPDATE=1 cargo test --test figures mends it");
}

#[test]
fn the_row_and_the_claim_are_found() {
    let table = "| send, one SGE | 46 | 249 |\n| 32 writes | 30 | 137 |\n";
    assert_eq!(send(table), Some(("46", "249")));
    let text = "it takes 5 instructions where libmlx5 takes 24: see";
    let (start, end) = claim(text).expect("a claim");
    assert_eq!(&text[start..end], "takes 5 instructions where libmlx5 takes 24");
}

/// The row of one SEND with one SGE: what it takes here, and with libmlx5.
fn send(table: &str) -> Option<(&str, &str)> {
    let row = table.lines().find(|line| line.starts_with("| send, one"))?;
    let mut cells = row.split('|').map(str::trim).skip(2);
    Some((cells.next()?, cells.next()?))
}

/// Where the README's claim begins and ends.
fn claim(readme: &str) -> Option<(usize, usize)> {
    const MIDDLE: &str = " instructions where libmlx5 takes ";
    let middle = readme.find(MIDDLE)?;
    let start = readme[..middle].rfind("takes ")?;
    let rest = &readme[middle + MIDDLE.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    Some((start, middle + MIDDLE.len() + digits))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
